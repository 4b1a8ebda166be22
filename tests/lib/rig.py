"""One token processor on the double, with real requests in its slots, driven step by step."""

import contextlib
import itertools
import os
import time

import numpy as np

import fd_postproc as fp
from fd_postproc._core import payload_size
from tests.lib import fakes
from tests.lib.plugged import plugin_class
from tests.lib.quiet import imported
from tests.lib.waiting import until

MODE = {
    "splitwise_role": "mixed",
    "scheduler_name": "local",
    "num_speculative_tokens": 3,
    "enable_draft_logprob": False,
    "enable_prefix_caching": True,
    "enable_output_caching": False,
    "use_sampling_mask": False,
    "data_parallel_size": 1,
    "enable_expert_parallel": False,
}
END = 2


class Rig:
    """A processor and what is around it.

    Parameters
    ----------
    channel : str
    names : iterable of str, optional
        Requests, in slots 0, 1, ...; their prefill is over and they have had no token yet.
    slots : int, optional
    cls : type, optional
        Default: the plug-in's.
    **mode
        Parts of the configuration, by the names of the recorded traces.

    Attributes
    ----------
    escaped : list of Exception
        What the receive loop would have caught.
    """

    def __init__(self, channel, names=(), *, slots=8, cls=None, **mode):
        replay = imported("tests.lib.step_replay.replay")
        self.channel, self.escaped = channel, []
        self.mode = {**MODE, "max_num_seqs": slots, "channel": channel, **mode}
        self.mode["method"] = mode.get("method", "mtp" if channel.startswith("spec") else None)
        self.mode["enable_logprob"] = channel.endswith("topk")
        self.manager = fakes.ResourceManager(slots)
        self.sink, self.connector = fakes.Sink(), fakes.SplitConnector()
        self.transfers = fakes.EngineWorkerQueue()
        imported("fastdeploy.metrics.metrics").main_process_metrics.reset()
        self.processor = (plugin_class() if cls is None else cls)(
            cfg=replay.make_config(self.mode),
            cached_generated_tokens=self.sink,
            engine_worker_queue=self.transfers,
            split_connector=self.connector,
        )
        self.processor.set_resource_manager(self.manager)
        self.requests = {}
        self._tokens = itertools.count(100)
        for slot, name in enumerate(names):
            self.insert(name, slot)

    def start(self):
        """Start the token thread, and wait until it has its queue; `close` ends it."""
        self.processor.run()
        until(lambda: self.processor.parts.queue.receiver is not None)

    def send(self, *steps, dialect="compact", **options):
        """Send messages to the token thread."""
        with fp.Sender(self.channel, dialect=dialect) as sender:
            for tokens in steps:
                sender.send(self.message(tokens, **options))

    def close(self):
        if self.processor.worker is not None and hasattr(self.processor, "stop"):
            self.processor.stop(60)  # also between two queues, when it has no receiver
            assert not self.processor.worker.is_alive()
        with contextlib.suppress(AttributeError):
            self.processor._finalizer()  # it keeps the object alive otherwise

    def insert(self, name, slot, **attributes):
        """Put a new request into a slot."""
        request, now = imported("fastdeploy.engine.request"), time.time()
        stamps = ("preprocess_start_time", "preprocess_end_time", "inference_start_time")
        task = request.Request(
            request_id=name,
            prompt_token_ids_len=7,
            eos_token_ids=[END],
            metrics=request.RequestMetrics(arrival_time=now - 2, **dict.fromkeys(stamps, now - 1)),
        )
        task.status = imported("tests.lib.step_replay.replay").status_of("RUNNING_DECODE")
        task.num_computed_tokens = task.need_prefill_tokens
        for key, value in attributes.items():
            setattr(task, key, value)
        self.requests[name] = task
        self.manager.insert(task, slot)
        return task

    def message(self, tokens, *, columns=2, flag=3):
        """A Step: `tokens` has by slot a list of tokens or a negative code; nothing for the others."""
        batch = max(tokens, default=-1) + 1
        idle = 0 if self.channel.startswith("spec") else -1
        own = [tokens.get(slot, idle) for slot in range(batch)]
        counts = [entry if isinstance(entry, int) else len(entry) for entry in own]
        flat = [token for entry in own if not isinstance(entry, int) for token in entry]
        rows = [np.array(flat, int)]
        if self.mode["enable_logprob"]:
            ids = [[token, *range(columns - 1)] for token in flat]
            scores = [[-token / 8] * columns for token in flat]
            rows = [np.reshape(np.array(part), (len(flat), columns)) for part in (ids, scores)]
            rows.append(np.array([token % 7 for token in flat], int))
        return fp.Step.from_arrays(self.channel, counts, *rows, flag=flag, as_recorded=True)

    def process(self, tokens, **options):
        """Process one step as the receive loop does; the results are with the sink."""
        try:
            self.processor.parts.steps.process(self.message(tokens, **options))
        except Exception as error:
            self.escaped.append(error)

    def through_tensors(self, tokens, **options):
        """The same step as FastDeploy's ops leave it in the processor's tensors: for any class."""
        processor, tensors = self.processor, [self.processor.output_tokens]
        if processor.use_logprobs:
            tensors += [processor.output_scores, processor.output_ranks]
        payload = fp.encode(self.message(tokens, **options)).ljust(payload_size(self.channel), b"\0")
        imported("tests.lib.step_replay.tensors").fill(self.channel, tensors, payload)
        processor._process_batch_output()

    def queue_refuses(self, monkeypatch):
        """Every look into the queue fails from now on; the loop does not wait between two."""

        def next_step(_):
            raise fp.QueueError(13, "no, thank you")

        monkeypatch.setattr(self.processor.parts.queue, "next", next_step)
        monkeypatch.setattr(
            "fd_postproc.fastdeploy.engine.processor.loop.time.sleep", lambda _: os.sched_yield()
        )

    def step(self, tokens=None, **options):
        """The same; returns the results by request id, in the order of puts.

        Without `tokens` every slot with a task gets a new one.
        """
        if tokens is None:
            tokens = {
                slot: [next(self._tokens)]
                for slot, task in enumerate(self.manager.tasks_list)
                if task is not None
            }
        put = len(self.sink.puts)
        self.process(tokens, **options)
        by_name = {}
        for result in itertools.chain(*self.sink.puts[put:]):
            by_name.setdefault(result.request_id, []).append(result)
        return by_name

    def has_left(self, name, slot):
        """Whether a request's slot is free and its counter gone."""
        task = self.manager.tasks_list[slot]
        return (self.manager.stop_flags[slot] or task is None) and name not in self.processor.tokens_counter
