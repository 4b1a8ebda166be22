"""Record what the gate knows: ``python -m tools.accept TREE...`` or ``--history REPOSITORY RANGE``.

Ours runs beside the parts of FastDeploy's code with statements that are not recorded, in a process of its
own.  Where both do the same, the statements are recorded, as digests.  FastDeploy's requirements have to be
installed, and on a machine without a GPU the folder ``harness/service/shim`` is first on ``PYTHONPATH``.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from fd_postproc.fastdeploy.gate.record import joined, packed, unpacked
from fd_postproc.support import environment
from tools.accept import accepting, history, reading

RECORD = Path(__file__).resolve().parents[2] / "fd_postproc" / "fastdeploy" / "gate" / "known_code.json"


def main(arguments=None):
    """Try each tree, record what is accepted, and print a verdict; return the exit code."""
    options = _options(arguments)
    package = unpacked(json.loads(RECORD.read_text()))
    record = joined(package, unpacked(options.known))
    refused = False
    if options.history or len(options.trees) > 1:
        accepting.import_before()
    trees = ((tree, tree.resolve().name, "") for tree in options.trees)
    for tree, name, day in _of_history(*options.history) if options.history else trees:
        found = reading.functions(tree, record)
        new = accepting.new_in(tree, record, found)
        if options.show:
            _show(new)
        accepted = []
        if new.parts:
            count = f"{len(new.statements)} new statement{'s' * (len(new.statements) != 1)}"
            print(f"{name}: {count}; trying {', '.join(sorted(new.parts))}", flush=True)
            progress = Progress(sys.stderr)
            verdict = accepting.accepted(tree, record, found, new, options.rounds, progress)
            progress.end()
            record, accepted = verdict.record, verdict.accepted
            refused |= bool(verdict.left or verdict.error)
            _print(name, day, verdict)
        else:
            record = accepting.with_texts(record, found)
            print(f"{name}  {day or ' '} accepted: every statement is known", flush=True)
        if accepted:
            more = record if options.record == RECORD else accepting.beyond(record, package)
            options.record.write_text(json.dumps(packed(more), indent=1) + "\n")
    if options.record != RECORD and options.record.exists():
        print(f"set {environment.KNOWN.name}={options.record.resolve()} for the whole service")
    return 1 if refused else 0


def _options(arguments):
    parser = argparse.ArgumentParser(prog="python -m tools.accept", description=__doc__)
    parser.add_argument("trees", nargs="*", type=_tree, metavar="TREE", help="folder that holds fastdeploy/")
    parser.add_argument("--history", nargs=2, metavar=("REPOSITORY", "RANGE"), help="of first parents")
    parser.add_argument("--record", type=_record, default=RECORD, help="FILE for FD_POSTPROC_KNOWN")
    parser.add_argument(
        "--rounds", type=_rounds, help="random scripts for each comparison (default: 3200, with --record 800)"
    )
    parser.add_argument("--show", action="store_true", help="print new statements")
    options = parser.parse_args(arguments)
    if bool(options.trees) == bool(options.history):
        parser.error("name a TREE, or --history REPOSITORY RANGE")
    if options.history:
        try:
            history.git(options.history[0], "rev-list", "-1", *options.history[1].split())
        except subprocess.CalledProcessError as error:
            parser.error(f"argument --history: {error.stderr.strip().splitlines()[-1]}")
    options.rounds = options.rounds or (3200 if options.record == RECORD else 800)
    options.known = {}
    if options.record != RECORD and options.record.exists():
        try:
            options.known = environment.record_of(str(options.record))
        except ValueError as error:
            parser.error(f"argument --record: {options.record} {error}; name a new file")
    return options


def _tree(text):
    tree = Path(text)
    if not (tree / "fastdeploy").is_dir():
        if (tree / "output" / "token_processor.py").exists():
            raise argparse.ArgumentTypeError(f"{text} is FastDeploy's package; name the folder above it")
        raise argparse.ArgumentTypeError(f"{text} holds no folder fastdeploy: name a FastDeploy source tree")
    return tree


def _record(text):
    file = Path(text)
    if file.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is a folder: name a file in it")
    if not file.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text}: there is no folder {file.parent}")
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text} cannot be written")
    return file


def _rounds(text):
    if not text.isascii() or not text.isdigit() or not 4 <= int(text) <= 1_000_000:
        raise argparse.ArgumentTypeError(f"{text} is no number from 4 to 1000000")
    return int(text)


class Progress:
    """One line that says what is tried: on a terminal it is written over, else it comes once a part.

    Parameters
    ----------
    out : text file
    """

    def __init__(self, out):
        self.out, self.part = out, ""

    def __call__(self, part, done, most):
        """Show that `done` of `most` scripts of a part have run."""
        if self.out.isatty():
            self.out.write(f"\r\033[K{part}: {done} of {most}")
        elif part != self.part:
            self.out.write(f"{part}: {most} scripts\n")
        self.out.flush()
        self.part = part

    def end(self):
        """Leave the line."""
        if self.part and self.out.isatty():
            self.out.write("\r\033[K")
            self.out.flush()


def _show(new):
    for name, file, first, last in new.statements:
        text = file.read_text().splitlines()[first - 1].strip()
        print(f"{file}:{first}:{f' (to line {last})' if last > first else ''} {text}    [{name}]")
    for place in new.data:
        print(f"{place}: another value than is known")


def _print(name, day, verdict):
    head = f"{name}  {day}".rstrip()
    if verdict.error:
        print(f"{head}: could not be tried: {verdict.error}", flush=True)
    elif verdict.accepted:
        print(f"{head}: accepted, ours did the same: {', '.join(verdict.accepted)}", flush=True)
    for why, parts in verdict.left.items():
        print(f"{head}: refused, FastDeploy's own stays: {', '.join(sorted(parts))}: {why}", flush=True)


def _of_history(repository, span):
    names = sorted(reading.files())
    return history.trees(
        repository, span, [path for name in names for path in (f"{name}.py", f"{name}/__init__.py")]
    )


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("\ninterrupted: of the tree in hand nothing is recorded")
