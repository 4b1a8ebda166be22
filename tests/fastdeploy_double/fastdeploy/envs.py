"""Environment switches; each access reads the environment anew."""

import os


def _flag(name, default="0"):
    return lambda: bool(int(os.getenv(name, default)))


def _number(name, default):
    return lambda: int(os.getenv(name, default))


def _plugins():
    names = os.getenv("FD_PLUGINS")
    return None if names is None else names.split(",")


environment_variables = {
    "ENABLE_V1_KVCACHE_SCHEDULER": _number("ENABLE_V1_KVCACHE_SCHEDULER", "1"),
    "FD_DEBUG": _number("FD_DEBUG", "0"),
    "FD_ENABLE_INTERNAL_ADAPTER": _number("FD_ENABLE_INTERNAL_ADAPTER", "0"),
    "FD_ENABLE_RETURN_TEXT": _flag("FD_ENABLE_RETURN_TEXT"),
    "FD_PLUGINS": _plugins,
    "FD_TOKEN_PROCESSOR_HEALTH_TIMEOUT": _number("FD_TOKEN_PROCESSOR_HEALTH_TIMEOUT", "120"),
    "FD_USE_GET_SAVE_OUTPUT_V1": _flag("FD_USE_GET_SAVE_OUTPUT_V1"),
    "INFERENCE_MSG_QUEUE_ID": lambda: os.getenv("INFERENCE_MSG_QUEUE_ID", "0"),
    "ZMQ_SEND_BATCH_DATA": _number("ZMQ_SEND_BATCH_DATA", "1"),
}


def __getattr__(name):
    if name in environment_variables:
        return environment_variables[name]()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return list(environment_variables)
