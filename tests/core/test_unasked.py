"""Logprobs are enabled, and no request of a step has asked for any: FastDeploy's worker sends plain messages.

They come through the queue of the ``topk`` channel.  (FastDeploy's save_output_normal; its own engine reads
no token from them.)
"""

import numpy as np
import pytest
import sysv_ipc

import fd_postproc as fp
from tests import reference
from tests.lib.line import SMALL
from tests.lib.quiet import imported
from tests.lib.rig import Rig
from tests.lib.rows import each


def put(key, payload):
    sysv_ipc.MessageQueue(key, max_message_size=4096).send(payload, type=1)


def plain(layout=fp.GPU, counts=(1, -9, 1)):
    """A step, and the full structure that FastDeploy's op sends of it."""
    step = fp.Step.from_arrays("plain", list(counts), np.arange(50, 50 + sum(n > 0 for n in counts)))
    size = reference.payload_size("plain", layout)
    return step, fp.encode(step, layout=layout).ljust(size, b"\xff")


@each("layout", [fp.GPU, SMALL])
def test_it_is_decoded_as_what_it_is(layout, decode_both):
    """So is one that our sender cut, and a frame of ours; at another length it is a damaged message."""
    step, payload = plain(layout)
    cut = fp.encode(step, layout=layout)
    assert len(cut) == 8 + 4 * step.batch
    for message, mtype in (payload, 1), (cut, 1), (fp.encode(step, "compact"), 2):
        got = decode_both(message, "topk", mtype=mtype, layout=layout)
        assert (got.channel, list(got.counts), got.batch) == ("plain", [1, -9, 1], 3)
        assert got == decode_both(message, "plain", mtype=mtype, layout=layout)
    for change in -4, 4:
        other = (payload + bytes(4))[: len(payload) + change]
        assert decode_both(other, "topk", layout=layout).field == "length"
    for channel in "spec", "spec_topk":
        assert isinstance(decode_both(payload, channel, layout=layout), fp.MalformedMessage)
        assert decode_both(fp.encode(step, "compact"), channel, mtype=2, layout=layout).field == "channel"


@each("dialect", ["packed", "compact"])
def test_through_one_queue_with_those_that_have_logprobs(dialect, raised_limits, queue_keys):
    queue_key = queue_keys()
    step, payload = plain()
    scored = fp.Step.from_arrays("topk", [1], np.array([[7, 8]]), np.zeros((1, 2), np.float32), np.array([3]))
    with (
        fp.Receiver("topk", key=queue_key) as receiver,
        fp.Sender("topk", key=queue_key, dialect=dialect) as with_logprobs,
        fp.Sender("plain", key=queue_key, dialect=dialect) as without,
    ):
        with_logprobs.send(scored)
        if dialect == "compact":
            without.send(step)
        else:
            put(queue_key, payload)
        with_logprobs.send(scored)
        got = [receiver.receive(5) for _ in range(3)]
    assert [one.channel for one in got] == ["topk", "plain", "topk"]
    assert list(got[1].counts) == [1, -9, 1]


@pytest.mark.framework
def test_requests_go_on_without_logprobs():
    imported("fastdeploy.output.token_processor")
    rig = Rig("topk", ["a", "b"])
    try:
        rig.processor.parts.steps.process(fp.Step.from_arrays("plain", [1, 1], np.array([10, 11])))
        first = fp.Step.from_arrays("plain", [1, 1], np.array([12, 13]))
        rig.processor.parts.steps.process(first)
        rig.step({0: [14], 1: [15]})
        last = fp.Step.from_arrays("plain", [1, 1], np.array([2, 16]))  # 2: the end token
        rig.processor.parts.steps.process(last)
        results = [{result.request_id: result for result in put} for put in rig.sink.puts]
        assert [[step[name].outputs.token_ids for name in "ab"] for step in results] == [
            [[10], [11]], [[12], [13]], [[14], [15]], [[2], [16]],
        ]  # fmt: skip
        assert [step["b"].outputs.top_logprobs is None for step in results] == [True, True, False, True]
        assert results[1]["b"].outputs.logprob is None
        assert results[3]["a"].finished
        assert not results[3]["b"].finished
        for step in results:
            step["b"].to_dict()
        assert rig.escaped == []
    finally:
        rig.close()
