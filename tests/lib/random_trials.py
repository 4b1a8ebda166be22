"""Program: random steps through FastDeploy's own class and ours, in the real FastDeploy on the import path.

``python random_trials.py SEED RESULTS`` runs scripts as the plug-in's trial does until so many results were
compared, and prints one JSON object: what was run, and the first difference, if any.  A script is made
of its number, which the difference names.  With a third argument results are looked at before they go.
"""

import dataclasses
import importlib
import json
import sys
import time

from tests.lib.looked_at import looking
from tools.accept import classes as compatibility
from tools.accept.random_steps import script


def main(seed, wanted, looked):
    time.time = lambda: 1_800_000_000.0  # the same for both classes: sums of many stamps are compared
    importlib.import_module("tools.accept.trial")._BETWEEN_STEPS = 0.0
    pair, facts = compatibility.prepared(importlib.import_module("fastdeploy.output.token_processor"))
    if looked:
        pair = tuple(one._replace(cls=looking(one.cls)) for one in pair)
    counted = _count_results(pair[0].cls)
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
    told["results"], told["masks"], told["experts"] = counted
    print("\ntold: " + json.dumps(told))


def _count_results(stock):
    """Results that FastDeploy's own class has put; of these, those with masks, and those with experts."""
    counted = [0, 0, 0]
    trial = importlib.import_module("tools.accept.trial").Trial
    run = trial.run

    def run_and_count(self):
        found = run(self)
        if type(self.processor) is stock:
            put = [result for results in self.scheduler.put for result in results]
            counted[0] += len(put)
            counted[1] += sum(getattr(one.outputs, "sampling_mask", None) is not None for one in put)
            counted[2] += sum(getattr(one, "routing_data", None) is not None for one in put)
        return found

    trial.run = run_and_count
    return counted


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), len(sys.argv) > 3)
