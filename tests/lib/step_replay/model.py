"""What a message must do to the requests, worked out slot by slot from its bytes and the state before it.

Written without a look at performance and without any of the classes it judges: it reads the message with
`tests.reference` and never calls the token processor.  It knows the recorded behaviour where an event
has no mark, and the better outcome where it has one: a missing time stamp disturbs nothing, drafts belong to
requests, every target is delivered once and in order.
"""

from dataclasses import dataclass, field

from fd_postproc.errors import MalformedMessage
from tests import reference

TARGET, DRAFT = 3, 4
RECOVERY, PREEMPTED = -3, -9
RECOVERY_TEXT = "Recover is not supported, the result is incomplete!"
RESULT = ("request_id", "prompt", "output_type", "finished", "num_cached_tokens", "error_code", "error_msg")
RESULT += ("num_input_image_tokens", "num_input_video_tokens", "ic_req_data", "prompt_token_ids_len", "extra")
OUTPUT = ("index", "send_idx", "token_ids", "draft_token_ids")
OUTPUT += ("logprob", "top_logprobs", "draft_top_logprobs")


@dataclass
class Outcome:
    """What one event must do."""

    puts: list = field(default_factory=list)
    calls: list = field(default_factory=list)  # of the resource manager
    appended: dict = field(default_factory=dict)  # tokens by request id
    counters: dict = field(default_factory=dict)
    steps: int = 0
    tokens: int = 0
    decode_tokens: list = field(default_factory=list)  # told to the scheduler metrics logger


class Model:
    """Follows a `Replay`; ask it before the event is delivered.

    Parameters
    ----------
    replay : Replay
    columns_needed : bool, optional
        Whether a header without a column count is refused.  Bytes without one are the legacy dialect; in
        FastDeploy's tensors nothing says then what the op wrote.
    """

    def __init__(self, replay, columns_needed=False):
        self.replay, self.mode, self.columns_needed = replay, replay.trace.mode, columns_needed
        self.waiting = None  # results whose draft has not come
        self.v1 = self.mode["v1_kvcache_scheduler"]
        self.pairing = bool(
            self.mode["method"] and self.mode["enable_logprob"] and self.mode["enable_draft_logprob"]
        )

    # ---- events ------------------------------------------------------------------------------------

    def message(self, payload):
        """The `Outcome` of a message."""
        try:
            step = reference.decode(payload, self.mode["channel"])
        except MalformedMessage:
            return self.nothing()
        if self.columns_needed and step.dialect == "legacy" and self.mode["enable_logprob"]:
            return self.nothing()
        rows = _rows(step)
        if self.mode["channel"] == "spec_topk" and step.flag == DRAFT:
            return self._draft(step, rows)
        return self._target(step, rows)

    def clear_data(self):
        """The `Outcome` of clear_data()."""
        outcome = self._begin()
        if self.v1:
            outcome.calls.append(["clear_data"])
        self._release(outcome)
        for slot in range(self.replay.manager.max_num_seqs):
            task = self._task(slot)
            if task is None:
                continue
            counter = outcome.counters.get(task.request_id, 0)
            result = _result(task.request_id, slot, counter, finished=True, token_ids=task.eos_token_ids)
            pair = task.disaggregate_info
            self._recycle(outcome, task, result, pair is not None and pair["role"] == "prefill")
            outcome.puts.append([result])
        return outcome

    def nothing(self):
        """The `Outcome` of a receive that brought nothing, or nothing readable."""
        return self._begin()

    # ---- parts -------------------------------------------------------------------------------------

    def _begin(self):
        processor = self.replay.processor
        self.statuses = dict(processor.prefill_result_status)
        self.answers = [list(answer) for answer in self.replay.transfers.answers]
        return Outcome(counters=dict(processor.tokens_counter))

    def _task(self, slot):
        manager = self.replay.manager
        if slot >= len(manager.stop_flags) or manager.stop_flags[slot]:
            return None
        return manager.tasks_list[slot]

    def _release(self, outcome):
        """Let go what waits for a draft that does not come first any more."""
        if self.waiting:
            outcome.puts.append(self.waiting)
            self.waiting = None

    def _draft(self, step, rows):
        outcome, drafts = self._begin(), []
        for slot in range(step.batch):
            task = self._task(slot)
            if task is None:
                continue
            result = _result(task.request_id, slot, None, token_ids=[])
            result["output_type"] = step.flag
            _append_rows(result["outputs"], "draft_top_logprobs", rows[slot])
            drafts.append(result)
        if not self.pairing:
            outcome.puts.append(drafts)
        elif self.waiting is not None:
            by_owner = {_owner(draft): draft["outputs"]["draft_top_logprobs"] for draft in drafts}
            for result in self.waiting:
                result["outputs"]["draft_top_logprobs"] = by_owner.get(_owner(result))
            outcome.puts.append(self.waiting)
            self.waiting = None
        return outcome

    def _target(self, step, rows):
        outcome, results = self._begin(), []
        masks = {}
        if self.mode["use_sampling_mask"] and isinstance(self.replay.masks.waiting, dict):
            masks = self.replay.masks.waiting
        kind = step.flag if self.mode["channel"] == "spec_topk" else TARGET
        for slot in range(step.batch):
            task = self._task(slot)
            if task is None:
                continue
            result = self._slot(outcome, slot, task, step.counts[slot], rows[slot])
            if result is not None:
                result["output_type"] = kind
                if slot in masks:
                    result["extra"] = {"outputs.sampling_mask": masks[slot]}
                results.append(result)
        if self.pairing and kind == TARGET and not any(result["finished"] for result in results):
            self._release(outcome)
            self.waiting = results
        else:
            if self.pairing:
                self._release(outcome)
            outcome.puts.append(results)
        return outcome

    def _slot(self, outcome, slot, task, count, rows):
        name, role, manager = task.request_id, self.mode["splitwise_role"], self.replay.manager
        aborted = name in manager.to_be_aborted_req_id_set
        rescheduled = name in manager.to_be_rescheduled_request_id_set
        if count == PREEMPTED:
            self._let_go(outcome, task, aborted, rescheduled)
            return None
        if (count <= 0 and count != RECOVERY) or (role == "decode" and self.v1 and (aborted or rescheduled)):
            return None
        tokens = [row[0][0] for row in rows] if count > 0 else [RECOVERY]
        if self.mode["scheduler_metrics_logger"] and _is_past_prefill(task):
            outcome.decode_tokens.append(len(tokens))
        chunks = getattr(task, "prefill_chunk_info", None)
        if chunks is not None and getattr(task, "prefill_chunk_num", 0) + 1 < len(chunks):
            return None
        outcome.steps += 1
        outcome.tokens += len(tokens)
        counter = outcome.counters.setdefault(name, 0)
        result = _result(name, slot, counter, token_ids=[])
        result.update(
            prompt=task.messages if counter == 0 else None,
            num_cached_tokens=task.num_cached_tokens,
            ic_req_data=task.ic_req_data,
            prompt_token_ids_len=task.prompt_token_ids_len,
        )
        for key in ("num_input_image_tokens", "num_input_video_tokens"):
            result[key] = (task.multimodal_inputs or {}).get(key, 0)
        is_prefill = task.disaggregate_info is not None and role == "prefill"
        if is_prefill and len(tokens) > 1:
            result["outputs"]["draft_token_ids"] = list(tokens)
        self._tokens(outcome, task, tokens, rows, result, is_prefill)
        return result

    def _tokens(self, outcome, task, tokens, rows, result, is_prefill):
        outputs, name, taken = result["outputs"], task.request_id, []
        for token in tokens:
            outcome.counters[name] += 1
            if token != RECOVERY:
                taken.append(token)
                if not (self.mode["internal_adapter"] and token in task.eos_token_ids):
                    outputs["token_ids"].append(token)
            if token in task.eos_token_ids or is_prefill or token == RECOVERY:
                result["finished"] = True
                break
        if taken:
            outcome.appended[name] = taken
        if self.mode["enable_logprob"]:
            _append_rows(outputs, "top_logprobs", rows[: len(taken)])
        if result["finished"]:
            if token == RECOVERY:
                result["error_msg"] = RECOVERY_TEXT
            if self.v1 and self.mode["enable_prefix_caching"] and self.mode["enable_output_caching"]:
                outcome.calls.append(["cache_output_tokens", name, len(task.output_token_ids) + len(taken)])
            self._recycle(outcome, task, result, is_prefill)

    def _recycle(self, outcome, task, result, is_prefill):
        name = task.request_id
        if is_prefill:
            while True:
                self.statuses.update(self.answers.pop(0) if self.answers else [])
                if name in self.statuses:
                    break
            status = self.statuses.pop(name)
            if status != "finished":
                result["error_code"] = 501
                result["error_msg"] = f"PD Error: prefill failed to send cache to decode, {name}, {status}"
        outcome.calls.append(["finish_requests_async" if self.v1 else "_recycle_block_tables", name])
        outcome.counters.pop(name, None)

    def _let_go(self, outcome, task, aborted, rescheduled):
        if not self.v1:
            return
        name = task.request_id
        if aborted:
            outcome.calls.append(["recycle_abort_task", name])
            self._release(outcome)  # its earlier tokens may be among those that wait
            result = _result(
                name, 0, outcome.counters.get(name), finished=True, token_ids=[task.eos_token_ids[0]]
            )
            result["error_msg"], result["outputs"]["draft_token_ids"] = "Aborted", None
            outcome.puts.append([result])
        if rescheduled:
            outcome.calls.append(["reschedule_preempt_task", name])


