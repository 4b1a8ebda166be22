"""Prints one line for each event of a request."""

import json

from fastdeploy.utils import get_logger

_logger = get_logger("trace", "trace.log")


def print(event, request_id, user):
    """Log `event` of a request."""
    _logger.info(json.dumps({"request_id": request_id, "user_id": user, "event": event.name}))
