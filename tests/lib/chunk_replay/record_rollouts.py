"""Record what FastDeploy's API server answers to long rollouts: experts, masks, log-probabilities.

By hand, in an environment that FastDeploy 2.6 imports in, with its tree on the import path::

    FD_PLUGINS=none PYTHONPATH=.:TREE python tests/lib/chunk_replay/record_rollouts.py

Each case is a recorded answer of ``tests/golden_chunks`` with other results; the serving code is
FastDeploy's.
"""

import asyncio
import gzip
import json
import struct
import time

from tests.lib.chunk_replay import serve
from tests.lib.chunk_replay.alone import texts_of
from tests.lib.chunk_replay.cases import ROLLOUTS, cases, index

TEMPLATES = {name: f"plain-{name}-bytebpe" for name in ("cf", "cs", "tf", "ts")}
"""Chat and completion, whole and streamed."""
STEPS = {  # tokens of each step, by what is recorded
    "experts": [1] * 20,
    "masks": [1] * 700,
    "masks of several tokens": [1 + step % 3 for step in range(200)],
    "prompt": [1] * 3,
    "prompt, vocabulary": [1] * 3,
    "logprobs": [1 + step % 2 for step in range(120)],
    "logprobs, vocabulary": [1, 2],
    "all of two choices": [1 + step % 2 for step in range(70)],
}
NOT_STREAMED = ("experts", "masks", "masks of several tokens", "logprobs")
IDS = sorted(token for token, said in texts_of("bytebpe").items() if None not in said)


def score(number):
    """A log-probability: a float32, as a double."""
    return struct.unpack("f", struct.pack("f", -(number % 997) / 61 - 1e-6))[0]


def row(number, columns):
    """Ids and log-probabilities of a token."""
    chosen = [IDS[(17 * number + 31 * column) % len(IDS)] for column in range(columns)]
    return chosen, [score(number + 7 * column) for column in range(columns)]


def rows(first, count, columns):
    """Of some tokens: ids, log-probabilities, ranks."""
    made = [row(first + number, columns) for number in range(count)]
    return [[one[0] for one in made], [one[1] for one in made], [first % 90 + 1] * count]


def options(kind, chat):
    """What the request asks for."""
    every = kind.startswith("all")
    columns = -1 if kind.endswith("vocabulary") else 20
    asked = {"n": 2} if every else {}
    if kind.startswith("prompt") or every:
        asked["prompt_logprobs"] = columns
    if kind.startswith("logprobs") or every:
        asked |= {"logprobs": True, "top_logprobs": columns} if chat else {"logprobs": columns}
    return asked


def results(kind, template, request_id):
    """The results of a case, a list for each message."""
    every, wide = kind.startswith("all"), len(IDS) if kind.endswith("vocabulary") else 21
    first, steps, at = template["frames"][0][0][0], STEPS[kind], 0
    for step, tokens in enumerate(steps):
        for choice in range(2 if every else 1):
            one = json.loads(json.dumps(first)) | {"request_id": f"{request_id}_{choice}"}
            one["finished"] = step == len(steps) - 1
            ids = [IDS[(13 * (at + number)) % len(IDS)] for number in range(tokens)]
            one["outputs"] |= {"index": choice, "send_idx": step, "token_ids": ids}
            if kind.startswith("masks") or every:
                masks = [
                    [(at + number) % 5000 + 3 * place for place in range((at + number) % 31)]
                    for number in range(tokens)
                ]
                one["outputs"]["sampling_mask"] = masks[0] if tokens == 1 and masks[0] else masks
            if kind.startswith("logprobs") or every:
                one["outputs"]["top_logprobs"] = rows(at, tokens, wide)
            if (kind.startswith("prompt") or every) and step == 0:
                one["prompt_logprobs"] = rows(choice, 2 if wide > 21 else 80, wide)
            if (kind == "experts" or every) and one["finished"]:
                shape = (300, 46, 8) if kind == "experts" else (30, 4, 2 + choice)
                one["routing_data"] = experts(*shape)
            at += tokens
            yield [[one]]


def experts(tokens, layers, top):
    """Of each token in each layer."""
    return [
        [[(token % 9 + 5 * layer + place) % 128 for place in range(top)] for layer in range(layers)]
        for token in range(tokens)
    ]


def case_of(kind, how):
    """What is played: request, messages, and what the server had made of the request."""
    template = cases()[TEMPLATES[how]]
    derived, body = template["derived"], json.loads(template["request_body"])
    body |= options(kind, how.startswith("c"))
    frames = [*results(kind, template, derived["request_id"])]
    made = {key: template[key] for key in ("path", "server")}
    made |= {"name": f"{kind}, {how}", "request_body": json.dumps(body), "frames": frames}
    return made | {"dimensions": {"stream": how.endswith("s")}, "derived": derived | {"max_tokens": [5000]}}


def record(case):
    """Let FastDeploy's serving code answer; add what comes, and what its data processor said."""
    serve.prepare(case)
    processor = serve.processor_of(case["server"])
    said, stock = [], processor.process_response_dict

    def process(*arguments, **named):
        made = stock(*arguments, **named)
        names = ("text", "completion_tokens", "skipped", "reasoning_content", "reasoning_token_num")
        said.append({name: made["outputs"][name] for name in names if name in made["outputs"]})
        return made

    processor.process_response_dict = process
    try:
        status, chunks, raised, left = asyncio.run(serve.answer(case))
    finally:
        del processor.process_response_dict
    assert (status, raised) == (200, None), (case["name"], status, raised, chunks[:1])
    case["output"] = {"status": status, "chunks": chunks}
    return case | {"processed": said, "after": {"leftovers": left}}


def main():
    serve.load()
    frozen = index()["frozen_time"]
    time.time = lambda: frozen
    ROLLOUTS.mkdir(exist_ok=True)
    with gzip.GzipFile(ROLLOUTS / "rollouts.jsonl.gz", "wb", 9, mtime=0) as file:
        for kind in STEPS:
            for how in TEMPLATES:
                if how.endswith("f") or kind not in NOT_STREAMED:
                    made = record(case_of(kind, how))
                    file.write(json.dumps(made, separators=(",", ":")).encode() + b"\n")
                    print(made["name"], len(made["output"]["chunks"]), len("".join(made["output"]["chunks"])))


if __name__ == "__main__":
    main()
