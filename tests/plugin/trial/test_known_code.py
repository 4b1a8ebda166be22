"""What the replaced methods look at is compared with what those of known FastDeploys looked at."""

import functools
import json

import pytest

from fd_postproc.fastdeploy.trial import known_code
from fd_postproc.fastdeploy.trial.compatibility import Transport, compare
from tests.lib.paths import ROOT
from tests.lib.quiet import imported

pytestmark = pytest.mark.framework
FILE = ROOT / "fd_postproc/data/fastdeploy_code.json"


@pytest.fixture
def module():
    return imported("fastdeploy.output.token_processor")


@pytest.fixture
def make_class(module):
    return imported("fd_postproc.fastdeploy.engine.processor_class").make_class


@pytest.fixture
def own(module, make_class):
    """Our classes, without FastDeploy's."""
    stock = module.TokenProcessor
    return [cls for cls in make_class(module).__mro__ if cls not in stock.__mro__]


def subclass(module, **methods):
    """FastDeploy's class with some methods that are another's."""
    return type("TokenProcessor", (module.TokenProcessor,), {"__module__": module.__name__, **methods})


def test_the_double_is_known(module, own):
    """Otherwise: python -m tests.upstream.record, for the double and for each tree."""
    read = known_code.read(own, module.TokenProcessor)
    assert (read.words, read.methods, read.reason) == ({}, (), None)
    assert known_code.read(own, module.TokenProcessor, known_code.QUEUE).methods == ()


def test_the_recording_is_names_and_digests(module, own):
    told = json.loads(FILE.read_text())
    assert {"_process_batch_output", "postprocess", "_record_metrics"} <= told.keys()
    for one in told.values():
        assert all(
            word.strip("'=").replace(".", "").replace("-", "").replace("_", "a").isalnum()
            for word in one["words"]
        )
        assert all(len(digest) == 12 for digest in one["digests"])
    assert known_code.record(own, module.TokenProcessor).keys() <= told.keys()


def test_an_attribute_that_no_known_version_has(module, own):
    def postprocess(self, batch_result, mtype=3):
        self.cached_generated_tokens.put_results([one for one in batch_result if one.allowed])

    read = known_code.read(own, subclass(module, postprocess=postprocess))
    assert read.words == {"postprocess": ("allowed",)}
    assert read.methods == ("postprocess",)
    assert "postprocess looks at allowed" in read.reason


def test_known_words_in_another_order(module, own):
    def postprocess(self, batch_result, mtype=3):
        """A text."""
        self.llm_logger.info(f"put {len(batch_result)}")
        self.cached_generated_tokens.put_results(batch_result)

    read = known_code.read(own, subclass(module, postprocess=postprocess))
    assert (read.words, read.methods) == ({}, ("postprocess",))


def test_a_helper_is_read_instead_of_its_name(module, own):
    def postprocess(self, batch_result, mtype=3):
        self._put_all_of_them(batch_result)

    def _put_all_of_them(self, batch_result):
        self.cached_generated_tokens.put_results(batch_result)

    def _put_some_of_them(self, batch_result):
        self.cached_generated_tokens.put_results(batch_result[: self.at_most])

    harmless = subclass(module, postprocess=postprocess, _put_all_of_them=_put_all_of_them)
    assert known_code.read(own, harmless).words == {}
    other = subclass(module, postprocess=postprocess, _put_all_of_them=_put_some_of_them)
    assert known_code.read(own, other).words == {"postprocess": ("at_most",)}


def test_a_decorator_is_read(module, own):
    def allowed_only(function):
        @functools.wraps(function)
        def run(self, batch_result, *arguments):
            return function(self, [one for one in batch_result if one.allowed], *arguments)

        return run

    read = known_code.read(own, subclass(module, postprocess=allowed_only(module.TokenProcessor.postprocess)))
    assert read.words == {"postprocess": ("allowed",)}


def test_without_a_source_compiled_code_is_read(module, own):
    space = {}
    exec("def postprocess(self, batch_result, mtype=3):\n    self.allowed.put_results(batch_result)", space)
    read = known_code.read(own, subclass(module, postprocess=space["postprocess"]))
    assert read.words == {"postprocess": ("allowed",)}


def test_digests_do_not_depend_on_texts_and_log_lines():
    def one(self, results):
        """Put them."""
        self.llm_logger.debug("put")
        return len(results)

    def other(self, results: list) -> int:
        return len(results)

    digests = []
    for function in (one, other):
        node = known_code._node_of(function)
        node.name = "same"
        digests.append(known_code._digest(node))
    assert digests[0] == digests[1]


@pytest.mark.parametrize(
    ("road", "is_read"),
    [
        (Transport(False), False),
        (Transport(True), True),
        (Transport(True, True), True),
        (Transport(False, True), False),
    ],
)
def test_a_loop_over_zmq_that_is_new(road, is_read, module, make_class, monkeypatch):
    """FastDeploy's own refuses speculation there; one that does not may send what ours cannot read."""

    def process_sampling_results_use_zmq(self):
        while True:
            self.postprocess(self._process_batch_output_use_zmq(self.zmq_server.recv_pyobj()))

    name = process_sampling_results_use_zmq.__name__
    monkeypatch.setattr(module.TokenProcessor, name, process_sampling_results_use_zmq)
    verdict = compare(module, make_class, road)
    assert (name in verdict.unknown) is is_read
    assert verdict.compatible is not road.speculative or not is_read
    assert ("refuse speculative decoding" in verdict.reason) is not verdict.compatible


@pytest.mark.parametrize("name", sorted(known_code.SOCKET))
def test_methods_of_steps_over_zmq_are_read(name, module, own):
    """Also those that ours mention, or never override."""

    def method(self, *arguments):
        return self.never_that_many

    read = known_code.read(own, subclass(module, **{name: method}), known_code.QUEUE)
    assert read.words[name] == ("never_that_many",)
    assert name not in known_code.read(own, subclass(module, **{name: method})).words


def test_an_unknown_word_makes_ours_stand_aside(module, make_class, monkeypatch):
    stock = module.TokenProcessor.postprocess

    def postprocess(self, batch_result, mtype=3):
        if len(batch_result) > self.never_that_many:
            batch_result = batch_result[::-1]
        stock(self, batch_result, mtype)

    monkeypatch.setattr(module.TokenProcessor, "postprocess", postprocess)
    monkeypatch.setattr(module.TokenProcessor, "never_that_many", 1000, raising=False)
    verdict = compare(module, make_class)
    assert not verdict.compatible
    assert "postprocess looks at never_that_many" in verdict.reason
    assert verdict.unknown == ("postprocess",)


def test_more_steps_are_tried_where_code_is_unknown(module, make_class, monkeypatch):
    """Above 16 requests, with known words only: no canned step reaches it."""

    def postprocess(self, batch_result, mtype=3):
        if len(batch_result) > 3 * 4:
            batch_result = batch_result[::-1]
        self.cached_generated_tokens.put_results(batch_result)

    monkeypatch.setattr(module.TokenProcessor, "postprocess", postprocess)
    monkeypatch.setattr(known_code, "read", lambda *_: known_code.CodeRead({}, ("postprocess",)))
    verdict = compare(module, make_class)
    assert not verdict.compatible
    assert verdict.reason
