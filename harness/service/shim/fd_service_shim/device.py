"""The made-up device: one of compute capability 9.0, with 80 GiB."""

import os
from types import SimpleNamespace

GIB = 1 << 30
PROPERTIES = SimpleNamespace(
    name="made-up device", major=9, minor=0, total_memory=80 * GIB, multi_processor_count=132
)


def imitate_properties(cuda):
    """``paddle.device.cuda`` as with one device."""
    cuda.get_device_properties = lambda device=None: PROPERTIES
    cuda.get_device_capability = lambda device=None: (PROPERTIES.major, PROPERTIES.minor)
    cuda.get_device_name = lambda device=None: PROPERTIES.name
    cuda.device_count = lambda: 1


def imitate_paddle(paddle):
    """The same where ``paddle.device`` has names of its own for it."""
    for module in (paddle.device, getattr(paddle, "cuda", None)):
        if module is not None and hasattr(module, "get_device_properties"):
            imitate_properties(module)


def imitate_groups(distributed):
    """Every process is its only group; Paddle would ask a device for it."""
    distributed.get_world_size = lambda group=None: int(os.environ.get("PADDLE_TRAINERS_NUM", "1"))
    distributed.fleet.init = lambda *args, **kwargs: None
    distributed.fleet.worker_index = lambda: int(os.environ.get("PADDLE_TRAINER_ID", "0"))
    distributed.new_group = lambda ranks=None, backend=None, timeout=None, **kwargs: SimpleNamespace(
        ranks=list(ranks or [0]), nranks=1, id=0, rank=0, world_size=1
    )
    distributed.barrier = lambda group=None: None


def choose_cuda(platforms):
    """FastDeploy's platform is CUDA, although Paddle is compiled for the CPU."""
    for name in ("is_cuda", "is_cuda_alike", "available"):
        if hasattr(platforms.CUDAPlatform, name):
            setattr(platforms.CUDAPlatform, name, lambda self=None: True)
    platforms._current_platform = platforms.CUDAPlatform()
