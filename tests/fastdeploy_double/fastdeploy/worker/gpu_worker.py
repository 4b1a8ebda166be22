"""Which model runner this process uses; decided at import."""

from fastdeploy.plugins.model_runner import load_model_runner_plugins
from fastdeploy.utils import llm_logger


def _model_runner_class():
    try:
        plugin = load_model_runner_plugins()
        llm_logger.info(f"model runner plug-in: {plugin}")
        return plugin
    except BaseException:  # FastDeploy's is a bare except: KeyboardInterrupt and SystemExit vanish as well
        from fastdeploy.worker import gpu_model_runner

        return gpu_model_runner.GPUModelRunner


ModelRunner = _model_runner_class()
