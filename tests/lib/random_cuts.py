"""Random answers in random results, through FastDeploy's parsers with the plug-in; a program.

    python random_cuts.py SEED ANSWERS CUTS

What a client puts together of an answer that comes in results of 1 to 6 tokens - reasoning, content, calls -
has to be that of the same answer at one token a result: FastDeploy's own where the text has no broken
character, else ours.  For every pair of parsers and three kinds of tokenizers.
"""

import json
import logging
import random
import sys
from types import SimpleNamespace

from tests.lib.random_thinking import METHODS, TABLES, code_names, maker

KINDS = ("bytebpe", "metaspace", "sentencepiece")
WORDS = (
    *(
        " the quick fox",
        "a",
        " and",
        "\n",
        "\n\n",
        " ",
        "  ",
        "\n ",
        "日本語",
        "é",
        "😀 ok",
        "x < y > z",
        "}",
    ),
    *("{", "</", "think", ">", "<response", "1.5", '"quoted"', "\r\n", "."),
)
ARGUMENTS = (
    *("{}", '{"a": 1}', '{"city": "北京", "days": [1, 2]}', '{"text": "a } b", "n": {"m": null}}'),
    '{"a":',  # cut off
)


def thought(draw):
    return "".join(draw.choices(WORDS, k=draw.choice((0, 0, 1, 2, 5, 12))))


def call(draw):
    gap = draw.choice(("", "\n", "\n\n"))
    name, arguments = draw.choice(("get_weather", "f", "")), draw.choice(ARGUMENTS)
    end = draw.choice(("</tool_call>", "</tool_call>", "</tool_call>", ""))
    return f'<tool_call>{gap}{{"name": "{name}", "arguments": {arguments}}}{gap}{end}'


def answer_text(draw):
    """An answer as models write them, with parts that are missing, doubled, or in another order."""
    breaks = ("", "", "\n", "\n\n", "\n\n\n")
    parts = [thought(draw), draw.choice(breaks), "</think>", draw.choice(breaks)]
    if draw.random() < 0.3:
        parts.insert(0, "<think>")
    if draw.random() < 0.5:
        parts += ["<response>", draw.choice(breaks), thought(draw), draw.choice(breaks), "</response>"]
    elif draw.random() < 0.5:
        parts.append(thought(draw))
    for _ in range(draw.choice((0, 0, 1, 1, 2))):
        parts += [call(draw), draw.choice(breaks)]
    if draw.random() < 0.3:
        parts.append(thought(draw))
    if draw.random() < 0.2:
        del parts[draw.randrange(len(parts))]
    if draw.random() < 0.1:
        draw.shuffle(parts)
    return "".join(parts)


def answer_ids(draw, tokenizer, size, ends):
    """Its token ids, cut off anywhere or with an end, some with ids of any kind."""
    ids = tokenizer.convert_tokens_to_ids(tokenizer.tokenize(answer_text(draw)))
    if draw.random() < 0.2:
        del ids[draw.randrange(len(ids) + 1) :]
    if draw.random() < 0.15:
        for _ in range(draw.randint(1, 4)):
            ids.insert(draw.randint(0, len(ids)), draw.randrange(size))
    return ids + draw.choice(([], ends[:1])) or ends[:1]


def cuts(draw, ids):
    rest = [*ids]
    while rest:
        count = draw.randint(1, 6)
        yield rest[:count]
        del rest[:count]


REQUEST = SimpleNamespace(request_id="chatcmpl-random_0", get=lambda *key: None)


def client(processor, method, results, state):
    """Reasoning, content and calls of a stream as a client puts them together."""
    tables = [vars(processor).get(table, {}) for table in TABLES]  # 2.4 has not all without a parser
    for table in tables:
        table.clear()
    name = REQUEST.request_id
    tables[0][name] = state
    reasoning, content, calls = "", "", {}
    results = [*results]
    for number, ids in enumerate(results):
        result = {"request_id": name, "outputs": {"token_ids": ids}, "finished": number == len(results) - 1}
        try:
            outputs = method(processor, result, request=REQUEST)["outputs"]
        except Exception as error:
            return reasoning, content, calls, f"{type(error).__name__}: {error}"
        assert result["outputs"]["token_ids"] == ids
        if outputs["skipped"]:
            continue
        reasoning += outputs["reasoning_content"] or ""
        content += outputs["text"] or ""
        for one in outputs["tool_calls"] or ():
            name_, arguments = calls.get(one.index, ("", ""))
            calls[one.index] = name_ + (one.function.name or ""), arguments + (one.function.arguments or "")
    return reasoning, content, calls, None


class Sides:
    """A data processor's class with FastDeploy's methods and with ours."""

    def __init__(self, processor):
        from fd_postproc.fastdeploy.api import detokenising, parsers

        self.processor = processor
        self.owner = next(cls for cls in type(processor).__mro__ if "decode_token" in str(code_names(cls)))
        self.stock = self.methods()
        for part in (detokenising, parsers):
            part.install(sys.modules[self.owner.__module__])
        self.ours, self.is_quick = self.methods(), parsers.is_quick(processor)

    def methods(self):
        return {method: vars(self.owner)[method] for method in METHODS}

    def play(self, methods, results, state):
        for name, method in methods.items():
            setattr(self.owner, name, method)
        return client(self.processor, methods["process_response_dict_streaming"], results, state)


def main(seed, wanted, many, *kinds):
    import fastdeploy  # noqa: F401
    from fastdeploy.entrypoints.openai.tool_parsers import ToolParserManager
    from fastdeploy.reasoning import ReasoningParserManager

    logging.disable()  # parsers log each token
    make, draw = maker(), random.Random(seed)
    thinks = {cls.__name__: cls for cls in ReasoningParserManager.reasoning_parsers.values()}
    calls = {cls.__name__: cls for cls in ToolParserManager.tool_parsers.values()}
    pairs = [(one, two) for one in (None, *thinks) for two in (None, *calls) if one or two]
    told = {"pairs": 0, "streams": 0, "wrong": {}, "stock": 0, "stock_wrong": 0, "left": []}
    for kind in kinds or KINDS:
        for pair in pairs:
            parsers = {"reasoning_parser_obj": thinks.get(pair[0]), "tool_parser_obj": calls.get(pair[1])}
            sides, name = Sides(make(kind, **parsers)), f"{kind}, {pair}"
            tokenizer, ends = sides.processor.tokenizer, list(sides.processor.eos_token_ids)
            states = list(getattr(sides.processor.reasoning_parser, "token_status_mapping", {0: ""}).values())
            told["pairs"] += 1
            told["left"] += [] if sides.is_quick else [name]
            for number in range(wanted):
                ids = answer_ids(draw, tokenizer, len(tokenizer), ends)
                state, single = draw.choice([states[0], *states]), [[one] for one in ids]
                whole = "\ufffd" not in tokenizer.decode(ids, skip_special_tokens=False)
                by_stock = whole and number < 20  # it is slow
                expected = sides.play(sides.stock if by_stock else sides.ours, single, state)
                for _ in range(many):
                    results = [*cuts(draw, ids)]
                    actual = sides.play(sides.ours, results, state)
                    told["streams"] += 1
                    if by_stock:
                        told["stock"] += 1
                        told["stock_wrong"] += sides.play(sides.stock, results, state) != expected
                    if actual != expected:
                        words = [tokenizer.convert_ids_to_tokens(one) for one in results]
                        told["wrong"].setdefault(name, [state, words, expected, actual])
            for method, function in sides.stock.items():
                setattr(sides.owner, method, function)
    print("told: " + json.dumps(told))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]), *sys.argv[4:])
