"""langchain-openai: a bound tool, a stream, log-probabilities, a batch."""
# pip: langchain-openai==1.7.4

import json
import sys

from langchain_openai import ChatOpenAI
from pydantic import BaseModel


class Weather(BaseModel):
    """The weather of a city."""

    city: str
    degrees: int


model = ChatOpenAI(
    model="default", base_url=sys.argv[1], api_key="none", max_retries=0, max_tokens=300,
    extra_body={"min_tokens": 150}, stream_usage=True,
)  # fmt: skip


def said(message):
    meta = {key: part for key, part in message.response_metadata.items() if key not in ("id", "created")}
    calls = [{key: part for key, part in call.items() if key != "id"} for call in message.tool_calls]
    return [message.content, calls, message.usage_metadata, meta]


whole = None
for chunk in model.bind_tools([Weather]).stream("The weather in Rome?"):
    whole = chunk if whole is None else whole + chunk
saw = {
    "tool": said(model.bind_tools([Weather]).invoke("The weather in Rome?")),
    "tool, streamed": said(whole),
    "logprobs": said(model.bind(logprobs=True, top_logprobs=2).invoke("The weather in Rome?")),
    "batch": [said(one) for one in model.batch(["Rome?", "Oslo?", "Lima?"])],
}
print("saw:", json.dumps(saw))
