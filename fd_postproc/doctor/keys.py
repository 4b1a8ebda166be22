"""Checks that a queue id gives keys, and two services different ones."""

from __future__ import annotations

from itertools import combinations

from ..core.layout import Channel
from ..queues import CHANNEL_PATHS, key_text
from .findings import Finding, Scope
from .processes import place
from .snapshot import CHANNELS_OF, Snapshot, own_places


def check_keys(snapshot: Snapshot, scope: Scope) -> list[Finding]:
    """Return all findings about keys."""
    found = [_keys_of(queue_id, snapshot, scope) for queue_id in sorted(snapshot.ids)]
    found.extend(_unreadable_places())
    found.extend(_collisions(snapshot, scope))
    return found


def _own_key(queue_id: int, channel: Channel, ftok: str, scope: Scope) -> tuple[int | None, str]:
    """A channel's key as this process makes it, and the file of the key."""
    kind = "cwd" if channel in CHANNELS_OF["cwd"] else "shm"
    places = [at for at in own_places(scope) if at.kind == kind]
    if kind == "cwd" and scope.paths:
        places = places[1:]
    return (places[0].key(queue_id, ftok), places[0].path) if places else (None, CHANNEL_PATHS[channel])


def _keys_of(queue_id: int, snapshot: Snapshot, scope: Scope) -> Finding:
    """Check the keys of an id, and whether their queues exist."""
    there = {queue.info.key: queue.info.msqid for queue in snapshot.queues}
    by_key: dict[tuple[int | None, str], list[str]] = {}
    for channel in scope.channels:
        by_key.setdefault(_own_key(queue_id, channel, "custom", scope), []).append(channel)
    parts, data = [], []
    for (key, path), channels in by_key.items():
        if key is None:
            parts.append(f"{', '.join(channels)}: no key can be made of {path}")
            continue
        state = f"queue {there[key]}" if key in there else "no queue yet"
        parts.append(f"{', '.join(channels)}: {key_text(key)} (from {path}), {state}")
        data.append({"channels": channels, "path": path, "key": key_text(key), "msqid": there.get(key)})
    return Finding("info", "keys", "keys", f"id {queue_id}", "; ".join(parts), data={"keys": data})


def _unreadable_places() -> list[Finding]:
    found = []
    for kind, lookup in ("shm", "/dev/shm"), ("cwd", "./"):
        if place(kind, lookup) is None:
            seen = "cannot be accessed; FastDeploy continues with key -1, which all such processes share"
            remedy = (f"mount or create {lookup}, or start in a directory that exists",)
            found.append(Finding("error", "keys", "place-missing", lookup, seen, remedy))
    return found


def _collisions(snapshot: Snapshot, scope: Scope) -> list[Finding]:
    """Check for two ids, or two channels' places, with one key."""
    found = []
    for first, second in combinations(sorted(snapshot.ids), 2):
        for ftok, severity, apart in ("custom", "error", 1 << 20), ("libc", "warning", 256):
            key = _own_key(first, "plain", ftok, scope)[0]
            if key is None or key != _own_key(second, "plain", ftok, scope)[0]:
                continue
            builds = "FastDeploy" if ftok == "custom" else "FastDeploy builds from before custom_ftok"
            seen = f"both get key {key_text(key)} under {builds}: their ids are a multiple of {apart:,} apart"
            remedy = ("give one service another port or INFERENCE_MSG_QUEUE_ID",)
            data = {"ids": [first, second], "ftok": ftok, "key": key_text(key)}
            subject = f"ids {first} and {second}"
            found.append(Finding(severity, "keys", "key-collision", subject, seen, remedy, data=data))
            break
    for queue in snapshot.queues:
        kinds = {one.place.kind: one for one in queue.identities if one.ftok == "custom"}
        if len(kinds) > 1:
            directory = kinds["cwd"].place
            seen = f"{directory} gives the same keys as /dev/shm: spec shares its queues with other channels"
            remedy = ("start the service in another directory",)
            found.append(
                Finding("warning", "keys", "key-collision", queue.subject, seen, remedy, queue.info.msqid)
            )
    return found
