"""What an OpenAI client asks a service, and what it got, without what no two answers have in common."""

from __future__ import annotations

import concurrent.futures
import json
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import httpx
import openai

from .comparison import differences, tidy
from .server import Service

PROMPTS = (
    "Tell me of the sea.",
    "1 2 3 4",
    "def f(x):",
    "你好",
    "Why is it that they have this, and he was with you for that?",
)

TRIES = 5
"""How often a case is asked whose first response FastDeploy's API server dropped, which it does by chance."""


class Case(NamedTuple):
    """One thing to ask.

    Attributes
    ----------
    name : str
    path : {"chat", "completion"}
    body : dict
        Of the request, besides model and prompt.
    prompt : str or list of str
    leave_after : int or None
        Chunks after which the client goes away.
    """

    name: str
    path: str
    body: dict[str, Any]
    prompt: Any = PROMPTS[0]
    leave_after: int | None = None


def cases(channel: str, *, draft: bool = False) -> list[Case]:
    """What is asked of a service whose worker sends on `channel`."""
    found = list(_plain())
    found += _logprobs(draft) if channel.endswith("topk") else _no_logprobs()
    return found


def _both(name: str, body: dict[str, Any], **other: Any) -> Iterator[Case]:
    for path in ("chat", "completion"):
        for stream in (False, True):
            more = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
            yield Case(f"{path}-{name}{'-stream' if stream else ''}", path, body | more, **other)


def _plain() -> Iterator[Case]:
    for number, prompt in enumerate(PROMPTS):
        yield from _both(f"prompt{number}", {"max_tokens": 64}, prompt=prompt)
    yield from _both("one-token", {"max_tokens": 1})
    yield from _both("length", {"max_tokens": 5})
    yield from _both("min-tokens", {"max_tokens": 80, "extra_body": {"min_tokens": 60}})
    yield from _both("choices", {"max_tokens": 24, "n": 3})
    yield from _both("stop-strings", {"max_tokens": 48, "stop": ["e", "the", " a"]})
    yield from _both("stop-ids", {"max_tokens": 48, "extra_body": {"stop_token_ids": [40, 50, 60, 70, 80]}})
    yield from _both("ids", {"max_tokens": 16, "extra_body": {"return_token_ids": True}})
    yield from _both("end-shown", {"max_tokens": 64, "extra_body": {"include_stop_str_in_output": True}})
    yield from _both("metrics", {"max_tokens": 16, "extra_body": {"collect_metrics": True}})
    yield Case("completion-batch", "completion", {"max_tokens": 20, "n": 2}, list(PROMPTS[:3]))
    yield Case(
        "completion-batch-stream", "completion", {"max_tokens": 20, "n": 2, "stream": True}, list(PROMPTS[:3])
    )
    yield Case(
        "chat-several-a-chunk", "chat",
        {"max_tokens": 30, "stream": True, "extra_body": {"max_streaming_response_tokens": 4}},
    )  # fmt: skip
    long = {"max_tokens": 800, "stream": True, "extra_body": {"min_tokens": 799}}
    yield Case("chat-client-leaves", "chat", long, leave_after=5)
    yield Case("completion-client-leaves", "completion", long, leave_after=5)
    for name, body in (
        ("negative-max-tokens", {"max_tokens": -3}),
        ("too-long", {"max_tokens": 5, "extra_body": {"min_tokens": 90000}}),
        ("temperature", {"temperature": -4.0}),
        ("no-choices", {"n": 0}),
        ("too-many-stops", {"stop": [f"s{n}" for n in range(80)]}),
        ("top-p", {"top_p": 7.0}),
    ):
        yield from _both(f"error-{name}", body)
    yield Case("chat-error-no-message", "chat", {"max_tokens": 4}, [])


def _no_logprobs() -> Iterator[Case]:
    yield Case("chat-error-logprobs-off", "chat", {"logprobs": True, "top_logprobs": 2})
    yield Case("completion-error-logprobs-off", "completion", {"logprobs": 2})


def _logprobs(draft: bool) -> Iterator[Case]:
    for top in (0, 5, 20):
        for stream in ({}, {"stream": True}):
            tail = f"{top}{'-stream' if stream else ''}"
            body = {"max_tokens": 40, **stream}
            yield Case(f"chat-logprobs{tail}", "chat", body | {"logprobs": True, "top_logprobs": top})
            yield Case(f"completion-logprobs{tail}", "completion", body | {"logprobs": top})
            if draft:
                more = {"extra_body": {"include_draft_logprobs": True}}
                yield Case(f"chat-draft{tail}", "chat", body | {"logprobs": True, "top_logprobs": top} | more)
                yield Case(f"completion-draft{tail}", "completion", body | {"logprobs": top} | more)
    both = {"logprobs": True, "top_logprobs": 5, "max_tokens": 20}
    yield Case("chat-logprobs-choices", "chat", both | {"n": 3})
    yield Case("chat-logprobs-choices-stream", "chat", both | {"n": 3, "stream": True})
    yield Case("chat-logprobs-stop", "chat", both | {"stop": ["e"], "stream": True, "max_tokens": 60})
    yield Case("chat-error-logprobs", "chat", {"logprobs": True, "top_logprobs": 99})
    yield Case("completion-error-logprobs", "completion", {"logprobs": 99})


