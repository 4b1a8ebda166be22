"""How many entries fd_postproc's tables have in this process, once a minute, in a file for each process."""

import collections
import functools
import gc
import itertools
import json
import os
import threading
import time
import types
from pathlib import Path

EVERY = 60.0
NAMED = (types.ModuleType, type, types.FunctionType, functools._lru_cache_wrapper)
TABLES = (dict, collections.OrderedDict, list, set, bytearray, collections.deque)


def begin():
    """From now on in this process, and in each that it forks, where ``FD_SERVICE_TABLES`` names a folder."""
    folder = os.environ.get("FD_SERVICE_TABLES")
    if folder:
        _keep_what_is_frozen()
        _start(folder)
        os.register_at_fork(after_in_child=functools.partial(_start, folder))


_frozen = []
"""Objects of fd_postproc that it has frozen: the collector names them no more."""


def _keep_what_is_frozen():
    freeze = gc.freeze

    def keeps():
        _frozen.extend(_owners())
        freeze()

    gc.freeze = keeps


def _start(folder):
    threading.Thread(target=_write, args=(Path(folder),), daemon=True).start()


def _write(folder):
    while True:
        time.sleep(EVERY)
        fresh = folder / f"{os.getpid()}.new"  # a reader sees no half of it
        fresh.write_text(json.dumps(sizes()))
        fresh.rename(folder / str(os.getpid()))


def sizes():
    """Entries by owner and kind of table, over all objects, classes, modules and functions of fd_postproc."""
    found = collections.Counter()
    for owner in itertools.chain(_frozen, _owners()):
        name = _name(owner if type(owner) in NAMED else type(owner))
        for sort, size in _tables(owner):
            found[f"{name} {sort}"] += size
    return {name: size for name, size in found.items() if size}


def _owners():
    """What the collector knows of fd_postproc: a class is looked at once, since there are 400,000 objects."""
    known = {}
    for one in gc.get_objects():
        kind = type(one)
        if kind not in known and kind not in NAMED:
            known[kind] = _is_ours(kind)
        if known[kind] if kind in known else _is_ours(one):
            yield one


def _name(named):
    if isinstance(named, types.ModuleType):
        return named.__name__
    return f"{getattr(named, '__module__', '')}.{named.__qualname__}"


def _is_ours(named):
    return _name(named).startswith("fd_postproc")


def _tables(owner):
    if isinstance(owner, functools._lru_cache_wrapper):
        yield "cache", owner.cache_info().currsize
    if isinstance(owner, TABLES):
        yield "itself", len(owner)
    parts = gc.get_referents(owner)
    if isinstance(owner, (types.ModuleType, type)):
        parts = [part for name, part in list(vars(owner).items()) if not name.startswith("__")]
    elif isinstance(owner, types.FunctionType):
        parts = [part for cell in owner.__closure__ or () for part in gc.get_referents(cell)]
    elif any(type(part) is dict for part in parts):
        attributes = getattr(owner, "__dict__", None)
        parts = [one for part in parts for one in (list(part.values()) if part is attributes else [part])]
    for part in parts:
        if type(part) in TABLES:  # a class of fd_postproc's is an owner itself
            yield type(part).__name__, len(part)