def _result(name, slot, send_idx, *, finished=False, token_ids):
    outputs = dict.fromkeys(OUTPUT) | {"index": slot, "send_idx": send_idx, "token_ids": list(token_ids)}
    outputs["draft_token_ids"] = []
    result = dict.fromkeys(RESULT) | {"request_id": name, "finished": finished, "outputs": outputs}
    result |= {"output_type": TARGET, "error_code": 200, "extra": None, "prompt_token_ids_len": 0}
    return result | {"num_cached_tokens": 0, "num_input_image_tokens": 0, "num_input_video_tokens": 0}


def as_told(result):
    """The part of a result, as the scheduler got it, that the model speaks of."""
    told = {key: result.get(key) for key in RESULT}
    return told | {"outputs": {key: result["outputs"][key] for key in OUTPUT}}


def _owner(result):
    return result["request_id"], result["outputs"]["index"]


def _rows(step):
    """By slot: (ids, scores, rank) of each accepted token."""
    rows, at = [], 0
    for count in step.counts:
        own = range(at, at + max(count, 0))
        at += len(own)
        rows.append(
            [
                (step.ids[i], None, None)
                if step.scores is None
                else (step.ids[i], step.scores[i], step.ranks[i])
                for i in own
            ]
        )
    return rows


def _append_rows(outputs, key, rows):
    if rows:
        outputs[key] = [list(part) for part in zip(*rows, strict=True)]
        outputs["logprob"] = rows[-1][1][0]


def _is_past_prefill(task):
    return task.need_prefill_tokens is not None and task.num_computed_tokens >= task.need_prefill_tokens
