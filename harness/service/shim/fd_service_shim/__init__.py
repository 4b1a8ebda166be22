"""What a machine with a GPU would give FastDeploy, imitated without editing it."""
