"""The engine process: a class in the place of FastDeploy's TokenProcessor."""
