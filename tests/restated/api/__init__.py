"""What FastDeploy's API server does with a result, restated; held to tests/golden_chunks."""
