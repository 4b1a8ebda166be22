"""Random answers through FastDeploy's own data processor and parsers, with ours and without; a program.

    python random_thinking.py SEED DELTAS

Answers are random token ids: marks whole and in pieces, as text and as ids, calls of tools cut anywhere,
bytes of broken characters, ids that are none, empty deltas.  Each is streamed and given whole, for every
parser and four kinds of tokenizers.  Some are long, and excerpts are shortened early or late.
"""

import importlib
import importlib.util
import json
import random
import sys
import uuid
from types import ModuleType, SimpleNamespace

from tests.lib.chunk_replay.cases import FOLDER

KINDS = ("bytebpe", "metaspace", "wordpiece", "sentencepiece")
PIECES = (
    *("<think>", "</think>", "</thi", "nk>", "<tool_call>", "</tool_call>", "<tool_", "call>", "<response>"),
    *("</response>", "\n", "\n\n", " the quick", '{"name": "get_weather", "arguments": {"city": "'),
    *("北京", '"}}', '\n{"name": "f", "arguments": {}}\n', '{"name"', ': "f",', '"arguments": {', '"a": 1'),
    *("}", "}}", "é", "😀"),
)
TABLES = ("model_status_dict", "decode_status", "tool_parser_dict")
METHODS = ("ids2tokens", "process_response_dict_streaming", "process_response_dict_normal")


def maker():
    """What makes FastDeploy's data processor for a kind of tokenizer."""
    if importlib.util.find_spec("paddleformers.trl") is None:  # its place until 2.5
        sys.modules["paddleformers.trl"] = ModuleType("paddleformers.trl")
        moved = importlib.import_module("paddleformers.cli.utils.llm_utils")
        sys.modules["paddleformers.trl.llm_utils"] = moved
    modules = [
        importlib.import_module(f"fastdeploy.input.{name}")
        for name in ("base_processor", "text_processor", "ernie4_5_processor")
        if importlib.util.find_spec(f"fastdeploy.input.{name}") is not None
    ]
    if modules[0].__name__.endswith("base_processor"):
        text = modules[1].TextProcessor

        def make(kind, **parsers):
            name = "ernie4_5" if kind == "sentencepiece" else "auto"
            return text(str(FOLDER / "tokenizers" / kind), tokenizer_type=name, **parsers)
    else:

        def make(kind, **parsers):
            ernie = kind == "sentencepiece"
            cls = modules[-1].Ernie4_5Processor if ernie else modules[0].DataProcessor
            return cls(str(FOLDER / "tokenizers" / kind), **parsers)

    return make


def draw_answer(draw, words, marks, size, odd):
    """Lists of token ids: an answer as its results come."""
    ids = []
    for _ in range(draw.randint(1, 20)):
        chance = draw.random()
        if chance < 0.005:  # long enough for an excerpt to be shortened as it is in earnest
            ids.extend(draw.choice(words)[-1:] * draw.randint(500, 2000))
        elif chance < 0.35:
            ids.extend(draw.choice(words))
        elif chance < 0.5 and marks:
            ids.append(draw.choice(marks))
        elif chance < 0.5 + odd:
            ids.append(draw.randrange(size + 4))
        else:
            ids.append(draw.choice(draw.choice(words)))
    results = []
    while ids:
        count = draw.choice((0, 1, 1, 1, 2, 3, 5)) if len(ids) < 400 else 97
        results.append(ids[:count])
        del ids[:count]
    return results


