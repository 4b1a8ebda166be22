"""What a step did, in the form of the traces' `after` records."""

from fastdeploy.metrics.metrics import main_process_metrics, stored_values

TABLES = (
    "total_step_per_request",
    "accept_token_num_per_head_per_request",
    "accept_token_num_per_head",
    "num_draft_tokens",
    "num_accepted_tokens",
    "num_emitted_tokens",
    "max_num_emitted_tokens",
    "speculative_stats_step",
)


class Samples:
    """Metric samples of this process.  Collecting is slow: a metric with unchanged values is passed over."""

    def __init__(self):
        self.stored = {}
        self.now = {}

    def update(self):
        """Samples that changed since the last call, from 0 at first: [name, labels, value]."""
        changed = []
        for collector in main_process_metrics.collectors():
            stored = [value._value for value in stored_values(collector)]  # get() locks, 20 times slower
            if stored == self.stored.get(collector) or not (collector in self.stored or any(stored)):
                continue
            self.stored[collector] = stored
            for sample in (sample for metric in collector.collect() for sample in metric.samples):
                key = (sample.name, tuple(sample.labels.items()))
                if not sample.name.endswith("_created") and self.now.get(key, 0) != sample.value:
                    changed.append([sample.name, sample.labels, sample.value])
                    self.now[key] = sample.value
        return changed


class Recorder:
    """Compares the state after a step with that before it."""

    def __init__(self, replay):
        self.replay = replay
        self.samples = Samples()

    def begin(self):
        """Forget the calls of earlier steps, remember the state."""
        replay = self.replay
        for calls in (
            replay.scheduler.put,
            replay.manager.calls,
            replay.traced,
            replay.connector.sent,
            replay.decode_log.tokens,
        ):
            calls.clear()
        replay.masks.reads = 0
        self.tasks = {name: self._task(request) for name, request in replay.requests.items()}

    def after(self):
        """The record of the step."""
        replay, processor, manager = self.replay, self.replay.processor, self.replay.manager
        mode = replay.trace.mode
        record = {"raised": replay.raised, "put": list(replay.scheduler.put), "rm_calls": list(manager.calls)}
        if replay.traced:
            record["trace_print"] = list(replay.traced)
        if replay.connector.sent:
            record["split_connector"] = list(replay.connector.sent)
        if mode["scheduler_metrics_logger"]:
            record["on_decode_tokens"] = list(replay.decode_log.tokens)
        if mode["use_sampling_mask"]:
            record["mask_reads"] = replay.masks.reads
        record |= {
            "tasks": self._changed_tasks(),
            "tokens_counter": dict(processor.tokens_counter),
            "stop_flags": "".join("01"[bool(flag)] for flag in manager.stop_flags),
            "tasks_list": [None if task is None else task.request_id for task in manager.tasks_list],
            "number_of_output_tokens": processor.number_of_output_tokens,
            "total_step": processor.total_step,
        }
        if mode["method"] is not None:
            record["spec_tables"] = {name: getattr(processor, name) for name in TABLES}
        if mode["channel"] == "spec_topk" and mode["enable_draft_logprob"]:
            record["buffered"] = processor._batch_result_buffer and [
                [result.request_id, result.outputs.index, result.outputs.send_idx]
                for result in processor._batch_result_buffer
            ]
        if processor.prefill_result_status:
            record["prefill_result_status"] = dict(processor.prefill_result_status)
        record["health"] = [
            processor.timestamp_for_alive_before_handle_batch,
            processor.timestamp_for_alive_after_handle_batch,
        ]
        record["metrics"] = [] if replay.number % replay.metrics_every else self.samples.update()
        return record

    def end(self):
        """The record of the whole trace."""
        requests = self.replay.requests
        self.samples.update()
        samples = self.samples.now.items()
        return {
            "output_token_ids": {name: request.output_token_ids for name, request in requests.items()},
            "task_metrics": {name: request.metrics.to_dict() for name, request in requests.items()},
            "metrics": [[name, dict(labels), value] for (name, labels), value in samples if value],
        }

    def _task(self, request):
        return {
            "appended": len(request.output_token_ids),
            "status": request.status.name,
            "prefill_chunk_num": getattr(request, "prefill_chunk_num", None),
            "last_token_time": getattr(request, "last_token_time", None),
            "preempted_count": request.metrics.preempted_count,
        }

    def _changed_tasks(self):
        changed = {}
        for name, request in self.replay.requests.items():
            before, now = self.tasks[name], self._task(request)
            if before != now:
                entry = changed[name] = {key: now[key] for key in now if now[key] != before[key]}
                if "appended" in entry:
                    entry["appended"] = request.output_token_ids[before["appended"] :]
        return changed
