"""lm-eval, openai and litellm: what they read in another way than users expect (docs/fastdeploy.md)."""
# pip: lm_eval[api]==0.4.13 transformers==5.24.0 litellm==1.110.2 openai==3.57.0

import json
import sys

import httpx
import litellm
import openai
from litellm.litellm_core_utils.core_helpers import map_finish_reason
from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI

url, tokenizer = sys.argv[1:]
sent, errors = [], []
sends = httpx.Client(event_hooks={"request": [sent.append]})
chat = openai.OpenAI(base_url=url, api_key="none", http_client=sends).chat.completions
for call, tokens in ((chat.create, -3), (chat.parse, 1)):
    try:
        call(model="default", max_tokens=tokens, messages=[{"role": "user", "content": "Go."}])
    except openai.OpenAIError as error:
        errors.append(type(error).__name__)
chunks = litellm.text_completion(
    model="text-completion-openai/default",
    prompt="Go.",
    n=2,
    max_tokens=9,
    extra_body={"min_tokens": 9},
    stream=True,
    stream_options={"include_usage": True},
    api_base=url,
    api_key="none",
)
harness = LocalCompletionsAPI(base_url=f"{url}/completions", model="default", tokenizer=tokenizer)
ends = [Instance("loglikelihood", {}, ("The sea is", end), 0) for end in (" blue", " made of stone")]
print(
    "saw:",
    json.dumps(
        {
            "errors": errors,
            "requests": len(sent),
            "usage": litellm.stream_chunk_builder(list(chunks)).usage.completion_tokens,
            "recovery": map_finish_reason("recover_stop"),
            "loglikelihood": harness.loglikelihood(ends, disable_tqdm=True),
        }
    ),
)
