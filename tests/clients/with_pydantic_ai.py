"""pydantic-ai: an answer of a type, by a tool, streamed and whole; and one that is text."""
# pip: pydantic-ai-slim[openai]==2.68.0

import asyncio
import json
import sys

from pydantic import BaseModel
from pydantic_ai import Agent, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


class Weather(BaseModel):
    city: str
    degrees: int


model = OpenAIChatModel(
    "default", provider=OpenAIProvider(base_url=sys.argv[1], api_key="none"),
    settings={"max_tokens": 300, "extra_body": {"min_tokens": 150}},
)  # fmt: skip


async def see():
    typed = Agent(model, output_type=ToolOutput(Weather, name="Weather"), retries=0)
    whole = await typed.run("The weather in Rome?")
    async with typed.run_stream("The weather in Rome?") as stream:
        streamed = await stream.get_output()
    async with Agent(model).run_stream("Speak.") as stream:
        text = await stream.get_output()
    return {
        "whole": whole.output.model_dump(),
        "tokens": whole.usage.output_tokens,
        "streamed": streamed.model_dump(),
        "text": text,
    }


print("saw:", json.dumps(asyncio.run(see())))
