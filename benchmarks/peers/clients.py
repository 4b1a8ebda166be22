"""The load generator: streams of chats, in a process of its own; what they got, and whether it was right.

``python -m benchmarks.peers.clients`` reads one order, a line of JSON, begins the streams, says "begun" when
each has text, measures from the next line on standard input to the one after, and prints what it saw.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any
from urllib.parse import urlsplit

LONG = 30_000
"""Tokens that are asked for: no stream ends while it is measured."""


@dataclass
class Stream:
    """One client's answer, as it comes.

    Attributes
    ----------
    parts : list of bytes
        Of the answer as it comes over the wire, less its head.
    first, last : int
        Parts before the measured time, and before its end.
    gaps : list of float
        Seconds from chunk to chunk while it is measured.
    """

    parts: list[bytes] = field(default_factory=list)
    first: int = 0
    last: int = 0
    gaps: list[float] = field(default_factory=list)


def body(number: int, top: int | None, more: dict[str, Any]) -> dict[str, Any]:
    """The request: a chat, streamed."""
    asked = {} if top is None else {"logprobs": True, "top_logprobs": top}
    messages = [{"role": "user", "content": f"request {number}"}]
    return {"messages": messages, "max_tokens": LONG, "stream": True, **asked, **more}


async def read(order: dict[str, Any], number: int, one: Stream) -> None:
    """Read one answer; what it says is looked at when all is over."""
    asked = json.dumps(body(number, order["top"], order.get("more", {}))).encode()
    where = urlsplit(order["url"])
    reader, writer = await asyncio.open_connection(where.hostname, where.port, limit=1 << 24)
    writer.write(
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {where.netloc}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(asked)}\r\n\r\n".encode()
        + asked
    )
    head = await reader.readuntil(b"\r\n\r\n")
    if b" 200 " not in head.splitlines()[0]:
        raise RuntimeError(f"{head.decode()} {(await reader.read(300)).decode()}")
    before = time.perf_counter()
    while data := await reader.read(1 << 20):
        now, events = time.perf_counter(), data.count(b"data: ")
        one.parts.append(data)
        one.gaps += [(now - before) / max(events, 1)] * events
        before = now


def unframed(data: bytes) -> bytes:
    """A body without the lengths of its HTTP chunks; the last one may be cut off."""
    parts = []
    while data:
        size, _, rest = data.partition(b"\r\n")
        length = int(size, 16) if size and rest else 0
        if not length:
            break
        parts.append(rest[:length])
        data = rest[length + 2 :]
    return b"".join(parts)


def chunks(data: bytes) -> list[dict[str, Any]]:
    """The whole chunks of an answer's bytes."""
    lines = unframed(data).split(b"\n")[:-1]
    return [json.loads(line[6:]) for line in lines if line.startswith(b"data: {")]


def content(data: bytes) -> tuple[str, list[dict[str, Any]]]:
    """Text and log-probabilities of an answer's bytes."""
    choices = [choice for chunk in chunks(data) for choice in chunk.get("choices", ())]
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    return text, [one for each in choices for one in (each.get("logprobs") or {}).get("content") or ()]


def wrong(text: str, logprobs: list[dict[str, Any]], order: dict[str, Any]) -> str:
    """How an answer differs from what was sent; empty if it does not."""
    right, tops = "".join(order["texts"]), order["tops"]
    if not text or not right.startswith(text):
        return f"text {text[:80]!r}, sent {right[:80]!r}"
    if tops is None:
        return ""
    if not logprobs:
        return "no logprobs"
    for got, expected in zip(logprobs, tops, strict=False):
        if [got["token"], got["logprob"]] != expected[0]:
            return f"logprob {[got['token'], got['logprob']]}, sent {expected[0]}"
        others = [[each["token"], each["logprob"]] for each in got["top_logprobs"]]
        if any(each not in others for each in expected[1:]):
            return f"top logprobs {others[:2]}, sent {expected[1:3]}"
    return ""


def tokens_in(text: str, texts: list[str]) -> int:
    """How many of the tokens with these texts an answer holds."""
    return sum(1 for length in accumulate(map(len, texts)) if length <= len(text))


def summary(streams: list[Stream], order: dict[str, Any], seconds: float) -> dict[str, Any]:
    """What all streams got."""
    tokens, reasons, bytes_in, gaps = 0, [], 0, []
    for one in streams:
        gaps += one.gaps
        bytes_in += sum(map(len, one.parts[one.first : one.last]))
        text, logprobs = content(b"".join(one.parts[: one.last]))
        before, _ = content(b"".join(one.parts[: one.first]))
        reasons.append(wrong(text, logprobs, order))
        tokens += tokens_in(text, order["texts"]) - tokens_in(before, order["texts"])
    return {
        "tokens": tokens,
        "chunks": len(gaps),
        "gaps": sorted(gaps),
        "bytes": bytes_in,
        "seconds": seconds,
        "wrong": [reason for reason in reasons if reason][:3],
    }


async def run(order: dict[str, Any]) -> dict[str, Any]:
    """All streams of an order; lines on standard input begin and end the measured time."""
    streams, loop = [Stream() for _ in range(order["streams"])], asyncio.get_running_loop()
    tasks = [asyncio.create_task(read(order, number, one)) for number, one in enumerate(streams)]
    while not all(len(one.parts) > 2 for one in streams):
        await asyncio.sleep(0.05)
        for task in tasks:
            if task.done():
                task.result()
                raise RuntimeError("a stream ended before it was measured")
    print("begun", flush=True)
    await loop.run_in_executor(None, sys.stdin.readline)
    began = time.perf_counter()
    for one in streams:
        one.first, one.gaps = len(one.parts), []
    await loop.run_in_executor(None, sys.stdin.readline)
    seconds = time.perf_counter() - began
    for one, task in zip(streams, tasks, strict=True):
        one.last = len(one.parts)
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return summary(streams, order, seconds)


if __name__ == "__main__":
    print(json.dumps(asyncio.run(run(json.loads(sys.stdin.readline())))), flush=True)
