"""Snapshot of everything that the checks examine, and the services that keys belong to."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field

from .. import queues
from ..core.layout import Channel
from ..errors import QueueError
from ..flight.files import listed
from ..flight.reading import Flight, FlightError, read
from ..queues import KernelLimits, QueueInfo, key_text
from .findings import Scope
from .processes import Place, User, last_user, place, places_of

CHANNELS_OF = {
    "shm": tuple(channel for channel, path in queues.CHANNEL_PATHS.items() if path == "/dev/shm"),
    "cwd": tuple(channel for channel, path in queues.CHANNEL_PATHS.items() if path == "./"),
}
"""Channels whose keys are made of /dev/shm, and of the working directory."""

# FastDeploy's ids are TCP ports, in older versions plus a rank.  A key with a larger one is a coincidence.
_LARGEST_ID = 65535 + 256

# This many messages of this few bytes on average are not FastDeploy's, which have at least 8 (no requests).
_FLOOD_MESSAGES = 256
_FLOOD_BYTES = 64

_JUST_NOW = 3.0  # seconds; the kernel keeps whole ones


@dataclass(frozen=True)
class Identity:
    """A queue id, rule and place that give a queue's key.

    Under ``"libc"`` ids that differ by 256 give one key: the id is one that the user named, else the
    smallest.
    """

    queue_id: int
    ftok: str
    place: Place

    def __str__(self) -> str:
        libc = " or 256 more" if self.ftok == "libc" else ""
        return f"id {self.queue_id}{libc}, {self.place}"


@dataclass(frozen=True)
class Queue:
    """A queue and the facts about it."""

    info: QueueInfo
    identities: tuple[Identity, ...]  # empty if nothing says that it is FastDeploy's
    named: bool  # the user named its key or number
    sender: User
    receiver: User
    node: str = ""  # role and rank of the engine that reads it, where there are several

    @property
    def ours(self) -> bool:
        """Whether it carries FastDeploy's tokens, by its key or by the user's word."""
        return self.named or bool(self.identities)

    @property
    def leftover(self) -> bool:
        """Whether all known users of it are dead."""
        users = [user for user in (self.sender, self.receiver) if user.state != "nobody"]
        return bool(users) and all(user.gone for user in users)

    @property
    def flooded(self) -> bool:
        """Whether many small messages wait, so that the last sender is hardly the worker."""
        return self.info.messages >= _FLOOD_MESSAGES and self.info.bytes < _FLOOD_BYTES * self.info.messages

    @property
    def being_read(self) -> bool:
        """Whether its reader is alive, and has taken a message when the last ones were sent.

        The kernel's two stamps are the wall clock's: false for a moment when the clock is set between them.
        """
        apart = abs(self.info.sent_at - self.info.received_at)
        return self.receiver.state == "alive" and apart < _JUST_NOW

    def channels(self, scope: Scope) -> tuple[Channel, ...]:
        """Channels that it can carry."""
        if self.named:
            return scope.channels
        possible = {channel for one in self.identities for channel in CHANNELS_OF[one.place.kind]}
        return tuple(channel for channel in scope.channels if channel in possible)

    @property
    def subject(self) -> str:
        who = f"{self.identities[0]}, " if self.identities else ""
        node = f", {self.node}" if self.node else ""
        return f"queue msqid:{self.info.msqid} ({who}key {key_text(self.info.key)}{node})"

    @property
    def short(self) -> str:
        who = f"id {self.identities[0].queue_id}" if self.identities else f"key {key_text(self.info.key)}"
        return f"queue msqid:{self.info.msqid} ({who})"


@dataclass(frozen=True)
class Snapshot:
    """State of the machine at one moment."""

    limits: KernelLimits
    queues: list[Queue]  # those in scope
    others: list[QueueInfo] = field(default_factory=list)  # not FastDeploy's, by what is known
    signals: list[QueueInfo] = field(default_factory=list)  # FastDeploy's, for a prefill node's cache
    hidden_limits: str = ""  # what a sandbox hides of them, in words
    hidden_queues: str = ""  # why only the queues of known ids are here
    ids: frozenset[int] = frozenset()  # that the user named, otherwise the environment's


def own_places(scope: Scope) -> list[Place]:
    """/dev/shm, the working directory and the directories of the scope, for this process."""
    try:
        here = os.getcwd()
    except FileNotFoundError:
        here = "./ (deleted)"
    found = [place("shm", "/dev/shm"), place("cwd", "./", here)]
    found += [place("cwd", path, os.path.realpath(path)) for path in scope.paths]
    return [one for one in found if one is not None]


def identities(key: int, places: list[Place], ids: frozenset[int]) -> tuple[Identity, ...]:
    """All ids and places that yield a key.

    `ids` are the configured ones, all of which count; of other ids, only the likely ones do.
    """
    found = []
    # Both rules keep the id's low bits in a place of their own.
    read_back = {"custom": key & 0xFFFFF, "libc": key >> 24 & 0xFF}
    for at in dict.fromkeys(places):
        for ftok, guess in read_back.items():
            for queue_id in [*sorted(ids), guess]:
                likely = queue_id in ids or queue_id <= _LARGEST_ID
                if likely and at.key(queue_id, ftok) == key:
                    found.append(Identity(queue_id, ftok, at))
                    break
    return tuple(found)


def signal_id(key: int) -> int | None:
    """Id of a prefill node's queue of signals, if the key is one's: they say which layers' cache is written.

    FastDeploy makes the key of /opt/ and of the id, 4 bits further left (tensor parallel rank 0).
    """
    try:
        queue_id = (key & 0xFFFFF) >> 4
        return queue_id if queue_id and queues.queue_key(queue_id << 4, "/opt/") == key else None
    except QueueError:  # no such folder
        return None


def _configured_ids(scope: Scope) -> frozenset[int]:
    if scope.named:
        return scope.ids
    try:
        return frozenset([queues.queue_id_from_env()])
    except ValueError:
        return frozenset()  # the check of the environment reports it


def take(scope: Scope) -> Snapshot:
    """Read limits, queues and processes."""
    here = own_places(scope)
    ids = _configured_ids(scope)
    engines = _engines()
    hidden = ""
    try:
        infos = queues.list_queues()
    except OSError as error:
        hidden = f"{error.filename}: {error.strerror}"
        infos = _known(scope, here, ids, engines)
    found: list[Queue] = []
    others: list[QueueInfo] = []
    signals: list[QueueInfo] = []
    looked_at: dict[int, list[Place]] = {}
    for info in infos:
        named = info.msqid in scope.msqids or info.key in scope.keys
        sender = last_user(info.last_sender, info.sent_at)
        receiver = last_user(info.last_receiver, info.received_at)
        pids = {user.pid for user in (sender, receiver) if user.state == "alive"}
        for pid in pids - looked_at.keys():
            looked_at[pid] = places_of(pid)
        # its users' places first: only some bits of an inode count, and ours may agree by chance
        seen = [at for pid in sorted(pids) for at in looked_at[pid]] + here
        known = identities(info.key, seen, ids) if info.key else ()
        queue = Queue(info, known, named, sender, receiver, _node(info, receiver, engines))
        if not queue.ours:
            (others if signal_id(info.key) is None else signals).append(info)
        elif _in_scope(queue, scope):
            found.append(queue)
    if scope.named:
        others, signals = [], []
    return Snapshot(queues.kernel_limits(), found, others, signals, queues.hidden_limits(), hidden, ids)


def _known(scope: Scope, here: list[Place], ids: frozenset[int], engines: list[Flight]) -> list[QueueInfo]:
    """The queues of known ids and of engines that run, where a sandbox lists none."""
    keys = {at.key(one, ftok) for at in here for one in ids for ftok in ("custom", "libc")}
    keys |= {*scope.keys, *(head.key for head in engines)}
    opened = [queues.existing(key) for key in keys if key is not None]
    found = []
    for msqid in sorted({*scope.msqids, *(queue.id for queue in opened if queue is not None)}):
        with contextlib.suppress(QueueError):  # removed meanwhile
            found.append(queues.inspect_queue(msqid))
    return found


def _engines() -> list[Flight]:
    """Heads of the flight recorder's files of engines that run."""
    heads = []
    for path in listed():
        if os.path.basename(path).startswith("engine"):
            with contextlib.suppress(FlightError, OSError):
                heads.append(read(path, 0))
    return [head for head in heads if head.writer is not None]


def _node(info: QueueInfo, receiver: User, engines: list[Flight]) -> str:
    """Role and rank of the engine of a queue; another one may have the same key in another IPC namespace."""
    for head in engines:
        if head.key == info.key and (receiver.state != "alive" or receiver.pid == head.pid):
            return head.node
    return ""


def _in_scope(queue: Queue, scope: Scope) -> bool:
    if queue.named:
        return True
    if scope.named and not any(one.queue_id in scope.ids for one in queue.identities):
        return False
    return bool(queue.channels(scope))
