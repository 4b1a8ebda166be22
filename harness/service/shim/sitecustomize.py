"""Loaded by every Python process of the service, because this folder is on PYTHONPATH."""

import sys

if sys.orig_argv[1:] and "paddle.distributed.launch" in sys.orig_argv:
    from fd_service_shim.launcher import become_the_worker

    become_the_worker(sys.orig_argv)

from fd_service_shim import hooks

hooks.install()
