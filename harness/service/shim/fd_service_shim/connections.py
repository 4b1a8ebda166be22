"""What FastDeploy's API server drops: a response that comes before it listens for its request.

It gives a request to the engine first and makes room for responses after.  Where responses come in batches
(``ZMQ_SEND_BATCH_DATA``), one in between is dropped without a word: a stream's first chunk is missing, or a
client waits forever.  Said here on standard output, for `Service.dropped`.
"""

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
        await begin(self)

    manager.initialize = initialize
