"""The models; importing them calls the plug-ins that register more."""

from fastdeploy.plugins.model_register import load_model_register_plugins

load_model_register_plugins()
