"""What a prefill and a decode node should not meet: slow and failing transfers, no blocks, deaths."""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from . import cases
from .cases import Case, gauge, until
from .distributed import Nodes, Pair
from .faults import simple
from .namespace import RAISED, Namespace
from .pairs import WAYS
from .server import UNMENDED
from .tables import markdown, with_details

PATIENCE = 40.0
"""Seconds after which a client that got nothing is said to hang."""
RUNNING = "fastdeploy:num_requests_running"
BLOCKS = 514
"""The fewest that FastDeploy starts with at this length of a model."""
TRANSFERS = ("slow", "failing", "aborted", "blocks")
DEATHS = tuple(f"{role}-{whose}" for role in ("prefill", "decode") for whose in ("worker", "engine"))
FAULTS = (*TRANSFERS, "router", "messager", *DEATHS)
_LONG = {"max_tokens": 4000, "stream": True, "extra_body": {"min_tokens": 3999}}


def run(
    tree: Path, folder: Path, channel: str, *, way: str, only: Sequence[str] = FAULTS
) -> Iterator[dict[str, Any]]:
    """Rows for each of `FAULTS`: what clients got, and which answers of ordinary requests then differ."""
    with (
        Namespace(RAISED) as namespace,
        Nodes(
            tree, folder, namespace, [WAYS[way]], channel=channel, blocks=BLOCKS,
            environment=UNMENDED,
        ) as nodes,
        nodes.pair(*WAYS[way]) as pair,
    ):  # fmt: skip
        right = cases.ask(pair, simple(channel), seconds=PATIENCE)

        def row(fault: str, clients: dict[str, str], got: dict[str, Any] | None = None) -> dict[str, Any]:
            got = got or cases.ask(pair, simple(channel), seconds=PATIENCE)
            return {
                "channel": channel, "way": way, "fault": fault, "clients": clients,
                "hangs": cases.hanging(got), "differences": cases.differences(right, got, crowd=True),
                "quiet": pair.quiet(), "reserved": waiting(pair),
            }  # fmt: skip

        for fault in only:
            if fault == "slow":
                for seconds in 3.0, 8.0:
                    got = _with_transfers(pair, simple(channel), seconds)
                    yield row(f"transfers of {seconds:.0f} s", ends(got), got)
            elif fault == "failing":
                yield row("failing transfers", ends(_with_transfers(pair, simple(channel), fail=True)))
            elif fault == "aborted":
                yield row("client leaves during its transfer", _leaves(pair))
            elif fault == "blocks":
                yield row("no blocks on the decode node", _crowded(pair, channel))
            elif fault == "router":
                got, lasted = _without_router(pair)
                yield row("kill -9 of the router, restarted", ends(got)) | {"seconds": lasted}
            else:
                role, whose = ("prefill", fault) if fault == "messager" else fault.split("-")
                began = time.monotonic()
                got = ends(death(pair, role, whose))
                lasted = time.monotonic() - began
                pair.prefill.transfers()
                dead, beside = pair.nodes if role == "prefill" else reversed(pair.nodes)
                nodes.restart(dead, beside)
                pair.wait()
                made = row(f"kill -9 of the {role} node's {whose}, restarted", got)
                yield made | {"seconds": lasted}


def ends(answers: dict[str, list[Any]]) -> dict[str, str]:
    """How each client's answer ended, in a word or two."""
    return {name: _end(parts) for name, parts in answers.items()}


def _end(parts: list[Any]) -> str:
    last = parts[-1] if parts else "nothing"
    if isinstance(last, str):
        return last if len(parts) > 1 or last != "hangs" else "nothing"
    if "choices" in last:
        return "answer"
    body = last.get("body")
    error = body.get("error", body) if isinstance(body, dict) else body
    said = error.get("message", error) if isinstance(error, dict) else error
    return f"{last.get('status') or last.get('error')}: {str(said)[:90]}"


def _with_transfers(
    pair: Pair, wanted: list[Case], seconds: float = 0.0, *, fail: bool = False
) -> dict[str, Any]:
    """What is asked while transfers are slow or fail."""
    pair.prefill.transfers(seconds, fail=fail)
    try:
        # FastDeploy's messager makes transfers one after the other.
        return cases.ask(pair, wanted, seconds=PATIENCE + 8 * seconds, side_by_side=2)
    finally:
        pair.prefill.transfers()


def _leaves(pair: Pair) -> dict[str, str]:
    """A client that goes away before it has its first token: both nodes are free of it afterwards."""
    pair.prefill.transfers(3.0)
    try:
        got = cases.ask(pair, [Case("leaves", "chat", {"max_tokens": 800, "stream": True})], seconds=1)
    finally:
        pair.prefill.transfers()
    return {**ends(got), "left running": "none" if pair.quiet() else "yes"}


