"""The configuration fields that the token processor reads, with their defaults."""

from dataclasses import dataclass, field

PREEMPTED_TOKEN_ID = -9


@dataclass
class ParallelConfig:
    local_data_parallel_id: int = 0
    local_engine_worker_queue_port: int = 9923
    engine_worker_queue_port: list[int] = field(default_factory=lambda: [9923])
    data_parallel_size: int = 1
    enable_expert_parallel: bool = False


@dataclass
class SpeculativeConfig:
    method: str | None = None
    num_speculative_tokens: int = 1
    enable_draft_logprob: bool = False


@dataclass
class ModelConfig:
    enable_logprob: bool = False
    enable_keep_sampling_mask: bool = False


@dataclass
class SchedulerConfig:
    splitwise_role: str = "mixed"
    name: str = "local"
    max_num_seqs: int = 8


@dataclass
class CacheConfig:
    enable_prefix_caching: bool = True
    enable_output_caching: bool = False
    block_size: int = 64
    total_block_num: int = 4096


@dataclass
class RoutingReplayConfig:
    enable_routing_replay: bool = False
    routing_store_type: str = "local"
    num_moe_layers: int = 0
    moe_top_k: int = 0
    routing_dtype: str = "uint8"


@dataclass
class FDConfig:
    parallel_config: ParallelConfig = field(default_factory=ParallelConfig)
    speculative_config: SpeculativeConfig = field(default_factory=SpeculativeConfig)
    model_config: ModelConfig = field(default_factory=ModelConfig)
    scheduler_config: SchedulerConfig = field(default_factory=SchedulerConfig)
    cache_config: CacheConfig = field(default_factory=CacheConfig)
    routing_replay_config: RoutingReplayConfig = field(default_factory=RoutingReplayConfig)
