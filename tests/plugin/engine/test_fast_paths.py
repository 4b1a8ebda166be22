"""Fast paths that are not taken are told: nothing else would show that most of the speed is gone."""

import contextlib
from types import SimpleNamespace
from unittest import mock

import prometheus_client
import pytest

from tests.lib.fakes import DecodeLog
from tests.lib.plugged import new_class
from tests.lib.quiet import Double, imported
from tests.lib.rig import Rig
from tests.lib.rows import each
from tests.lib.waiting import until

pytestmark = pytest.mark.framework
double = Double()
ALL = {*("dictionaries", "stamps", "metrics", "delivery", "wake-up", "sending"), "decode log"}


class Deaf(DecodeLog):
    def on_decode_tokens(self, count):
        self.tokens = count


def odd_dictionary():
    output = imported("fastdeploy.output.token_processor").RequestOutput
    stock = output.to_dict
    return mock.patch.object(output, "to_dict", lambda self: stock(self) | {"seen": str(self.request_id)})


def odd_request(name):
    """A FastDeploy whose requests have a property instead of an attribute."""
    request = imported("fastdeploy.output.token_processor").Request
    return mock.patch.object(request, name, property(lambda self: 3, lambda *given: None), create=True)


class Milliseconds(prometheus_client.Histogram):
    def observe(self, amount, exemplar=None):
        super().observe(1000 * amount)


def odd_histogram(kind, *labels):
    metrics = double.metrics__metrics.main_process_metrics
    return mock.patch.object(metrics, "time_per_output_token", kind("odd", "Odd.", labels, registry=None))


def renamed_metrics(name):
    """A FastDeploy that has a metric by another name."""
    kept = dict(vars(double.metrics__metrics.main_process_metrics))
    kept[f"{name}_seconds"] = kept.pop(name)
    return mock.patch.dict(vars(double.metrics__metrics.main_process_metrics), kept, clear=True)


def odd_loop():
    service = double.engine__common_engine.EngineService
    return mock.patch.object(service, "_zmq_send_generated_tokens", lambda self: self.cfg)


def other_gets():
    cls = double.scheduler__local_scheduler.LocalScheduler
    return type("Other", (cls,), {"get_results": lambda self: dict(self.responses)})()


@contextlib.contextmanager
def made(scheduler=None, log=None, odd=None):
    """A processor that is about to run."""
    metrics = double.metrics__metrics.main_process_metrics
    metrics.reset()
    assert double.engine__common_engine  # imported, as in an engine
    with mock.patch.object(type(metrics), "reset"), odd() if odd else contextlib.nullcontext():
        rig = Rig("topk", ["a"], cls=new_class())
        try:
            rig.processor.cached_generated_tokens = (
                double.scheduler__local_scheduler.LocalScheduler() if scheduler is None else scheduler
            )
            rig.processor.set_scheduler_metrics_logger(log or DecodeLog())
            yield rig.processor
        finally:
            rig.close()


def tell(processor):
    log = mock.Mock()
    processor.fd = SimpleNamespace(**{**vars(processor.fd), "llm_logger": log})
    imported("fd_postproc.fastdeploy.engine.fast_paths").report_taken(processor)
    return log


def exported(way):
    return prometheus_client.REGISTRY.get_sample_value("fd_postproc_fast_path", {"path": way})


def test_all_of_them():
    with made() as processor:
        log = tell(processor)
    (text,) = log.info.call_args.args
    assert text.startswith("fd_postproc: every fast path is taken (")
    assert all(way in text for way in ALL)
    log.warning.assert_not_called()
    assert {way: exported(way) for way in ALL} == dict.fromkeys(ALL, 1.0)


@each(
    "way, options",
    [
        ("dictionaries", {"odd": odd_dictionary}),
        ("stamps", {"odd": lambda: odd_request("need_prefill_tokens")}),
        ("stamps", {"odd": lambda: odd_request("__getattr__")}),
        ("metrics", {"odd": lambda: odd_histogram(prometheus_client.Histogram, "model")}),
        ("metrics", {"odd": lambda: odd_histogram(Milliseconds)}),
        ("metrics", {"odd": lambda: renamed_metrics("time_per_output_token")}),
        ("wake-up delivery", {"scheduler": other_gets()}),
        ("sending", {"odd": odd_loop}),
        ("decode log", {"log": Deaf()}),
    ],
)
def test_each_that_is_not_taken_is_named(way, options):
    with made(**options) as processor:
        log = tell(processor)
    (text,) = log.warning.call_args.args
    assert "results are right, but slower" in text
    ways = {way} if way in ALL else set(way.split())
    assert {other for other in ALL if f"{other} (" in text} == ways
    log.info.assert_not_called()
    assert {other for other in ALL if exported(other) == 0} == ways


def test_it_is_told_when_the_token_thread_starts(log, ops_queue):
    with made() as processor:
        processor.run()
        until(lambda: processor.parts.queue.receiver is not None)
    assert "every fast path is taken" in log.text


def test_none_is_missed_where_the_operator_keeps_the_polling(monkeypatch):
    monkeypatch.setenv("FD_POSTPROC_KEEP_POLLING", "1")
    with made() as processor:
        log = tell(processor)
    (text,) = log.info.call_args.args
    assert "wake-up" not in text


def finding(ways):
    findings, trial = imported("fd_postproc.doctor.findings"), imported("fd_postproc.doctor.trial")
    static = findings.Finding("ok", "fastdeploy", "plugin-on", "engine side", "on", data={"active": True})
    told = {"decision": {"compatible": True}, "loaded": "fd_postproc.x", "fast_paths": ways}
    tried = findings.Finding("ok", "fastdeploy", "plugin-compatible", "our token processor", "", data=told)
    return trial.engine_side(static, [tried])


def test_the_doctor_names_them():
    good, bad = finding(dict.fromkeys(ALL, True)), finding({**dict.fromkeys(ALL, True), "delivery": False})
    assert (good.severity, good.code) == ("ok", "plugin-active")
    assert "every fast path" in good.seen
    assert (bad.severity, bad.code) == ("warning", "plugin-slow")
    assert "delivery (" in bad.seen
    assert bad.data["fast_paths"]["delivery"] is False


def test_the_delivery_is_probed_once_for_a_scheduler(monkeypatch):
    """Telling of the fast paths and the token thread's first delivery share what was found out."""
    delivery, probed = imported("fd_postproc.fastdeploy.engine.delivery.delivery"), []
    real = delivery.handover_in

    def probe(scheduler, plan):
        probed.append(scheduler)
        return real(scheduler, plan)

    monkeypatch.setattr(delivery, "handover_in", probe)
    with made() as processor:
        first = processor.cached_generated_tokens
        tell(processor)
        processor.parts.pairing.deliver([])
        assert probed == [first]
        second = processor.cached_generated_tokens = double.scheduler__local_scheduler.LocalScheduler()
        processor.parts.pairing.deliver([])
        processor.parts.pairing.deliver([])
        assert probed == [first, second]


def test_every_way_has_a_text():
    with made() as processor:
        fast_paths = imported("fd_postproc.fastdeploy.engine.fast_paths")
        seams = imported("fd_postproc.fastdeploy.gate.seams")
        listed = {name for name, seam in seams.SEAMS.items() if seam.side == seams.ENGINE}
        taken = fast_paths.paths_of(processor)
        assert taken.keys() == listed - {"token processor", "scheduling"}  # the double has no manager for it
        processor.parts.lifecycle.scheduling.applies = True
        assert fast_paths.paths_of(processor) == {**taken, "scheduling": False}
