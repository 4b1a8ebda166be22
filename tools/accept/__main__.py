"""Record what the gate knows: ``python -m tools.accept TREE...`` or ``--history REPOSITORY RANGE``.

A tree's statements that are not recorded are printed from the tree, as file, line and text.  Then ours runs
beside FastDeploy's own code in a process of its own; where both do the same, the statements are recorded, as
digests.  FastDeploy's requirements have to be installed, and on a machine without a GPU the folder
``harness/service/shim`` is first on ``PYTHONPATH``.
"""

import argparse
import contextlib
import importlib
import io
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from fd_postproc.fastdeploy.gate import joined, packed, signs_of, unpacked
from fd_postproc.fastdeploy.seams import SEAMS
from tools.accept import prove, reading

RECORD = Path(__file__).resolve().parents[2] / "fd_postproc" / "data" / "fastdeploy_code.json"
SOCKET = {
    f"TokenProcessor.{name}"
    for name in (
        *("process_sampling_results_use_zmq", "_process_batch_output_use_zmq", "_process_per_token"),
        "_reschedule_preempt_task_use_zmq",
    )
} | {"inter_communicator.zmq_server:ZmqIpcServer.recv_pyobj"}
"""Functions that only steps over ZeroMQ need: recorded where ours is equal on that path."""
BEFORE = (
    *("paddle", "paddleformers.transformers", "transformers", "numpy", "msgpack", "prometheus_client", "zmq"),
    *("fastapi", "openai", "aiohttp", "aiozmq", "fd_postproc.ops"),
)


def main():
    options = _options()
    record = unpacked(json.loads(options.record.read_text())) if options.record.exists() else {}
    for name in BEFORE:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    refused = 0
    trees = ((tree, tree.name, "") for tree in options.trees)
    for tree, name, day in _of_history(options.history) if options.history else trees:
        record, told = accepted(tree, record, options.rounds, options.show)
        refused += bool(told)
        print(f"{name}  {day}  {told or 'accepted'}", flush=True)
        options.record.write_text(json.dumps(packed(record), indent=1) + "\n")
    return 1 if refused else 0


def _options():
    parser = argparse.ArgumentParser(prog="python -m tools.accept", description=__doc__)
    parser.add_argument("trees", nargs="*", type=Path, metavar="TREE")
    parser.add_argument("--history", nargs=2, metavar=("REPOSITORY", "RANGE"), help="of first parents")
    parser.add_argument("--record", type=Path, default=RECORD, help="FILE for FD_POSTPROC_KNOWN, say")
    parser.add_argument("--rounds", type=int, default=3200, help="random scripts for each comparison")
    parser.add_argument("--show", action="store_true", help="print new statements")
    return parser.parse_args()


def accepted(tree, record, rounds, show=True):
    """The record with a tree's statements, and what of it stays unknown, in words."""
    found = reading.functions(tree, record)
    new = {}
    for one in found:
        known = record.get(one.seam, {}).get(one.name, {})
        lines = sorted({each.line for each in one.statements if each.digest not in known})
        if lines:
            new.setdefault(one.seam, []).append((one, lines))
    if show:
        _print(new)
    marks = {
        record.get(one.seam, {}).get(one.name, {}).get(each.digest, "")
        for one in found
        if one.seam == reading.PROCESSOR and one.name not in SOCKET
        for each in one.statements
    }
    facts = SEAMS[reading.PROCESSOR].facts
    if any(len(signs) != 1 for signs in signs_of(marks, facts).values()):
        new.setdefault(reading.PROCESSOR, [])
    data = {
        seam: {place: {digest: ""} for place, digest in places.items()}
        for seam, places in reading.data(tree).items()
    }
    for seam, places in data.items():
        if any(
            not digests.keys() <= record.get(seam, {}).get(place, {}).keys()
            for place, digests in places.items()
        ):
            new.setdefault(seam, [])
    groups = [name for name, seams in prove.GROUPS.items() if any(seam in new for seam in seams)]
    if not groups:
        return with_texts(record, found), ""
    told = _in_a_fork(tree, groups, rounds)
    if "error" in told:
        return record, told["error"]
    mark = told["facts"].get("mark", "")
    more, left, odd = {}, {}, prove.parsers(tree)
    for one in found:
        reason = told["seams"].get(one.seam, "not tried")
        if one.seam == reading.PROCESSOR and one.name in SOCKET:
            reason = told["seams"].get("token processor, socket", "not tried")
        if one.seam not in {seam for group in groups for seam in prove.GROUPS[group]}:
            continue
        if one.seam == reading.PARSERS and not reason:
            reason = odd.get(one.name.partition(".")[0], "")
        if reason:
            left.setdefault(reason, set()).add(f"{one.seam}{', ZeroMQ' if one.name in SOCKET else ''}")
            continue
        into = more.setdefault(one.seam, {}).setdefault(one.name, {})
        for each in one.statements:
            into[each.digest] = mark if one.seam == reading.PROCESSOR and one.name not in SOCKET else ""
    equal = {seam: places for seam, places in data.items() if seam in more}
    return with_texts(joined(record, more, equal), found), "; ".join(
        f"{', '.join(sorted(seams))}: {why}" for why, seams in left.items()
    )


