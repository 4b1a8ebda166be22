"""``python -m harness.service COMMAND --tree PATH``."""

from __future__ import annotations

import argparse
import contextlib
import inspect
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

try:
    from . import (
        cases,
        ends,
        faults,
        generators,
        measure,
        pair_faults,
        pairs,
        pauses,
        ranks,
        reading,
        rollouts,
        soak,
        streams,
        thinking,
        wrapped,
    )
    from .namespace import DEFAULT, RAISED
    from .server import CHANNELS, running
except ModuleNotFoundError as missing:
    pins = "tests/fastdeploy-requirements/{}.{}.txt".format(*sys.version_info)
    sys.exit(f"{missing}: pip install --no-deps -r {pins} into this Python")

LIMITS = {"default": DEFAULT, "raised": RAISED}


def _tree(text: str) -> Path:
    if not Path(text, "fastdeploy").is_dir():
        raise argparse.ArgumentTypeError(f"{text} holds no folder fastdeploy: name a FastDeploy source tree")
    return Path(text)


def main() -> int:
    arguments = _parser().parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # ends what was started
    with contextlib.ExitStack() as stack:
        folder = arguments.folder
        if folder is None:
            folder = Path(tempfile.mkdtemp(prefix="fd-service-"))
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
        return arguments.run(arguments, folder)


