"""What the environment tells both sides of the plug-in."""

from __future__ import annotations

import os


def disabled() -> bool:
    """``FD_POSTPROC_DISABLE``: whether both sides leave everything to FastDeploy.

    Unset, empty and 0 mean no.  Anything else means yes: whoever sets it wants the plug-in off.
    """
    return os.environ.get("FD_POSTPROC_DISABLE", "").strip() not in ("", "0")
