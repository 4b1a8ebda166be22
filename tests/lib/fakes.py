"""Stand-ins for objects around the token processor: they act as recorded, or keep what they are given."""

import time

import numpy as np

from tools.accept.fakes import EngineWorkerQueue, Sink, Slots  # noqa: F401  whoever plays a test has them here


class Clock:
    """A module's ``time``, which goes on when a test says so; what else is asked is the real one's."""

    def __init__(self, now=1_763_000_000.0):
        self.now = now

    def time(self):
        return self.now

    monotonic = time

    def sleep(self, seconds):
        self.now += seconds

    def __getattr__(self, name):
        return getattr(time, name)


class TwoOfThree:
    """A function of which two calls of three fail: never three in a row."""

    def __init__(self, function):
        self.function, self.calls = function, 0

    def __call__(self, *arguments):
        self.calls += 1
        if self.calls % 3:
            raise KeyError("in a test")
        return self.function(*arguments)


class DecodeLog:
    """A scheduler's log whose code the gate knows: the double's versions have none."""

    def __init__(self):
        self.tokens = 0

    def on_decode_tokens(self, count):
        self.tokens += count


class ResourceManager(Slots):
    """Slots, and the calls that were made in order.  With a finish delay a slot is freed only by `settle`."""

    def __init__(self, max_num_seqs, stop_flags_type="list", finish_delay=0, total_block_number=4096):
        super().__init__(max_num_seqs, total_block_number)
        if stop_flags_type != "list":
            self.stop_flags = np.array(self.stop_flags)
        self.to_be_aborted_req_id_set = set()
        self._finish_delay, self._ending = finish_delay, []

    def settle(self):
        """Free what waits to be freed."""
        while self._ending:
            self._free(self._ending.pop(0))

    def _free(self, name):
        slot = self.req_dict.pop(name, None)
        if slot is not None:
            self.tasks_list[slot] = None
            self.stop_flags[slot] = True
        self.requests.pop(name, None)
        self.to_be_rescheduled_request_id_set.discard(name)

    def pre_recycle_resource(self, name):
        """Free what a request has, of which no token will come."""
        self.calls.append(["pre_recycle_resource", name])
        slot = self.requests[name].idx
        self._free(name)
        self.stop_flags[slot], self.tasks_list[slot] = True, None

    # ---- called by the token processor -------------------------------------------------------------

    def finish_requests_async(self, name):
        self.calls.append(["finish_requests_async", name])
        self._ending.append(name)
        if not self._finish_delay:
            self.settle()

    def recycle_abort_task(self, name):
        self.calls.append(["recycle_abort_task", name])
        if name in self.to_be_aborted_req_id_set and name in self.requests:
            slot = self.req_dict.pop(name, None)
            if slot is None:  # another thread was faster
                return
            self.tasks_list[slot], self.stop_flags[slot] = None, True
            self.requests.pop(name, None)
            self.to_be_aborted_req_id_set.discard(name)

    def reschedule_preempt_task(self, name):
        """The slot stays occupied, unlike on a real decode instance."""
        self.calls.append(["reschedule_preempt_task", name])
        request = self.requests.get(name)
        if name in self.to_be_rescheduled_request_id_set and request is not None:
            self.to_be_rescheduled_request_id_set.discard(name)
            request.metrics.preempted_count += 1

    def _recycle_block_tables(self, task):
        self.calls.append(["_recycle_block_tables", task.request_id])
        self.requests.pop(task.request_id, None)

    def cache_output_tokens(self, task):
        self.calls.append(["cache_output_tokens", task.request_id, len(task.output_token_ids)])

    def clear_data(self):
        self.calls.append(["clear_data"])


class SamplingMaskSocket:
    """One mask at most waits; it is read once."""

    def __init__(self):
        self.waiting = None
        self.reads = 0

    def receive_pyobj_once(self, block=False):
        self.reads += 1
        mask, self.waiting = self.waiting, None
        return None, mask

    def close(self):
        pass


class Scheduler:
    """Records what is put, as the client would get it, at that moment: what `seen` makes of each."""

    def __init__(self, seen=None):
        self.put, self.seen = [], seen or as_sent

    def put_results(self, results):
        self.put.append([self.seen(result) for result in results])


class SplitConnector:
    def __init__(self, seen=None):
        self.sent, self.seen = [], seen or as_sent

    def send_first_token(self, prefill_msg, tasks_list):
        self.sent.append(["send_first_token", prefill_msg, [self.seen(result) for result in tasks_list]])


class SchedulerMetricsLogger:
    def __init__(self):
        self.tokens = []

    def on_decode_tokens(self, count):
        self.tokens.append(count)


def as_sent(result):
    """to_dict at this moment, with lists of its own, plus what it leaves out."""
    sent = frozen(result.to_dict())
    mask = None if result.outputs is None else getattr(result.outputs, "sampling_mask", None)
    if mask is not None:
        sent["extra"] = {"outputs.sampling_mask": frozen(mask)}
    return sent


def frozen(value):
    """A deep copy in which tuples and tensors are lists; everything else keeps its exact type."""
    if type(value) is dict:
        return {key: frozen(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [frozen(item) for item in value]
    return value.tolist() if type(value).__name__ == "Tensor" else value
