"""What FastDeploy's log is told; its loggers do not propagate."""

import contextlib
import logging


@contextlib.contextmanager
def logged(note=lambda record: record):
    """A list that grows by ``note(record)`` with each record of FastDeploy's logger."""
    told = []

    class Keep(logging.Handler):
        def emit(self, record):
            told.append(note(record))

    keep, logger = Keep(), logging.getLogger("fastdeploy")
    logger.addHandler(keep)
    try:
        yield told
    finally:
        logger.removeHandler(keep)
