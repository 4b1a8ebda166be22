"""inspect-ai: an evaluation of three samples."""
# pip: inspect-ai==0.3.285 openai==3.57.0

import json
import sys
import tempfile

from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import GenerateConfig, get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import generate

model = get_model(
    "openai-api/local/default", base_url=sys.argv[1], api_key="none",
    config=GenerateConfig(max_tokens=300, extra_body={"min_tokens": 150}, max_retries=0),
)  # fmt: skip
task = Task(
    dataset=[Sample(input=f"The weather in {city}?", target=city) for city in ("Rome", "Oslo", "Lima")],
    solver=generate(tool_calls="none"),
    scorer=includes(),
)
(log,) = eval(task, model=model, display="none", log_dir=tempfile.mkdtemp())
saw = {
    "status": log.status,
    "answers": sorted([one.input, one.output.completion, one.output.stop_reason] for one in log.samples),
    "scores": [metric.value for score in log.results.scores for metric in score.metrics.values()],
    "tokens": log.stats.model_usage["openai-api/local/default"].output_tokens,
}
print("saw:", json.dumps(saw))
