"""What the stages share: the run's settings, and the driver of the tests."""

import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))

OUT = Path(os.environ.get("OUT", "."))
STUB = os.environ.get("GPU_RUN_STUB", "")
END = float(os.environ.get("GPU_RUN_BEGAN", time.time())) + float(os.environ.get("GPU_RUN_S", "460"))
PATIENCE = 6 if STUB else 1  # the stub is the processor, which may be busy with other things


def note(text):
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


def on_torch():
    """Whether tensors can be PyTorch's."""
    if STUB:
        return False
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()
