"""Checks of this machine's queues, limits and settings; findings are values, nothing is printed.

::

    scope = Scope(channels=("topk",), ids=frozenset([8002]))
    for finding in examine(scope):
        print(finding.severity, finding.subject, finding.seen)

Each file asks one question: `limits`, `queue_checks`, `keys`, `logind`, `environment`, `plugins`, `trial`,
`paddle`; `bug_report` is what a bug report needs of them.  What they look at is read once, by `snapshot`;
`processes` knows about processes.
"""

from __future__ import annotations

from ..ops.needed_limits import Load
from .bug_report import bug_report
from .environment import check_cuda, check_environment, check_fastdeploy, check_peers
from .findings import SEVERITIES, Finding, Scope, worst
from .keys import check_keys
from .limits import check_hidden, check_limits
from .logind import check_logind
from .paddle import check_paddle
from .queue_checks import check_queues
from .snapshot import Snapshot, take
from .trial import api_side, check_trial, engine_side, left_parts, worker_side

__all__ = [
    "SEVERITIES",
    "Finding",
    "Load",
    "Scope",
    "Snapshot",
    "bug_report",
    "examine",
    "take",
    "worst",
]


def examine(scope: Scope | None = None, snapshot: Snapshot | None = None) -> list[Finding]:
    """Run all checks; the findings come by group.

    Without a scope: of all channels, the configured queue id and all queues that look like FastDeploy's.
    Without a snapshot: of the present state.
    """
    scope = scope or Scope()
    snapshot = snapshot or take(scope)
    fastdeploy, engine, worker, api, *names = check_fastdeploy()
    tried = check_trial() if scope.trial else []
    sides = [engine_side(engine, tried), worker_side(worker, tried), api_side(api, tried)]
    sides += [part for side in sides[1:] for part in left_parts(side)]
    ours = all(one.data.get("active") and one.severity in ("ok", "info") for one in sides[:2])
    missing = fastdeploy.code == "fastdeploy-missing"  # then that comes first: the sides would be as they say
    return [
        *([fastdeploy, *sides] if missing else [*sides, fastdeploy]),
        *names,
        *tried,
        *check_paddle(),
        *check_hidden(snapshot),
        *check_limits(snapshot.limits, scope, ours),
        *check_queues(snapshot, scope),
        *check_keys(snapshot, scope),
        *check_logind(),
        *check_environment(ours),
        *check_peers(),
        *check_cuda(),
    ]
