"""Run in a fresh interpreter: steps, while FastDeploy's other threads change what they are made of.

Usage: plugin_threads.py CHANNEL STEPS SEED.  Raises if anything is lost.

Steps come decoded, no tensor is touched: Paddle is not loaded, so that this also runs where Paddle cannot,
under the sanitizers.
"""

import gc
import importlib.machinery
import itertools
import pickle
import random
import sys
import threading
import types
import weakref
from pathlib import Path

import numpy as np

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS.parent), str(TESTS / "fastdeploy_double")]

QUIET, SLOTS = 4, 16  # the first slots are touched by nobody but the token processor
END = 2


def stand_in_for_paddle():
    """What the double's constructor calls."""
    paddle = types.ModuleType("paddle")
    paddle.__spec__ = importlib.machinery.ModuleSpec("paddle", None)
    paddle.device = types.SimpleNamespace(set_device=lambda name: None)
    paddle.full = lambda shape, fill_value, dtype: np.full(shape, fill_value, dtype)
    sys.modules["paddle"] = paddle


class Disturbances:
    """Threads that do, as fast as they can, what an engine's threads do now and then."""

    def __init__(self, rig, seed):
        self.rig, self.names, self.done = rig, itertools.count(), threading.Event()
        self.counts, self.errors = {}, []
        self.lock = threading.Lock()  # among the disturbers, as the engine's own locks; never held by a step
        jobs = (self.insert, self.drop, self.flags, self.preempt, self.collect, self.scrape)
        self.threads = [
            threading.Thread(target=self._repeat, args=(job, random.Random(f"{seed} {job.__name__}")))
            for job in jobs
        ]
        for thread in self.threads:
            thread.start()

    def stop(self):
        self.done.set()
        for thread in self.threads:
            thread.join()
        if self.errors:
            raise self.errors[0]

    def _repeat(self, job, rng):
        while not self.done.is_set():
            try:
                job(rng)
            except Exception as error:
                self.errors.append(error)
                return
            self.counts[job.__name__] = self.counts.get(job.__name__, 0) + 1
            self.done.wait(rng.random() * 2e-4)

    def _slot(self, rng):
        return rng.randrange(QUIET, SLOTS)

    def insert(self, rng):
        """A prefilled request is added: its counter begins at 1."""
        rig, slot = self.rig, self._slot(rng)
        with self.lock:
            if rig.manager.tasks_list[slot] is None:
                name = f"d{next(self.names)}"
                if rng.random() < 0.5:
                    rig.processor.tokens_counter[name] = 1
                rig.insert(name, slot)

    def drop(self, rng):
        """A request is gone: counter, task and flag, in any order."""
        rig, slot = self.rig, self._slot(rng)
        manager = rig.manager
        with self.lock:
            task = manager.tasks_list[slot]
            if task is None:
                return
            parts = [
                lambda: rig.processor.tokens_counter.pop(task.request_id, None),
                lambda: manager.tasks_list.__setitem__(slot, None),
                lambda: manager.stop_flags.__setitem__(slot, True),
            ]
            rng.shuffle(parts)
            for part in parts:
                part()
            manager.requests.pop(task.request_id, None)
            rig.requests.pop(task.request_id, None)

    def flags(self, rng):
        flags, slot = self.rig.manager.stop_flags, self._slot(rng)
        flags[slot] = not flags[slot]

    def preempt(self, rng):
        """Requests are to be aborted or queued again; some of the ids are unknown."""
        manager = self.rig.manager
        task = manager.tasks_list[self._slot(rng)]
        name = "nobody" if task is None else task.request_id
        rng.choice((manager.to_be_aborted_req_id_set, manager.to_be_rescheduled_request_id_set)).add(name)

    def collect(self, rng):
        gc.collect(rng.choice((0, 0, 1)))

    def scrape(self, rng):
        from fastdeploy.metrics.metrics import main_process_metrics

        for collector in main_process_metrics.collectors():
            list(collector.collect())
        self.done.wait(0.005)


