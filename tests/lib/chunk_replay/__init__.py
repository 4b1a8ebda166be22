"""Recorded answers of FastDeploy's API server, played back."""
