"""The token processor's plug-in: at most one, a callable without arguments that returns the class."""

from fastdeploy.plugins.utils import load_plugins_by_group

PLUGINS_GROUP = "fastdeploy.token_processor_plugins"


def load_token_processor_plugins():
    """The plug-in's class; AssertionError if there are several, StopIteration if there is none."""
    plugins = load_plugins_by_group(group=PLUGINS_GROUP)
    assert len(plugins) < 2, f"several token processor plug-ins: {sorted(plugins)}"
    factory = next(iter(plugins.values()))
    return factory()
