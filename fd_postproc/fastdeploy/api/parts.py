"""The parts of the API side beside the chunks: each put in where it is known to do the same, by itself."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

from .connections import UTILS
from .detokenising import PROCESSORS
from .plans import NotPlain
from .responses import API_SERVER
from .weights import ENGINE_CLIENT


class Part(NamedTuple):
    """What is put into one of FastDeploy's modules when that has been imported."""

    module: str
    what: str  # for the log and the doctor
    is_program: bool = False  # which reads the command line and fetches a model when it is imported


PARTS = {
    "connections": Part(UTILS, "the connections"),
    "unpacking": Part(UTILS, "the unpacking of results"),
    "queues": Part(UTILS, "the queues of results"),
    "weights": Part(ENGINE_CLIENT, "the look at the weights' state"),
    "detokenising": Part(PROCESSORS, "the texts of new tokens"),
    "responses": Part(API_SERVER, "the JSON of whole answers", is_program=True),
}
"""By the name of ours, whose ``install`` is called, in that order."""


def put_in(name: str, module: Any) -> str | None:
    """Put a part in.

    Parameters
    ----------
    name : str
        One of `PARTS`.
    module : module
        FastDeploy's.

    Returns
    -------
    str or None
        Why FastDeploy's own stays; None: ours is in.
    """
    try:
        importlib.import_module(f".{name}", __package__).install(module)
    except (NotPlain, AttributeError, KeyError) as reason:
        return str(reason) or type(reason).__name__
    return None
