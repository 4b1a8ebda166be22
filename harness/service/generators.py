"""What load generators that others use, aiperf and evalscope, measure of both services in turns."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from .measure import ENVIRONMENT, KINDS, WAYS, settle
from .namespace import RAISED, Namespace
from .server import Service
from .tables import markdown

PACKAGES = {"aiperf": "aiperf==0.13.0", "evalscope": "evalscope[perf]==1.14.1"}
KIND = "21 columns"
PROMPT = 32
"""Tokens of each prompt."""


class NotToBeHad(Exception):
    """A package index has not what is asked for."""


def environment(folder: Path, *packages: str) -> Path:
    """The folder of programs of a new Python environment with these packages.

    Raises
    ------
    NotToBeHad
    """
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    command = [folder / "bin/python", "-m", "pip", "install", "-q", *packages]
    made = subprocess.run(command, capture_output=True, text=True, env=alone())
    if made.returncode:
        raise NotToBeHad(f"{' '.join(packages)}: {made.stderr[-500:]}")
    return folder / "bin"


def alone() -> dict[str, str]:
    """The variables for a program of another Python.

    Without HF_HUB_OFFLINE, under which aiperf takes a tokenizer's folder for a name on the hub.
    """
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "HF_HUB_OFFLINE")}


def _aiperf(url: str, model: Path, place: Path, streams: int, tokens: int) -> list[Any]:
    command = ["profile", "--url", url, "--endpoint-type", "chat", "--streaming", "--ui", "none"]
    command += ["--model", "default", "--tokenizer", model, "--artifact-dir", place]
    command += ["--concurrency", streams, "--request-count", 2 * streams]
    command += ["--synthetic-input-tokens-mean", PROMPT, "--output-tokens-mean", tokens]
    for one in (f"min_tokens:{tokens}", "logprobs:true", f"top_logprobs:{KINDS[KIND][1]}"):
        command += ["--extra-inputs", one]
    return command


def _of_aiperf(place: Path) -> dict[str, float]:
    said = json.loads((place / "profile_export_aiperf.json").read_text())
    return {
        f"{what} {part}": said[name][part]
        for what, name in (("first token", "time_to_first_token"), ("a token", "inter_token_latency"))
        for part in ("p50", "p99")
    } | {"requests": said["request_count"]["avg"], "requests a second": said["request_throughput"]["avg"]}


def _evalscope(url: str, model: Path, place: Path, streams: int, tokens: int) -> list[Any]:
    command = ["perf", "--url", f"{url}/v1/chat/completions", "--api", "openai", "--stream", "--no-timestamp"]
    command += ["--model", "default", "--tokenizer-path", model, "--outputs-dir", place]
    command += ["--parallel", streams, "--number", 2 * streams, "--dataset", "random", "--prefix-length", 0]
    command += ["--min-prompt-length", PROMPT, "--max-prompt-length", PROMPT]
    command += ["--min-tokens", tokens, "--max-tokens", tokens]
    return [*command, "--extra-args", json.dumps({"logprobs": True, "top_logprobs": KINDS[KIND][1]})]


def _of_evalscope(place: Path) -> dict[str, float]:
    (summary,) = place.rglob("benchmark_summary.json")
    said = json.loads(summary.read_text())
    rows = json.loads(summary.with_name("benchmark_percentile.json").read_text())
    by = {row["Percentiles"]: row for row in rows}
    return {
        f"{what} p{part}": by[f"{part}%"][name]
        for what, name in (("first token", "TTFT (ms)"), ("a token", "TPOT (ms)"))
        for part in (50, 99)
    } | {"requests": said["Success Requests"], "requests a second": said["Req Throughput (req/s)"]}


ASKS = {"aiperf": (_aiperf, _of_aiperf), "evalscope": (_evalscope, _of_evalscope)}


def run(
    tree: Path, folder: Path, *, streams: int, tokens: int, rounds: int, interval: float, say: Any = print
) -> list[dict[str, Any]]:
    """Rows of each generator, service and round: milliseconds, requests a second, the machine's load."""
    rows: list[dict[str, Any]] = []
    programs = {name: environment(folder / name, package) / name for name, package in PACKAGES.items()}
    with contextlib.ExitStack() as stack:
        services = {
            way: stack.enter_context(
                Service(
                    tree, folder / way, plug_in=plug_in, channel=KINDS[KIND][0], requests=streams,
                    namespace=stack.enter_context(Namespace(RAISED)), environment=ENVIRONMENT,
                )
            )
            for way, plug_in in WAYS.items()
        }  # fmt: skip
        for service in services.values():
            service.wait(300)
        for number, name, (way, service) in itertools.product(range(rounds), programs, services.items()):
            command, read = ASKS[name]
            place = folder / f"{name}-{way}-{number}"
            service.pace(interval)
            words = command(service.url, service.folder / "model", place, streams, tokens)
            with (folder / f"{place.name}.log").open("w") as log:
                subprocess.run(
                    [programs[name], *map(str, words)], cwd=folder, env=alone(), check=True, timeout=1800,
                    stdout=log, stderr=log,
                )  # fmt: skip
            rows.append({"generator": name, "way": way, "load": os.getloadavg()[0], **read(place)})
            say(json.dumps(rows[-1]))
            settle(service)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """A line for each run."""
    heads = (
        "generator | server | >first token, p50 | >p99 | >a token, p50 | >p99 | >requests a second | >load"
    )
    lines = [
        (
            row["generator"], "fd_postproc" if WAYS[row["way"]] else "FastDeploy",
            *(f"{row[name]:,.0f} ms" for name in row if name.endswith((" p50", " p99"))),
            f"{row['requests a second']:.2f}", f"{row['load']:.0f}",
        )
        for row in rows
    ]  # fmt: skip
    return markdown(heads, lines)
