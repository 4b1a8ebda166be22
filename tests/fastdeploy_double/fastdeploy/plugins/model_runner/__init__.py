"""The model runner's plug-in: exactly one, a callable without arguments that returns the class."""

from fastdeploy.plugins.utils import load_plugins_by_group

PLUGINS_GROUP = "fastdeploy.model_runner_plugins"


def load_model_runner_plugins():
    """The plug-in's class; AssertionError unless there is exactly one."""
    plugins = load_plugins_by_group(group=PLUGINS_GROUP)
    assert len(plugins) == 1, f"model runner plug-ins, one is needed: {sorted(plugins)}"
    factory = next(iter(plugins.values()))
    return factory()
