"""A result as the scheduler keeps it."""

import time


class ScheduledResponse:
    def __init__(self, response):
        self.raw = response
        self.schedule_time = time.time()

    def __repr__(self):
        return f"request_id:{self.request_id} index:{self.index} finished:{self.finished}"

    request_id = property(lambda self: self.raw.request_id)
    index = property(lambda self: self.raw.outputs.index)
    finished = property(lambda self: self.raw.finished)