def with_texts(record, found):
    """The record with the whole texts of functions whose statements are known: a start reads no more then."""
    more = {}
    for one in found:
        known = record.get(one.seam, {}).get(one.name, {})
        marks = {known.get(each.digest) for each in one.statements}
        if None in marks:
            continue
        signs = signs_of(marks, SEAMS[one.seam].facts).values()
        if all(len(each) < 2 for each in signs):
            mark = "".join("".join(each) or "." for each in signs).rstrip(".")
            more.setdefault(one.seam, {}).setdefault(one.name, {})[one.whole] = mark
    return joined(record, more)


def _print(new):
    shown = set()
    for of_seam in new.values():
        for one, lines in of_seam:
            text = one.file.read_text().splitlines()
            for line in lines:
                if (one.file, line) not in shown:
                    shown.add((one.file, line))
                    print(f"{one.file}:{line}: {text[line - 1].strip()}")


def _in_a_fork(tree, groups, rounds):
    """What `prove.proven` says of a tree, in a process of its own."""
    reading_end, writing_end = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.close(reading_end)
            sys.path.insert(0, str(tree))
            os.environ.update(FD_POSTPROC_API="0", FD_PLUGINS="none", PYTHONWARNINGS="ignore")
            with tempfile.TemporaryDirectory() as folder:
                os.environ["FD_LOG_DIR"] = folder
                with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                    try:
                        told = prove.proven(groups, rounds)
                    except BaseException as error:
                        told = {"error": f"{type(error).__name__}: {error}"}
            with os.fdopen(writing_end, "w") as out:
                json.dump(told, out)
        finally:
            os._exit(0)
    os.close(writing_end)
    with os.fdopen(reading_end) as answer:
        text = answer.read()
    os.waitpid(pid, 0)
    return json.loads(text) if text else {"error": "the process ended without an answer"}


def _of_history(history):
    """Each commit of a range of first parents that changes one of the files, newest first, as a tree."""
    repository, span = history
    names = reading.files()
    paths = [path for name in sorted(names) for path in (f"{name}.py", f"{name}/__init__.py")]
    listing = _git(repository, "log", "--first-parent", "--format=%h %as", *span.split(), "--", *paths)
    for line in listing.splitlines():
        commit, day = line.split()
        with tempfile.TemporaryDirectory() as folder:
            archive = subprocess.run(
                ["git", "-C", repository, "archive", commit, "fastdeploy"], capture_output=True, check=True
            )
            subprocess.run(["tar", "x", "-C", folder], input=archive.stdout, check=True)
            yield Path(folder), commit, day


def _git(repository, *arguments):
    done = subprocess.run(["git", "-C", repository, *arguments], capture_output=True, text=True, check=True)
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
