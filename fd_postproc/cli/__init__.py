"""The command line, ``fd-postproc``.

A command is one module of this package with ``HELP`` (one line), ``EXAMPLES`` (text), a docstring that says
what it does, ``add_arguments(parser)`` and ``run(args) -> int``.  Modules import rich and
`fd_postproc.doctor` only when they run, so that ``--help`` answers at once.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import logging
import os
import signal
import sys
from collections.abc import Sequence

from .._version import __version__
from ..errors import MalformedMessage, QueueError
from ..recording import RecordingError
from ..support.environment import CHECKSUM
from . import streams
from .help_text import HelpText
from .terminal import CommandError

COMMANDS = ("demo", "inspect", "record", "replay", "doctor", "explain")

_INTERRUPTED = 128 + 2
_NEEDED = ("numpy", "rich", "sysv_ipc")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fd-postproc",
        description="Receive, inspect, record and replay FastDeploy's sampled tokens and logprobs.",
        epilog="Exit status: 0 done, 1 failed, 2 wrong usage.  'fd-postproc COMMAND --help' has examples.",
    )
    parser.add_argument("--version", action="version", version=f"fd-postproc {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command")
    for name in COMMANDS:
        module = importlib.import_module(f".{name}", __name__)
        command = commands.add_parser(
            name,
            help=module.HELP,
            description=module.__doc__,
            epilog=module.EXAMPLES,
            formatter_class=HelpText,
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run, usage_error=command.error)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, of this process's arguments if none are given; return its exit status.

    It is 0 done, 1 failed (one line on stderr says why), 130 interrupted.  Wrong usage leaves by SystemExit
    with status 2, as argparse does.
    """
    # NumPy's OpenBLAS makes a thread a processor, and sends SIGINT where memory is too short for that.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by a shell (>&-): its number must not become a file's
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
            streams.closed.add(name)
        stream = getattr(sys, name)
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(
                errors="replace"
            )  # a terminal without UTF-8 gets question marks, not a traceback
    logging.basicConfig(format="fd-postproc: %(message)s", level=logging.WARNING)
    try:
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # see the package's __init__
            signal.signal(signal.SIGINT, signal.default_int_handler)
        parser = _parser()
        args, unknown = parser.parse_known_args(argv)
        if unknown:  # with the usage of the command: argparse shows the one that lists the commands
            getattr(args, "usage_error", parser.error)(f"unrecognized arguments: {' '.join(unknown)}")
        if args.command is None:  # argparse's own check says so of a misspelt option, too
            parser.error("the following arguments are required: COMMAND")
        if args.command != "doctor" and (why := CHECKSUM.complaint):  # what a queue's frames depend on
            return _failed(args.command, why)
        status: int = args.run(args)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        _drop_stdout()
        return 1
    except KeyboardInterrupt:
        print("fd-postproc: interrupted", file=sys.stderr)
        return _INTERRUPTED
    except OSError as error:
        where = "" if error.filename is None else f"{error.filename or repr('')}: "
        if not where and error.errno in _FULL and not isinstance(error, QueueError):  # our files have names
            where = "standard output: "
            _drop_stdout()
        return _failed(args.command, where + (error.strerror or str(error)))
    except (CommandError, MalformedMessage, RecordingError) as error:
        return _failed(args.command, str(error))
    except MemoryError:
        return _failed("", "not enough memory: raise the limit (ulimit -v, the container's)")
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _NEEDED:
            raise
        return _failed("", f"the package {package} is not installed or damaged: pip install {package}")


def _failed(command: str, why: str) -> int:
    print(f"{f'fd-postproc {command}'.rstrip()}: {why}", file=sys.stderr)
    return 1


def _drop_stdout() -> None:
    """Keep Python from complaining about the closed pipe again when it flushes at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
