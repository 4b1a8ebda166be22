"""What the plug-in does on the double of one version: for a process that has FD_POSTPROC_DOUBLE."""

import contextlib
import io
import json
import logging

from fastdeploy import config
from fastdeploy.output import token_processor as module

from fd_postproc.fastdeploy.engine.processor_class import make_class
from tests.lib import fakes
from tools.accept.classes import Pair, contract_gap, first_difference_in, trusting
from tools.accept.features import ABORT_SETS, Facts
from tools.accept.sandbox import Sandbox
from tools.accept.steps import SCRIPTS
from tools.accept.trial import Trial

SPECULATIVE = (("spec", "mtp"), ("spec", "ngram"), ("spec_topk", "mtp"))


def engine():
    """FastDeploy's engine is made; which class it has, and what was told of that."""
    records, told, keep = [], io.StringIO(), logging.Handler()
    keep.emit = lambda record: records.append([record.levelname, record.getMessage()])
    logging.getLogger("fastdeploy").addHandler(keep)
    with contextlib.redirect_stderr(told):
        from fastdeploy.engine import common_engine

        service = common_engine.EngineService(config.FDConfig(), fakes.ResourceManager(4))
    service.token_processor._finalizer()
    return {
        "active": type(service.token_processor) is not module.TokenProcessor,
        "log": [record for record in records if "fd_postproc" in record[1] and "engine side" in record[1]],
        "stderr": told.getvalue(),
    }


def outcomes():
    """Of each script of the trial: how ours differs from FastDeploy's class, and some of what ours did."""
    with Sandbox(module) as box:
        return outcomes_in(box)


def outcomes_in(box):
    facts, cls = Facts.of(module, box), make_class(module)
    for name, value in facts.traits.items():
        setattr(cls, name, value)
    pair = Pair(box, box.module.TokenProcessor), Pair(box, cls)
    told = {}
    for script in SCRIPTS:
        applied = facts.applies(script)
        difference = first_difference_in(script, *pair, facts)
        abort_set = facts.abort_set or ABORT_SETS[0]
        trial = Trial(box, cls, applied, abort_set, facts.packed(applied.channel))
        with contextlib.suppress(Exception):  # the difference tells of it
            trial.run()
        results = [result for batch in trial.scheduler.put for result in batch]
        told[script.name] = {
            "difference": difference,
            "storage": applied.storage,
            "errors": [
                [one.error_code, one.error_msg or getattr(one, "error_message", None)] for one in results
            ],
            "columns": sorted({len(row) for rows in rows_of(results) for row in rows}),
            "aborted": sum(result.error_msg == "Aborted" for result in results),
            "sent": sum(map(len, trial.connector.sent)),
            "events": [event.name for event, *_ in box.traced],
            "complaints": sorted(trial.processor.parts.journal.failed),
        }
    return told


def rows_of(results):
    found = (result.outputs.top_logprobs for result in results)
    return [rows.logprobs for rows in found if rows is not None]


def quick_dictionary():
    """Whether a result's dictionary is made without FastDeploy's to_dict, and what is in one with routing."""
    calls = []
    stock = module.RequestOutput.to_dict

    def counted(result):
        calls.append(result)
        return stock(result)

    module.RequestOutput.to_dict = counted
    try:
        with trusting():
            plan = make_class(module).plan
        calls.clear()
        usual = plan.new_result(0, 1, "a", 3, plan.copy_metrics(module.RequestMetrics(arrival_time=1.0)))
        keys = list(usual.to_dict())
        quick = not calls
        usual.routing_data = [1]
        return {"quick": quick, "keys": keys, "with_routing": usual.to_dict().get("routing_data")}
    finally:
        module.RequestOutput.to_dict = stock


def gauges():
    """The gauges of speculative decoding after some steps: FastDeploy's, ours, and our complaints."""
    from tests.lib.plugged import plugin_class, stock_class
    from tests.lib.rig import Rig

    told, metrics = [], module.main_process_metrics
    for channel, method in SPECULATIVE[:2]:
        values = []
        for cls in stock_class(), plugin_class():
            rig = Rig(channel, ["a", "b"], cls=cls, method=method)
            for tokens in ({0: [11, 12], 1: [13]}, {0: [14], 1: [15, 16, 17]}, {0: [18, 19, 20]}):
                rig.through_tensors(tokens)
            parts = getattr(rig.processor, "parts", None)
            if parts is not None:
                parts.gauges.report()
            found = {name: getattr(metrics, name) for name in metrics._speculative}
            listed = {name: one if isinstance(one, list) else [one] for name, one in found.items()}
            values.append({name: [one._value.get() for one in many] for name, many in listed.items()})
            complaints = [] if parts is None else sorted(parts.journal.failed)
            rig.close()
        told.append({"method": method, "stock": values[0], "ours": values[1], "complaints": complaints})
    return told


def show():
    told = {"engine": engine()}
    if contract_gap(module) is None:
        told |= {"scripts": outcomes(), "dictionary": quick_dictionary()}
    if hasattr(module.TokenProcessor, "set_scheduler_metrics_logger"):  # the rig makes requests of these only
        told["gauges"] = gauges()
    print(json.dumps(told))
