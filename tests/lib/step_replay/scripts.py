"""Random traces, the same for the same seed: what an engine and its workers may do to a token processor.

The events are made while a class is running on them, because what may come next depends on which requests
still have a slot.  `recorded` makes a trace of them that any class can replay.
"""

import json
import random
from dataclasses import replace

import numpy as np

from tests.lib.step_replay.judge import Judged
from tests.lib.step_replay.tensors import PLAIN, SLOT, SPEC_TOPK_SLOTS, TOPK_RANKS, TOPK_SCORES
from tests.lib.step_replay.traces import Trace

CHANNELS = ("plain", "topk", "spec", "spec_topk")
END_TOKENS = ([2], [2, 7], [7, 2, 100_257], [0])
FULL = {"plain": 2056, "topk": 88_072, "spec": 7176}
UNTIL = 1_763_000_000.0


class Script:
    """One seeded random run.

    Parameters
    ----------
    seed : int
    channel : str
    steps : int
        Messages and empty receives.
    mode : dict, optional
        Fixes part of the otherwise random mode.
    """

    def __init__(self, seed, channel, steps, mode=None):
        self.rng = random.Random(f"{seed} {channel}")
        self.junk = np.random.default_rng(seed).integers(0, 256, 1 << 17, np.uint8)
        self.steps = steps
        self.mode = self._mode(channel) | (mode or {})
        self.speculative, self.logprobs = self.mode["method"] is not None, self.mode["enable_logprob"]
        self.names = [f"{self.rng.choice(('cmpl', 'req_a', '_u', 'x-1'))}_{i}" for i in range(steps + 8)]
        self.requests = [self._request(name) for name in self.names]
        self.kinds = dict(zip(self.names, self.requests, strict=True))
        self.clock = UNTIL + 60
        self.replay = None  # while it is written

    def one_in(self, times):
        return self.rng.random() < 1 / times

    def _mode(self, channel):
        rng, speculative = self.rng, channel.startswith("spec")
        method = rng.choice(("mtp", "mtp", "ngram")) if speculative else None
        return {
            "channel": channel,
            "method": method,
            "num_speculative_tokens": rng.randint(1, 5) if speculative else 1,
            "enable_logprob": channel.endswith("topk"),
            "enable_draft_logprob": channel == "spec_topk" and rng.random() < 0.7,
            "splitwise_role": rng.choice(("mixed", "mixed", "prefill", "decode")),
            "scheduler_name": "local",
            "v1_kvcache_scheduler": rng.random() < 0.7,
            "internal_adapter": rng.random() < 0.3,
            "enable_prefix_caching": True,
            "enable_output_caching": rng.random() < 0.5,
            "use_sampling_mask": rng.random() < 0.2,
            "data_parallel_size": 1,
            "enable_expert_parallel": False,
            "max_num_seqs": rng.choice((1, 3, 5, 8, 12)),
            "scheduler_metrics_logger": rng.random() < 0.5,
            "resource_manager": {
                "stop_flags_type": rng.choice(("list", "numpy")),
                "finish_delay": int(rng.random() < 0.3),
                "total_block_number": 4096,
            },
        }

    def _request(self, name):
        rng, role = self.rng, self.mode["splitwise_role"]
        arrival, length = UNTIL + rng.uniform(0, 50), rng.choice((1, 17, 3000))
        stamps = {"arrival_time": arrival, "preprocess_start_time": arrival + 0.01}
        stamps |= {
            "preprocess_end_time": arrival + 0.02,
            "inference_start_time": arrival + rng.uniform(0.05, 1),
        }
        stamps |= {"scheduler_recv_req_time": arrival + 0.03, "engine_get_req_time": arrival + 0.04}
        if role == "decode":
            stamps["decode_inference_start_time"] = arrival + 1.5
        if self.one_in(60):
            del stamps[rng.choice(list(stamps)[1:])]
        request = {
            "request_id": name,
            "eos_token_ids": rng.choice(END_TOKENS),
            "prompt_token_ids_len": length,
            "messages": rng.choice((None, "a prompt", [{"role": "user", "content": "ä"}])),
            "num_cached_tokens": rng.choice((0, 64)),
            "multimodal_inputs": rng.choice(
                (None, None, {}, {"num_input_image_tokens": 9}, {"num_input_video_tokens": 5})
            ),
            "disaggregate_info": {"role": role} if role != "mixed" and rng.random() < 0.8 else None,
            "user": rng.choice((None, "me")),
            "need_prefill_tokens": length,
            "num_computed_tokens": rng.choice((0, length)),
            "block_tables": list(range(rng.randint(0, 5))),
            "output_token_ids": rng.choice(([], [], [5, 6])),
            "status": rng.choice(("RUNNING", "RUNNING_PREFILL", "RUNNING_DECODE")),
            "metrics": stamps,
        }
        if not self.mode["v1_kvcache_scheduler"] and self.one_in(3):
            request["prefill_chunk_info"] = [512] * rng.randint(0, 3)
        if self.one_in(2):
            request["ic_req_data"] = rng.choice((None, {"a": 1}))
        return request

    # ---- events ------------------------------------------------------------------------------------

    def events(self):
        """What happens, one event after the other."""
        waiting, rng = list(self.names), self.rng
        for _ in range(self.steps):
            self.clock += rng.choice((0.0, 0.004, 0.02, 0.3, 1.1))
            yield from self._inserts(waiting)
            yield from self._disturbances()
            if self.one_in(40):
                yield self._step({"empty_receive": True})
                continue
            yield from self._before_message()
            columns = rng.choice((1, 2, 6, 21)) if self.logprobs else 1
            yield self._step({"message": self._target(columns), "kind": "target"})
            if self.mode["channel"] == "spec_topk" and rng.random() < 0.75:
                if self.one_in(4):
                    yield from self._inserts(waiting)
                    yield from self._disturbances()
                for _ in range(1 + self.one_in(20)):
                    yield self._step({"message": self._draft(columns), "kind": "draft"})
        if self.one_in(8):
            yield from self._answers()
            yield self._step({"clear_data": True})

    def _step(self, event):
        return event | {"clock": self.clock, "op": "get", "after": {}}

    def _live(self):
        manager = self.replay.manager
        return {
            slot: task.request_id
            for slot, task in enumerate(manager.tasks_list)
            if task is not None and not manager.stop_flags[slot]
        }

    def _inserts(self, waiting):
        manager = self.replay.manager
        manager.settle()
        for slot, task in enumerate(manager.tasks_list):
            if task is None and manager.stop_flags[slot] and waiting and self.rng.random() < 0.5:
                event = {"insert": waiting.pop(0), "slot": slot}
                if self.mode["splitwise_role"] == "decode" and self.rng.random() < 0.9:
                    event["tokens_counter"] = 1
                yield event

    def _disturbances(self):
        """What other threads of the engine do between two steps."""
        rng, live = self.rng, self._live()
        if not live:
            return
        slot, name = rng.choice(list(live.items()))
        if self.one_in(8):
            yield {rng.choice(("preempt", "preempt", "abort")): name}
        if self.one_in(12):
            status = rng.choice(("RUNNING", "RUNNING_DECODE"))
            yield {"set_task": name, "status": status, "num_computed_tokens": rng.choice((0, 4000))}
        if self.one_in(30):
            yield {"stop_flag": slot, "value": True}
            if self.one_in(2):
                yield {"clear_slot": slot}
        elif self.one_in(50):
            yield {"clear_slot": slot}
            if self.one_in(2):
                yield {"stop_flag": slot, "value": True}
        if self.one_in(60):
            yield {"forget_counter": name}

    def _before_message(self):
        if self.mode["use_sampling_mask"] and self.rng.random() < 0.8:
            masks = [[slot, [self.rng.randint(0, 9)]] for slot in self._live() if self.one_in(2)]
            yield {"sampling_mask": self.rng.choice((masks, masks, None))}
        if self.mode["splitwise_role"] == "prefill":
            yield from self._answers()

    def _answers(self):
        """Transfer answers for every request that may end: without one the step would wait forever."""
        answers = [
            [name, self.rng.choice(("finished", "finished", "failed"))] for name in self._live().values()
        ]
        self.rng.shuffle(answers)
        cut = self.rng.randint(0, len(answers))
        yield {"finished_cache_transfer": [answers[:cut], [], answers[cut:]]}

    # ---- messages ----------------------------------------------------------------------------------

    def _target(self, columns):
        rng, live, manager = self.rng, self._live(), self.replay.manager
        batch = rng.choice((manager.max_num_seqs, max(live, default=-1) + 1))
        counts, rows = [], []
        for slot in range(batch):
            name = live.get(slot)
            counts.append(self._count(name))
            rows.append([self._row(columns, self._token(name)) for _ in range(max(counts[-1], 0))])
        flag = 3 if rng.random() < 0.97 else 0
        return self._payload(flag, columns, counts, rows)

    def _draft(self, columns):
        rng = self.rng
        batch = max(0, self.replay.manager.max_num_seqs - rng.choice((0, 0, 0, 1, 2)))
        counts = [rng.choice((0, 1, 1, 2, 3, 6)) for _ in range(batch)]
        rows = [[self._row(columns, self._token(None)) for _ in range(count)] for count in counts]
        return self._payload(4, columns, counts, rows)

    def _count(self, name):
        rng, manager = self.rng, self.replay.manager
        gone = name in manager.to_be_rescheduled_request_id_set or name in manager.to_be_aborted_req_id_set
        if (gone and rng.random() < 0.5) or self.one_in(60):
            return -9
        if self.one_in(80):
            return -3
        if not self.speculative:
            return -1 if self.one_in(15) else 1
        most = self.mode["num_speculative_tokens"] + 1
        return rng.choice((0, 1, rng.randint(0, most), most))

    def _token(self, name):
        if name is not None and self.one_in(12):
            return self.rng.choice(self.kinds[name]["eos_token_ids"])
        return self.rng.randint(10, 150_000)

    def _row(self, columns, token):
        rng = self.rng
        ids = [token] + [rng.randint(0, 150_000) for _ in range(columns - 1)]
        scores = [rng.choice((-rng.expovariate(0.3), 0.0, -0.0, float("-inf"))) for _ in ids]
        return ids, scores, rng.randint(0, 99)

    def _payload(self, flag, columns, counts, rows):
        """Full-size bytes; what the header and the counts do not speak of is junk."""
        channel, batch = self.mode["channel"], len(counts)
        size = FULL.get(channel, SPEC_TOPK_SLOTS + SLOT.itemsize * batch)
        data = bytearray(self.junk[:size].tobytes().ljust(size, b"\x55"))
        words = np.frombuffer(data, "<i4", size // 4)
        words[0], words[1] = 1, batch
        first = [own[0][0][0] if own else count for own, count in zip(rows, counts, strict=True)]
        if channel == "plain":
            words[2 : 2 + batch] = first
        elif channel == "topk":
            words[1] |= columns << 16
            cells = batch * columns
            ids = np.frombuffer(data, "<i4", cells, PLAIN).reshape(batch, columns)
            scores = np.frombuffer(data, "<f4", cells, TOPK_SCORES).reshape(batch, columns)
            ranks = np.frombuffer(data, "<i4", batch, TOPK_RANKS)
            ids[:, 0] = first
            for i, own in enumerate(rows):
                if own:
                    ids[i], scores[i], ranks[i] = own[0]
        elif channel == "spec":
            words[2 : 2 + batch] = counts
            for i, own in enumerate(rows):
                at = 258 + 6 * i
                words[at : at + len(own)] = [ids[0] for ids, _, _ in own]
        else:
            words[1], words[2] = flag | columns << 8, batch
            words[3 : 3 + batch] = counts
            slots = np.frombuffer(data, SLOT, batch, SPEC_TOPK_SLOTS)
            for i, own in enumerate(rows):
                for j, (ids, scores, rank) in enumerate(own):
                    slots["ids"][i, j, :columns], slots["scores"][i, j, :columns] = ids, scores
                    slots["ranks"][i, j] = rank
        return bytes(data)


def recorded(script, cls, deliver, **options):
    """A trace of the script on a class, with its defects marked; and what the model cannot explain.

    A step in which the class raises, or delivers something else than the model says, is marked.  Any other
    difference between the two is a mistake, of the class or of the model.

    Returns
    -------
    trace : Trace
    lines : list of str
    """
    name = f"{script.mode['channel']} {script.mode}"
    trace = Trace(name, script.mode, script.requests, [], {})
    writing = Judged(replace(trace, events=_noted(script, trace.events)), cls, deliver, **options)
    script.replay = writing
    unexplained = []
    with writing:
        for step in writing.steps():
            # A copy, as a file would be: the class goes on with its tables.
            after = {key: value for key, value in step.actual.items() if key != "op"}
            step.event["after"] = json.loads(json.dumps(after))
            if step.actual["raised"]:
                step.event["upstream_defect"] = f"the step raised {step.actual['raised']}"
            elif writing.verdict or "clear_data" in step.event:
                step.event["upstream_defect"] = "delivery"
                may_differ = writing.model.pairing or "clear_data" in step.event
                unexplained += [
                    f"step {step.number}: {line}"
                    for line in writing.verdict
                    if not (may_differ and line.startswith("put"))
                ]
        trace.end.update(json.loads(json.dumps(writing.recorder.end())))
    return trace, unexplained


def _noted(script, events):
    for event in script.events():
        events.append(event)
        yield event
