"""What a worker sends of a request where steps come as objects."""

from enum import Enum
from typing import Any

from fastdeploy._shapes import made


class DecoderState(Enum):
    """What kind of token it is."""

    TEXT = "text"
    IMAGE = "image"
    VIDEO = "video"
    AUDIO = "audio"


class _StreamTransferData:
    """One request of a step."""


StreamTransferData: Any = made("StreamTransferData", __name__, _StreamTransferData)
