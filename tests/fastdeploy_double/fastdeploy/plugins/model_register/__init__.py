"""Plug-ins that register models: any number, called without arguments, once a process."""

from fastdeploy.plugins.utils import load_plugins_by_group

PLUGINS_GROUP = "fastdeploy.model_register_plugins"
plugins_loaded = False


def load_model_register_plugins():
    """Call all plug-ins; what one raises reaches the caller, and nobody is called again."""
    global plugins_loaded
    if plugins_loaded:
        return
    plugins_loaded = True
    for register in load_plugins_by_group(group=PLUGINS_GROUP).values():
        register()
