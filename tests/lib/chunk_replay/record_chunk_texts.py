"""Write what FastDeploy's data processors say for the token ids of the recorded answers.

By hand, in an environment that FastDeploy imports in, with its tree on the import path::

    PYTHONPATH=.:TREE python tests/lib/chunk_replay/record_chunk_texts.py

With these texts the recorded answers can be written without FastDeploy and without a tokenizer.
"""

import gzip
import json
import os

from tests.lib.chunk_replay.cases import FOLDER, cases


def ids_of(case):
    """Token ids of log-probabilities, and ids of prompts' log-probabilities."""
    shown, prompts = set(), set()
    for frame in case["frames"]:
        for group in frame:
            for result in group:
                outputs = result.get("outputs") or {}
                for name in ("top_logprobs", "draft_top_logprobs"):
                    if outputs.get(name):
                        shown.update(token for row in outputs[name][0] for token in row)
                if result.get("prompt_logprobs"):
                    prompts.update(token for row in result["prompt_logprobs"][0] for token in row)
    return shown, prompts


def said(function, *arguments, **options):
    """What a function returns; None if it raises."""
    try:
        return function(*arguments, **options)
    except Exception:
        return None


def echoed(case, tokenizer):
    """Texts of prompts that were given as token ids and are echoed; None if there are none."""
    body = json.loads(case["request_body"])
    prompt = body.get("prompt")
    if not body.get("echo") or not isinstance(prompt, list) or not prompt or isinstance(prompt[0], str):
        return None
    return [tokenizer.decode(ids) for ids in (prompt if isinstance(prompt[0], list) else [prompt])]


def record():
    from tests.lib.chunk_replay.serve import processor_of

    texts, prompts_of = {}, {}
    for name, case in cases().items():
        shown, prompts = ids_of(case)
        hf = "FD_USE_HF_TOKENIZER" in case["server"]["env"]
        os.environ.pop("FD_USE_HF_TOKENIZER", None)
        os.environ.update(case["server"]["env"])
        server = {**case["server"], "reasoning_parser": None, "tool_parser": None}
        processor = processor_of(server)
        prompt_texts = echoed(case, processor.tokenizer)
        if prompt_texts:
            prompts_of[name] = prompt_texts
        table = texts.setdefault(f"{server['tokenizer']}{'-hf' if hf else ''}", {})
        for token in sorted(shown | prompts):
            if token not in table:
                table[token] = [
                    said(processor.process_logprob_response, [token], clean_up_tokenization_spaces=False),
                    said(processor.tokenizer.convert_ids_to_tokens, token),
                    said(processor.process_logprob_response, token),
                ]
    texts["prompts"] = prompts_of
    for name, table in texts.items():
        with gzip.GzipFile(FOLDER / "texts" / f"{name}.json.gz", "wb", mtime=0) as file:
            file.write(json.dumps(dict(sorted(table.items())), ensure_ascii=False).encode())
        print(name, len(table))


if __name__ == "__main__":
    record()
