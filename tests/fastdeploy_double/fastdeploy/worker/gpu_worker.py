"""The worker; its import loads the models and the callers of the save ops."""

from fastdeploy.worker import gpu_model_runner  # noqa: F401
