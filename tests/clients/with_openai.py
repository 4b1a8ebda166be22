"""openai: chat and completions, streamed and whole, tools, log-probabilities, several choices, an abort."""
# pip: openai==3.57.0

import json
import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0)
GO = {"model": "default", "max_tokens": 300, "extra_body": {"min_tokens": 150}}
CHAT = {**GO, "messages": [{"role": "user", "content": "The weather in Rome?"}]}
TOOLS = [{"type": "function", "function": {"name": "Weather", "parameters": {"type": "object"}}}]
STREAM = {"stream": True, "stream_options": {"include_usage": True}}


def whole(answer):
    """All that an answer says, without its id and its time."""
    return {key: part for key, part in answer.model_dump().items() if key not in ("id", "created")}


def joined(chunks):
    """What the chunks of a stream say together, by choice, and the last usage."""
    said, usage = {}, None
    for chunk in chunks:
        for choice in chunk.choices:
            delta = getattr(choice, "delta", choice).model_dump(exclude_none=True)
            one = said.setdefault(choice.index, {"end": None})
            for call in delta.get("tool_calls") or ():
                key, said_of_it = f"call {call['index']}", call["function"]
                one[key] = one.get(key, "") + said_of_it.get("name", "") + said_of_it.get("arguments", "")
            for key in ("content", "reasoning_content", "text"):
                one[key] = one.get(key, "") + delta.get(key, "")
            one["end"] = choice.finish_reason
        usage = chunk.usage and chunk.usage.model_dump()
    return [said, usage]


chat, text = client.chat.completions, client.completions
saw = {
    "chat": whole(chat.create(**CHAT)),
    "tools": chat.create(**CHAT, tools=TOOLS).choices[0].message.tool_calls[0].function.arguments,
    "tools, streamed": joined(chat.create(**CHAT, **STREAM, tools=TOOLS)),
    "choices": whole(chat.create(**CHAT, n=3)),
    "choices, streamed": joined(chat.create(**CHAT, **STREAM, n=3)),
    "logprobs": whole(chat.create(**CHAT, logprobs=True, top_logprobs=5)),
    "completion": whole(text.create(**GO, prompt=["Go.", "Stop."], logprobs=3)),
    "completion, streamed": joined(text.create(**GO, **STREAM, prompt="Go.")),
    "models": [model.id for model in client.models.list()],
}
with chat.create(**CHAT, stream=True) as stream:
    saw["left after"] = next(iter(stream)).choices[0].delta.role
try:
    chat.create(**{**CHAT, "temperature": -4.0})
except openai.APIStatusError as error:
    saw["refused"] = [error.status_code, type(error).__name__]
print("saw:", json.dumps(saw))
