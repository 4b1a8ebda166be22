"""The contract: names that FastDeploy's module of the token processor must have to be supported."""

from __future__ import annotations

from typing import Any

_NEEDED = (
    *("TokenProcessor", "Request", "RequestMetrics", "RequestOutput", "CompletionOutput"),
    *("LogprobsLists", "SpeculateMetrics", "main_process_metrics"),
    *("MAX_BSZ", "MAX_DRAFT_TOKENS", "SPECULATE_MAX_BSZ", "K", "RECOVERY_STOP_SIGNAL"),
)
_CODES = {"PREEMPTED_TOKEN_ID": -9, "RECOVERY_STOP_SIGNAL": -3}
"""Marks in a message that stand for no token."""

SERVED = "2.5 and newer"


def contract_gap(module: Any) -> str | None:
    """Reason why the module is not of the supported family; None if it is."""
    for name in _NEEDED:
        if not hasattr(module, name):
            return f"{module.__name__} has no {name}; served are FastDeploy {SERVED}"
    for name, code in _CODES.items():
        if getattr(module, name, code) != code:
            return f"{name} is {getattr(module, name)}, not {code}"
    if not hasattr(module.RequestMetrics, "record_recv_token"):
        return f"RequestMetrics has no record_recv_token; served are FastDeploy {SERVED}"
    return None
