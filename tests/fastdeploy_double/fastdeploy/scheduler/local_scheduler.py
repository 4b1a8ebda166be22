"""The scheduler's results side.  Requests are only known by id here."""

import threading

from fastdeploy import envs
from fastdeploy.scheduler.data import ScheduledResponse
from fastdeploy.utils import scheduler_logger


class LocalScheduler:
    """Where the token thread leaves results and the send thread fetches them."""

    def __init__(self, max_size=0, ttl=900, **_):
        self.max_size, self.ttl = max_size, ttl
        self.mutex = threading.Lock()
        self.requests = {}
        self.responses = {}
        self.batch_responses_per_step = []
        self.wait_response_timeout = 0.001
        self.responses_not_empty = threading.Condition(self.mutex)

    def put_results(self, results):
        """Take the results of a step.  The debug texts are made whether or not anyone reads them."""
        scheduler_logger.debug(f"results of a step: {results}")
        responses = [ScheduledResponse(result) for result in results]
        ended = [response.request_id for response in responses if response.finished]
        if ended:
            scheduler_logger.info(f"requests that ended: {ended}")

        with self.mutex:
            self.batch_responses_per_step.append([response.raw for response in responses])
            for response in responses:
                name = response.request_id
                if name not in self.requests:
                    scheduler_logger.warning(f"result of an unknown request: {name}")
                elif name in self.responses:
                    scheduler_logger.debug(f"one more result: {response.raw}")
                    self.responses[name].append(response)
                else:
                    self.responses[name] = [response]
            self.responses_not_empty.notify_all()

    def _recycle(self, request_id):
        """Forget a request."""
        self.requests.pop(request_id, None)
        self.responses.pop(request_id, None)

    def get_results(self):
        """All that is there after 1 ms at most: {id: results}, or lists of steps for the internal adapter."""

        def take():
            responses, steps = self.responses, self.batch_responses_per_step
            self.responses, self.batch_responses_per_step = {}, []
            return (responses, steps) if responses else None

        with self.responses_not_empty:
            taken = self.responses_not_empty.wait_for(take, self.wait_response_timeout)
            responses, steps = taken or ({}, [])
            results = {}
            for name, waiting in responses.items():
                results[name], ended = [], False
                for response in waiting:
                    results[name].append(response.raw)
                    ended |= response.finished
                if ended:
                    self._recycle(name)
                    scheduler_logger.info(f"request {name} has left the scheduler")
            if results:
                scheduler_logger.debug(f"results fetched: {results}")
            return steps if envs.FD_ENABLE_INTERNAL_ADAPTER else results
