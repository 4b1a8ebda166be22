"""The model runner: nothing but what its import loads."""

import fastdeploy.model_executor.models
import fastdeploy.model_executor.pre_and_post_process
import fastdeploy.spec_decode.mtp_cuda  # noqa: F401
