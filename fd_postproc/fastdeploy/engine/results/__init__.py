"""Result objects of a step: bulk creation, and subclasses of FastDeploy's result classes."""
