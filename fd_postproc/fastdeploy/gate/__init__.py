"""The gate: which of FastDeploy's code is known, and what is replaced in it."""
