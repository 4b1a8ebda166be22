"""The token processor that FastDeploy loads: its methods by FastDeploy's names, each done by a part."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from ..._core import TARGET
from ...core.layout import Layout
from ..events.totals import Counters
from ..gate.judgements import gate
from ..gate.seams import SEAMS
from .activation import SEAM, install_or_fall_back
from .parts import Parts
from .processor.host import Host
from .results.result_classes import plan_of


def make_class(module: Any) -> type:
    """Make the subclass of FastDeploy's TokenProcessor that handles a step in bulk.

    Names are looked up in `module`, ``fastdeploy.output.token_processor``, at each call, so that whatever is
    patched there is patched here.

    Raises
    ------
    TypeError, AttributeError
        If FastDeploy's classes are not of the kind that is known here.
    """
    stock = module.TokenProcessor
    layout = Layout(
        max_batch=module.MAX_BSZ,
        top_k=module.K,
        max_draft=module.MAX_DRAFT_TOKENS,
        spec_batch=module.SPECULATE_MAX_BSZ,
    )
    body = {
        "fd": module,
        "stock": stock,
        "plan": plan_of(module),
        "layout": layout,
        **dict.fromkeys(SEAMS[SEAM].facts, False),
        **gate.judge(SEAM, module).facts,
        "__module__": __name__,
        "__doc__": Methods.__doc__,
    }
    if hasattr(stock, "_put_abort_results"):
        body["_put_abort_results"] = put_abort_results
    return type("TokenProcessor", (Methods, stock), body)


class Methods(Host):
    """FastDeploy's token processor, with fd_postproc's receive path and batch loop.

    Everything rare is FastDeploy's own text, called on self.
    """

    # Of an object that was made without __init__, as FastDeploy's tests do.
    zmq_server: Any = None
    _batch_result_buffer: Any = None
    gauge_period = 0.1

    def __init__(self, *arguments: Any, **named: Any) -> None:
        """Construct as FastDeploy does; then prepare to receive, or fall back."""
        super().__init__(*arguments, **named)
        if install_or_fall_back(self, self.fd, self.stock).compatible:
            self.parts.lifecycle.prepare()

    @cached_property
    def parts(self) -> Parts:
        """What does the work."""
        return Parts(self)

    @property
    def counters(self) -> Counters:
        """Counts and times of this object's work."""
        return self.parts.journal.counters

    def run(self) -> None:
        """Start the token thread."""
        self.parts.lifecycle.run(super().run)  # type: ignore[misc]

    def process_sampling_results(self) -> None:
        """Receive and process messages until `stop`."""
        self.parts.receive_messages()

    def process_sampling_results_use_zmq(self) -> None:
        """Receive and process steps of a socket until `stop`."""
        self.parts.receive_from_socket()

    def _process_batch_output(self) -> None:
        """Process the message in ``output_tokens``, ``output_scores`` and ``output_ranks``."""
        self.parts.steps.process_tensors()

    def postprocess(self, batch_result: list[Any], mtype: int = TARGET) -> None:
        """Deliver the results of a step; its `mtype` is 3 for a target, 4 for a draft."""
        self.parts.pairing.postprocess(batch_result, mtype)

    def clear_data(self) -> None:
        """Free every slot, and report to each client that its request has ended."""
        self.parts.steps.clear()

    def healthy(self) -> bool:
        """Whether steps are processed."""
        return self.parts.health.health() is None

    def stop(self, timeout: float | None = None) -> None:
        """End the receive loop, and close its socket or remove its queue."""
        self.parts.lifecycle.stop(timeout)


def put_abort_results(processor: Any, task: Any) -> None:
    """Deliver the end of an aborted request, after its waiting results."""
    processor.parts.pairing.put_abort_results(task)
