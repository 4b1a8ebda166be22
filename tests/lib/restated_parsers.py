"""A reasoning parser, a tool parser and a data processor, restated: as slow as FastDeploy's."""

import json
import re
from types import FunctionType, SimpleNamespace

MARKS = {"<think>": 1, "</think>": 2, "<tool_call>": 3, "</tool_call>": 4}
WORDS = (
    *(" the", "a", "\n", "\n\n", "日本", "x", '{"name": "f", ', '"arguments": {"a": 1}', "}", "</th", "ink>"),
)


def of_fastdeploy(cls):
    """The class, as one that FastDeploy's package defines."""
    for value in vars(cls).values():
        if isinstance(value, FunctionType):
            value.__module__ = "fastdeploy.restated"
    return cls


class DeltaMessage:
    def __init__(self, reasoning_content=None, content=None, tool_calls=None):
        self.reasoning_content, self.content, self.tool_calls = reasoning_content, content, tool_calls

    def model_dump(self):
        return vars(self)


class Tokenizer:
    """A word or a mark for each id; bytes are not told apart."""

    def __init__(self):
        self.asked, self.texts = [], {**{n: text for text, n in MARKS.items()}, **dict(enumerate(WORDS, 10))}

    def __len__(self):
        return len(self.texts)

    def get_vocab(self):
        self.asked.append("vocabulary")
        return {text: n for n, text in self.texts.items()}

    def decode(self, ids, skip_special_tokens=False):
        return "".join(self.texts[one] for one in ids)

    def decode_token(self, ids, prefix, read):
        return "".join(self.texts[one] for one in ids[read:]), read, len(ids)

    def tokenize(self, text):
        self.asked.append(text)
        return re.findall(r"<\S+?>|\s?\w+|.", text, re.DOTALL)


@of_fastdeploy
class Thinks:
    """What is before ``</think>`` is reasoning; only newlines and a tool call behind it are shown nowhere."""

    def __init__(self, tokenizer):
        self.think_start_token, self.think_end_token = "<think>", "</think>"
        self.tool_call_start_token = "<tool_call>"
        vocabulary = tokenizer.get_vocab()
        self.think_start_token_id = vocabulary["<think>"]
        self.think_end_token_id = vocabulary["</think>"]
        self.tool_call_start_token_id = vocabulary["<tool_call>"]
        self.token_status_mapping = {1: "think_start", 2: "think_end"}

    def extract_reasoning_content_streaming(
        self, previous_text, current_text, delta_text, previous_ids, current_ids, delta_ids, status
    ):
        if status == "think_end":
            if current_text.lstrip("\n").startswith(self.tool_call_start_token):
                return None
            return DeltaMessage(content=delta_text)
        if self.think_end_token not in current_text:
            return DeltaMessage(reasoning_content=delta_text)
        if self.think_end_token in delta_text:
            before, _, after = delta_text.partition(self.think_end_token)
            return DeltaMessage(reasoning_content=before, content=after)
        end = current_text.find(self.think_end_token) + len(self.think_end_token)
        after, _, _ = current_text[end:].partition(self.tool_call_start_token)
        if len(after.strip("\n")) == 0:
            return None
        if self.tool_call_start_token_id in previous_ids:
            return DeltaMessage(content=delta_text, reasoning_content=previous_text.find("</think>") < 0)
        return DeltaMessage(content=delta_text)

    def extract_reasoning_content(self, text, request, status):
        reasoning, _, content = text.partition(self.think_end_token)
        return reasoning, content


@of_fastdeploy
class Calls:
    """Gives out a tool call's text as it comes, once its name is there."""

    def __init__(self, tokenizer):
        self.tool_call_start_token, self.tool_call_end_token = "<tool_call>", "</tool_call>"
        self.tool_call_start_token_id = tokenizer.get_vocab()["<tool_call>"]
        self.buffer, self.current_tool_id = "", -1

    def extract_tool_calls_streaming(
        self, previous_text, current_text, delta_text, previous_ids, current_ids, delta_ids, request
    ):
        if self.tool_call_start_token not in current_text:
            return DeltaMessage(content=delta_text)
        begun = current_text.count(self.tool_call_start_token)
        if begun > previous_text.count(self.tool_call_start_token):
            self.current_tool_id = begun
            return None
        if begun == current_text.count(self.tool_call_end_token):
            return DeltaMessage(content=delta_text)
        call = current_text.split(self.tool_call_start_token)[-1].split(self.tool_call_end_token)[0].rstrip()
        try:
            return DeltaMessage(tool_calls=[self.current_tool_id, json.loads(call)])
        except json.JSONDecodeError:
            return None

    def extract_tool_calls(self, text, request):
        calls = re.findall(r"<tool_call>(.*?)</tool_call>", text)
        return SimpleNamespace(tools_called=bool(calls), tool_calls=calls)


