"""Measure the host's cost of a token in one engine or several, and write tables and picture.

python -m benchmarks.peers vllm            its environment and its code: results.json
python -m benchmarks.peers report          tables and picture, from results.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import environments, results
from .load import Load

STREAMS, TOPS = (64, 256), (None, 0, 20)
TREE = "FD_POSTPROC_FASTDEPLOY"
SHIM = environments.ROOT / "harness" / "service" / "shim"


def loads(streams: list[int]) -> list[Load]:
    """Numbers alone and with texts, at each number of streams."""
    return [Load(count, 2, top, texts) for count in streams for texts in (False, True) for top in TOPS]


def play(engine: str, python: Path, some: list[Load], say: Any) -> Iterator[dict[str, Any]]:
    """The rows of an engine; FastDeploy's in two processes, one without the plug-in and one with it."""
    tree = os.environ.get(TREE, "").partition(":")[0]
    for options in [{"plug_in": False}, {"plug_in": True}] if engine == "fastdeploy" else [{}]:
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "VLLM_TARGET_DEVICE": "cpu",
            "HF_HUB_OFFLINE": "1",
        }
        if engine == "fastdeploy" and tree:
            environment["PYTHONPATH"] = os.pathsep.join((str(SHIM), tree))
            environment |= {"FD_PLUGINS": "fd_postproc"} if options["plug_in"] else {}
        command = [str(python), "-W", "ignore", "-m", f"{__package__}.play", engine]
        command += [json.dumps([one.as_json() for one in some]), json.dumps(options)]
        with tempfile.TemporaryFile() as errors, subprocess.Popen(
            command, cwd=environments.ROOT, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process:  # fmt: skip
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("{"):
                    yield json.loads(line)
                    say(line.strip())
            if process.wait():
                errors.seek(0)
                raise RuntimeError(errors.read().decode(errors="replace")[-1000:])


def machine() -> str:
    """Where it was measured."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    cpu = names[0] if names else platform.machine()
    return f"{cpu}, {os.cpu_count()} cores, Python {platform.python_version()}"


def run(engine: str, arguments: argparse.Namespace) -> None:
    """One engine: environment and code; what cannot be installed is left out with the reason."""

    def say(line: str) -> None:
        print(line[:200], file=sys.stderr, flush=True)

    try:
        python = environments.make(engine, arguments.environments)
    except environments.NotInstalled as error:
        results.save(engine, {"left out": str(error)})
        say(str(error))
        return
    found: dict[str, Any] = {"machine": machine(), "steps": []}
    for row in play(engine, python, loads(arguments.streams), say):
        found |= row if "versions" in row else {}
        found["steps"] += [] if "versions" in row else [row]
    results.save(engine, found)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", nargs="+", choices=[*environments.ENGINES, "report"], metavar="WHAT")
    parser.add_argument(
        "--environments", type=Path, default=environments.DEFAULT, help="folder of the environments"
    )
    parser.add_argument("--streams", type=int, nargs="+", default=list(STREAMS), help="requests at a time")
    arguments = parser.parse_args()
    for what in arguments.what:
        if what == "report":
            from .picture import draw

            whole = results.load()
            for page in results.PAGES:
                results.fill(page, results.blocks(whole))
            draw(whole, results.HERE.parent / "plots")
        else:
            run(what, arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
