"""What other platforms than a plain container say of processes: a restored snapshot (CRIU), gVisor."""

import os
from pathlib import Path

RESTORED = "FD_SERVICE_RESTORED"
"""Variable: a file with the clock ticks by which all start times have become later: numbers stay."""


def restore(module):
    """Of ``process_stat``: each process has another share of the ticks."""
    stock, file = module.process_stat, Path(os.environ[RESTORED])

    def process_stat(pid):
        fields = stock(pid)
        if file.exists():
            own = os.getpid() if pid == "self" else int(pid)
            fields[19] = str(int(fields[19]) + int(file.read_text()) + own % 7)
        return fields

    module.process_stat = process_stat
