"""What FastDeploy's benchmark logger is told of a request at its end."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class CompletedRequestRecord:
    request_id: str
    completion_time: float
    arrival_time: float
    inference_start_time: float
    first_token_time: float
    last_token_time: float
    input_len: int
    output_len: int
    num_cached_tokens: int = 0
    itl_samples: list = field(default_factory=list)
