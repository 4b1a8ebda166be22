"""May the plug-in work with this FastDeploy?  Both classes do the same canned steps, and must agree."""
