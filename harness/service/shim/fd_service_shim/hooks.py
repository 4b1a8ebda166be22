"""Something is done to a module right after its first import."""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from pathlib import Path

from . import connections, device, exits, ops, platform, tables, threads, transfer, waits, wrapping

HERE = Path(__file__).resolve().parent

AFTER = {
    "paddle.device.cuda": device.imitate_properties,
    "paddle": device.imitate_paddle,
    "paddle.distributed": device.imitate_groups,
    "fastdeploy.platforms": device.choose_cuda,
    "fastdeploy.entrypoints.openai.utils": connections.watch,
    "fastdeploy.model_executor.ops.gpu": ops.fill,
    "fastdeploy.cache_manager.ops": transfer.imitate,
    "fd_postproc.support.process_stat": platform.restore,
    "fd_postproc.fastdeploy.api.engine_process": platform.name_asker,
    "fastdeploy.engine.common_engine": exits.hang,
    "fastdeploy.inter_communicator.engine_worker_queue": waits.name_manager,
}
OPS = "fastdeploy.model_executor.ops.gpu."
INSTEAD = {"fastdeploy.worker.gpu_worker": HERE / "gpu_worker.py"}


class _Then(importlib.abc.Loader):
    """A loader that does something after the module's own."""

    def __init__(self, loader, then):
        self._loader = loader
        self._then = then

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        self._loader.exec_module(module)
        self._then(module)

    def __getattr__(self, name):  # get_source, get_filename, ...
        return getattr(self._loader, name)


class _Empty(importlib.abc.Loader):
    """A module of the GPU build that is not there."""

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        ops.refuse_others(module)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.startswith(OPS) and importlib.machinery.PathFinder.find_spec(name, path, target) is None:
            return importlib.machinery.ModuleSpec(name, _Empty(), is_package=True)
        if name in INSTEAD:
            return importlib.util.spec_from_file_location(name, INSTEAD[name])
        if name not in AFTER:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Then(spec.loader, AFTER[name])
        return spec


def _both(first, second):
    def then(module):
        first(module)
        second(module)

    return then


def install():
    """Once a process, as early as possible."""
    for name, wrap in wrapping.planned().items():
        AFTER[name] = _both(AFTER[name], wrap) if name in AFTER else wrap
    sys.meta_path.insert(0, _Finder())
    threads.name_them()
    tables.begin()
