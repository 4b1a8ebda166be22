"""``python -m paddle.distributed.launch SCRIPT ARGUMENTS`` with one device: the script, at once."""

import os
import sys

_WITH_VALUE = ("--log_dir", "--devices", "--ips", "--nnodes", "--master", "--rank", "--job_id")


def become_the_worker(argv):
    """Replace this process by the script that the launcher would start as rank 0 of 1.

    Paddle's launcher looks for devices, and asks them.
    """
    rest = argv[argv.index("paddle.distributed.launch") + 1 :]
    while rest and rest[0].startswith("--"):
        rest = rest[2:] if rest[0] in _WITH_VALUE else rest[1:]
    environment = dict(os.environ, PADDLE_TRAINER_ID="0", PADDLE_TRAINERS_NUM="1", PADDLE_LOCAL_RANK="0")
    # FastDeploy sends this to a file that its logger then replaces, tracebacks included.
    with open(os.environ["FD_SERVICE_WORKERS_ERRORS"], "ab") as file:
        os.dup2(file.fileno(), 2)
    os.execve(sys.executable, [sys.executable, "-u", *rest], environment)
