"""The stock model runner: a name to fall back to.  Its import loads the models and the save ops' callers."""

import fastdeploy.model_executor.models
import fastdeploy.model_executor.pre_and_post_process
import fastdeploy.spec_decode.mtp_cuda  # noqa: F401


class GPUModelRunner:
    """Does nothing here; a plug-in's runner is told from it by its class."""
