"""instructor: an answer of a type by a tool, whole and in parts."""
# pip: instructor==1.17.0

import json
import sys

import instructor
import openai
from pydantic import BaseModel


class Weather(BaseModel):
    city: str
    degrees: int


client = instructor.from_openai(
    openai.OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0), mode=instructor.Mode.TOOLS
)
GO = {
    "model": "default", "max_tokens": 300, "extra_body": {"min_tokens": 150}, "max_retries": 1,
    "messages": [{"role": "user", "content": "The weather in Rome?"}],
}  # fmt: skip
whole, answer = client.chat.completions.create_with_completion(response_model=Weather, **GO)
*_, streamed = client.chat.completions.create_partial(response_model=Weather, **GO)
saw = {
    "whole": whole.model_dump(),
    "tokens": answer.usage.completion_tokens,
    "streamed": streamed.model_dump(),
}
print("saw:", json.dumps(saw))
