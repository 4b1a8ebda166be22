"""Waits of FastDeploy's schedulers, with the plug-in and without: a program."""

import importlib
import json
import threading
import time

from fd_postproc.fastdeploy.engine.delivery.wake_up import WakeUp
from fd_postproc.fastdeploy.engine.results.result_classes import plan_of

PUTS = 20


def waits(scheduler, plan):
    """How often a thread came back from get_results with nothing, while nothing came for a while."""
    stop, empty, got = threading.Event(), [0], []

    def fetch():
        while not stop.is_set():
            results = scheduler.get_results()
            got.extend(results)
            empty[0] += not results

    asking = threading.Thread(target=fetch, daemon=True)
    asking.start()
    time.sleep(0.3)
    idle = empty[0]
    for _ in range(PUTS):
        before = len(got)
        scheduler.put_results([plan.new_result(0, 1, "one", 3, None)])
        while len(got) == before:  # a hang is the caller's business
            time.sleep(0.0005)
    stop.set()
    asking.join(60)
    return {"idle": idle, "got": len(got), "ended": not asking.is_alive()}


def main():
    plan = plan_of(importlib.import_module("fastdeploy.output.token_processor"))
    local = importlib.import_module("fastdeploy.scheduler.local_scheduler").LocalScheduler
    parallel = importlib.import_module("fastdeploy.scheduler.dp_scheduler").DPScheduler
    arguments = (0, 900, False, 1, 1, 1)
    told = {}
    for name, outer in {"local": local(*arguments), "data-parallel": parallel(*arguments)}.items():
        inner = getattr(outer, "_scheduler", outer)
        inner.requests["one"] = None
        before = inner.wait_response_timeout
        stock = waits(inner, plan)
        wake_up = WakeUp(outer)
        said = wake_up.begin()
        ours = waits(inner, plan)
        wake_up.end()
        told[name] = {
            "stock": stock,
            "ours": ours,
            "said": said,
            "given back": inner.wait_response_timeout == before,
        }
    print("told: " + json.dumps(told))


main()