def _crowded(pair: Pair, channel: str) -> dict[str, str]:
    """Long prompts side by side, of which the decode node's blocks hold a few: all are answered as alone."""
    more = {"logprobs": True, "top_logprobs": 5} if channel.endswith("topk") else {}
    wanted = [
        Case(f"long{number}", "chat", {"max_tokens": 20, **more}, f"{number} Tell me of the sea. " * 700)
        for number in range(8)
    ]
    right = cases.ask(pair, wanted, seconds=PATIENCE)
    pair.prefill.transfers(1.0)
    try:
        got = cases.ask(pair, wanted, seconds=PATIENCE + 10, side_by_side=8)
    finally:
        pair.prefill.transfers()
    wrong = {line.partition(":")[0] for line in cases.differences(right, got, crowd=True)}
    return {name: "differs" if end == "answer" and name in wrong else end for name, end in ends(got).items()}


def death(
    pair: Pair, role: str, whose: str, *, clients: int = 4, seconds: float = PATIENCE
) -> dict[str, list[Any]]:
    """``kill -9`` of a process of a node: what each client got.

    It is the prefill node's while requests wait for their transfer, the decode node's while they stream.
    """
    wanted = [Case(f"client{number}", "chat", _LONG, f"tell {number}") for number in range(clients)]
    node = pair.prefill if role == "prefill" else pair.decode
    pair.decode.pace(0.01)
    try:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            if role == "prefill":
                pair.prefill.transfers(8.0)
                asked = pool.submit(cases.ask, pair, wanted, seconds=seconds, side_by_side=clients)
                until(lambda: waiting(pair) >= 1, 30)
            else:
                asked = pool.submit(cases.ask, pair, wanted, seconds=seconds, side_by_side=clients)
                until(lambda: pair.decode.live() == clients, 60)
            time.sleep(0.5)
            victims = {"worker": node.workers, "messager": node.messagers}
            node.kill(victims[whose]()[0] if whose in victims else None)
            return asked.result()
    finally:
        pair.decode.pace(0.0)


def _without_router(pair: Pair, clients: int = 4) -> tuple[dict[str, list[Any]], float]:
    """``kill -9`` of the router while clients stream, and another one in its place.

    Returns
    -------
    dict, float
        What each client got; seconds from the death until nothing runs on either node, `PATIENCE` at most.
    """
    wanted = [Case(f"client{number}", "chat", _LONG, f"tell {number}") for number in range(clients)]
    pair.decode.pace(0.05)
    try:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            asked = pool.submit(cases.ask, pair, wanted, seconds=PATIENCE, side_by_side=clients)
            until(lambda: pair.decode.live() == clients, 60)
            time.sleep(1)
            began = time.monotonic()
            pair.router.stop()
            until(lambda: not any(cases.gauge(one.metrics(), RUNNING) for one in pair.nodes), PATIENCE)
            lasted = time.monotonic() - began
            pair.router.start()
            pair.wait()
            return asked.result(), lasted
    finally:
        pair.decode.pace(0.0)


def waiting(pair: Pair) -> float:
    """Requests of the decode node that wait for their transfer."""
    return gauge(pair.decode.metrics(), "fastdeploy:decode_preallocated_req_num") or 0.0


def table(rows: list[dict[str, Any]]) -> str:
    """Rows of `run` for people."""
    heads = "channel | prefill/decode | fault | clients | >then differ | >hang | quiet | >still reserved"
    lines = [
        (
            row["channel"], row["way"], row["fault"], _counted(row["clients"]), len(row["differences"]),
            len(row["hangs"]), "yes" if row["quiet"] else "no", f"{row['reserved']:.0f}",
        )
        for row in rows
    ]  # fmt: skip
    return with_details(markdown(heads, lines), ((f"{row['way']}, {row['fault']}", row) for row in rows))


def _counted(clients: dict[str, str]) -> str:
    said = list(clients.values())
    return "; ".join(f"{said.count(one)} x {one}" for one in dict.fromkeys(said))


def failed(rows: list[dict[str, Any]]) -> bool:
    """Whether answers after a fault differ or hang, or more clients get nothing than without the plug-in."""
    if any(row["differences"] or row["hangs"] or not row["quiet"] for row in rows):
        return True
    stock = {(row["channel"], row["fault"]): _lost(row) for row in rows if row["way"] == "off/off"}
    return any(_lost(row) > stock.get((row["channel"], row["fault"]), len(row["clients"])) for row in rows)


def _lost(row: dict[str, Any]) -> int:
    """How many clients got nothing, no end, or something else."""
    return sum(end in ("nothing", "hangs", "differs") for end in row["clients"].values())
