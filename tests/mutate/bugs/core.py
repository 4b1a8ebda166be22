"""Planted bugs of the extension `fd_postproc._core`."""

from tests.mutate.bug import in_file

CORE = "fd_postproc/core"
TESTS = "tests/core"

BUGS = [
    in_file(
        f"{CORE}/receiver.pxi",
        f"{TESTS}/test_receiver.py",
        (
            "the last sender is noted while others wait",
            "== 0 and status.messages == 0:",
            "== 0 and status.messages >= 0:",
            f"{TESTS}/test_last_sender.py",
        ),
        (
            "a wrong type is not counted",
            "if status == FDF_REFUSED or status == _WRONG_MTYPE:",
            "if status == FDF_REFUSED:",
        ),
        (
            "one call at a time is not enforced",
            "if self.busy:\n            raise ReceiverBusy(",
            "if False:\n            raise ReceiverBusy(",
        ),
        (
            "a kept step is taken for a new one",
            "self.held = True\n            step = _gathered",
            "self.held = False\n            step = _gathered",
            f"{TESTS}/test_out_of_memory.py",
        ),
        (
            "a long message is counted as none",
            "fdc_add(&self.n_oversized, 1)\n        raise _too_long(self.channel_number, n, self.capacity)\n\n    def receive",
            "fdc_add(&self.n_oversized, 0)\n        raise _too_long(self.channel_number, n, self.capacity)\n\n    def receive",
            f"{TESTS}/test_malformed.py {TESTS}/test_receiver.py",
        ),
        (
            "closing does not close",
            "self.closed = True\n        if self.watch",
            "self.closed = False\n        if self.watch",
        ),
        (
            "another channel's frame fills tensors",
            "if self.opened.channel != self.channel_number:",
            "if self.opened.channel > self.channel_number:",
            "tests/ops/test_ops.py",
        ),
        (
            "corrupt frames are not counted",
            "elif status == FDF_REFUSED and self.fault.field == FDW_CHECKSUM:",
            "elif status == FDF_WHOLE and self.fault.field == FDW_CHECKSUM:",
            f"{TESTS}/test_integrity.py",
        ),
    ),
    in_file(
        f"{CORE}/sender.pxi",
        f"{TESTS}/test_sender.py",
        (
            "a child goes on with its parent's numbers",
            "if self.forks != fds_forks:  # a child of the process that made it: the frames of the two must not mix\n            self._begin()",
            "if self.forks != fds_forks:  # a child of the process that made it: the frames of the two must not mix\n            pass",
        ),
        ("numbers go on after a fork", "self.lane.seq = 0\n        if self.outlet", "if self.outlet"),
        (
            "one call at a time is not enforced",
            "if self.busy:\n            raise SenderBusy(",
            "if False:\n            raise SenderBusy(",
        ),
        (
            "another channel's step",
            "if one.raw.channel != self.channel_number:",
            "if one.raw.channel < self.channel_number:",
        ),
        (
            "frames do not say who sends",
            "m.sender = self.sender\n        draft.data = self.message",
            "m.sender = 1\n        draft.data = self.message",
        ),
        (
            "a wait is never over",
            "fdc_set(&self.lane.waiting_since, 0)\n            self.busy = False\n\n    def _messages",
            "self.busy = False\n\n    def _messages",
            f"{TESTS}/test_sender.py {TESTS}/test_full_queue.py",
        ),
        (
            "a longer frame gets no room",
            "if m.claimed > self.room:",
            "if m.claimed > 2 * self.room:",
            f"{TESTS}/test_sections.py",
        ),
    ),
    in_file(
        f"{CORE}/stream.pxi",
        "tests/plugin/engine/test_stream_frames.py",
        (
            "the other slots have tokens",
            "counts[k] = _NO_TOKEN_NOW\n            for",
            "counts[k] = 0\n            for",
        ),
        ("a slot apart is in the body", "marks[<Py_ssize_t>slot] = 1", "marks[<Py_ssize_t>slot] = 0"),
        ("ranks of another number", "self.ranks.size != shape[0] or ", ""),
    ),
    in_file(
        f"{CORE}/sections.pxi",
        f"{TESTS}/test_sections.py",
        ("sections longer than the limit", "if m.size > FDW_MOST_EXTRA:", "if m.size > 2 * FDW_MOST_EXTRA:"),
        ("exactly the longest are refused", "if m.size > FDW_MOST_EXTRA:", "if m.size >= FDW_MOST_EXTRA:"),
    ),
]
