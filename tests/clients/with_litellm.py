"""litellm: chat with a tool, streamed and whole."""
# pip: litellm==1.110.2

import json
import sys

import litellm

TOOLS = [{"type": "function", "function": {"name": "Weather", "parameters": {"type": "object"}}}]
GO = {
    "model": "openai/default", "api_base": sys.argv[1], "api_key": "none", "max_tokens": 300,
    "num_retries": 0, "extra_body": {"min_tokens": 150}, "tools": TOOLS,
    "messages": [{"role": "user", "content": "The weather in Rome?"}],
}  # fmt: skip


def said(answer):
    message = answer.choices[0].message
    return {
        "content": message.content,
        "reasoning": getattr(message, "reasoning_content", None),
        "calls": [[call.function.name, call.function.arguments] for call in message.tool_calls or ()],
        "end": answer.choices[0].finish_reason,
        "tokens": answer.usage.completion_tokens,
    }


chunks = list(litellm.completion(**GO, stream=True, stream_options={"include_usage": True}))
saw = {"whole": said(litellm.completion(**GO)), "streamed": said(litellm.stream_chunk_builder(chunks))}
print("saw:", json.dumps(saw))
