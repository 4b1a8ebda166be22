"""Planted bugs of the worker's side."""

from tests.mutate.bug import in_file

WORKER = "fd_postproc/fastdeploy/worker"
TESTS = "tests/plugin/worker"

BUGS = [
    in_file(
        f"{WORKER}/limit_check.py",
        f"{TESTS}/test_room.py",
        (
            "a message of exactly the limit does not fit",
            "if needed <= min(limits.msgmax, holds):",
            "if needed < min(limits.msgmax, holds):",
        ),
        (
            "the queue that is there is not asked",
            "holds = found[0] if found else limits.msgmnb",
            "holds = limits.msgmnb",
        ),
        ("compact frames need limits", 'if dialect == "compact":', 'if dialect == "none":'),
    ),
    in_file(
        f"{WORKER}/sending.py",
        f"{TESTS}/test_left_to_fastdeploy.py {TESTS}/test_turning_on.py",
        (
            "every rank sends",
            "if args[self._rank] > 0 and not (spec.every_rank",
            "if args[self._rank] > 9 and not (spec.every_rank",
        ),
        (
            "what does not fit is left to FastDeploy",
            "except UnfitNumber:\n            raise",
            "except ZeroDivisionError:\n            raise",
        ),
        ("the gauge is never set", 'export_active("worker", True)', "pass"),
        (
            "an op that was left is tried again",
            'if self._state == "original":\n            return',
            'if self._state == "none":\n            return',
        ),
    ),
    in_file(
        f"{WORKER}/split_frames.py",
        "tests/plugin/engine/test_pieces.py",
        ("a slot is in two pieces", "span=(begin, end - begin))", "span=(begin, end - begin + 1))"),
        ("pieces are not cut", "if sum(sizes) <= PIECE_BYTES:", "if True:"),
        (
            "pieces share memory with the worker",
            "np.array(content.tokens, np.int64)",
            "np.asarray(content.tokens)",
        ),
        ("room is not waited for", "self._runner.wait_for_room()\n        content", "content"),
    ),
]
