"""Plays loads through one engine's code, in a process of the engine's environment, turn by turn.

A program that is told what to do in lines of JSON, and answers each with one:

    {"begin": LOAD, "options": {...}}    starts the contenders; what each has to say, by name
    {"pass": NAME}                       one pass of a contender
    {"end": true}                        ends them; what is known of each, by name
    {"versions": true}                   the versions of what its answers depend on
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from .clock import Contender, Measured
from .load import Load, Model


class Waiting:
    """A contender in a process of its own, whose memory no other has used; it waits for its turn."""

    def __init__(
        self, make: Callable[[], Contender], load: Load, model: Model, others: list[Waiting]
    ) -> None:
        for_child, self._asking = os.pipe()
        self._answers, for_us = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            for one in others:
                one.close()
            os.close(self._asking)
            os.close(self._answers)
            with os.fdopen(for_child) as asked, os.fdopen(for_us, "w", buffering=1) as answers:
                _serve(make, load, model, asked, answers)
            os._exit(0)
        os.close(for_child)
        os.close(for_us)
        self._lines = os.fdopen(self._answers)

    def told(self) -> dict[str, Any]:
        """Its next answer."""
        line = self._lines.readline()
        return dict(json.loads(line)) if line else {"left out": "its process has ended"}

    def ask(self, what: str) -> dict[str, Any]:
        """Its answer to a question."""
        os.write(self._asking, f"{what}\n".encode())
        return self.told()

    def close(self) -> None:
        """Close both pipes."""
        os.close(self._asking)
        self._lines.close()

    def end(self) -> None:
        """End the process."""
        self.close()
        os.waitpid(self._pid, 0)


def _serve(make: Callable[[], Contender], load: Load, model: Model, asked: IO[str], answers: IO[str]) -> None:
    """What a contender's process does: an answer when it is ready, and one to each line."""
    try:
        measured = Measured(make(), load, model)
        answers.write(f"{json.dumps(measured.told())}\n")
        for line in asked:
            said = measured.one_pass() if line.strip() == "pass" else measured.told()
            answers.write(f"{json.dumps(said)}\n")
    except BaseException as error:
        traceback.print_exc()
        answers.write(f"{json.dumps({'left out': f'{type(error).__name__}: {error}'[:500]})}\n")


class Stage:
    """The contenders of an engine at one load."""

    def __init__(self, engine: str, load: Load, folder: Path, options: dict[str, Any]) -> None:
        module, model = importlib.import_module(f"{__package__}.of_{engine}"), Model(folder)
        self._waiting: dict[str, Waiting] = {}
        self.told: dict[str, dict[str, Any]] = {}
        for name, make in module.contenders(load, model, **options).items():
            one = Waiting(make, load, model, [*self._waiting.values()])
            self.told[name] = one.told()
            if "left out" in self.told[name]:
                one.end()
            else:
                self._waiting[name] = one

    def one_pass(self, name: str) -> dict[str, Any]:
        """A contender's next pass."""
        return self._waiting[name].ask("pass")

    def end(self) -> dict[str, dict[str, Any]]:
        """What is known of each contender; their processes end."""
        told = {name: one.ask("told") for name, one in self._waiting.items()}
        for one in self._waiting.values():
            one.end()
        return told


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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("engine")
    engine = parser.parse_args().engine
    # What a library prints goes elsewhere: standard output has answers only.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    importlib.import_module(f"{__package__}.of_{engine}").load_engine()
    stage: Stage | None = None
    with tempfile.TemporaryDirectory() as folder:
        for line in sys.stdin:
            asked = json.loads(line)
            if "begin" in asked:
                stage = Stage(engine, Load(**asked["begin"]), Path(folder), asked["options"])
                said: dict[str, Any] = stage.told
            elif "versions" in asked:
                said = versions(engine)
            else:
                assert stage is not None
                said = stage.one_pass(asked["pass"]) if "pass" in asked else stage.end()
            answers.write(f"{json.dumps(said)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