@of_fastdeploy
class Processor:
    """FastDeploy's data processor."""

    def __init__(self, reasoning=Thinks, tools=Calls, tokenizer=None):
        self.tokenizer = Tokenizer() if tokenizer is None else tokenizer
        self.decode_status, self.model_status_dict, self.tool_parser_dict = {}, {}, {}
        self.reasoning_parser = reasoning and reasoning(self.tokenizer)
        self.tool_parser_obj, self.eos_token_ids = tools, [4]

    def ids2tokens(self, token_id, task_id):
        if envs.FD_USE_HF_TOKENIZER:
            return "hf", [], ""
        if task_id not in self.decode_status:
            self.decode_status[task_id] = [0, 0, [], ""]
        status = self.decode_status[task_id]
        previous_texts = status[3]
        status[2].extend(token_id)
        text, status[0], status[1] = self.tokenizer.decode_token(status[2], status[0], status[1])
        status[3] += text
        return text, status[2], previous_texts

    def process_response_dict(self, response_dict, **kwargs):
        if response_dict["outputs"] is None or response_dict.get("error_code", 200) != 200:
            return response_dict
        whole = not kwargs.get("stream", True)
        method = self.process_response_dict_normal if whole else self.process_response_dict_streaming
        return method(response_dict, **kwargs)

    def process_response_dict_normal(self, response_dict, **kwargs):
        ids, name = response_dict["outputs"]["token_ids"], response_dict["request_id"]
        delta, _, previous = self.ids2tokens(ids, name)
        if response_dict["finished"]:
            outputs, text = response_dict["outputs"], previous + delta
            outputs["text"] = outputs["completion_tokens"] = text
            if self.reasoning_parser:
                outputs["reasoning_content"], outputs["text"] = (
                    self.reasoning_parser.extract_reasoning_content(text, None, self.model_status_dict[name])
                )
                outputs["reasoning_token_num"] = len(self.tokenizer.tokenize(outputs["reasoning_content"]))
            if self.tool_parser_obj:
                called = self.tool_parser_obj(self.tokenizer).extract_tool_calls(text, None)
                if called.tools_called:
                    outputs["tool_calls"] = called.tool_calls
            del self.decode_status[name]
        return response_dict

    def process_response_dict_streaming(self, response_dict, **kwargs):
        ids, name, outputs = (
            response_dict["outputs"]["token_ids"], response_dict["request_id"], response_dict["outputs"],
        )  # fmt: skip
        if response_dict["finished"] and ids and not kwargs.get("include_stop_str_in_output"):
            ids = ids[:-1] if ids[-1] in self.eos_token_ids else ids
        delta, previous_ids, previous = self.ids2tokens(ids, name)
        outputs["text"] = outputs["completion_tokens"] = delta
        outputs |= {"skipped": False, "tool_calls": None, "reasoning_content": ""}
        answer = previous, previous + delta, delta, previous_ids, previous_ids + ids, ids
        if self.reasoning_parser:
            said = self.reasoning_parser.extract_reasoning_content_streaming(
                *answer, self.model_status_dict[name]
            )
            if said:
                outputs["reasoning_content"], outputs["text"] = said.reasoning_content, said.content
                tokens = self.tokenizer.tokenize(said.reasoning_content) if said.reasoning_content else []
                outputs["reasoning_token_num"] = len(tokens)
            elif not response_dict["finished"]:
                outputs["skipped"] = True
        if self.tool_parser_obj:
            if name not in self.tool_parser_dict:
                self.tool_parser_dict[name] = self.tool_parser_obj(self.tokenizer)
            said = self.tool_parser_dict[name].extract_tool_calls_streaming(*answer, kwargs.get("request"))
            if said:
                outputs["tool_calls"] = said.tool_calls
            elif not response_dict["finished"]:
                outputs["skipped"] = True
        if response_dict["finished"]:
            del self.decode_status[name]
        return response_dict


envs = SimpleNamespace(FD_USE_HF_TOKENIZER=False)


def install(base=Processor):
    """A copy of a data processor's class with ours, and functions that take each part out."""
    from fd_postproc.fastdeploy.api.text import detokenising, parsers  # not where the double imports this

    cls = type("Copy", (base,), dict(vars(base)))
    return cls, [part.install(module_of(cls)) for part in (detokenising, parsers)]


def result(ids, finished=False, name="a", **more):
    return {"finished": finished, "request_id": name, "outputs": {"token_ids": [*ids], **more}}


def play(processor, deltas, stream=True, name="a", state="think_start", request=None):
    """Every result's outputs, and what is kept while the answer lasts."""
    processor.model_status_dict[name] = state
    method = processor.process_response_dict_streaming if stream else processor.process_response_dict_normal
    for number, ids in enumerate(deltas):
        outputs = method(result(ids, number == len(deltas) - 1, name), request=request)["outputs"]
        status = processor.decode_status.get(name)
        yield outputs, status and [*status[:3], str(status[3])]


IDS = [*MARKS.values(), *range(10, 10 + len(WORDS)), 10, 10, 10]


def random_answer(draw):
    return [draw.choices(IDS, k=draw.choice((0, 1, 1, 2, 4))) for _ in range(draw.randint(1, 40))]


def module_of(cls):
    """A module that defines a data processor."""
    return SimpleNamespace(__name__=cls.__module__, Processor=cls, envs=envs)
