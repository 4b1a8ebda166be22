"""The FastDeploy plug-in: the only place that knows FastDeploy's classes."""
