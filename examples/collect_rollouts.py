"""Collect many rollouts at a time: token ids, log-probabilities and experts as NumPy arrays.

python examples/collect_rollouts.py http://127.0.0.1:8180 256
"""

import base64
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.request import Request, urlopen

import numpy as np

AT_ONCE = 64


def ask(address: str, number: int) -> bytes:
    """The body of one rollout's answer."""
    request = {
        "messages": [{"role": "user", "content": f"Rollout {number}: think of a number."}],
        "max_tokens": 64,
        "logprobs": True,
        "top_logprobs": 0,
        "return_token_ids": True,
    }
    headers = {"Content-Type": "application/json"}
    with urlopen(
        Request(f"{address}/v1/chat/completions", json.dumps(request).encode(), headers), timeout=600
    ) as response:
        body: bytes = response.read()
    return body


def main(address: str, rollouts: int) -> None:
    began, totals = time.perf_counter(), np.zeros(4, np.int64)
    with ThreadPoolExecutor(AT_ONCE) as threads:
        for body in threads.map(lambda number: ask(address, number), range(rollouts)):
            answer = json.loads(body)
            (choice,) = answer["choices"]
            ids = np.array(choice["message"]["completion_token_ids"])
            scores = np.array([entry["logprob"] for entry in choice["logprobs"]["content"]])
            chosen = np.frombuffer(base64.b64decode(answer.get("routed_experts") or ""), np.int64)
            totals += len(ids), scores.size, chosen.size, len(body)
    seconds = time.perf_counter() - began
    tokens, logprobs, experts, size = totals
    print(f"{rollouts} answers: {tokens} tokens, {logprobs} log-probabilities, {experts} experts")
    print(f"{size / 1e6:.1f} MB in {seconds:.1f} s")


if __name__ == "__main__":
    if len(sys.argv) < 2 or not all(one.isdigit() for one in sys.argv[2:3]):
        sys.exit(__doc__)
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 256)
