"""A result as the scheduler keeps it."""


class ScheduledResponse:
    def __init__(self, response):
        self.raw = response
        self.request_id = response.request_id
        self.finished = response.finished

    def __repr__(self):
        return f"request_id:{self.request_id}, finished:{self.finished}"
