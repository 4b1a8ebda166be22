"""Checks kernel limits against the needs of each channel and dialect."""

from __future__ import annotations

from typing import Any

from .._core import LEAST_LIMIT, has_logprobs
from ..ops.needed_limits import Need, fragments, need, wanted_limits
from ..queues import KernelLimits
from .findings import Finding, Scope
from .snapshot import Snapshot


def limits_remedy(full: int, limits: KernelLimits) -> tuple[str, ...]:
    """The remedy that lets FastDeploy's own messages of `full` bytes through."""
    wanted = wanted_limits(full, limits)
    return (
        f"if FastDeploy's own ops send, as root: sysctl -w {' '.join(wanted)} "
        "(in user and IPC namespaces of their own: as their own root)",
        f"in Docker: docker run {' '.join('--sysctl ' + one for one in wanted)} "
        "(with --ipc=host or --ipc=container:NAME: set them there)",
        "then stop the service, remove its queues and restart it: a queue keeps the size it was made with",
    )


def check_limits(limits: KernelLimits, scope: Scope, both_sides: bool = False) -> list[Finding]:
    """Return one finding for each channel.

    Where `both_sides` are the plug-in's, nothing sends FastDeploy's own messages.
    """
    needs = [need(channel, scope.load, scope.layout) for channel in scope.channels]
    room = min(limits.msgmax, limits.msgmnb)
    largest = max(one.full for one in needs)
    found = []
    for one in needs:
        data: dict[str, Any] = {
            "channel": one.channel,
            "full": one.full,
            "packed": one.packed,
            "compact": one.compact,
            "fragments": None,
        }
        ours = [_packed(one, room)]
        if one.compact is not None:
            data["fragments"] = fragments(one.compact, min(room, one.full))
            if one.packed is None or one.packed > room or has_logprobs(one.channel):
                ours.append(_compact(one.compact, data["fragments"]))
        our_text = f"ours for this load: {', '.join(ours)}"
        if one.full <= room:
            seen = f"FastDeploy's own messages of {one.full:,} bytes fit; {our_text}"
            found.append(Finding("ok", "limits", "limits-fit", one.channel, seen, data=data))
            continue
        if one.full <= limits.msgmax:
            code, why = "limits-hang", "wait forever: longer than kernel.msgmnb"
        else:
            code, why = "limits-too-small", "are refused: longer than kernel.msgmax"
        seen = f"FastDeploy's own messages of {one.full:,} bytes {why}; {our_text}"
        severity = "error" if scope.stock else "info" if both_sides else "warning"
        remedy = limits_remedy(largest, limits)
        found.append(Finding(severity, "limits", code, one.channel, seen, remedy, data=data))
    return found


def check_hidden(snapshot: Snapshot) -> list[Finding]:
    """Report limits and queues that a sandbox hides."""
    found = []
    if seen := snapshot.hidden_limits:
        severity = "warning" if "assumed" in seen else "info"
        remedy = ("let the sandbox (its seccomp profile) allow msgctl",)
        found.append(Finding(severity, "limits", "limits-hidden", "sandbox", seen, remedy))
    if seen := snapshot.hidden_queues:
        seen = f"the queues are not listed here, only those of known ids and engines are looked at: {seen}"
        found.append(
            Finding("info", "queues", "queues-hidden", "sandbox", seen, ("name others: --queue-id",))
        )
    return found


def _packed(one: Need, room: int) -> str:
    if one.packed is None:
        return "packed cannot carry it"
    return f"packed {one.packed:,} ({'fits' if one.packed <= room else 'too long'})"


def _compact(size: int, messages: int | None) -> str:
    if messages is None:
        return f"compact {size:,} (needs messages of {LEAST_LIMIT} bytes or more)"
    return f"compact {size:,} (fits{f' in {messages} fragments' if messages > 1 else ''})"
