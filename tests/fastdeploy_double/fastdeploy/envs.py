"""Environment switches that the version has, with its defaults; each access reads the environment anew."""

import os

from fastdeploy._shapes import recording


def _reader(name, usual):
    """What reads a switch as a value of its default's kind; one without a default is a list of names."""
    if name == "FD_PLUGINS":
        return lambda: os.environ[name].split(",") if name in os.environ else None
    if isinstance(usual, bool):
        return lambda: bool(int(os.getenv(name, int(usual))))
    if isinstance(usual, (int, float)):
        return lambda: type(usual)(os.getenv(name, usual))
    return lambda: os.getenv(name, usual)


environment_variables = {name: _reader(name, usual) for name, usual in recording()["switches"].items()}
environment_variables.setdefault("FD_PLUGINS", _reader("FD_PLUGINS", None))
environment_variables.setdefault("FD_USE_HF_TOKENIZER", _reader("FD_USE_HF_TOKENIZER", False))
environment_variables.setdefault("INFERENCE_MSG_QUEUE_ID", _reader("INFERENCE_MSG_QUEUE_ID", "0"))


def __getattr__(name):
    if name in environment_variables:
        return environment_variables[name]()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return list(environment_variables)
