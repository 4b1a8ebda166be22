"""The worker's side: replacements for FastDeploy's save ops."""
