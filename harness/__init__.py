"""What runs FastDeploy's own programs around the plug-in: the integration harness."""
