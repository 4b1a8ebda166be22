"""The trial of FastDeploy's parsers: random answers are parsed from the whole text, and from excerpts."""

import importlib
import inspect
import random
import re
import types

from fd_postproc.fastdeploy.api.text.excerpt import Excerpt
from fd_postproc.fastdeploy.api.text.known_parsers import REASONING, TOOLS, marks_in
from fd_postproc.fastdeploy.gate.seams import NotPlain

from .quiet import SILENT, Quiet

RAISED = "raises"
ANSWERS = 60  # for each state that a prompt leaves


class Vocabulary(dict):
    """An id for each text that is asked for."""

    def __missing__(self, text):
        return self.setdefault(text, 100 + len(self))

    def get(self, text, default=None):
        """The text's id: every text has one."""
        return self[text]


class Tokenizer:
    """A tokenizer that has each mark."""

    def __init__(self):
        self.vocabulary = Vocabulary()

    def get_vocab(self):
        """The vocabulary, always the same one."""
        return self.vocabulary


def differences(modules):
    """By class, the first difference of a parser in some of FastDeploy's modules, alone and with another."""
    kinds, told = {REASONING: [None], TOOLS: [None]}, {}
    for module in map(importlib.import_module, modules):
        for cls in vars(module).values():
            if isinstance(cls, type) and cls.__module__ == module.__name__:
                for method, classes in kinds.items():
                    if method in vars(cls) and not _is_abstract(vars(cls)[method]):
                        classes.append(cls)
    for reasoning in kinds[REASONING]:
        for tools in kinds[TOOLS]:
            try:
                tokenizer = Tokenizer()
                compare(reasoning and reasoning(tokenizer), tools, tokenizer)
            except Exception as error:
                reason = str(error) if isinstance(error, NotPlain) else f"{type(error).__name__}: {error}"
                for cls in filter(None, (reasoning, tools)):
                    told.setdefault(cls.__name__, reason)
    return told


def _is_abstract(method):
    raises = "NotImplementedError" in inspect.unwrap(method).__code__.co_names
    return raises or getattr(method, "__isabstractmethod__", False)


def compare(reasoning, tools, tokenizer):
    """Raise NotPlain if a parser answers excerpts in a different way."""
    parsers = {REASONING: reasoning, TOOLS: tools and tools(tokenizer)}
    parsers = {method: parser for method, parser in parsers.items() if parser is not None}
    if parsers:
        _try(marks_in(parsers), reasoning, tools, tokenizer)


class Request(dict):
    """A request with what a parser may read of it."""

    request_id = "trial"


def _try(marks, reasoning, tools, tokenizer):
    """Raise NotPlain if a parser answers excerpts in a different way."""
    draw = random.Random(36)
    thinks = None if reasoning is None else _quiet_class(reasoning)
    calls = None if tools is None else _quiet_class(tools(tokenizer))
    answering = set()  # parsers that did not only raise
    states = [*getattr(reasoning, "token_status_mapping", {"": ""}).values()]
    for state in states:
        for _ in range(ANSWERS):
            deltas = list(random_deltas(draw, marks))
            ways = []
            for history in (Whole, Excerpts):
                parsers = []
                if thinks is not None:
                    parsers.append((_quiet(reasoning, thinks), REASONING, state))
                if calls is not None:
                    parsers.append((_quiet(tools(tokenizer), calls), TOOLS, Request()))
                ways.append(answers(parsers, history(marks), deltas))
            for delta, expected, actual in zip(deltas, *ways, strict=True):
                answering |= {at for at, one in enumerate(expected) if one is None or one[0] is not RAISED}
                if expected != actual:
                    raise NotPlain(f"{delta} is parsed otherwise: {expected} is expected, not {actual}")
    if len(answering) < sum(one is not None for one in (thinks, calls)):
        raise NotPlain("a parser raises whatever it is asked")


class Whole:
    """Arguments of FastDeploy's parsers: the whole earlier answer."""

    def __init__(self, marks):
        self.text, self.ids = "", []

    def add_ids(self, ids):
        self.ids.extend(ids)

    def add_text(self, text):
        self.text += text


class Excerpts(Excerpt):
    """Arguments with an excerpt, shortened at each delta."""

    def add_text(self, delta):
        self._next = 0
        super().add_text(delta)


def answers(parsers, history, deltas):
    """The parsers' answers to each delta, as plain values."""
    messages = []
    for delta, ids in deltas:
        history.add_ids(ids)
        arguments = (history.text, history.text + delta, delta, history.ids, history.ids + ids, ids)
        messages.append([_answer(getattr(parser, name), arguments, last) for parser, name, last in parsers])
        history.add_text(delta)
    return messages


def _answer(method, arguments, last):
    most = method.__code__.co_argcount - 1  # 2.4's reasoning parsers are told no state
    try:
        message = method(*(*arguments, last)[:most])
    except Exception as error:
        return RAISED, f"{type(error).__name__}: {error}"
    return None if message is None else re.sub(r"tool-[0-9a-f]+", "tool-", repr(message.model_dump()))


def _quiet(parser, quiet_class):
    """A copy of a parser that logs nothing."""
    twin = object.__new__(quiet_class)
    vars(twin).update(vars(parser))
    return twin


def _quiet_class(parser):
    """The class of such copies."""
    spaces, body = {}, {}
    for cls in reversed(type(parser).__mro__[:-1]):
        for name, function in vars(cls).items():
            if isinstance(function, types.FunctionType) and function.__closure__ is None:
                names = function.__globals__
                if id(names) not in spaces:
                    spaces[id(names)] = {key: _silent(key, value) for key, value in names.items()}
                body[name] = types.FunctionType(
                    function.__code__, spaces[id(names)], name, function.__defaults__
                )
    return type(type(parser).__name__, (type(parser),), body)


def _silent(name, value):
    if name.endswith("logger"):
        return SILENT
    return Quiet() if getattr(value, "__module__", "") == "fastdeploy.logger.request_logger" else value


PIECES = (
    *("a", " the", "\n", "\n\n", " ", "", "日本", "x\n", "\r\n", "< ", "</", ">", "{", "}", "}}", '"'),
    *('{"name": "', '"name": "f', 'get_weather"', '", "arguments": ', '"arguments": {', '{"a": "b', '"}'),
    *('{"name": "f", "arguments": {"a": 1}}', '{"name": "g", "arguments": {}}', "[1, ", "null", "\\n"),
)
"""Pieces of random answers, besides marks."""


def random_deltas(draw, marks):
    """Deltas of a random answer: marks as text or ids, cut, missing and doubled."""
    texts = [*marks.texts, *(marks.call or ())]
    ids = [*marks.ids, *marks.ids, 7, 8]
    marked = draw.random() * 0.4
    calls = marks.call is not None and draw.random() < 0.5
    rest = ""
    for _ in range(draw.randint(1, 24)):
        token_ids, text = [], rest
        for _ in range(draw.choice((0, 1, 1, 1, 1, 2, 3))):
            if draw.random() < marked:
                text += draw.choice(texts)
                token_ids.append(draw.choice(ids))
            else:
                text += draw.choice(PIECES if calls else PIECES[:16])
                token_ids.append(draw.randrange(1000, 2000))
        cut = len(text) if draw.random() < 0.7 else draw.randint(0, len(text))
        yield text[:cut], token_ids
        rest = text[cut:]
