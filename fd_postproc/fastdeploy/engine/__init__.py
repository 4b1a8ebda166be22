"""The engine's side: a replacement for FastDeploy's TokenProcessor."""
