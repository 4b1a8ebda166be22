"""Planted bugs of the ends of an address."""

from tests.mutate.bug import in_file

TRANSPORT = "fd_postproc/transport"
TESTS = "tests/transport"
STRANGERS = f"{TESTS}/test_strangers.py"

BUGS = [
    in_file(
        f"{TRANSPORT}/outlet.py",
        f"{TESTS}/test_last_messages.py",
        (
            "close does not wait until the kernel has room",
            "while (has_room := self._has_room()) is False and time.monotonic() < until:",
            "while (has_room := True) is False:",
        ),
        (
            "what may be in ZeroMQ's buffer is called sent",
            "if not (has_room and self._has_room()):",
            "if False:",
        ),
        (
            "a sender that was not closed goes without a word",
            "if unsent := _unsent(pending):",
            "if unsent := 0:",
            f"{TESTS}/test_ends.py",
        ),
        (
            "a refused key is not told",
            "elif self._heard == zmq.EVENT_HANDSHAKE_FAILED_AUTH:",
            "elif self._heard == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:",
            f"{TESTS}/test_keys.py",
        ),
    ),
    in_file(
        f"{TRANSPORT}/plain_inlet.py",
        STRANGERS,
        (
            "parts that never end are kept",
            "if not flags & _COMMAND and (self.more or flags & _MORE or size > longest):",
            "if not flags & _COMMAND and size > longest:",
        ),
        (
            "a message of any length is kept",
            "if not flags & _COMMAND and (self.more or flags & _MORE or size > longest):",
            "if not flags & _COMMAND and (self.more or flags & _MORE):",
        ),
        (
            "after the last part all is passed over",
            "flags & _MORE, end\n",
            "1, end\n",
        ),
        (
            "a command of any length is kept",
            "if size > _LONGEST_COMMAND and flags & _COMMAND:",
            "if size > _LONGEST and flags & _COMMAND:",
            f"{STRANGERS}::test_an_endless_command_ends_its_connection",
        ),
        (
            "beginnings are not bounded",
            "while self._held > _ROOM + self._longest:",
            "while self._held > _ROOM << 20:",
        ),
        (
            "the first connection is served until it has nothing left",
            "            del self._ready[peer]\n            if self.found is not None:\n",
            "            if self.found is None:\n                del self._ready[peer]\n            else:\n",
            f"{STRANGERS} {TESTS}/test_all_strangers.py",
        ),
        (
            "idle connections take all descriptors",
            "full = len(self._peers) >= self._most",
            "full = False",
            f"{STRANGERS} {TESTS}/test_all_strangers.py",
        ),
        (
            "honest senders give way to idle connections",
            "key=lambda peer: (peer.has_sent, peer.heard)",
            "key=lambda peer: (not peer.has_sent, -peer.heard)",
            f"{STRANGERS} {TESTS}/test_all_strangers.py",
        ),
        (
            "a message is cut off before it is whole",
            "payload = bytes(memoryview(data)[begin:end])",
            "del data[:begin]; payload = bytes(data[: end - begin]); end -= begin",
            "tests/core/test_roads.py",
        ),
        ("a ping is not answered", 'if command[:5] == b"\\4PING":', 'if command[:5] == b"\\4PONG":'),
        (
            "any file at the path is removed in the end",
            "if os.getpid() == pid and file_at(path) == file:",
            "if os.getpid() == pid:",
            f"{TESTS}/test_listening.py",
        ),
    ),
    in_file(
        f"{TRANSPORT}/inlet.py",
        f"{TESTS}/test_ends.py tests/core/test_roads.py",
        ("a child of a fork keeps the address", "        inlet._end()\n", "        pass\n"),
        ("close does not wake who waits", "os.eventfd_write(self._wake, 1)", "pass"),
        (
            "what was taken is lost when a handler raises",
            "        with self._guard:\n            while",
            "        self.found = None\n        with self._guard:\n            while",
        ),
    ),
    in_file(
        f"{TRANSPORT}/keyed_inlet.py",
        f"{TESTS}/test_keys.py",
        ("any key is let in", 'status = b"200" if key in self._keys else b"400"', 'status = b"200"'),
        ("several parts are one message", "if others else found", "if False else found"),
    ),
    in_file(
        f"{TRANSPORT}/listening.py",
        f"{TESTS}/test_listening.py",
        ("a file at the path is removed", "if not stat.S_ISSOCK(found.st_mode):", "if False:"),
        (
            "a socket that lives is removed",
            "if probe.connect_ex(address.path) != errno.ECONNREFUSED:",
            "if False:",
        ),
        ("anyone may connect", "os.chmod(address.path, mode)", "os.chmod(address.path, 0o666)"),
    ),
]
