"""A program for a real FastDeploy: the bodies of answers with arrays, its own way and with ours."""

import asyncio
import importlib
import itertools
import json
from functools import partial

import numpy as np

from benchmarks import rollouts
from benchmarks.rollouts import OURS, STOCK, Server, longest_hold, packers

TOKENS = 8000


def kinds(draw, plan):
    """What is asked for, by name: results, and the request's options."""
    made = {}
    for kind in ("uint8", "int8", "int16", "uint16", "int32", "int64"):
        limits, shape = np.iinfo(kind), tuple(draw.integers(1, 40, draw.integers(1, 4)))
        experts = draw.integers(limits.min, limits.max, shape, dtype=kind)
        made[f"experts {kind} {shape}"] = partial(_result, routing_data=experts)
    made["experts that are none"] = partial(_result, routing_data=np.zeros((0, 2, 2), np.uint8))
    made["experts, large"] = partial(rollouts._experts, TOKENS, 46, "uint8")
    made["prompt, large"] = partial(rollouts._prompt, 2000, 21)
    for name, values in prompts(draw).items():
        made[f"prompt, {name}"] = partial(_prompt, *values)
    if not hasattr(plan.fd.CompletionOutput(index=0, send_idx=0, token_ids=[]), "sampling_mask"):
        return made  # the development branch
    few = _few_ids(draw, 200)
    for name, masks in {
        "one id": [[7]],
        "of a token": [[5, 70_000, 3], [1, 2]],
        "of some tokens": [[[1, 2], [3], [150_000] * 300], [[], [4]]],
        "none": [[], None],
        "many": [list(range(step, 3 * step)) for step in range(1, 300)],
        "no integers": [[True, 2]],
        "no integers at last": [*([[5, 6]] * 100), [True, 2]],
        "some of several tokens": [[one, [one[0]], []] if one[0] % 3 else one for one in few],
        "large": _few_ids(draw, TOKENS),
    }.items():
        made[f"masks, {name}"] = partial(_masked, masks)
    return made


def _few_ids(draw, count):
    """A mask of 1 to 40 ids for each of so many tokens."""
    return [draw.integers(0, 150_000, draw.integers(1, 40)).tolist() for _ in range(count)]


def prompts(draw):
    """A prompt's log-probabilities, by name: ids, scores and ranks."""
    odd = np.array([[-0.5, -np.inf, -0.0], [-1e-7, -3.4e38, -1e-45]], np.float32)
    ids, scores = draw.integers(0, 50, (200, 21)), -draw.exponential(3, (200, 21)).astype(np.float32)
    wide = draw.integers(0, 3000, (2, 5000))
    return {
        "odd": (np.array([[7, 1, 7], [3, 3, 3]]), odd, np.array([4, 1])),
        "ids that are twice": (ids, scores, draw.integers(1, 1 << 40, 200)),
        "int32": (ids.astype(np.int32), scores.astype(np.float64), np.arange(200, dtype=np.int32)),
        "one": (np.array([[5]]), np.array([[-0.25]], np.float32), np.array([1])),
        "wide": (wide, -draw.exponential(3, wide.shape).astype(np.float32), np.array([1, 2])),
        "not finite": (ids[:1, :2], np.array([[np.nan, np.inf]], np.float32), np.array([1])),
        "none": (ids[:0], scores[:0], np.arange(0)),
        "several lengths": (ids, scores[:, :5], np.arange(200)),
    }


def _prompt(ids, scores, ranks, plan):
    kind = importlib.import_module("fastdeploy.worker.output").LogprobsTensors
    return [rollouts._result(plan, prompt_logprobs=kind(ids, scores, ranks), finished=True)]


def _result(plan, **values):
    return [rollouts._result(plan, **values, finished=True)]


def _masked(masks, plan):
    last = len(masks) - 1
    return [rollouts._result(plan, sampling_mask=one, finished=i == last) for i, one in enumerate(masks)]


def main():
    plan, ways = packers()
    if not hasattr(importlib.import_module("fastdeploy.inter_communicator.zmq_server"), "_msgpack_default"):
        print("told: " + json.dumps("its messages are pickles, and hold no arrays"))
        return
    loop, told = asyncio.new_event_loop(), {}
    for (name, make), texts in itertools.product(
        kinds(np.random.default_rng(5), plan).items(), (True, False)
    ):
        options = {}
        if name.startswith("prompt"):
            columns = -1 if name.endswith("wide") else 20
            options = {"prompt_logprobs": columns, "include_logprobs_decode_token": texts}
        elif not texts:
            continue
        results, bodies = make(plan), []
        for way, packed in ((STOCK, STOCK), (OURS, OURS), (OURS, STOCK)):
            server, body = Server(way, **options), []
            messages = [ways[packed]([result]) for result in results]
            try:
                loop.run_until_complete(server.respond(messages, body.append))
            except ValueError as error:  # what is not finite is no JSON
                body.append(str(error).encode())
            if way is packed is OURS and name.endswith(", large"):
                body.clear()  # the first time modules are imported
                hold = loop.run_until_complete(longest_hold(server.respond(messages, body.append)))
                told["hold"] = max(told.get("hold", 0), hold)
            bodies.append(b"".join(body))
            server.close()
        told[name + ", texts" * (texts and bool(options))] = [one == bodies[0] for one in bodies] + [
            len(bodies[0])
        ]
    print("told: " + json.dumps(told))


if __name__ == "__main__":
    main()
