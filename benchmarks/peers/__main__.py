"""Measure the host's cost of a token in one engine or several, and write tables and picture.

python -m benchmarks.peers fastdeploy vllm sglang    all take turns, each in its environment: results.json
python -m benchmarks.peers report                    tables and picture, from results.json

Contenders whose figures are compared are to be named together.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..pages import fill
from . import environments, results, turns
from .load import Load

STREAMS, TOPS = (64, 256), (None, 0, 20)
TREE = "FD_POSTPROC_FASTDEPLOY"
SHIM = environments.ROOT / "harness" / "service" / "shim"


def loads(streams: list[int]) -> list[Load]:
    """Numbers alone and with texts, at each number of streams."""
    return [Load(count, 2, top, texts) for count in streams for texts in (False, True) for top in TOPS]


class Player:
    """An engine's process, which waits for its contenders' turns.

    Parameters
    ----------
    engine : str
    python : Path
        The interpreter of its environment.
    options : dict
        For the engine's module: whether fd_postproc is loaded as FastDeploy's plug-in.
    """

    def __init__(self, engine: str, python: Path, options: dict[str, Any]) -> None:
        tree = os.environ.get(TREE, "").partition(":")[0]
        self.engine, self._options = engine, options
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "VLLM_TARGET_DEVICE": "cpu",
            "HF_HUB_OFFLINE": "1",
        }
        if engine == "fastdeploy" and tree:
            environment["PYTHONPATH"] = os.pathsep.join((str(SHIM), tree))
            environment |= {"FD_PLUGINS": "fd_postproc"} if options["plug_in"] else {}
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - it is closed by `close`
        self._process = subprocess.Popen(
            [str(python), "-W", "ignore", "-m", f"{__package__}.play", engine],
            cwd=environments.ROOT, env=environment, text=True, bufsize=1,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
        )  # fmt: skip

    def _ask(self, **what: Any) -> dict[str, Any]:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(f"{json.dumps(what)}\n")
            return dict(json.loads(process.stdout.readline()))
        except (OSError, ValueError):
            process.kill()
            process.wait()
            self._errors.seek(0)
            said = self._errors.read().decode(errors="replace")[-1000:]
            raise RuntimeError(f"{self.engine} gives no answer: {said}") from None

    def begin(self, load: Load) -> dict[str, dict[str, Any]]:
        """What each contender has to say when it is ready, by name."""
        return self._ask(begin=load.as_json(), options=self._options)

    def one_pass(self, name: str) -> dict[str, float]:
        """A contender's next pass, as `turns.timed` gives it."""
        return self._ask(**{"pass": name})

    def end(self) -> dict[str, dict[str, Any]]:
        """End the contenders of a load: what is known of each, by name."""
        return self._ask(end=True)

    def versions(self) -> dict[str, str]:
        """Of what the engine's answers depend on."""
        return self._ask(versions=True)

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._errors.close()


def rows_of(players: list[Player], load: Load, passes: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Engine and row of each contender at a load; they take turns."""
    ready = {(player, name): told for player in players for name, told in player.begin(load).items()}
    by_name = {name: player for (player, name), told in ready.items() if "left out" not in told}
    found = turns.take_turns(by_name, lambda name: by_name[name].one_pass(name), passes)
    summed = turns.summed_up(found, load.tokens)
    ended = {player: player.end() for player in players}
    for (player, name), told in ready.items():
        more = ended[player].get(name, told) | summed.get(name, {})
        yield player.engine, {"contender": name, "load": load.as_json(), **more}


def machine() -> str:
    """Where it was measured."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    cpu = names[0] if names else platform.machine()
    return f"{cpu}, {os.cpu_count()} cores, Python {platform.python_version()}"


def run(engines: list[str], arguments: argparse.Namespace) -> None:
    """Measure engines, which take turns; what cannot be installed is left out with the reason."""

    def say(line: str) -> None:
        print(line[:200], file=sys.stderr, flush=True)

    found: dict[str, dict[str, Any]] = {}
    with contextlib.ExitStack() as stack:
        players = []
        for engine in engines:
            try:
                python = environments.make(engine, arguments.environments)
            except environments.NotInstalled as error:
                found[engine] = {"left out": str(error)}
                say(str(error))
                continue
            for options in [{"plug_in": False}, {"plug_in": True}] if engine == "fastdeploy" else [{}]:
                players.append(Player(engine, python, options))
                stack.callback(players[-1].close)
            found[engine] = {"machine": machine(), "steps": [], "versions": players[-1].versions()}
        for load in loads(arguments.streams):
            for engine, row in rows_of(players, load, arguments.passes):
                found[engine]["steps"].append(row)
                say(json.dumps({name: row.get(name) for name in ("contender", "load", "us", "spread")}))
    for engine, told in found.items():
        results.save(engine, told, arguments.results)


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
    parser.add_argument("--passes", type=int, default=turns.PASSES, help="of each contender, at least 2")
    parser.add_argument("--results", type=Path, default=results.FILE, help="file of the results")
    arguments = parser.parse_args()
    if arguments.passes < 2:
        parser.error(f"--passes {arguments.passes}: a spread takes at least 2")
    engines = [one for one in arguments.what if one != "report"]
    if engines:
        run(engines, arguments)
    if "report" in arguments.what:
        from .picture import draw

        whole = results.load(arguments.results)
        for page in results.PAGES:
            fill(page, "peers", results.blocks(whole))
        draw(whole, results.HERE.parent / "plots")
    return 0


if __name__ == "__main__":
    sys.exit(main())
