"""Checks that both sides of a service get the same key, and two services different ones."""

from __future__ import annotations

from itertools import combinations

from ..layout import Channel
from ..queues import CHANNEL_PATHS, key_text
from .findings import Finding, Scope
from .processes import Place, name, place
from .snapshot import CHANNELS_OF, Identity, Queue, Snapshot, configured_ids, own_places

_KINDS = {"shm": "/dev/shm", "cwd": "working directory"}


def check_keys(snapshot: Snapshot, scope: Scope) -> list[Finding]:
    """Return all findings about keys."""
    found = []
    for queue_id in sorted(configured_ids(scope)):
        found.append(_keys_of(queue_id, snapshot, scope))
    found.extend(_unreadable_places())
    found.extend(_collisions(snapshot, scope))
    found.extend(_splits(snapshot))
    found.extend(_different_places(snapshot, scope))
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
    for first, second in combinations(sorted(configured_ids(scope)), 2):
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


def _sides(queue: Queue) -> tuple[set[int], set[int]]:
    """Live processes that send, and those that receive."""
    send = {queue.sender.pid} if queue.sender.state == "alive" else set()
    receive = {queue.receiver.pid} if queue.receiver.state == "alive" else set()
    send |= {one.pid for one in queue.waits("send")}
    receive |= {one.pid for one in queue.waits("receive")}
    return send, receive


def _splits(snapshot: Snapshot) -> list[Finding]:
    """Check whether the two sides of one id use two queues, so that nothing ever arrives."""
    by_id: dict[tuple[int, str, str], dict[int, tuple[Queue, Identity]]] = {}
    for queue in snapshot.queues:
        for one in queue.identities:
            several = by_id.setdefault((one.queue_id, one.ftok, one.place.kind), {})
            several.setdefault(queue.info.msqid, (queue, one))
    found = []
    for (queue_id, _, kind), several in by_id.items():
        for first, second in combinations(several.values(), 2):
            for sending, reading in (
                (first, second),
                (second, first),
            ):
                senders, no_readers = _sides(sending[0])
                no_senders, readers = _sides(reading[0])
                if senders and readers and not no_senders and not no_readers:
                    found.append(_split(queue_id, kind, (*sending, senders), (*reading, readers)))
    return found


def _split(
    queue_id: int,
    kind: str,
    sending: tuple[Queue, Identity, set[int]],
    reading: tuple[Queue, Identity, set[int]],
) -> Finding:
    (one, at, senders), (other, there, readers) = sending, reading
    if kind == "cwd":
        why = f"they work in {at.place} and {there.place}, and the key of spec is made of the directory"
        remedy = ("start both in one directory",)
    else:
        why = "they see different mounts of /dev/shm, which the key is made of"
        remedy = ("give both one mount of /dev/shm (containers: one volume, or one container)",)
    seen = (
        f"{_people(senders)} {'sends' if len(senders) == 1 else 'send'} to queue {one.info.msqid}, "
        f"{_people(readers)} {'reads' if len(readers) == 1 else 'read'} from queue {other.info.msqid}: {why}"
    )
    data = {
        "senders": sorted(senders),
        "readers": sorted(readers),
        "sender_queue": one.info.msqid,
        "reader_queue": other.info.msqid,
        "kind": kind,
    }
    return Finding("error", "keys", "key-split", f"id {queue_id}", seen, remedy, one.info.msqid, data)


def _people(pids: set[int]) -> str:
    noun = "process" if len(pids) == 1 else "processes"
    return f"{noun} {', '.join(f'{pid} ({name(pid)})' for pid in sorted(pids))}"


def _different_places(snapshot: Snapshot, scope: Scope) -> list[Finding]:
    """Check for processes of one queue id that would use different keys on another channel."""
    found = []
    for kind in ("cwd", "shm"):
        if not any(channel in CHANNELS_OF[kind] for channel in scope.channels):
            continue
        for queue in snapshot.queues:
            pids = set.union(*_sides(queue))
            here: dict[Place, list[int]] = {}
            for pid in sorted(pids):
                for at in snapshot.places.get(pid, ()):
                    if at.kind == kind:
                        here.setdefault(at, []).append(pid)
            if len(here) < 2:
                continue
            # on a queue that is made of this very place they could not have met otherwise
            serious = scope.settled and not any(one.place.kind == kind for one in queue.identities)
            where = "; ".join(f"{_people(set(pids))}: {at}" for at, pids in here.items())
            channels = " and ".join(CHANNELS_OF[kind])
            seen = f"its processes differ in {_KINDS[kind]} ({where}): on {channels} they would not meet"
            remedy = ("start both in one directory" if kind == "cwd" else "give both one mount of /dev/shm",)
            code = f"{kind}-differs"
            severity = "warning" if serious else "info"
            found.append(Finding(severity, "keys", code, queue.subject, seen, remedy, queue.info.msqid))
    return found
