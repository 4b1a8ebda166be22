"""Random steps for both classes: every channel, and every course of a request."""

from __future__ import annotations

import random
from typing import Any

from fd_postproc._core import DRAFT
from fd_postproc.core.layout import Channel

from . import steps as parts
from .features import Facts
from .steps import END, NOTHING, PREEMPTED, RECOVERY, CannedMessage, Script

CHANNELS: tuple[Channel, ...] = ("plain", "topk", "spec", "spec_topk")
SPLITWISE_ROLES = ("mixed", "mixed", "decode", "prefill")


def script(number: int, facts: Facts, streamed: bool = False) -> Script:
    """A random script, the same for the same number; `streamed`: its steps come as objects.

    Left out is what FastDeploy is known to do wrong (docs/fastdeploy.md, "What is different for a client").
    """
    rng = random.Random(number)
    if streamed and number % 16 == 12:
        return _of_a_pooling_model(number, rng)
    channel = CHANNELS[number % (2 if streamed else 4)]
    role = SPLITWISE_ROLES[number // 4 % 4]
    speculative = channel.startswith("spec")
    v1 = role == "decode" or rng.random() < 0.7
    draft = channel == "spec_topk" and role == "mixed" and rng.random() < 0.4
    marks = v1 and (facts.speculative_mark or not speculative)
    requests = [_request(rng, role, v1, draft) for _ in range(rng.choice((1, 3, 16, 40)))]
    messages: list[CannedMessage] = []
    seen = [False] * len(requests)  # which had a token in this script
    for _ in range(1 if role == "prefill" else rng.randint(2, 12)):
        last = draft and rng.random() < 0.1
        message = _message(rng, requests, seen, speculative, marks, draft, streamed)
        messages.append(message)
        if draft and not last:
            slots = tuple(slot if isinstance(slot, tuple) else 0 for slot in message.slots)
            messages.append(CannedMessage(slots, columns=message.columns, flag=DRAFT))
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
        masks=rng.random() < 0.2,
        experts=rng.random() < 0.2,
        decode_log=rng.random() < 0.5,
        caching=rng.random() < 0.5,
        streamed=streamed,
        transfers={slot: rng.choice(("finished", "failed")) for slot in range(len(requests))},
        storage=role == "prefill" and rng.random() < 0.3,
    )


def _of_a_pooling_model(number: int, rng: random.Random) -> Script:
    """Its objects hold an output in place of a token, and end each request."""
    requests = [rng.choice((parts.POOLING, parts.POOLING, None)) for _ in range(rng.choice((1, 4, 16)))]
    slots = tuple(NOTHING if one is None or rng.random() < 0.1 else () for one in requests)
    message = CannedMessage(slots)
    return Script(f"random script {number}", "plain", tuple(requests), (message,), streamed=True)


def _request(rng: random.Random, role: str, v1: bool, draft: bool) -> dict[str, Any] | None:
    if rng.random() < 0.1:
        return None
    if role == "prefill":
        return dict(parts.PREFILL)
    kinds = [parts.RICH, parts.FIRST, parts.RUNNING, parts.SECOND]
    if not v1 and not draft:
        kinds.append(parts.CHUNKED)
    request = dict(rng.choice(kinds))
    if role == "decode" and rng.random() < 0.7:
        request = (parts.SECOND if request.get("fresh") else request) | parts.IN_PAIR
    return request


def _message(
    rng: random.Random,
    requests: list[dict[str, Any] | None],
    seen: list[bool],
    speculative: bool,
    marks: bool,
    draft: bool,
    streamed: bool,
) -> CannedMessage:
    """One step.

    While drafts are awaited nothing ends or leaves: FastDeploy mixes such steps up.
    """
    slots: list[int | tuple[int, ...]] = []
    preempted: list[int] = []
    aborted: list[int] = []
    stopped: list[int] = []
    for slot, request in enumerate(requests):
        chance = rng.random()
        if request is None or (chance < 0.03 and not draft):
            slots.append(0 if speculative else NOTHING)
        elif chance < 0.06 and marks and not draft:
            slots.append(PREEMPTED)
            rng.choice((preempted, aborted)).append(slot)
        elif chance < 0.08 and not draft and not streamed and seen[slot]:
            # before any token its statistics divide by 0; as an object FastDeploy's class never ends it
            slots.append(RECOVERY)
        elif chance < 0.1 and not draft:
            stopped.append(slot)
            slots.append((11,))
        else:
            count = rng.randint(1, 6) if speculative else 1
            tokens = [1000 + rng.randint(0, 900)]
            if chance > 0.9 and not draft:  # token 0 over ZeroMQ was none until February 2026
                tokens = [rng.choice((END, 100 + slot, 0) if streamed else (END, 100 + slot))]
            tokens += [rng.randint(1000, 150_000) for _ in range(count - 1)]
            rng.shuffle(tokens)
            slots.append(tuple(tokens))
            seen[slot] = True
    columns = rng.choice((1, 1, 2, 6, 50 if streamed else 21))
    return CannedMessage(
        tuple(slots), columns, preempted=tuple(preempted), aborted=tuple(aborted), stopped=tuple(stopped)
    )
