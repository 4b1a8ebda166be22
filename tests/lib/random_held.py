"""Random answers with broken characters, streamed and whole, with the plug-in; a program.

    python random_held.py SEED ANSWERS

An answer's text has to be that of all its ids: characters as they are, and U+FFFD for what never became
one.  Of three kinds: text, text that is cut off anywhere, and random ids with marks among them.
"""

import json
import logging
import random
import re
import sys

from tests.lib.random_cuts import Sides, cuts
from tests.lib.random_thinking import maker

TEXTS = (
    *("The quick brown fox, 1.5e-7. ", "naïve café – déjà vu; ", "你好，世界。日本語 한국어 "),
    *("👩‍👩‍👧🏳️‍🌈🇩🇪 𝔘𝔫𝔦 ", "\n\n", "  two  "),
)
MARKS = ("<think>", "</think>")
BYTE = re.compile("<0x[0-9A-F]{2}>")


def truth(kind, tokenizer, ids):
    """The text of an answer; a metaspace tokenizer's own has U+FFFD for whole characters, too."""
    if kind != "metaspace":
        return tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    text = b"".join(
        bytes([int(name[3:-1], 16)]) if BYTE.fullmatch(name) else name.replace("\u2581", " ").encode()
        for name in tokenizer.convert_ids_to_tokens(ids)
    )
    return text.decode(errors="fd_postproc_bytes").removeprefix(" ")


def answers(draw, tokenizer, kind, marks):
    """Ids of random answers, without an end."""
    size, ends = len(tokenizer), {*tokenizer.all_special_ids}
    if kind == "random":
        ids = [draw.randrange(size) if draw.random() < 0.9 else draw.choice(marks) for _ in range(40)]
        return [one for one in ids if one not in ends] or [0]
    text = "".join(draw.choices(TEXTS, k=6))
    ids = tokenizer.convert_tokens_to_ids(tokenizer.tokenize(text))
    return ids[: draw.randint(1, len(ids))] if kind == "cut" else ids


def main(seed, wanted):
    import fastdeploy  # noqa: F401
    from fastdeploy.reasoning import ReasoningParserManager

    logging.disable()
    make, draw, told = maker(), random.Random(seed), {}
    thinks = ReasoningParserManager.get_reasoning_parser("qwen3")
    for name in ("bytebpe", "sentencepiece", "metaspace"):
        for parser in (None, thinks):
            sides = Sides(make(name, reasoning_parser_obj=parser))
            processor, tokenizer = sides.processor, sides.processor.tokenizer
            marks = tokenizer.convert_tokens_to_ids([*MARKS])
            for kind in ("text", "cut", "random"):
                wrong = {"stock": 0, "ours": 0}
                for _ in range(wanted):
                    ids = answers(draw, tokenizer, kind, marks)
                    while parser is not None and ids[-1] in marks:  # shown at an end
                        ids.append(draw.choice([one for one in ids if one not in marks] or [5]))
                    expected, results = truth(name, tokenizer, ids), [*cuts(draw, ids)]
                    stream = parser is not None or draw.random() < 0.5
                    if parser is not None:
                        expected = re.sub("|".join(MARKS), "", expected)
                    for side, methods in (("stock", sides.stock), ("ours", sides.ours)):
                        if stream:
                            reasoning, content, _, error = sides.play(methods, results, "think_start")
                            given = error or reasoning + content
                        else:
                            given = whole(processor, methods, results)
                        wrong[side] += given != expected
                        if side == "ours" and given != expected:
                            told.setdefault("first", [name, kind, results, expected, given])
                told[f"{name}{', qwen3' if parser else ''}, {kind}"] = wrong
            for method, function in sides.stock.items():
                setattr(sides.owner, method, function)
    print("told: " + json.dumps(told))


def whole(processor, methods, results):
    processor.decode_status.clear()
    for number, ids in enumerate(results):
        result = {"request_id": "a", "outputs": {"token_ids": ids}, "finished": number == len(results) - 1}
        answer = methods["process_response_dict_normal"](processor, result)
    return answer["outputs"]["text"]


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