class Client:
    """A thread that takes results as they come, keeps what they say, and changes them as FastDeploy does."""

    def __init__(self, sink):
        self.sink, self.told, self.watched = sink, {}, []
        self.results = self.drafts = 0
        self.done = threading.Event()
        self.error = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def stop(self):
        self.done.set()
        self.thread.join()
        if self.error:
            raise self.error

    def _run(self):
        try:
            while not (self.done.is_set() and not self.sink.puts):
                while self.sink.puts:
                    for result in self.sink.puts.pop(0):
                        self.take(result)
                self.done.wait(1e-4)
        except Exception as error:
            self.error = error

    def take(self, result):
        self.results += 1
        outputs = result.outputs
        told = result.to_dict()
        copied = pickle.loads(pickle.dumps(result))
        assert copied.to_dict() == told
        if outputs.top_logprobs is not None:
            # A row for each token, and an end token's in its place though an adapter may hide it.
            assert [row[0] for row in outputs.top_logprobs.logprob_token_ids] == outputs.token_ids
            outputs.top_logprobs.logprobs.extend([[0.0]])  # what RequestOutput.add does to its first result
        if outputs.draft_top_logprobs is not None:
            self.drafts += 1
            assert {row[0] % SLOTS for row in outputs.draft_top_logprobs.logprob_token_ids} == {outputs.index}
        entry = self.told.setdefault(result.request_id, {"tokens": [], "ends": 0, "errors": []})
        assert not entry["ends"], f"{result.request_id}: a result after its end"
        entry["ends"] += result.finished
        if result.error_code != 200:
            entry["errors"].append(result.error_msg)
        if result.error_msg != "Aborted":
            entry["tokens"] += outputs.token_ids
        outputs.token_ids, outputs.text = [], "text"
        if self.results % 50 == 0:
            self.watched.append(weakref.ref(result))


class Sender:
    """Makes steps in which every token is unique and says which slot it was for."""

    def __init__(self, rig, seed):
        self.rig, self.rng, self.sent = rig, random.Random(seed), {}
        self.serial, self.quiet = itertools.count(10), itertools.count()
        self.most = 4 if rig.channel.startswith("spec") else 1

    def fill(self):
        """Give the quiet slots new requests where the last ones have ended."""
        for slot in range(QUIET):
            if self.rig.manager.tasks_list[slot] is None:
                self.rig.insert(f"q{next(self.quiet)}", slot)

    def tokens(self, draft=False):
        tokens = {}
        for slot in range(SLOTS):
            own = [next(self.serial) * SLOTS + slot for _ in range(self.rng.randint(1, self.most))]
            if draft:
                tokens[slot] = own
                continue
            if self.rng.random() < 0.02:
                own[-1] = END
            if slot >= QUIET and self.rng.random() < 0.1:
                own = -9
            tokens[slot] = own
            task = self.rig.manager.tasks_list[slot]
            if slot < QUIET:
                self.sent.setdefault(task.request_id, []).extend(own)
        return tokens


def main():
    channel, steps, seed = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    stand_in_for_paddle()
    from fd_postproc.fastdeploy.engine import activation
    from tests.lib.rig import Rig

    activation.decide = lambda *arguments: activation.Decision(True)  # the rule of keys needs tensors

    drafts = channel == "spec_topk"
    rig = Rig(channel, slots=SLOTS, enable_draft_logprob=drafts)
    sys.setswitchinterval(1e-6)
    sender, client, disturbances = Sender(rig, seed), Client(rig.sink), Disturbances(rig, seed)
    quiet = {}
    try:
        for _ in range(steps):
            sender.fill()
            quiet |= {task.request_id: task for task in rig.manager.tasks_list[:QUIET]}
            rig.process(sender.tokens())
            if drafts:
                rig.process(sender.tokens(draft=True), flag=4)
    finally:
        disturbances.stop()
        client.stop()
    sys.setswitchinterval(0.005)

    assert rig.escaped == [], rig.escaped
    for name, tokens in sender.sent.items():
        entry = client.told[name]
        assert entry["tokens"] == tokens, name
        assert entry["ends"] == (tokens[-1] == END), name
        assert quiet[name].output_token_ids == tokens, name
    for entry in client.told.values():
        slots = {token % SLOTS for token in entry["tokens"] if token != END}
        assert len(slots) <= 1, "tokens of another slot"
        serials = [token for token in entry["tokens"] if token != END]
        assert serials == sorted(set(serials)), "doubled or out of order"

    # Nothing of what has gone is still held by somebody, and nothing held is gone.
    tasks = [weakref.ref(task) for task in quiet.values() if task.output_token_ids[-1:] == [END]]
    rig.requests.clear()
    rig.manager.requests.clear()
    quiet.clear()
    gc.collect()
    held = sum(ref() is not None for ref in (*client.watched, *tasks))
    assert held == 0, f"{held} results or requests that nobody needs are still there"
    assert not [entry["errors"] for entry in client.told.values() if entry["errors"]]
    assert rig.processor.counters.failed_requests == 0
    assert client.results > 2 * steps
    assert (client.drafts > 0) == drafts
    assert min(disturbances.counts.values()) > 0
    assert len(client.watched) + len(tasks) > 0
    rig.close()


if __name__ == "__main__":
    main()
