"""The worker process: our save ops in the place of FastDeploy's."""