def ask(
    service: Service, wanted: list[Case], *, seconds: float = 60, side_by_side: int = 1
) -> dict[str, Any]:
    """Ask all of it, some at a time.

    Returns
    -------
    dict of str to list
        What each case got: its chunks, or its one answer, or its error.  A case that gets nothing for
        `seconds` has "hangs" at its end.
    """
    with (
        openai.OpenAI(
            base_url=f"{service.url}/v1", api_key="none", max_retries=0, timeout=seconds,
            # A server ends a connection that was idle for 5 s, also in the moment in which it is used again.
            default_headers={"Connection": "close"},
        ) as client,
        concurrent.futures.ThreadPoolExecutor(side_by_side) as pool,
    ):  # fmt: skip

        def one(case: Case) -> tuple[str, list[Any]]:
            for _ in range(TRIES):
                dropped = service.dropped(case.name)
                got = _one(client, case)
                if service.dropped(case.name) == dropped:
                    break
            if case.leave_after and side_by_side == 1:
                quiet(service)  # FastDeploy 2.5 goes on with a request whose client has left
            return case.name, got

        return dict(pool.map(one, wanted))


def ask_both_ways(service: Service, wanted: list[Case], *, seconds: float = 60) -> dict[str, Any]:
    """What each case gets alone and beside others, and what is left running."""
    got = {
        "alone": ask(service, wanted, seconds=seconds),
        "crowd": ask(service, wanted, seconds=seconds, side_by_side=8),
    }
    if not quiet(service):
        got["alone"]["left"] = ["requests are running forever"]
    return got


def told_apart(right: dict[str, Any], got: dict[str, Any], **how: Any) -> dict[str, list[str]]:
    """Hangs of `got`, and differences from `right`, both of `ask_both_ways`; `how` as of `differences`."""
    return {
        "hangs": [f"{which}: {name}" for which, answers in got.items() for name in hanging(answers)],
        "differences": [
            f"{which}: {line}"
            for which in got
            for line in differences(right[which], got[which], **{"crowd": which == "crowd", **how})
        ],
    }


def hanging(got: dict[str, list[Any]]) -> list[str]:
    """Names of the cases that got nothing for too long."""
    return [name for name, parts in got.items() if parts[-1:] == ["hangs"]]


def _one(client: openai.OpenAI, case: Case) -> list[Any]:
    got: list[Any] = []
    try:
        answer = _call(client, case)
        if not case.body.get("stream"):
            return [tidy(answer.model_dump(exclude_unset=True))]
        with answer:
            for chunk in answer:
                got.append(tidy(chunk.model_dump(exclude_unset=True)))
                if len(got) == case.leave_after:
                    return [*got, "left"]
        return [*got, "ended"]
    except openai.APITimeoutError:
        return [*got, "hangs"]
    except openai.APIStatusError as error:
        return [*got, {"status": error.status_code, "body": tidy(_json(error.response))}]
    except openai.APIError as error:
        return [*got, {"error": type(error).__name__, "body": tidy(error.body)}]
    except httpx.TimeoutException:
        return [*got, "hangs"]


def _call(client: openai.OpenAI, case: Case) -> Any:
    if case.path == "completion":
        return client.completions.create(model="default", user=case.name, prompt=case.prompt, **case.body)
    messages = [{"role": "user", "content": case.prompt}] if case.prompt else []
    return client.chat.completions.create(model="default", user=case.name, messages=messages, **case.body)


def _json(response: httpx.Response) -> Any:
    try:
        return response.json()
    except json.JSONDecodeError:
        return response.text


def quiet(service: Service, seconds: float = 60) -> bool:
    """Whether nothing runs any more: requests of clients that left are ended, their slots free."""
    return until(lambda: gauge(service.metrics(), "fastdeploy:num_requests_running") == 0, seconds)


def gauge(text: str, name: str) -> float | None:
    """The first sample of this name on a metrics page."""
    for line in text.splitlines():
        if line.startswith((name + " ", name + "{")):
            return float(line.split()[-1])
    return None


def gauges_on(page: str, *names: str) -> set[str]:
    """Samples of these gauges of fd_postproc that are not 0 on a page of metrics."""
    begins = tuple(f"fd_postproc_{name}{{" for name in names)
    return {
        line.rpartition(" ")[0]
        for line in page.splitlines()
        if line.startswith(begins) and float(line.rpartition(" ")[2])
    }


def seams_left(page: str) -> list[str]:
    """Parts of the plug-in that a page of metrics says are FastDeploy's own, or that it knows none."""
    paths = [line for line in page.splitlines() if line.startswith("fd_postproc_fast_path{")]
    return [line for line in paths if not float(line.rpartition(" ")[2])] if paths else ["no path is there"]


def until(true: Callable[[], bool], seconds: float) -> bool:
    """Whether it became so within the time."""
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def wait_for_requests(service: Service, count: int) -> None:
    """Until so many requests run."""
    if not until(lambda: service.live() == count, 60):
        raise TimeoutError(f"the {count} requests do not begin")
