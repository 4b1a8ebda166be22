"""Loggers.  Nothing below INFO is shown unless FD_DEBUG is set, and the steady path logs nothing at INFO."""

import logging

from fastdeploy import envs


def get_logger(name, file_name=None):
    """A logger below "fastdeploy".

    FastDeploy writes to `file_name` and nowhere else; here nothing is written until somebody adds a handler.
    """
    logger = logging.getLogger(f"fastdeploy.{name}")
    logger.setLevel(logging.DEBUG if envs.FD_DEBUG else logging.INFO)
    return logger


_root = logging.getLogger("fastdeploy")
_root.addHandler(logging.NullHandler())
_root.propagate = False


def get_base_request_id(compound_id):
    """A request's name without the number of its choice."""
    return compound_id.rpartition("::n::")[0] or compound_id


llm_logger = get_logger("fastdeploy", "fastdeploy.log")
spec_logger = get_logger("speculate", "speculate.log")
scheduler_logger = get_logger("scheduler", "scheduler.log")
api_server_logger = get_logger("api_server", "api_server.log")
data_processor_logger = get_logger("data_processor", "data_processor.log")
