"""Results that are looked at before they are delivered, as FastDeploy's own code looks at each of them."""

import copy
import json
import pickle
from multiprocessing.reduction import ForkingPickler

import msgpack


def looking(cls):
    """A token processor's class, FastDeploy's or ours, that looks at what it delivers.

    It does so in one way after the other.  What each sees is in the results then, for a judge.
    """

    class Looking(cls):
        looked_at = 0

        def postprocess(self, batch_result, mtype=3):
            seen = []
            for result in batch_result:
                self.looked_at += 1
                seen.append(WAYS[self.looked_at % len(WAYS)](result))
            super().postprocess(seen, mtype)

    Looking.__name__ = cls.__name__
    return Looking


def _told(result, seen):
    result.prompt = seen
    return result


def _sent_alone(result):
    """The loop of FastDeploy 2.5, and of the others with ``ZMQ_SEND_BATCH_DATA=0``."""
    outputs = result.outputs
    if outputs is not None and outputs.decode_type == 0 and len(outputs.token_ids):
        outputs.token_ids, outputs.text = list(outputs.token_ids), ""
    (sent,) = pickle.loads(ForkingPickler.dumps([result.to_dict()]))
    return _told(result, sent)


def _to_the_adapter(result):
    """A step of the internal adapter: msgpack without a default."""
    shown = result.to_dict()
    shown.pop("routing_data", None)
    return _told(result, msgpack.unpackb(msgpack.packb(shown)))


def _through_the_global_scheduler(result):
    shown = result.to_dict()
    shown.pop("routing_data", None)
    return _told(result, json.loads(json.dumps(shown)))


def _through_the_splitwise_scheduler(result):
    name, idx = result.request_id, result.outputs and result.outputs.send_idx
    if result.error_code == 200 and idx == 0:
        result.finished = result.finished
    result.request_id = "another"
    came = pickle.loads(pickle.dumps(result, protocol=5))
    came.request_id = name
    return came


def _offline(result):
    """As ``LLM`` adds later results to the first, of both."""
    if result.outputs is None or result.metrics is None or result.outputs.token_ids is None:
        return result
    first = copy.deepcopy(result)
    first.add(result)
    return _told(result, [first.outputs.token_ids, first.outputs.top_logprobs, first.metrics.to_dict()])


WAYS = (
    lambda result: result,
    _sent_alone,
    _to_the_adapter,
    _through_the_global_scheduler,
    _through_the_splitwise_scheduler,
    lambda result: pickle.loads(pickle.dumps(result)),  # as the dp scheduler's queue
    _offline,
    lambda result: _told(result, [dict(vars(result)), result.finished, result.metrics]),
)
