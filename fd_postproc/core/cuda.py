"""Whether messages can be made on a CUDA device here."""

from __future__ import annotations


def cuda_available() -> bool:
    """Whether the save ops can take tensors on a CUDA device in this process.

    Asking initialises the CUDA driver: children that this process forks afterwards cannot use CUDA.
    """
    return not why_no_cuda()


def why_no_cuda() -> str:
    """The reason why they cannot: driver, device or extension is missing, or too old.  Empty if they can.

    Asking initialises the CUDA driver: children that this process forks afterwards cannot use CUDA.
    """
    try:
        from . import _save
    except ImportError as error:
        return f"the extension fd_postproc.core._save does not load: {error}"
    why: str = _save.obstacle()
    return why


def driver_version() -> tuple[int, int] | None:
    """CUDA version of the driver, such as (12, 2); None if there is none.  Initialises nothing."""
    try:
        from . import _save
    except ImportError:
        return None
    version: tuple[int, int] | None = _save.driver_version()
    return version
