"""A result as the scheduler keeps it."""

import time


class ScheduledResponse:
    def __init__(self, response):
        self.raw = response
        self.schedule_time = time.time()

    def __repr__(self):
        return f"request_id:{self.request_id} index:{self.index} finished:{self.finished}"

    @property
    def request_id(self):
        return self.raw.request_id

    @property
    def index(self):
        return self.raw.outputs.index

    @property
    def finished(self):
        return self.raw.finished
