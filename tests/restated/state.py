"""What the step finds on self: FastDeploy's constructor and its engine put it there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any


class State:
    """Attributes of FastDeploy's; `fd` has the names that its token processor finds in its own module."""

    fd: Any
    resource_manager: Any

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...
