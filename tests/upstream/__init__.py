"""FastDeploy as it may become: what the plug-in does if FastDeploy changes in one small way."""
