"""Plays loads through one engine's code, in a process of the engine's environment; prints JSON lines."""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .clock import measure
from .load import Load, Model


def play(engine: str, load: Load, folder: Path, **options: Any) -> Iterator[dict[str, Any]]:
    """A row for each contender; one that cannot run says why."""
    module, model = importlib.import_module(f"{__package__}.of_{engine}"), Model(folder)
    for name, make in module.contenders(load, model, **options).items():
        yield {
            "contender": name,
            "load": load.as_json(),
            **_apart(lambda make=make: measure(make(), load, model)),
        }


def _apart(call: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Run in a process of its own, whose memory no other contender has used."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            found = call()
        except BaseException as error:
            traceback.print_exc()
            found = {"left out": f"{type(error).__name__}: {error}"[:500]}
        with os.fdopen(writing, "w") as file:
            json.dump(found, file)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        told = file.read()
    _, status = os.waitpid(child, 0)
    return dict(json.loads(told)) if told else {"left out": f"exit status {status}"}


def versions(engine: str) -> dict[str, str]:
    """Of what its answers depend on."""
    module = importlib.import_module(f"{__package__}.of_{engine}")
    found = {}
    for name in module.PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engine")
    parser.add_argument("loads", help="JSON: a list of loads")
    parser.add_argument("options", nargs="?", default="{}", help="JSON, for the engine's module")
    arguments = parser.parse_args()
    importlib.import_module(f"{__package__}.of_{arguments.engine}").load_engine()
    with tempfile.TemporaryDirectory() as folder:
        for load in json.loads(arguments.loads):
            for row in play(arguments.engine, Load(**load), Path(folder), **json.loads(arguments.options)):
                print(json.dumps(row), flush=True)
    print(json.dumps({"versions": versions(arguments.engine)}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
