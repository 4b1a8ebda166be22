"""The token processor that FastDeploy loads, with our receive loop and batch loop."""

from __future__ import annotations

from typing import Any

from ...layout import Layout
from ..introspection import names_in
from .activation import settle
from .lifecycle import Lifecycle
from .processor.pairing import put_abort_results
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
        "aborts_itself": "abort_req_ids_set" in names_in(stock),
        "makes_empty_results": False,  # until `settle` knows
        "__module__": __name__,
        "__doc__": Parts.__doc__,
    }
    if hasattr(stock, "_put_abort_results"):
        body["_put_abort_results"] = put_abort_results
    return type("TokenProcessor", (Parts, stock), body)


class Parts(Lifecycle):
    """FastDeploy's token processor, with fd_postproc's receive path and batch loop.

    Everything rare is FastDeploy's own text, called on self.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        """Construct as FastDeploy does; then prepare to receive, or fall back."""
        super().__init__(*arguments, **named)
        if settle(self, self.fd, self.stock).compatible:
            self._get_ready()
