"""Names of the events of a request that the version knows."""

from fastdeploy._shapes import enumeration

LoggingEventName = enumeration("LoggingEventName", __name__)
