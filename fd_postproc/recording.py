"""Recordings (``.fdrec``): a queue's messages in a file, exactly as they were.

A file contains user text, as token ids.  Only its owner can read it.

Layout, little-endian.  Header, 40 bytes: magic ``89 46 44 52 45 43 0d 0a``, u16 version (1), u8 channel (its
place in `CHANNELS`, 255 unknown), one zero byte, the four int32 numbers of the sender's `Layout`, i64 Unix
time in ns, u32 CRC-32 of what precedes.  Then one record per message: u32 bytes stored, u32 payload bytes,
i64 mtype, i64 Unix time in ns, u32 CRC-32 of the fields before it and of what is stored; then the payload,
compressed separately with zlib.  Every record is written at once, so that a recorder that is killed loses
no earlier message.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
import time
import zlib
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from typing import IO

from ._core import CHANNELS, Step, _frame_head, _Pieces, decode
from .core.layout import GPU, Channel, Layout
from .support.checks import kind_of, shown, whole_number

__all__ = [
    "MAX_PAYLOAD",
    "Head",
    "Message",
    "Recording",
    "RecordingError",
    "RecordingWriter",
    "Survey",
    "is_recording",
]

MAX_PAYLOAD = 1 << 26
"""Longest payload that a recording may hold, in bytes: twice what the largest `Layout` can need."""

_MAGIC = b"\x89FDREC\r\n"
_VERSION = 1
_UNKNOWN_CHANNEL = 255
_HEADER = struct.Struct("<8sHBx4iqI")
_RECORD = struct.Struct("<IIqqI")
_CRC = struct.Struct("<I")
# zlib's own bound on what it makes of incompressible bytes, rounded up.
_MAX_STORED = MAX_PAYLOAD + (MAX_PAYLOAD >> 10) + 64


class RecordingError(ValueError):
    """Raised for a file that is not a recording, or is damaged."""


@dataclass(frozen=True)
class Message:
    """One message of a recording.

    Attributes
    ----------
    index : int
        Place in the file, from 0.
    mtype : int
        System V message type.
    time_ns : int
        When it was taken out of the queue: Unix time, ns.
    payload : bytes
        Exactly what the queue held, without mtype.
    """

    index: int
    mtype: int
    time_ns: int
    payload: bytes


@dataclass(frozen=True)
class Head:
    """Head of a message in a recording, before it is unpacked.

    Attributes
    ----------
    index, mtype, time_ns : int
        As of `Message`.
    size : int
        Bytes of its payload.
    """

    index: int
    mtype: int
    time_ns: int
    size: int


@dataclass(frozen=True)
class Survey:
    """Summary of a recording's content.

    Attributes
    ----------
    messages, payload_bytes, longest : int
        Count; bytes of all payloads, and of the longest.
    first_ns, last_ns : int
        Unix times of the first and the last message, 0 if there is none.
    file_bytes : int
    cut : str or None
        As `Recording.cut`.
    """

    messages: int
    payload_bytes: int
    longest: int
    first_ns: int
    last_ns: int
    file_bytes: int
    cut: str | None


def _crc(fields: bytes, stored: bytes = b"") -> int:
    return zlib.crc32(stored, zlib.crc32(fields))


class RecordingWriter:
    """Writes a new recording, mode 0600.

    Parameters
    ----------
    path : str, os.PathLike, or int
        A number is an open file descriptor, for instance of a pipe.  It is written to from its current
        position, and closed with the writer.
    channel : str, optional
        Channel of the messages; None if it is unknown, or if several channels share the queue.  If all are
        compact frames of one channel, `close` notes that, in a regular file that was not opened to append.
    layout : Layout, optional
        Geometry of the sender's build.
    force : bool, optional
        Replace an existing regular file.  It is removed first, so that processes with the old one open
        do not read the new content.
    level : int, optional
        zlib's compression level; 1 is far faster than messages come.
    created_ns : int, optional
        Unix time of the recording, ns; default: now.

    Raises
    ------
    FileExistsError
        If there is a file of this name and `force` is false, or it is not a regular file.
    OSError
        If the file cannot be made.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | int,
        channel: Channel | None = None,
        *,
        layout: Layout = GPU,
        force: bool = False,
        level: int = 1,
        created_ns: int | None = None,
    ) -> None:
        if isinstance(path, bool) or not isinstance(path, (str, os.PathLike, int)):
            raise TypeError(f"path must be a str, an os.PathLike or a file descriptor, not {shown(path)}")
        self.path = f"descriptor {path}" if isinstance(path, int) else os.fspath(path)
        if channel is not None and channel not in CHANNELS:
            raise ValueError(
                f"channel {shown(channel)} is not one of {', '.join(map(repr, CHANNELS))}, or None"
            )
        if not isinstance(layout, Layout):
            raise TypeError(f"layout must be a Layout, not {kind_of(layout)}")
        whole_number(level, "level", -1, 9, "zlib's compression levels")
        if created_ns is not None:
            created_ns = whole_number(created_ns, "created_ns", -(1 << 63), (1 << 63) - 1)
        self.messages = 0
        self.payload_bytes = 0
        self.file_bytes = 0
        self.channel, self.layout = channel, layout
        self._level = level
        self._seen: set[Channel | None] = {channel} if channel is not None else set()
        # Stamps count on from here, so that they rise even if the wall clock is set.
        self._epoch_ns = time.time_ns() - time.monotonic_ns()
        self._created = self._now() if created_ns is None else created_ns
        if isinstance(path, int):
            self._fd = path
        else:
            if force:
                _remove_regular(self.path)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            self._fd = os.open(self.path, flags, 0o600)
        try:
            status = os.fstat(self._fd)
        except OSError as error:  # no such descriptor
            raise OSError(error.errno, error.strerror, self.path) from None
        self._can_seek = stat.S_ISREG(status.st_mode)
        self._has_name = status.st_nlink > 0  # a temporary file may have none
        # A shell's >> begins at position 0.
        self._appends = fcntl.fcntl(self._fd, fcntl.F_GETFL) & os.O_APPEND
        whence = os.SEEK_END if self._appends else os.SEEK_CUR
        self._start = os.lseek(self._fd, 0, whence) if self._can_seek else 0
        try:
            self._append(self._header())
        except BaseException:
            self.close()
            raise

    def _header(self) -> bytes:
        number = _UNKNOWN_CHANNEL if self.channel is None else CHANNELS.index(self.channel)
        fields = _MAGIC, _VERSION, number, *astuple(self.layout), self._created, 0
        header = _HEADER.pack(*fields)[: -_CRC.size]
        return header + _CRC.pack(_crc(header))

    def write(self, payload: bytes, mtype: int = 1, time_ns: int | None = None) -> None:
        """Append one message; on return the kernel has it, so that it survives the end of this process.

        Raises
        ------
        TypeError
            If `payload` is not bytes, or another argument is not a whole number.
        ValueError
            If the payload is longer than `MAX_PAYLOAD`, the type is below 1, type or time do not fit 64 bits,
            or the writer is closed.
        OSError
            If the disk is full.  The file then ends after the previous message.  Also if another program has
            removed the file: what is written then is lost when it is closed.
        """
        if not isinstance(payload, (bytes, bytearray, memoryview)):
            raise TypeError(f"payload must be bytes, not {kind_of(payload)}")
        if self._fd < 0:
            raise ValueError(f"the RecordingWriter of {self.path} is closed")
        payload = bytes(payload)
        mtype = whole_number(mtype, "mtype", 1, (1 << 63) - 1, "the kernel sends no other")
        if time_ns is not None:
            time_ns = whole_number(time_ns, "time_ns", -(1 << 63), (1 << 63) - 1)
        if len(payload) > MAX_PAYLOAD:
            raise ValueError(
                f"a message of {len(payload)} bytes; a recording holds at most {MAX_PAYLOAD} per message"
            )
        if self.is_removed():
            raise FileNotFoundError(errno.ENOENT, "the file was removed while it was written", self.path)
        stored = zlib.compress(payload, self._level)
        when = self._now() if time_ns is None else time_ns
        fields = _RECORD.pack(len(stored), len(payload), mtype, when, 0)[: -_CRC.size]
        self._append(fields + _CRC.pack(_crc(fields, stored)) + stored)
        self.messages += 1
        self.payload_bytes += len(payload)
        if self.channel is None:
            self._seen.add((_frame_head(payload, mtype) or (None,))[0])

    def is_removed(self) -> bool:
        """Whether the file was removed since it was opened, so that it is lost when it is closed."""
        return self._has_name and self._fd >= 0 and not os.fstat(self._fd).st_nlink

    def _now(self) -> int:
        return self._epoch_ns + time.monotonic_ns()

    def _append(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError as error:
            if self._can_seek:
                end = self._start + self.file_bytes
                os.ftruncate(self._fd, end)
                os.lseek(self._fd, end, os.SEEK_SET)
            error.filename = self.path  # write() has a descriptor, and no name
            raise
        self.file_bytes += len(data)

    def close(self) -> None:
        """Put everything on the disk and close the file."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            try:
                if self._can_seek:
                    if self.channel is None and len(self._seen) == 1 and not self._appends:
                        (self.channel,) = self._seen
                        os.pwrite(fd, self._header(), self._start)
                    os.fsync(fd)
            finally:
                os.close(fd)

    def __enter__(self) -> RecordingWriter:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _remove_regular(path: str) -> None:
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        raise FileExistsError(f"{path} is not a regular file; it is left alone")
    os.unlink(path)


class Recording:
    """Reader of a recording; iteration yields its messages.

    Parameters
    ----------
    source : str, os.PathLike or binary file
        A file must be at its start, and is closed with the Recording.

    Attributes
    ----------
    channel : str or None
    layout : Layout
    created_ns : int
        Unix time, ns.
    cut : str or None
        Set once an iteration has met an incomplete last record: what is missing.  A recorder that was killed
        leaves one; all messages before it are whole.
    incomplete : int
        Frames that never became whole in the last iteration of `steps`.

    Raises
    ------
    RecordingError
        If it is not a recording.  Iteration raises it, too, naming the message and the place.
    """

    def __init__(self, source: str | os.PathLike[str] | IO[bytes]) -> None:
        if isinstance(source, (str, os.PathLike)):
            self.name = os.fspath(source)
            self._file: IO[bytes] = open(source, "rb")  # noqa: SIM115  closed by close()
        else:
            _check_binary(source)
            name = getattr(source, "name", 0)  # a number: a pipe's, or that of a file without a name
            self.name = "standard input or an unnamed file" if isinstance(name, int) else str(name)
            self._file = source
        self.cut: str | None = None
        self.incomplete = 0
        try:
            self._read_header()
        except BaseException:
            self._file.close()
            raise

    def _read_header(self) -> None:
        header = self._file.read(_HEADER.size)
        if not header.startswith(_MAGIC):
            raise RecordingError(f"{self.name} is not a recording made by 'fd-postproc record'")
        if len(header) < _HEADER.size:
            raise RecordingError(
                f"{self.name} ends within its header, at byte {len(header)} of {_HEADER.size}"
            )
        _, version, number, *sizes, self.created_ns, crc = _HEADER.unpack(header)
        if version != _VERSION:
            raise RecordingError(
                f"{self.name} has format version {version}; this program reads version {_VERSION}"
            )
        if crc != _crc(header[: -_CRC.size]):
            raise RecordingError(f"{self.name} is damaged: its header's checksum does not match")
        if number != _UNKNOWN_CHANNEL and number >= len(CHANNELS):
            raise RecordingError(f"{self.name} is damaged: channel number {number}")
        self.channel = None if number == _UNKNOWN_CHANNEL else CHANNELS[number]
        try:
            self.layout = GPU if tuple(sizes) == astuple(GPU) else Layout(*sizes)
        except ValueError as error:
            raise RecordingError(f"{self.name} is damaged: {error}") from None

    def __iter__(self) -> Iterator[Message]:
        self.cut = None
        index, at = 0, _HEADER.size
        while message := self._next(index, at):
            at = self._file.tell()
            yield message
            index += 1

    def _head(self, index: int, at: int) -> tuple[Head, int, bytes] | None:
        """The head of the record there, bytes that are stored behind it, and its own; None at the end."""
        self._check_open()
        self._file.seek(at)  # the caller of an iteration may begin another one
        fields = self._file.read(_RECORD.size)
        if len(fields) < _RECORD.size:
            self.cut = _cut_text(index, at) if fields else None
            return None
        stored_size, size, mtype, time_ns, _ = _RECORD.unpack(fields)
        if stored_size > _MAX_STORED or size > MAX_PAYLOAD:
            largest = max(stored_size, size)
            raise self._damaged(
                index, at, f"it claims {largest} bytes, more than the {MAX_PAYLOAD} of any message"
            )
        return Head(index, mtype, time_ns, size), stored_size, fields

    def _next(self, index: int, at: int) -> Message | None:
        found = self._head(index, at)
        if found is None:
            return None
        head, stored_size, fields = found
        stored = _read_up_to(self._file, stored_size)
        if len(stored) < stored_size:
            self.cut = _cut_text(index, at)
            return None
        if fields[-_CRC.size :] != _CRC.pack(_crc(fields[: -_CRC.size], stored)):
            raise self._damaged(index, at, "its checksum does not match")
        if head.mtype < 1:
            raise self._damaged(index, at, f"message type {head.mtype} is below 1")
        return Message(index, head.mtype, head.time_ns, self._unpacked(index, at, stored, head.size))

    def steps(self, channel: Channel | None = None) -> Iterator[Step]:
        """Decode the messages, and join frames that are in pieces.

        Parameters
        ----------
        channel : str, optional
            Of messages that do not say theirs, as compact frames do.  Default: the recording's.

        Raises
        ------
        MalformedMessage
            If a message is inconsistent.
        ValueError
            If a message's channel is not known: give one.
        RecordingError
            As an iteration does.
        """
        own = channel or self.channel
        joined: dict[Channel, _Pieces] = {}
        try:
            for message in self:
                head = _frame_head(message.payload, message.mtype)
                of = (head and head[0]) or own
                if of is None:
                    raise ValueError(
                        f"message {message.index} of {self.name} does not say its channel, nor does the "
                        f"recording: give one of {', '.join(CHANNELS)}"
                    )
                if head is None:
                    yield decode(message.payload, of, mtype=message.mtype, layout=self.layout)
                    continue
                if of not in joined:
                    joined[of] = _Pieces(of, self.layout)
                step = joined[of].add(message.payload)
                if step is not None:
                    yield step
        finally:
            self.incomplete = sum(pieces.incomplete for pieces in joined.values())

    def heads(self) -> Iterator[Head]:
        """The heads of the messages, without unpacking; checksums are not verified.

        Raises
        ------
        RecordingError
            If a head is out of bounds.
        """
        self._check_open()
        end = self._file.seek(0, os.SEEK_END)
        self.cut = None
        index, at = 0, _HEADER.size
        while found := self._head(index, at):
            head, stored_size, _ = found
            if at + _RECORD.size + stored_size > end:
                self.cut = _cut_text(index, at)
                return
            yield head
            at += _RECORD.size + stored_size
            index += 1

    def survey(self) -> Survey:
        """Count the messages from their heads alone, without unpacking; checksums are not verified.

        Raises
        ------
        RecordingError
            If a head is out of bounds.
        """
        count = total = longest = first_ns = last_ns = 0
        for head in self.heads():
            first_ns = first_ns if count else head.time_ns
            count, total, longest = count + 1, total + head.size, max(longest, head.size)
            last_ns = head.time_ns
        return Survey(count, total, longest, first_ns, last_ns, self._file.seek(0, os.SEEK_END), self.cut)

    def _check_open(self) -> None:
        if self._file.closed:
            raise ValueError(f"the Recording of {self.name} is closed")

    def _unpacked(self, index: int, at: int, stored: bytes, size: int) -> bytes:
        unpacker = zlib.decompressobj()
        try:
            payload = unpacker.decompress(stored, size + 1)
        except zlib.error as error:
            raise self._damaged(index, at, str(error)) from None
        if len(payload) != size or not unpacker.eof or unpacker.unused_data:
            raise self._damaged(index, at, f"it does not unpack to the {size} bytes that it claims")
        return payload

    def _damaged(self, index: int, at: int, why: str) -> RecordingError:
        return RecordingError(f"{self.name} is damaged at message {index} (byte {at}): {why}")

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def is_recording(source: str | os.PathLike[str] | IO[bytes]) -> bool:
    """Whether a file begins like a recording; an open file is rewound to its start."""
    if isinstance(source, (str, os.PathLike)):
        with open(source, "rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    _check_binary(source)
    source.seek(0)
    head = source.read(len(_MAGIC))
    source.seek(0)
    return head == _MAGIC


def _check_binary(source: IO[bytes]) -> None:
    if not hasattr(source, "read") or not hasattr(source, "seek") or not isinstance(source.read(0), bytes):
        what = "source must be a path or a binary file, opened with mode 'rb'"
        raise TypeError(f"{what}, not {kind_of(source)}")


def _cut_text(index: int, at: int) -> str:
    return f"message {index} (at byte {at}) is incomplete; the recorder was stopped while writing it"


def _read_up_to(file: IO[bytes], size: int) -> bytes:
    """Read at most `size` bytes, allocating hardly more than the file holds."""
    parts = []
    while size and (part := file.read(min(size, 1 << 20))):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
