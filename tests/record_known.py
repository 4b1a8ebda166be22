"""Record the double's statements for the gate: ``python -m tests.record_known`` writes ``known_double.json``.

The package's record has FastDeploy's own only; tests name this one in ``FD_POSTPROC_KNOWN``.
"""

import contextlib
import importlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path

from fd_postproc.fastdeploy.gate import judgements, record
from fd_postproc.fastdeploy.gate.data import digest_of, value_in
from fd_postproc.fastdeploy.gate.judgements import gate
from fd_postproc.fastdeploy.gate.seams import SEAMS
from fd_postproc.fastdeploy.gate.statements import node_of, statements, whole_of
from tests.lib.fakes import DecodeLog

FILE = Path(__file__).with_name("known_double.json")
ROOT = Path(__file__).resolve().parents[1]
MARK = "known: "
VERSIONS = ("26", "25", "dev", "develop")
"""The double's own text is the same in all of them: the signs of its statements are those of the first."""


def recorded():
    """The statements of the FastDeploy on the import path, by seam and function."""
    reading = importlib.import_module("tools.accept.reading")
    modules = {name for row in SEAMS.values() for name in row.modules}
    modules |= {
        f"fastdeploy.{place.partition(':')[0]}"
        for row in SEAMS.values()
        for place in row.stands_for
        if ":" in place and not place.startswith("=")
    }
    for name in sorted(modules):
        with contextlib.suppress(ImportError, RuntimeError):
            importlib.import_module(name)
    gate.judge = lambda *arguments, **named: judgements.Verdict((), {})
    classes = importlib.import_module("tools.accept.classes")
    (pair, _), facts = classes.prepared(sys.modules["fastdeploy.output.token_processor"])
    pair.box.close()
    mark = facts.mark
    told = {}
    for seam, row in SEAMS.items():
        found, more = [], []
        for name in row.modules:
            if name in sys.modules:
                found += judgements.functions_of(row, sys.modules[name])
        if seam == reading.PROCESSOR:
            more = _helpers(row, found, reading)
        if seam == "decode log":
            found = list(judgements.functions_of(row, DecodeLog))
        for name, function in found + more:
            into = told.setdefault(seam, {}).setdefault(name, {})
            digests = [one.digest for one in statements(node_of(function))]
            digests += [whole_of(function)] if digests else []
            into |= dict.fromkeys(digests, mark if row.facts else "")
        for name in row.data:
            where, _, attribute = name[1:].rpartition(":")
            with contextlib.suppress(ImportError):
                module = importlib.import_module(f"fastdeploy.{where}")
                told.setdefault(seam, {})[name] = {digest_of(value_in(module, attribute)): ""}
    return told


def _helpers(row, found, reading):
    known, todo, more = {name for name, _ in found}, [*found], []
    while todo:
        _, function = todo.pop()
        node = node_of(function)
        for name in reading.asked_of_self(node) if node is not None else ():
            place = f"TokenProcessor.{name}"
            if place not in known and name not in reading.called_by_ours():
                known.add(place)
                fresh = [one for one in judgements.functions_of(row, None, [place]) if one[0] == place]
                more += fresh
                todo += fresh
    return more


def main():
    """Record every version of the double."""
    union, mark = {}, ""
    for version in VERSIONS:
        done = subprocess.run(
            [sys.executable, "-m", "tests.record_known", "one"],
            env={**os.environ, "FD_POSTPROC_DOUBLE": version, "FD_POSTPROC_API": "0"}
            | {"PYTHONPATH": os.pathsep.join([str(ROOT / "tests/fastdeploy_double"), str(ROOT)])},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        if MARK not in done.stdout:
            print(version, done.stderr[-600:])
            continue
        told = record.unpacked(json.loads(done.stdout.rpartition(MARK)[2]))
        marked = [known for functions in told.values() for known in functions.values() if any(known.values())]
        mark = mark or max(marked[0].values())
        for known in marked:
            known.update(dict.fromkeys(known, mark))
        union = record.joined(union, told)
    FILE.write_text(json.dumps(record.packed(union), indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:]:
        with contextlib.redirect_stderr(io.StringIO()):
            told = recorded()
        print(MARK + json.dumps(record.packed(told)))
    else:
        main()
