"""What the double's classes look like: taken from a recording of one FastDeploy version.

``FD_POSTPROC_DOUBLE`` names the recording: one of ../../shapes, by its name ("26", "25", "dev", ...), or a
file.  Classes are made of a recording (attributes, orders, defaults, slots, keys) and of the double's own
methods; a method that the version lacks is left out, one that it has beyond them can be called in vain.
"""

import dataclasses
import itertools
import json
import linecache
import os
import sys
import time
import types
import zlib
from collections import namedtuple
from enum import Enum
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "shapes"
VARIABLE, USUAL = "FD_POSTPROC_DOUBLE", "26"
FORMAT = 1


@cache
def recording():
    """The recording that this process uses.

    Raises
    ------
    ImportError
        If there is none of the name; the text names those that there are.
    """
    name = os.environ.get(VARIABLE) or USUAL
    file = Path(name) if name.endswith(".json") else FOLDER / f"{name}.json"
    if not file.is_file():
        known = ", ".join(sorted(path.stem for path in FOLDER.glob("*.json")))
        raise ImportError(f"{VARIABLE}={name}: no {file}; there are {known}, or give a file's path")
    told = json.loads(file.read_text())
    if told["format"] != FORMAT:
        raise ImportError(f"{file} has format {told['format']}, this reads {FORMAT}; record it anew")
    return told


def shape(name):
    """The recorded class `name`."""
    return recording()["classes"][name]


def attributes(name):
    """Names of a recorded class's attributes."""
    return [attribute for attribute, _ in shape(name)["attributes"]]


def fresh(value, kinds):
    """A recorded value; containers are new at each call, `kinds` makes what has a name."""
    if isinstance(value, list):
        return [fresh(item, kinds) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tuple":
        return tuple(fresh(item, kinds) for item in content)
    if kind == "dict":
        return {key: fresh(item, kinds) for key, item in content.items()}
    if kind == "enum":
        name, _, member = content.partition(".")
        return kinds[name][member]
    if kind == "now":
        return time.time()
    return kinds[content]()


def enumeration(name, place, base=()):
    """A recorded enumeration; empty if the version has none of that name."""
    members = recording()["enums"].get(name, [])
    return Enum(name, members, module=place, type=base or None)


# ---- classes -------------------------------------------------------------------------------------------


def made(name, place, own, kinds=None, special=None):
    """A recorded class with the double's own methods.

    Parameters
    ----------
    name, place : str
        Of the class and of the module that pickles find it in.
    own : type
        Whose methods are used, as far as the version has them.
    kinds : dict, optional
        What recorded values refer to by name: enumerations, classes.
    special : dict of str to str, optional
        By attribute, an expression of the constructor's arguments.
    """
    told, kinds = shape(name), kinds or {}
    if told["kind"] == "named tuple":
        tuple_class = namedtuple(name, attributes(name), module=place)
        for method, value in {**methods_of(own, told), "__doc__": own.__doc__}.items():
            setattr(tuple_class, method, value)
        return tuple_class
    body = methods_of(own, told)
    if "to_dict" in told:
        body["to_dict"] = _to_dict(told)
    body |= {"__module__": place, "__doc__": own.__doc__, "__qualname__": name}
    if told["fields"]:
        return _dataclass(name, told, body, kinds)
    body["__init__"] = _initializer(told, kinds, special or {})
    made_class = type(name, (), body)
    return (
        dataclasses.dataclass(repr=False, init=False, eq=False)(made_class)
        if _has_no_fields(told)
        else made_class
    )


def _has_no_fields(told):
    return told["kind"] == "dataclass"


def methods_of(own, told):
    """The methods of `own` that the version has, and those that it has beyond them."""
    generated = {"__init__", "__new__", "__repr__", "__eq__", "to_dict"}
    body = {
        name: value
        for name, value in vars(own).items()
        if name in told["methods"] or name in ("__hash__", "__reduce__")
    }
    for name in told["methods"]:
        if (
            name not in body
            and name not in generated
            and not name.startswith(("__", "_asdict", "_make", "_replace"))
        ):
            body[name] = _in_vain(name)
    return body


def _in_vain(name):
    def method(self, *arguments, **named):
        raise NotImplementedError(f"{name} is recorded of FastDeploy, but the double has no such method")

    method.__name__ = name
    return method


def _dataclass(name, told, body, kinds):
    defaults = {entry[0]: entry[1:] for entry in told["parameters"]}
    fields = []
    for field in told["fields"]:
        options = {}
        if defaults[field]:
            value = fresh(defaults[field][0], kinds)
            key = "default_factory" if isinstance(value, (list, dict)) else "default"
            options[key] = type(value) if key == "default_factory" else value
        fields.append((field, object, dataclasses.field(**options)))
    return dataclasses.make_dataclass(
        name, fields, namespace=body, slots=told["slots"], repr="__repr__" not in body
    )


def _initializer(told, kinds, special):
    """A constructor with the recorded arguments that sets the recorded attributes, in order."""
    names = [entry[0] for entry in told["parameters"]]
    followers = told.get("length_is_also", ())
    special = {**special, **{name: "prompt_token_ids_len" for name in followers if "." not in name}}
    space = {"fresh": fresh, "kinds": kinds, "default": {}, "told": {}}
    arguments = ["self"]
    for entry in told["parameters"]:
        if len(entry) == 1:
            arguments.append(entry[0])
            continue
        space["default"][entry[0]] = fresh(entry[1], kinds)  # made once, shared by all calls, as in a def
        arguments.append(f"{entry[0]}=default[{entry[0]!r}]")
    lines = []
    for name, value in told["attributes"]:
        space["told"][name] = value
        new = f"fresh(told[{name!r}], kinds)"
        if name in special:
            text = special[name]
        elif name not in names:
            text = repr(value) if not isinstance(value, (list, dict)) else new
        elif value is None or value == dict(map(_pair, told["parameters"])).get(name):
            text = name
        else:
            text = f"{new} if {name} is None else {name}"
        lines.append(f"    self.{name} = {text}")
    lines += [f"    self.{name} = prompt_token_ids_len" for name in followers if "." in name]
    return _function("__init__", f"def __init__({', '.join(arguments)}):\n" + "\n".join(lines), space)


def _function(name, text, space):
    """A function with a source that can be read."""
    file = f"<double {zlib.crc32(text.encode()):08x}>"
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    module = types.ModuleType(f"fastdeploy.double_{next(_numbers)}")  # the gate wants globals of a module
    sys.modules[module.__name__] = module
    vars(module).update(space)
    exec(compile(text, file, "exec"), vars(module))
    return vars(module)[name]


_numbers = itertools.count()


def _pair(entry):
    return entry[0], entry[1] if len(entry) > 1 else None


def _to_dict(told):
    """to_dict as the version has it: a copy of all fields, or the attributes under their keys."""
    if told["to_dict_copies"]:
        return _copied_dict
    shown, later = [], []
    for key, name, how, *condition in told["to_dict"]:
        value = f"self.{name}"
        if how != "itself":
            value = f"None if {value} is None else {value}.to_dict()"
        if condition:
            test = f"self.{name} is not None" if condition == ["unless None"] else f"self.{name}"
            later.append(f"    if {test}:\n        told[{key!r}] = {value}\n")
        else:
            assert not later, "a key that is always there comes after one that is not"
            shown.append(f"        {key!r}: {value},\n")
    text = f"def to_dict(self):\n    told = {{\n{''.join(shown)}    }}\n{''.join(later)}    return told\n"
    return _function("to_dict", text, {})


def _copied_dict(self):
    return dict(dataclasses.asdict(self).items())  # the outer copy is FastDeploy's too
