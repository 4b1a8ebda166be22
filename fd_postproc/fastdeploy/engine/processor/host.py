"""The token processor that the parts work for: FastDeploy's attributes and methods, as far as relied on.

A part has the object as its `host`.  The object is ours: `processor_class.make_class` makes its class, a
subclass of FastDeploy's, its `stock`.  Names are looked up at each use: FastDeploy's other threads change
them, and a program that patches them means us, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ....core.layout import Channel, Layout
from ...gate.called import bound_function

if TYPE_CHECKING:
    import threading

    from ..results._results import Plan


class Host:
    """What our token processor has of FastDeploy's ``TokenProcessor``, and what our class adds."""

    fd: Any  # FastDeploy's module, whose names are looked up at each use: its patches have effect
    stock: type
    plan: Plan
    layout: Layout
    parts: Any  # of `parts.Parts`
    # What this FastDeploy does, by the gate's record: see the row's `facts` in seams.py.
    makes_empty_results: bool
    aborts_itself: bool
    completes_prefills: bool
    worker: threading.Thread | None
    tokens_counter: Any  # a Counter or dict: tokens by request
    resource_manager: Any  # the table of requests by slot
    cached_generated_tokens: Any  # the scheduler
    _batch_result_buffer: Any  # results that wait for their draft message
    gauge_period: float
    """Seconds between two updates of speculative gauges at a fast pace; 0 updates at every step."""

    if TYPE_CHECKING:  # FastDeploy's class has these, and what else is looked up on it

        def __getattr__(self, name: str) -> Any: ...
        def __setattr__(self, name: str, value: Any) -> None: ...

    @property
    def channel(self) -> Channel:
        """The channel of the messages."""
        if self.cfg.speculative_config.method:
            return "spec_topk" if self.use_logprobs else "spec"
        return "topk" if self.use_logprobs else "plain"

    @property
    def uses_socket(self) -> bool:
        """Whether steps come through FastDeploy's ZeroMQ socket."""
        return bool(self.fd.envs.FD_USE_GET_SAVE_OUTPUT_V1)

    @property
    def receives_objects(self) -> bool:
        """Whether steps come as objects; speculative decoding has none."""
        return self.uses_socket and not self.cfg.speculative_config.method

    def _is_stock(self, name: str) -> bool:
        """Whether a method is FastDeploy's own, neither overridden nor replaced on this object."""
        method = bound_function(getattr(self, name))
        return method is not None and method is getattr(self.stock, name, None)
