"""What other platforms than a plain container say of processes: a restored snapshot (CRIU), gVisor."""

import os
import socket
import struct
from pathlib import Path
from types import SimpleNamespace

RESTORED = "FD_SERVICE_RESTORED"
"""Variable: a file with the clock ticks by which all start times have become later: numbers stay."""
NAMES_ASKER = "FD_SERVICE_NAMES_ASKER"
"""Variable: if set, ``SO_PEERCRED`` is the process that asks, as in gVisor before June 2026."""


def restore(module):
    """Of ``process_stat``: each process has another share of the ticks."""
    stock, path = module.process_stat, os.environ.get(RESTORED)

    def process_stat(pid):
        fields = stock(pid)
        if os.path.exists(path):
            own = os.getpid() if pid == "self" else int(pid)
            fields[19] = str(int(fields[19]) + int(Path(path).read_text()) + own % 7)
        return fields

    if path:
        module.process_stat = process_stat


class _Asking(socket.socket):
    def getsockopt(self, level, option, *size):
        if (level, option) == (socket.SOL_SOCKET, socket.SO_PEERCRED):
            return struct.pack("3i", os.getpid(), os.getuid(), os.getgid())
        return super().getsockopt(level, option, *size)


def name_asker(module):
    """Of ``engine_process``."""
    if NAMES_ASKER in os.environ:
        module.socket = SimpleNamespace(**{**vars(socket), "socket": _Asking})
