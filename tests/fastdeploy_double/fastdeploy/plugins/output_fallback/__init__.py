"""Plug-ins that register strategies of the output fallback (#7942), loaded once a process."""

from fastdeploy.plugins.utils import load_plugins_by_group

PLUGINS_GROUP = "fastdeploy.output_fallback_plugins"
plugins_loaded = False


def load_output_fallback_plugins():
    """Call each plug-in of the group, the first time."""
    global plugins_loaded
    if not plugins_loaded:
        plugins_loaded = True
        for register in load_plugins_by_group(group=PLUGINS_GROUP).values():
            register()
