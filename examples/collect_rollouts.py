"""Collect the answers of many rollouts at a time, with experts, log-probabilities and masks as NumPy arrays.

python examples/collect_rollouts.py http://127.0.0.1:8180 256
"""

import http.client
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

from fd_postproc.client import ASK, Answer, read_answer

AT_ONCE = 64


def ask(address: str, number: int) -> tuple[Answer, int]:
    """One rollout's answer, and the bytes of its body."""
    request = {
        **ASK,
        "messages": [{"role": "user", "content": f"Rollout {number}: think of a number."}],
        "max_tokens": 64,
        "logprobs": True,
        "top_logprobs": 0,
        "return_token_ids": True,
    }
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=600)
    try:
        connection.request(
            "POST", "/v1/chat/completions", json.dumps(request), {"Content-Type": "application/json"}
        )
        response = connection.getresponse()
        body = response.read()
    finally:
        connection.close()
    if response.status != 200:
        raise SystemExit(f"rollout {number}: status {response.status}: {body[:500].decode(errors='replace')}")
    return read_answer(body), len(body)


def main(address: str, rollouts: int) -> None:
    began, tokens, size = time.perf_counter(), 0, 0
    with ThreadPoolExecutor(AT_ONCE) as threads:
        for answer, body in threads.map(lambda number: ask(address, number), range(rollouts)):
            size += body
            for choice in answer.choices:
                assert choice.token_ids is not None
                tokens += len(choice.token_ids)
                if choice.logprobs is not None:
                    assert len(choice.logprobs.logprobs) == len(choice.token_ids)
    seconds = time.perf_counter() - began
    print(f"{rollouts} answers, {tokens} tokens, {size / 1e6:.1f} MB in {seconds:.1f} s")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 256)
