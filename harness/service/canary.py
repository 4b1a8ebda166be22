"""``python -m harness.service.canary URL URL``: what two running services answer to the same requests.

The first is one without the plug-in, the second one with it, of the same model and settings.  Each gets the
cases of `cases`, one at a time, greedy, with a seed and the tokens' ids.  Text, ids, log-probabilities, usage
and ends are compared; where a chunk ends, ids of requests and clocks are not.  What differs is asked again.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any, NamedTuple

import httpx

from .cases import Case, ask, cases
from .comparison import differences

GREEDY = {"temperature": 0, "seed": 1}
TRIES = 3
"""How often a request is asked whose answers differ: an API server drops a first response by chance."""


class Node(NamedTuple):
    """What `ask` asks of a service that others run."""

    url: str

    def dropped(self, user: str) -> int:
        """How many requests lost their first response, which its log alone says."""
        return 0


def requests() -> list[Case]:
    """What is asked: no case whose client leaves, since how much it gets is a matter of the clock."""
    return [
        case._replace(
            body=GREEDY
            | case.body
            | {"extra_body": {"return_token_ids": True} | case.body.get("extra_body", {})}
        )
        for case in cases("topk")
        if not case.leave_after
    ]


def compare(one: str, other: str, *, seconds: float = 60) -> tuple[list[str], list[str]]:
    """What differs, and the names of the requests that neither refuses.

    Parameters
    ----------
    one, other : str
        Where the services are: ``http://HOST:PORT``.
    seconds : float
        After which a request that gets nothing hangs.

    Raises
    ------
    httpx.HTTPError
        A service does not answer.
    """
    nodes = Node(one.rstrip("/")), Node(other.rstrip("/"))
    for node in nodes:
        httpx.get(f"{node.url}/v1/models", timeout=seconds)
    wanted, found, served = requests(), [], set()
    for _ in range(TRIES):
        right, got = (ask(node, wanted, seconds=seconds) for node in nodes)
        served |= {name for name in right if not any(map(_refused, (right[name][-1], got[name][-1])))}
        found = differences(right, got, crowd=False, whole=True)
        again = {line.partition(": ")[0] for line in found}
        wanted = [case for case in wanted if case.name in again]
        if not wanted:
            break
    return found, sorted(served)


def _refused(part: Any) -> bool:
    return part == "hangs" or (isinstance(part, dict) and bool(part.keys() & {"status", "error"}))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m harness.service.canary", description=__doc__)
    parser.add_argument("one", metavar="URL", help="http://HOST:PORT of a service without the plug-in")
    parser.add_argument("other", metavar="URL", help="of one with it")
    parser.add_argument("--seconds", type=float, default=60, help="after which a request hangs")
    arguments = parser.parse_args()
    try:
        found, served = compare(arguments.one, arguments.other, seconds=arguments.seconds)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        print(f"a service does not answer: {error}", file=sys.stderr)
        return 2
    print(*found, sep="\n", end="\n" if found else "")
    print(f"{len(requests())} requests, {len(served)} of them served: {len(found)} differ")
    if not served:
        print("nothing was served, so nothing was compared", file=sys.stderr)
        return 2
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