def _serve(arguments: argparse.Namespace, folder: Path) -> int:
    passed_over = sorted(name for name in os.environ if name.startswith("FD_"))
    if passed_over:
        print(f"not passed on: {', '.join(passed_over)}; --environment NAME=VALUE does it", flush=True)
    with running(
        arguments.tree, folder, limits=LIMITS[arguments.limits], plug_in=arguments.plug_in,
        channel=arguments.channel[0], draft=arguments.draft, environment=dict(arguments.environment),
    ) as service:  # fmt: skip
        print(f"{service.url}  metrics: {service.ports[2]}  logs: {folder}/log", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            while service.process.poll() is None:
                time.sleep(1)
    return 0


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def _cases(arguments: argparse.Namespace, folder: Path) -> int:
    """Each channel's cases, one at a time and side by side, with the plug-in off and on."""
    failed = 0
    for channel in arguments.channel:
        for draft in (False, True) if channel == "spec_topk" else (False,):
            found = compare(
                arguments.tree, folder / f"{channel}{'-draft' * draft}", channel, draft,
                plug_ins=(False, not arguments.stock), over_zmq=arguments.over_zmq,
                mends=arguments.mends, stream_interval=arguments.stream_interval,
                multimodal=arguments.multimodal,
            )  # fmt: skip
            failed += len(found["differences"]) + len(found["hangs"])
            print(json.dumps({"channel": channel, "draft": draft, **found}, indent=1), flush=True)
    return 1 if failed else 0


def compare(
    tree: Path,
    folder: Path,
    channel: str,
    draft: bool,
    plug_ins: tuple[bool, bool] = (False, True),
    over_zmq: bool = False,
    mends: bool = False,
    stream_interval: str = "",
    multimodal: bool = False,
) -> dict[str, Any]:
    """What `_cases` prints of a channel; each service's answers stay in its folder, as ``answers.json``.

    `over_zmq`: the steps of the service with the plug-in come through FastDeploy's ZeroMQ socket.
    `mends`: whether it mends text that FastDeploy loses.
    `stream_interval`: its ``FD_POSTPROC_STREAM_INTERVAL``, with which chunks are compared as wholes.
    `multimodal`: whether both serve an ERNIE-4.5-VL, whose processor of prompts is another one.
    """
    wanted = cases.cases(channel, draft=draft)
    answers: list[dict[str, Any]] = []
    active: list[str] = []
    left: list[str] = []
    again = 0
    for number, plug_in in enumerate(plug_ins):
        place = folder / ("on" if plug_in else "off" if number == 0 else "off-again")
        with running(
            tree, place, plug_in=plug_in, channel=channel, draft=draft, requests=32, multimodal=multimodal,
            environment={
                "FD_USE_GET_SAVE_OUTPUT_V1": str(int(over_zmq and plug_in)),
                "FD_POSTPROC_MENDS": str(int(mends)),
                "FD_POSTPROC_STREAM_INTERVAL": stream_interval,
            },
        ) as service:  # fmt: skip
            answers.append(cases.ask_both_ways(service, wanted))
            active = [side for side in ("engine", "worker") if f"{side} side active" in service.log()]
            left = cases.seams_left(service.metrics()) if plug_in else []
            again += sum(service.dropped(case.name) for case in wanted)
        (place / "answers.json").write_text(json.dumps(answers[-1], indent=1))
    joined = bool(stream_interval)
    found = cases.told_apart(*answers, whole=joined, may_go_on=joined and channel.startswith("spec"))
    return {
        "active": active, "left to FastDeploy": left, "cases": 2 * len(wanted), "asked again": again, **found,
    }  # fmt: skip


def _told(what: str, right: dict[str, Any], got: dict[str, Any]) -> list[str]:
    """Print how many answers hang and differ; the differences."""
    hang = len(cases.hanging(got))
    wrong = cases.differences(right, got, crowd=True)
    print(f"{what}: {hang} of {len(got)} hang, {len(wrong)} differ {wrong[:1]}", flush=True)
    return wrong


def _faults(arguments: argparse.Namespace, folder: Path) -> int:
    """Default limits, deaths, a neighbour; what should not be makes the exit status 1."""
    failed = sum(_rows(arguments, folder, part) for part in PARTS if arguments.only in (None, part))
    for channel in () if arguments.only in PARTS else arguments.channel:
        right = faults.reference(arguments.tree, folder / "reference", channel)
        for plug_in in False, True:
            name = "on" if plug_in else "off"
            got = faults.default_limits(arguments.tree, folder / f"limits-{name}", channel, plug_in=plug_in)
            wrong = _told(f"{channel}, default limits, plug-in {name}", right, got)
            failed += plug_in and bool(wrong)
        if channel == "topk":
            all_asked = faults.nobody_asks(arguments.tree, folder / "asked", plug_in=False, plain=False)
            for plug_in in False, True:
                name = "on" if plug_in else "off"
                got = faults.nobody_asks(arguments.tree, folder / f"unasked-{name}", plug_in=plug_in)
                wrong = _told(f"topk, nobody asks for logprobs, plug-in {name}", all_asked, got)
                failed += plug_in and bool(wrong)
        for whose in "worker", "engine":
            for plug_in in False, True:
                name = "on" if plug_in else "off"
                got = faults.death(
                    arguments.tree, folder / f"{whose}-{name}", channel, whose=whose, plug_in=plug_in
                )
                wrong = cases.differences(right, got["answers"], crowd=True)
                failed += plug_in and bool(wrong)
                print(
                    f"{channel}, kill -9 of the {whose}, plug-in {name}: clients {got['clients']}; "
                    f"restart with {got['stale']} messages waiting: {len(wrong)} of {len(right)} answers "
                    f"differ {wrong[:1]}",
                    flush=True,
                )
        wrong = faults.neighbours(arguments.tree, folder / "neighbours", channel)
        failed += bool(wrong)
        print(f"{channel}, two services at once: {len(wrong)} answers differ {wrong[:1]}", flush=True)
    return 1 if failed else 0


PARTS = {"reading": reading, "pauses": pauses, "ends": ends}


def _rows(arguments: argparse.Namespace, folder: Path, part: str) -> int:
    """Number of rows after which a client hangs, or got something else, with the plug-in."""
    failed = 0
    rows, run = PARTS[part].ROWS, PARTS[part].run
    only = [name for name in rows if not arguments.row or any(words in name for words in arguments.row)]
    for side in ("off", "on"):
        if not only or arguments.side not in ("both", side):
            continue
        plug_in = side == "on"
        for what, got in run(arguments.tree, folder / f"{part}-{side}", plug_in=plug_in, only=only):
            wrong = any(got.get(key) for key in ("hang", "ended", "differences")) or not got.get(
                "quiet", True
            )
            failed += plug_in and wrong
            print(f"{what}, plug-in {side}: {json.dumps(got)}", flush=True)
    return failed


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _called(function: Callable[..., Any], arguments: argparse.Namespace, **more: Any) -> Any:
    """Call a function with those of the command's arguments that it has by name."""
    given = vars(arguments) | {"say": _say} | more
    return function(**{name: given[name] for name in inspect.signature(function).parameters if name in given})


def _measured(arguments: argparse.Namespace, folder: Path) -> int:
    """Rows of a module's `run`."""
    return _kept(arguments, _called(arguments.of.run, arguments, folder=folder))


def _compared(arguments: argparse.Namespace, folder: Path) -> int:
    """Rows of each channel, and of each further argument that a command is given several of."""
    rows = []
    compare = getattr(arguments.of, "compare", None) or arguments.of.run
    for channel in arguments.channel:
        for more in arguments.each(arguments, channel):
            place = folder.joinpath(channel, *(str(value).replace("/", "-") for value in more.values()))
            for row in _called(compare, arguments, folder=place, channel=channel, **more):
                _say(json.dumps(row))
                rows.append(row)
    return _kept(arguments, rows)


def _kept(arguments: argparse.Namespace, rows: list[dict[str, Any]]) -> int:
    """Write rows where ``--json`` names a file, and print their table; 1 if `failed` says so."""
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")
    print(arguments.of.table(rows))
    failed = getattr(arguments.of, "failed", None)
    return int(failed is not None and failed(rows))


def _interval(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0")
    return seconds


def _drafts(arguments: argparse.Namespace, channel: str) -> list[dict[str, Any]]:
    """Without draft log-probabilities, and with them where they are asked for."""
    drafts = (False, True) if channel == "spec_topk" and arguments.draft else (False,)
    return [{"draft": draft} for draft in drafts]


_NODES = "plug-in on prefill/decode node"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m harness.service",
        description="FastDeploy's own server without a GPU, with the plug-in off and on.  Needs root "
        "(for kernel limits of its own), and what the tree needs to be imported on a CPU, installed beside "
        "fd_postproc.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    serve = commands.add_parser("serve", help="a service, until it is interrupted")
    serve.add_argument("--plug-in", action="store_true", help="with fd_postproc")
    serve.add_argument("--limits", choices=LIMITS, default="raised", help="kernel limits")
    serve.add_argument("--draft", action="store_true", help="draft logprobs (channel spec_topk)")
    serve.add_argument(
        "--environment", type=_variable, nargs="+", default=[], metavar="NAME=VALUE",
        help="variables of the service; FD_* of the caller are not passed on",
    )  # fmt: skip
    serve.set_defaults(run=_serve)
    asked = commands.add_parser("cases", help="a client's cases, plug-in off and on: what differs")
    asked.add_argument(
        "--stock", action="store_true", help="FastDeploy's own service twice: what differs by itself"
    )
    asked.add_argument(
        "--over-zmq",
        action="store_true",
        help="with the plug-in, steps over ZeroMQ (FD_USE_GET_SAVE_OUTPUT_V1; channels spec, spec_topk)",
    )
    asked.add_argument(
        "--mends", action="store_true", help="with the text that FastDeploy loses: what differs is mended"
    )
    asked.add_argument(
        "--stream-interval", default="", metavar="TOKENS[,MS]",
        help="with the plug-in, FD_POSTPROC_STREAM_INTERVAL: what differs but for where a chunk ends",
    )  # fmt: skip
    asked.add_argument(
        "--multimodal", action="store_true",
        help="a made-up ERNIE-4.5-VL, texts only; needs moviepy, which its processor imports",
    )  # fmt: skip
    asked.set_defaults(run=_cases)
    wrong = commands.add_parser("faults", help="default limits, deaths, restarts, two services")
    wrong.add_argument(
        "--only",
        choices=("limits", *PARTS),
        help="limits and restarts, API processes, pauses that end nothing, or how an engine ends",
    )
    wrong.add_argument("--side", choices=("both", "on", "off"), default="both", help="plug-in; not of limits")
    wrong.add_argument("--row", nargs="+", metavar="WORDS", help="rows with these words; not of limits")
    wrong.set_defaults(run=_faults)
    paired = commands.add_parser(
        "pairs", help="a prefill and a decode node behind FastDeploy's router, plug-in on none, both, one"
    )
    paired.add_argument("--draft", action="store_true", help="also draft logprobs (channel spec_topk)")
    paired.add_argument(
        "--way", dest="ways", choices=pairs.WAYS, nargs="+", default=list(pairs.WAYS), help=_NODES
    )
    paired.set_defaults(of=pairs, each=_drafts)
    of_ranks = commands.add_parser("ranks", help="two data parallel ranks at once, plug-in off and on")
    of_ranks.add_argument("--workers", type=int, default=2, help="API processes of each rank")
    of_ranks.set_defaults(of=ranks, each=lambda arguments, channel: [{}])
    for command in paired, of_ranks:
        command.add_argument("--every-case", action="store_true", help="all cases, not a dozen")
    broken = commands.add_parser(
        "pair-faults", help="prefill and decode node: slow and failing transfers, no blocks, deaths"
    )
    broken.add_argument("--only", choices=pair_faults.FAULTS, nargs="+", default=list(pair_faults.FAULTS))
    broken.add_argument("--way", choices=pairs.WAYS, nargs="+", default=["off/off", "on/on"], help=_NODES)
    broken.set_defaults(
        of=pair_faults, each=lambda arguments, channel: [{"way": way} for way in arguments.way]
    )
    traced = commands.add_parser("wrapped", help="functions that an operator has wrapped: answers and calls")
    traced.add_argument("--how", choices=wrapped.WAYS, nargs="+", default=list(wrapped.WAYS))
    traced.add_argument(
        "--seam", dest="seams", choices=[wrapped.ALL, *wrapped.SEAMS], nargs="+", default=[wrapped.ALL],
        metavar="NAME",
        help="one run for each: its functions are wrapped; default: those of all seams at once",
    )  # fmt: skip
    traced.set_defaults(of=wrapped, each=lambda arguments, channel: [{"how": how} for how in arguments.how])
    for command in paired, of_ranks, broken, traced:
        command.set_defaults(run=_compared)
    for command in serve, asked, wrong, paired, of_ranks, broken, traced:
        command.add_argument("--channel", choices=CHANNELS, nargs="+", default=list(CHANNELS))
    timed = commands.add_parser("measure", help="CPU of a step, thread by thread")
    timed.add_argument("--requests", type=int, nargs="+", default=[1, 32, 128, 256])
    timed.add_argument("--nodes", action="store_true", help="then also a decode node behind a prefill node")
    timed.set_defaults(of=measure)
    served = commands.add_parser(
        "streams",
        help="tokens a second, chunk to chunk, CPU: one API process with it, one and four without",
    )
    served.add_argument("--streams", type=int, nargs="+", default=[1, 64, 256, 512])
    served.add_argument(
        "--stream-interval", dest="stream_intervals", nargs="+", default=[], metavar="TOKENS[,MS]",
        help="one API process of the plug-in, with each of these as FD_POSTPROC_STREAM_INTERVAL, 0 for off",
    )  # fmt: skip
    served.set_defaults(of=streams)
    for command, kinds, intervals in (
        (timed, list(measure.KINDS), [0.1, 0.0]), (served, ["21 columns"], [0.025])
    ):  # fmt: skip
        command.add_argument("--kind", dest="kinds", choices=measure.KINDS, nargs="+", default=kinds)
        command.add_argument(
            "--interval", dest="intervals", type=_interval, nargs="+", default=intervals,
            help="seconds between steps; streams: the longest first, until the server is behind",
        )  # fmt: skip
        command.add_argument(
            "--way", dest="ways", choices=measure.WAYS, nargs="+", default=["off", "on"],
            help="without the plug-in, and with it",
        )  # fmt: skip
    thinks = commands.add_parser("thinking", help="long answers with a reasoning parser and without")
    known = list(thinking.PARSERS)
    thinks.add_argument("--parser", dest="parsers", choices=known, nargs="+", default=known)
    thinks.add_argument("--streams", type=int, nargs="*", default=[64])
    thinks.add_argument("--after", type=int, nargs="+", default=[500, 8000], help="tokens of each answer")
    servers = list(thinking.SERVERS)
    thinks.add_argument("--server", dest="servers", choices=servers, nargs="+", default=servers)
    thinks.add_argument(
        "--whole", dest="tokens", type=int, metavar="TOKENS", help="also answers that are not streamed"
    )
    thinks.set_defaults(of=thinking)
    rolled = commands.add_parser("rollouts", help="answers with routed experts beside streams")
    rolled.add_argument("--streams", type=int, default=64)
    rolled.add_argument("--tokens", type=int, default=8000, help="of an answer's prompt and text")
    rolled.add_argument("--every", type=float, default=2.0, help="seconds from an answer to the next")
    rolled.set_defaults(of=rollouts)
    soaked = commands.add_parser("soak", help="hours of mixed traffic, plug-in off and on: what grows")
    soaked.add_argument("--hours", type=float, default=1 / 6, help="after five minutes that do not count")
    soaked.add_argument("--rest", type=float, default=1.0, help="seconds from eight requests to the next")
    soaked.set_defaults(of=soak)
    loaded = commands.add_parser("load", help="what aiperf and evalscope measure, plug-in off and on")
    loaded.add_argument("--streams", type=int, default=64)
    loaded.add_argument("--tokens", type=int, default=200, help="of each answer")
    loaded.add_argument("--rounds", type=int, default=2)
    loaded.set_defaults(of=generators)
    for command in thinks, rolled, loaded:
        command.add_argument(
            "--interval", type=_interval, default=0.1, help="seconds between steps, at least"
        )
    for command, seconds in (timed, 5.0), (served, 8.0), (thinks, 8.0), (rolled, 30.0):
        command.add_argument("--seconds", type=float, default=seconds, help="of each measurement")
    for command in timed, served, thinks, rolled, soaked, loaded:
        command.set_defaults(run=_measured)
    for command in paired, traced, of_ranks, broken, timed, served, thinks, rolled, soaked, loaded:
        command.add_argument("--json", type=Path, help="also write this file")
    for command in commands.choices.values():
        command.add_argument("--tree", type=_tree, required=True, help="folder that holds fastdeploy/")
        command.add_argument("--folder", type=Path, help="keep logs here")
    return parser


if __name__ == "__main__":
    sys.exit(main())
