"""Random answers through FastDeploy's own data processor and parsers, with ours and without; a program.

    python random_answers.py same SEED DELTAS
    python random_answers.py cuts SEED ANSWERS CUTS [KIND ...]

``same``, without the mends: random ids, marks whole and in pieces, calls cut anywhere, bytes of broken
characters, ids that are none, empty deltas, long answers with excerpts that are shortened early or late;
each is streamed or given whole, and what each result becomes is FastDeploy's own.

``cuts``: what a client puts together of an answer in results of 1 to 6 tokens - reasoning, content, calls -
is that of the same answer at one token a result: FastDeploy's own where the text has no broken character.
"""

import importlib
import importlib.util
import json
import logging
import random
import sys
import uuid
from types import ModuleType, SimpleNamespace

from tests.lib.chunk_replay.cases import FOLDER

KINDS = ("bytebpe", "metaspace", "sentencepiece")
TABLES = ("model_status_dict", "decode_status", "tool_parser_dict")
METHODS = ("ids2tokens", "process_response_dict_streaming", "process_response_dict_normal")
STREAMED, WHOLE = METHODS[1:]
NAME = "chatcmpl-random_0"
REQUEST = SimpleNamespace(request_id=NAME, get=lambda *key: None)


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
    has_one_class = modules[0].__name__.endswith("base_processor")

    def make(kind, thinks=None, calls=None):
        path, ernie = str(FOLDER / "tokenizers" / kind), kind == "sentencepiece"
        given = {"reasoning_parser_obj": thinks, "tool_parser_obj": calls}
        if has_one_class:
            return modules[1].TextProcessor(path, tokenizer_type="ernie4_5" if ernie else "auto", **given)
        return (modules[-1].Ernie4_5Processor if ernie else modules[0].DataProcessor)(path, **given)

    return make


def parsers_of_fastdeploy():
    """Reasoning parsers and tool parsers by name."""
    import fastdeploy  # noqa: F401
    from fastdeploy.entrypoints.openai.tool_parsers import ToolParserManager
    from fastdeploy.reasoning import ReasoningParserManager

    thinks, calls = ReasoningParserManager.reasoning_parsers, ToolParserManager.tool_parsers
    return [{None: None, **{cls.__name__: cls for cls in one.values()}} for one in (thinks, calls)]


class Sides:
    """A data processor's class with FastDeploy's methods and with ours."""

    def __init__(self, processor):
        from fd_postproc.fastdeploy.api.text import detokenising, parsers, views

        self.processor, self.tokenizer = processor, processor.tokenizer
        self.owner = next(cls for cls in type(processor).__mro__ if "decode_token" in str(code_names(cls)))
        self.stock = self.methods()
        for part in (detokenising, parsers):
            part.install(sys.modules[self.owner.__module__])
        self.ours = self.methods()
        self.is_quick = views.views_of(processor).chunk is not processor
        self.states = list(getattr(processor.reasoning_parser, "token_status_mapping", {0: ""}).values())

    def methods(self):
        return {method: vars(self.owner)[method] for method in METHODS}

    def begin(self, methods, state):
        """Have the class use some methods; no answer is there, and one begins."""
        for name, method in methods.items():
            setattr(self.owner, name, method)
        # 2.4 has not all tables without a parser
        for table in (tables := [vars(self.processor).get(name, {}) for name in TABLES]):
            table.clear()
        tables[0][NAME] = state

    def results(self, methods, answer, method, stops=False):
        """Each result of an answer, and a function that has a method process it."""
        for number, ids in enumerate(answer):
            result = {"request_id": NAME, "outputs": {"token_ids": [*ids]}}
            result["finished"] = number == len(answer) - 1
            options = {"request": REQUEST} | ({"include_stop_str_in_output": number % 2} if stops else {})
            yield (
                result,
                lambda result=result, options=options: methods[method](self.processor, result, **options),
            )

    def client(self, methods, answer, state):
        """Reasoning, content and calls of a stream as a client puts them together."""
        reasoning, content, calls = "", "", {}
        self.begin(methods, state)
        for result, process in self.results(methods, answer, STREAMED):
            given = [*result["outputs"]["token_ids"]]
            try:
                outputs = process()["outputs"]
            except Exception as error:
                return reasoning, content, calls, f"{type(error).__name__}: {error}"
            assert result["outputs"]["token_ids"] == given
            if outputs["skipped"]:
                continue
            reasoning += outputs["reasoning_content"] or ""
            content += outputs["text"] or ""
            for one in outputs["tool_calls"] or ():
                name, arguments = calls.get(one.index, ("", ""))
                function = one.function
                calls[one.index] = name + (function.name or ""), arguments + (function.arguments or "")
        return reasoning, content, calls, None

    def end(self):
        for method, function in self.stock.items():
            setattr(self.owner, method, function)


def code_names(cls):
    return getattr(getattr(vars(cls).get("ids2tokens"), "__code__", None), "co_names", ())


# ---- the same, result by result ----------------------------------------------------------------------------

PIECES = (
    *("<think>", "</think>", "</thi", "nk>", "<tool_call>", "</tool_call>", "<tool_", "call>", "<response>"),
    *("</response>", "\n", "\n\n", " the quick", '{"name": "get_weather", "arguments": {"city": "'),
    *("北京", '"}}', '\n{"name": "f", "arguments": {}}\n', '{"name"', ': "f",', '"arguments": {', '"a": 1'),
    *("}", "}}", "é", "😀"),
)


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


