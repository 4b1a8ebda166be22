"""What FastDeploy's API server drops: a response that comes before it listens for its request.

It gives a request to the engine first and makes room for responses after.  Where responses come in batches
(``ZMQ_SEND_BATCH_DATA``), one in between is dropped without a word: a stream's first chunk is missing, or a
client waits forever.  Said here on standard output, for `Service.dropped`.
"""

import builtins
import os
from pathlib import Path

SAID = "the API server did not listen yet for"


class _Map(dict):
    """Requests that are listened for; says who was asked for before it came."""

    def __init__(self):
        super().__init__()
        self._early = set()

    def get(self, name, default=None):
        if name not in self:
            self._early.add(name)
        return super().get(name, default)

    def __setitem__(self, name, queue):
        if name in self._early:
            print(f"\n{SAID} {name}", flush=True)
        super().__setitem__(name, queue)


class _Failing:
    """An object one of whose methods raises as often as a file says: ``OSError 1``."""

    def __init__(self, real, method, kind):
        self._real, self._method, self._kind = real, method, kind
        self._file = Path(os.environ.get("FD_SERVICE_DISPATCHER_FAULT") or os.devnull)

    def __getattr__(self, name):
        real = getattr(self._real, name)
        return self._failing(real) if name == self._method else real

    def _failing(self, real):
        def call(*arguments, **options):
            kind, _, times = self._file.read_text().partition(" ") if self._file.is_file() else ("", "", "")
            if kind == self._kind and int(times):
                self._file.write_text(f"{kind} {int(times) - 1}")
                raise getattr(builtins, kind)(28, "planted by the harness")
            return real(*arguments, **options)

        return call


def watch(utils):
    """``fastdeploy.entrypoints.openai.utils`` with a map that tells, in place of FastDeploy's own.

    A plug-in's map, which keeps what comes early, stays: it is put in when the manager is made, and looked at
    when that begins to listen.
    """
    manager = utils.DealerConnectionManager
    begin = manager.initialize

    async def initialize(self):
        if type(self.request_map) is dict:
            self.request_map = _Map()
        if "FD_SERVICE_DISPATCHER_FAULT" in os.environ and hasattr(utils, "msgpack"):
            utils.msgpack = _Failing(utils.msgpack, "unpackb", "MemoryError")
        await begin(self)

    manager.initialize = initialize
    if "FD_SERVICE_DISPATCHER_FAULT" in os.environ:
        utils.main_process_metrics = _Failing(utils.main_process_metrics, "record_zmq_stats", "OSError")
