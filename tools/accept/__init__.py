"""What the gate knows of FastDeploy: tries ours beside a source tree, and records the tree's statements."""
