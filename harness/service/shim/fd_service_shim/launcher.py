"""``python -m paddle.distributed.launch SCRIPT ARGUMENTS``: the script at once, a process for each device."""

import os
import subprocess
import sys

_WITH_VALUE = ("--log_dir", "--devices", "--ips", "--nnodes", "--master", "--rank", "--job_id")


def become_the_worker(argv):
    """Replace this process by the script; with several devices, run it for each until one ends.

    Paddle's launcher looks for devices, and asks them.
    """
    rest, ranks = argv[argv.index("paddle.distributed.launch") + 1 :], 1
    while rest and rest[0].startswith("--"):
        if rest[0] == "--devices":
            ranks = len(rest[1].split(","))
        rest = rest[2:] if rest[0] in _WITH_VALUE else rest[1:]
    # FastDeploy sends this to a file that its logger then replaces, tracebacks included.
    with open(os.environ["FD_SERVICE_WORKERS_ERRORS"], "ab") as file:
        os.dup2(file.fileno(), 2)
    command = [sys.executable, "-u", *rest]
    if ranks == 1:
        os.execve(sys.executable, command, _of_rank(0, 1))
    workers = [subprocess.Popen(command, env=_of_rank(rank, ranks)) for rank in range(ranks)]
    code = os.waitstatus_to_exitcode(os.wait()[1])
    for worker in workers:
        worker.kill()
    os._exit(code % 256)


def _of_rank(rank, ranks):
    """The environment of one worker."""
    number = str(rank)
    return dict(
        os.environ, PADDLE_TRAINER_ID=number, PADDLE_TRAINERS_NUM=str(ranks), PADDLE_LOCAL_RANK=number
    )