def play(processor, methods, answer, state, stream):
    """What each result becomes, or raises."""
    drawn, name, said = iter(range(10**9)), "chatcmpl-random_0", []
    uuid.uuid4 = lambda: uuid.UUID(int=next(drawn))
    tables = [vars(processor).get(table, {}) for table in TABLES]  # 2.4 has not all without a parser
    for table in tables:
        table.clear()
    tables[0][name] = state
    for number, ids in enumerate(answer):
        result = {"request_id": name, "outputs": {"token_ids": [*ids]}}
        result["finished"] = number == len(answer) - 1
        options = {"request": SimpleNamespace(request_id=name, get=lambda *key: None)}
        try:
            method = "process_response_dict_streaming" if stream else "process_response_dict_normal"
            methods[method](processor, result, include_stop_str_in_output=number % 2, **options)
            said.append(repr(result))
        except Exception as error:
            said.append(f"{type(error).__name__}: {error}")
        status = processor.decode_status.get(name)  # all of it at the end: answers may be long
        said.append(status and (*status[:2], len(status[2]), len(str(status[3]))))
    said.append(repr(processor.decode_status.get(name) if status is None else [*status[:3], str(status[3])]))
    return said


def main(seed, wanted):
    import fastdeploy  # noqa: F401
    from fastdeploy.entrypoints.openai.tool_parsers import ToolParserManager
    from fastdeploy.reasoning import ReasoningParserManager

    from fd_postproc.fastdeploy.api import detokenising, excerpt, parsers
    from fd_postproc.fastdeploy.api.chunks._chunks import forget_totals, totals

    make = maker()
    reasoning = {cls.__name__: cls for cls in ReasoningParserManager.reasoning_parsers.values()}
    tools = {cls.__name__: cls for cls in ToolParserManager.tool_parsers.values()}
    pairs = [(one, None) for one in reasoning.values()] + [(None, one) for one in tools.values()]
    pairs += [(one, other) for one in reasoning.values() for other in tools.values()]
    draw, played, wrong, quick, left = random.Random(seed), {}, [], {}, set()
    for kind in KINDS:
        for thinks, calls in pairs:
            name = f"{kind}, {getattr(thinks, '__name__', None)}, {getattr(calls, '__name__', None)}"
            own, theirs = (make(kind, reasoning_parser_obj=thinks, tool_parser_obj=calls) for _ in range(2))
            owner = next(cls for cls in type(own).__mro__ if "decode_token" in str(code_names(cls)))
            stock = {method: vars(owner)[method] for method in METHODS}
            module = sys.modules[owner.__module__]
            forget_totals()
            undo = [detokenising.install(module), parsers.install(module)]
            ours = {method: vars(owner)[method] for method in METHODS}
            quick[name] = parsers.is_quick(own)
            tokenizer, count = own.tokenizer, 0
            words = [tokenizer.convert_tokens_to_ids(tokenizer.tokenize(text)) for text in PIECES]
            words = [ids for ids in words if ids]
            vocabulary = tokenizer.get_vocab()
            marks = [vocabulary[text] for text in PIECES if text in vocabulary]
            states = list(getattr(own.reasoning_parser, "token_status_mapping", {0: ""}).values())
            while count < wanted:
                answer = draw_answer(draw, words, marks, len(tokenizer), draw.choice((0.02, 0.2)))
                state, stream = draw.choice(states), draw.random() < 0.9
                excerpt._LEAST = draw.choice((4, 40, 512))
                for each in reversed(undo):
                    each()
                expected = play(theirs, stock, answer, state, stream)
                for method, function in ours.items():
                    setattr(owner, method, function)
                actual = play(own, ours, answer, state, stream)
                count += len(answer)
                if expected != actual:
                    at = next(
                        i for i, pair in enumerate(zip(expected, actual, strict=True)) if len({*pair}) > 1
                    )
                    wrong.append([name, state, stream, answer, expected[at], actual[at]])
                    break
            left |= set(totals()[1])
            for method, function in stock.items():
                setattr(owner, method, function)
            played[name] = count
    print("told: " + json.dumps({"played": played, "wrong": wrong[:3], "quick": quick, "left": sorted(left)}))


def code_names(cls):
    return getattr(getattr(vars(cls).get("ids2tokens"), "__code__", None), "co_names", ())


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