def everything(sides, methods, answer, state, method):
    """What each result becomes, or raises, and what is kept of the answer."""
    drawn, said = iter(range(10**9)), []
    uuid.uuid4 = lambda: uuid.UUID(int=next(drawn))
    sides.begin(methods, state)
    for result, process in sides.results(methods, answer, method, stops=True):
        try:
            process()
            said.append(repr(result))
        except Exception as error:
            said.append(f"{type(error).__name__}: {error}")
        status = sides.processor.decode_status.get(NAME)  # all of it at the end: answers may be long
        said.append(status and (*status[:2], len(status[2]), len(str(status[3]))))
    return [*said, repr(status and [*status[:3], str(status[3])])]


def same(draw, wanted):
    from fd_postproc.fastdeploy.api.text import excerpt
    from fd_postproc.fastdeploy.events.counters import forget, noted

    make, (thinks, calls) = maker(), parsers_of_fastdeploy()
    told = {"played": {}, "wrong": [], "quick": {}, "left": set()}
    for kind in (*KINDS, "wordpiece"):
        for pair in [(one, two) for one in thinks for two in calls if one or two]:
            name = f"{kind}, {pair}"
            forget()
            sides, count = Sides(make(kind, thinks[pair[0]], calls[pair[1]])), 0
            told["quick"][name], tokenizer = sides.is_quick, sides.tokenizer
            words = [tokenizer.convert_tokens_to_ids(tokenizer.tokenize(text)) for text in PIECES]
            vocabulary, words = tokenizer.get_vocab(), [ids for ids in words if ids]
            marks = [vocabulary[text] for text in PIECES if text in vocabulary]
            while count < wanted:
                answer = draw_answer(draw, words, marks, len(tokenizer), draw.choice((0.02, 0.2)))
                state, method = draw.choice(sides.states), STREAMED if draw.random() < 0.9 else WHOLE
                excerpt._LEAST = draw.choice((4, 40, 512))
                count += len(answer)
                expected, actual = (
                    everything(sides, methods, answer, state, method) for methods in (sides.stock, sides.ours)
                )
                if expected != actual:
                    first = next(two for two in zip(expected, actual, strict=True) if two[0] != two[1])
                    told["wrong"].append([name, state, method, answer, *first])
                    break
            told["left"] |= set(noted())
            told["played"][name] = count
            sides.end()
    return {**told, "wrong": told["wrong"][:3], "left": sorted(told["left"])}


# ---- cut anywhere ------------------------------------------------------------------------------------------

WORDS = (
    *(" the quick fox", "a", " and", "\n", "\n\n", " ", "  ", "\n ", "日本語", "é", "😀 ok", "x < y > z"),
    *("}", "{", "</", "think", ">", "<response", "1.5", '"quoted"', "\r\n", "."),
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


def answer_ids(draw, tokenizer, ends):
    """Its token ids, cut off anywhere or with an end, some with ids of any kind."""
    ids = tokenizer.convert_tokens_to_ids(tokenizer.tokenize(answer_text(draw)))
    if draw.random() < 0.2:
        del ids[draw.randrange(len(ids) + 1) :]
    if draw.random() < 0.15:
        for _ in range(draw.randint(1, 4)):
            ids.insert(draw.randint(0, len(ids)), draw.randrange(len(tokenizer)))
    return ids + draw.choice(([], ends[:1])) or ends[:1]


def in_cuts(draw, ids):
    """The ids in results of 1 to 6."""
    rest = [*ids]
    while rest:
        count = draw.randint(1, 6)
        yield rest[:count]
        del rest[:count]


def cuts(draw, wanted, many, *kinds):
    logging.disable()  # parsers log each token
    make, (thinks, calls) = maker(), parsers_of_fastdeploy()
    told = {"pairs": 0, "streams": 0, "wrong": {}, "stock": 0, "stock_wrong": 0, "left": []}
    for kind in kinds or KINDS:
        for pair in [(one, two) for one in thinks for two in calls if one or two]:
            sides, name = Sides(make(kind, thinks[pair[0]], calls[pair[1]])), f"{kind}, {pair}"
            tokenizer, ends = sides.tokenizer, list(sides.processor.eos_token_ids)
            told["pairs"] += 1
            told["left"] += [] if sides.is_quick else [name]
            for number in range(wanted):
                ids = answer_ids(draw, tokenizer, ends)
                state, single = draw.choice([sides.states[0], *sides.states]), [[one] for one in ids]
                whole = "\ufffd" not in tokenizer.decode(ids, skip_special_tokens=False)
                by_stock = whole and number < 20  # it is slow
                expected = sides.client(sides.stock if by_stock else sides.ours, single, state)
                for _ in range(many):
                    results = [*in_cuts(draw, ids)]
                    actual = sides.client(sides.ours, results, state)
                    told["streams"] += 1
                    if by_stock:
                        told["stock"] += 1
                        told["stock_wrong"] += sides.client(sides.stock, results, state) != expected
                    if actual != expected:
                        words = [tokenizer.convert_ids_to_tokens(one) for one in results]
                        told["wrong"].setdefault(name, [state, words, expected, actual])
            sides.end()
    return told


if __name__ == "__main__":
    how, seed, *given = (int(one) if one.isdigit() else one for one in sys.argv[1:])
    told = {"same": same, "cuts": cuts}[how](random.Random(seed), *given)
    print("told: " + json.dumps(told))
