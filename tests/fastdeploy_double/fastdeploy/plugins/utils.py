"""Entry points of a group, filtered by FD_PLUGINS."""

from importlib.metadata import entry_points

from fastdeploy import envs
from fastdeploy.utils import llm_logger


def load_plugins_by_group(group):
    """{name: loaded object} of the allowed entry points; one that cannot be loaded is logged and left out."""
    allowed = envs.FD_PLUGINS
    plugins = {}
    for entry_point in entry_points(group=group):
        llm_logger.info("plug-in in group %s: %s = %s", group, entry_point.name, entry_point.value)
        if allowed is not None and entry_point.name not in allowed:
            continue
        try:
            plugins[entry_point.name] = entry_point.load()
        except Exception:
            llm_logger.exception("plug-in %s cannot be imported", entry_point.name)
    return plugins
