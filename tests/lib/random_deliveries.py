"""Random steps put into two of FastDeploy's schedulers, by its own method and by ours: the same comes out.

A program, too: ``random_deliveries.py SEED STEPS`` on the FastDeploy that can be imported.
"""

import importlib
import json
import logging
import random
import sys
from types import SimpleNamespace

from fd_postproc.fastdeploy.engine.delivery.delivery import handover_in
from fd_postproc.fastdeploy.engine.results.result_classes import plan_of

NAMES = [f"request {number}" for number in range(12)]


def scheduler_of(fastdeploy):
    """A new scheduler, which knows all names but the last."""
    cls = importlib.import_module(f"{fastdeploy}.scheduler.local_scheduler").LocalScheduler
    made = cls(0, 900, False, 1, 1, 1) if cls.__init__.__code__.co_argcount > 3 else cls()
    know_all(made)
    return made


def know_all(scheduler):
    """Make the requests known that are not, after some have ended."""
    scheduler.requests = {name: SimpleNamespace(schedule_time=0) for name in NAMES[:-1]}
    scheduler.ids, scheduler.ids_read_cursor = NAMES[:-1], len(NAMES) - 1


def random_step(plan, rng):
    """Results; one in ten steps has one that is its request's last, one in ten an unknown request's."""
    names = rng.sample(NAMES[:-1], rng.randrange(len(NAMES)))
    if rng.random() < 0.2:
        names *= 2
    if rng.random() < 0.1:
        names.append(NAMES[-1])
    results = [plan.new_result(slot, rng.randrange(9), name, 3, None) for slot, name in enumerate(names)]
    if results and rng.random() < 0.1:
        rng.choice(results).finished = True
    return results


def state(scheduler):
    """What a scheduler holds."""
    return {
        "requests": list(scheduler.requests),
        "responses": {
            name: [(response.request_id, response.finished, id(response.raw)) for response in waiting]
            for name, waiting in scheduler.responses.items()
        },
        "steps": [list(map(id, step)) for step in scheduler.batch_responses_per_step],
        "attributes": sorted(vars(scheduler)),
    }


def compare(fastdeploy, seed, steps):
    """How many steps went in and out the fast path; the first difference, if there is one."""
    module = importlib.import_module(f"{fastdeploy}.output.token_processor")
    log = importlib.import_module(f"{fastdeploy}.scheduler.local_scheduler").scheduler_logger
    plan, rng = plan_of(module), random.Random(seed)
    theirs, ours = scheduler_of(fastdeploy), scheduler_of(fastdeploy)
    handover = handover_in(ours, plan)
    if handover is None:
        return {"quick": None, "fetched": None, "difference": None}
    lines, keep = [], logging.Handler()
    keep.emit = lambda record: lines.append(record.getMessage())
    log.addHandler(keep)
    told = {"quick": 0, "fetched": 0, "difference": None}
    try:
        for number in range(steps):
            results, outcomes = random_step(plan, rng), []
            fetch = rng.random() < 0.3
            for scheduler in (theirs, ours):
                del lines[:]
                if scheduler is ours and handover.put(results):
                    told["quick"] += 1
                else:
                    scheduler.put_results(results)
                outcome = [state(scheduler), list(lines)]
                if fetch:
                    quick = handover.take() if scheduler is ours else None
                    told["fetched"] += quick is not None
                    got = scheduler.get_results() if quick is None else quick
                    outcome += [[(name, list(map(id, some))) for name, some in got.items()], state(scheduler)]
                    know_all(scheduler)
                    outcome.append(list(lines))
                outcomes.append(outcome)
            if outcomes[0] != outcomes[1]:
                told["difference"] = f"step {number}: {outcomes[0]} and {outcomes[1]}"
                break
    finally:
        log.removeHandler(keep)
    return told


if __name__ == "__main__":
    answer = compare("fastdeploy", int(sys.argv[1]), int(sys.argv[2]))
    print("told: " + json.dumps(answer))
