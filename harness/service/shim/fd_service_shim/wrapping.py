"""A tracer, as people install one: it wraps functions of FastDeploy's, and counts their calls."""

import functools
import json
import mmap
import os
import struct
import threading
import types
from pathlib import Path

PLAN = "FD_SERVICE_WRAPPED"
"""Variable: a JSON file with ``how``, ``functions`` as ``module:Class.name``, and the folder of ``calls``."""


class _Calls:
    """How often each function has been called by this process: eight bytes each in a file of its own."""

    def __init__(self, folder, count):
        self._folder, self._size, self._lock = Path(folder), 8 * count, threading.Lock()
        self._pid = self._map = None

    def add(self, number):
        with self._lock:
            if self._pid != os.getpid():  # a forked child counts for itself
                self._pid = os.getpid()
                path = self._folder / str(self._pid)
                path.write_bytes(bytes(self._size))
                with path.open("r+b") as file:
                    self._map = mmap.mmap(file.fileno(), self._size)
            (before,) = struct.unpack_from("Q", self._map, 8 * number)
            struct.pack_into("Q", self._map, 8 * number, before + 1)


class _Callable:
    """A wrapper that is an object, with ``__call__``."""

    def __init__(self, function, note):
        self._note = note
        functools.update_wrapper(self, function)

    def __get__(self, instance, owner=None):
        return self if instance is None else functools.partial(self, instance)

    def __call__(self, *args, **kwargs):
        self._note()
        return self.__wrapped__(*args, **kwargs)


def _wraps(function, note):
    @functools.wraps(function)
    def traced(*args, **kwargs):
        note()
        return function(*args, **kwargs)

    return traced


def _wrapt(function, note):
    import wrapt

    @wrapt.decorator
    def traced(wrapped, instance, args, kwargs):
        note()
        return wrapped(*args, **kwargs)

    return traced(function)


def _patch(function, note):
    def patched(*args, **kwargs):  # an earlier plug-in's: nothing says what it stands for
        note()
        return function(*args, **kwargs)

    return patched


WAYS = {"wraps": _wraps, "wrapt": _wrapt, "class": _Callable, "patch": _patch}


def planned():
    """What is to be done after the first import of each module; empty without a plan."""
    if PLAN not in os.environ:
        return {}
    plan = json.loads(Path(os.environ[PLAN]).read_text())
    calls, way = _Calls(plan["calls"], len(plan["functions"])), WAYS[plan["how"]]
    names = {}
    for number, text in enumerate(plan["functions"]):
        module, _, name = text.partition(":")
        names.setdefault(module, []).append((name, functools.partial(calls.add, number)))
    return {module: functools.partial(_wrap_all, of_it, way) for module, of_it in names.items()}


def _wrap_all(names, way, module):
    for name, note in names:
        owner, _, attribute = name.rpartition(".")
        holder = vars(module).get(owner) if owner else module
        value = vars(holder).get(attribute) if holder is not None else None
        if type(value) in (staticmethod, classmethod):
            setattr(holder, attribute, type(value)(way(value.__func__, note)))
        elif type(value) is property:
            setattr(holder, attribute, property(way(value.fget, note), value.fset, value.fdel))
        elif type(value) is types.FunctionType:
            setattr(holder, attribute, way(value, note))
