"""Planted bugs of the command line, the doctor, the flight recorder and what explains it."""

from tests.mutate.bug import in_file

BUGS = [
    in_file(
        "fd_postproc/doctor/limits.py",
        "tests/doctor",
        ("a message of exactly the limit does not fit", "if one.full <= room:", "if one.full < room:"),
        (
            "a queue that hangs is called too small",
            "if one.full <= limits.msgmax:",
            "if one.full > limits.msgmax:",
        ),
        (
            "one channel's remedy is too small",
            "largest = max(one.full for one in needs)",
            "largest = min(one.full for one in needs)",
        ),
    ),
    in_file(
        "fd_postproc/flight/reading.py",
        "tests/core/test_flight.py tests/core/test_flight_bytes.py tests/core/test_flight_steps.py",
        (
            "a file of another version is read",
            "if version != VERSION or entry_size != ENTRY_SIZE:",
            "if entry_size != ENTRY_SIZE:",
        ),
        ("a head that ends early is read", "if len(data) < HEAD_SIZE:", "if len(data) < 8:"),
        ("what is no file of ours is read", "if not is_flight(data):", "if False:"),
    ),
    in_file(
        "fd_postproc/flight/files.py",
        "tests/core/test_flight.py",
        ("a file in use may be emptied", "os.fchmod(descriptor, 0o400)", "os.fchmod(descriptor, 0o600)"),
    ),
    in_file(
        "fd_postproc/cli/streams.py",
        "tests/fuzz/test_commands.py",
        (
            "a wild time ends in a traceback",
            "time_ns = min(max(began + int(1e9 * message.at), -(1 << 63)), (1 << 63) - 1)",
            "time_ns = began + int(1e9 * message.at)",
        ),
    ),
]
