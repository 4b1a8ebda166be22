"""What FastDeploy's API server does with a result, restated: held to recorded answers (tests/golden_chunks)."""
