"""Program: random steps through FastDeploy's own class and ours, in the real FastDeploy on the import path.

``python random_trials.py SEED RESULTS`` runs scripts as the plug-in's trial does until so many results were
compared, and prints one JSON object: what was run, and the first difference, if any.  A script is made
of its number, which the difference names.
"""

import dataclasses
import importlib
import json
import random
import sys
import time

from fd_postproc.fastdeploy.engine.processor import make_class
from fd_postproc.fastdeploy.trial import canned, compatibility
from fd_postproc.fastdeploy.trial.canned import DRAFT, END, NOTHING, PREEMPTED, RECOVERY, Message, Script
from fd_postproc.fastdeploy.trial.facts import Facts
from fd_postproc.fastdeploy.trial.sandbox import Sandbox

CHANNELS = ("plain", "topk", "spec", "spec_topk")
ROLES = ("mixed", "mixed", "decode", "prefill")


def script(number, facts):
    """A random script, without what FastDeploy is known to do wrong (docs/fastdeploy.md)."""
    rng = random.Random(number)
    channel = CHANNELS[number % 4]
    role = ROLES[number // 4 % 4]
    speculative = channel.startswith("spec")
    v1 = role == "decode" or rng.random() < 0.7
    draft = channel == "spec_topk" and role == "mixed" and rng.random() < 0.4
    marks = v1 and (facts.speculative_mark or not speculative)
    requests = [_request(rng, role, v1, draft) for _ in range(rng.choice((1, 3, 16, 40)))]
    messages, seen = [], [False] * len(requests)  # which had a token in this script
    for _ in range(1 if role == "prefill" else rng.randint(2, 12)):
        last = draft and rng.random() < 0.1
        message = _message(rng, requests, seen, speculative, marks, draft)
        messages.append(message)
        if draft and not last:
            slots = tuple(slot if isinstance(slot, tuple) else 0 for slot in message.slots)
            messages.append(Message(slots, columns=message.columns, flag=DRAFT))
        if last:
            break
    return Script(
        f"random script {number}",
        channel,
        tuple(requests),
        tuple(messages),
        role=role,
        method=rng.choice(("mtp", "mtp", "ngram")) if not draft else "mtp",
        v1=v1,
        adapter=rng.random() < 0.3,
        draft_logprobs=draft,
        masks=not speculative and rng.random() < 0.2,
        decode_log=rng.random() < 0.5,
        caching=rng.random() < 0.5,
        transfers={slot: rng.choice(("finished", "failed")) for slot in range(len(requests))},
        storage=role == "prefill" and rng.random() < 0.3,
    )


def _request(rng, role, v1, draft):
    if rng.random() < 0.1:
        return None
    if role == "prefill":
        return dict(canned.PREFILL)
    kinds = [canned.RICH, canned.FIRST, canned.RUNNING, canned.SECOND]
    if not v1 and not draft:
        kinds.append(canned.CHUNKED)
    request = dict(rng.choice(kinds))
    if role == "decode" and rng.random() < 0.7:
        request = (canned.SECOND if request.get("fresh") else request) | canned.IN_PAIR
    return request


def _message(rng, requests, seen, speculative, marks, draft):
    """One step.  While drafts are awaited nothing ends or leaves: FastDeploy mixes such steps up."""
    slots, preempted, aborted, stopped = [], [], [], []
    for slot, request in enumerate(requests):
        chance = rng.random()
        if request is None or (chance < 0.03 and not draft):
            slots.append(0 if speculative else NOTHING)
        elif chance < 0.06 and marks and not draft:
            slots.append(PREEMPTED)
            rng.choice((preempted, aborted)).append(slot)
        elif chance < 0.08 and not draft and seen[slot]:  # before any token its statistics divide by 0
            slots.append(RECOVERY)
        elif chance < 0.1 and not draft:
            stopped.append(slot)
            slots.append((11,))
        else:
            count = rng.randint(1, 6) if speculative else 1
            tokens = [
                rng.choice((END, 100 + slot)) if chance > 0.9 and not draft else 1000 + rng.randint(0, 900)
            ]
            tokens += [rng.randint(1000, 150_000) for _ in range(count - 1)]
            rng.shuffle(tokens)
            slots.append(tuple(tokens))
            seen[slot] = True
    columns = rng.choice((1, 1, 2, 6, 21))
    return Message(
        tuple(slots), columns, preempted=tuple(preempted), aborted=tuple(aborted), stopped=tuple(stopped)
    )


def main(seed, wanted):
    time.time = lambda: 1_800_000_000.0  # the same for both classes: sums of many stamps are compared
    importlib.import_module("fd_postproc.fastdeploy.trial.trial")._BETWEEN_STEPS = 0.0
    module = importlib.import_module("fastdeploy.output.token_processor")
    box, ours = Sandbox(module), Sandbox(module)
    facts = Facts.of(module, box)
    cls = make_class(ours.module)
    for name, value in facts.traits.items():
        setattr(cls, name, value)
    pair = compatibility.Pair(box, box.module.TokenProcessor), compatibility.Pair(ours, cls)
    counted = _count_results(box)
    told = {"scripts": 0, "refused_by_stock": [], "difference": None, "by": {}}
    number = seed
    while counted[0] < wanted and told["difference"] is None:
        one = script(number, facts)
        before = counted[0]
        try:
            told["difference"] = compatibility.first_difference_in(one, *pair, facts)
        except RuntimeError as error:  # FastDeploy's own class fails
            told["refused_by_stock"].append(f"{one.name}: {error}")
        if told["difference"]:
            told["difference"] = f"{one.name} ({one.channel}, {one.role}): {told['difference']}"
            told["script"] = repr(dataclasses.asdict(one))
        told["scripts"] += 1
        kind = f"{one.channel} {one.role}"
        told["by"][kind] = told["by"].get(kind, 0) + counted[0] - before
        number += 1
    told["results"] = counted[0]
    print("\ntold: " + json.dumps(told))


def _count_results(box):
    """Results that FastDeploy's own class has put."""
    counted, stock = [0], box.module.TokenProcessor
    trial = importlib.import_module("fd_postproc.fastdeploy.trial.trial").Trial
    run = trial.run

    def run_and_count(self):
        found = run(self)
        if type(self.processor) is stock:
            counted[0] += sum(map(len, self.scheduler.put))
        return found

    trial.run = run_and_count
    return counted


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
