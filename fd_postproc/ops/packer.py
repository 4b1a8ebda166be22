"""A save op for tensors that stay the same."""

from __future__ import annotations

import inspect
from typing import Any

from .._core import HostInput, host_flag, on_device, tensor_input
from ..checks import shown, whole_number
from ..layout import GPU, Layout, checked_layout
from ..tensors import ROLES, stream_handle
from . import host, save
from .arguments import check_flag, check_sizes, is_first
from .device import saves, stop_flag
from .table import SAVE_OPS


class Packer:
    """Save op whose tensors stay in place and are checked only once.

    A worker's tensors are allocated once and written in place.  Finding out where they are, and checking
    their sizes, is most of a save op's time; here it is done once, and `save` reads their current content.

    Parameters
    ----------
    op : str
        A save op of `fd_postproc.ops`, such as ``"speculate_save_output_topk"``.
    layout : Layout, optional
        Geometry of the receiver's build.
    **arguments
        All arguments of the op by name.  Tensors on a CUDA device and in host memory, mixed as the op takes
        them.  They must not be reallocated while the Packer is used; it keeps them alive.

    Raises
    ------
    TypeError
        If arguments are missing or unknown, or a tensor is of the wrong kind.
    ValueError
        If the op is unknown, sizes do not match, tensors are on different devices, or a tensor in
        host memory would have to be copied (another dtype, or not contiguous): later changes would not be
        seen.
    CudaError
        If a tensor is on a CUDA device, and CUDA cannot be used.

    Examples
    --------
    >>> packer = Packer("save_output", x=tokens, not_need_stop=flag, preempted_idx=idx, rank_id=0,
    ...                 save_each_rank=False)  # doctest: +SKIP
    >>> packer.save()  # doctest: +SKIP
    """

    def __init__(self, op: str, *, layout: Layout = GPU, **arguments: Any) -> None:
        if not isinstance(op, str) or op not in SAVE_OPS:
            raise ValueError(f"op {shown(op)} is not one of {', '.join(map(repr, SAVE_OPS))}")
        wanted = [
            name
            for name, parameter in inspect.signature(getattr(save, op)).parameters.items()
            if parameter.kind is not parameter.KEYWORD_ONLY
        ]
        if missing := [name for name in wanted if name not in arguments]:
            raise TypeError(f"{op} needs {', '.join(missing)}")
        if unknown := [name for name in arguments if name not in wanted]:
            raise TypeError(f"{op} has no argument {', '.join(unknown)}")
        self.op = op
        self.layout = checked_layout(layout)
        names = SAVE_OPS[op].roles
        self._tensors = {role: arguments[name] for role, name in names.items()}
        self._inputs = {
            role: tensor_input(tensor, names[role], ROLES[role]) for role, tensor in self._tensors.items()
        }
        for role, value in self._inputs.items():
            if isinstance(value, HostInput) and value.copied:
                raise ValueError(
                    f"{names[role]} would have to be copied to be contiguous {ROLES[role]}, and later "
                    "changes of it would not be seen: give the Packer a tensor that is that already"
                )
        self._sizes = check_sizes(op, self._inputs)
        self._flag = check_flag(arguments.get("message_flag", 0))
        self._skip = bool(arguments.get("skip_prefill", arguments.get("skip_chunk_prefill", False)))
        any_rank = op.startswith("mtp") and arguments["save_each_rank"]
        self._sends = is_first(arguments["rank_id"]) or bool(any_rank)
        self._not_need_stop = arguments["not_need_stop"]
        self._job = None
        self._flag_on_device = False
        if on_device(self._inputs):
            _, address = stop_flag(self._not_need_stop)
            self._flag_on_device = address != 0
            self._job = saves.make_job(op, self._inputs, self._sizes, address)

    @property
    def channel(self) -> str:
        """str: the channel that it sends on."""
        return SAVE_OPS[self.op].channel

    @property
    def batch(self) -> int:
        """int: requests in the tensors, the maximum of a save."""
        return self._sizes[0]

    def save(self, batch: int | None = None, *, stream: Any = None) -> None:
        """Save what the tensors hold now.

        Parameters
        ----------
        batch : int, optional
            Save only that many requests, the first ones; default: all.
        stream : int or object, optional
            CUDA stream, or its handle, on which the tensors get their values: PyTorch's, Paddle's, CuPy's, or
            an object with ``__cuda_stream__``.  Default: the current stream of the tensors' framework.

        Raises
        ------
        ValueError, QueueError, CudaError
            As for the op.
        """
        if not self._sends:
            return
        if batch is None:
            batch = self._sizes[0]
        else:
            held = self._sizes[0]
            batch = whole_number(batch, "batch", 0, held, f"the tensors hold {held} requests")
        goes_on = self._flag_on_device or host_flag(self._not_need_stop, "not_need_stop")
        if self._job is None:
            sizes = (batch, *self._sizes[1:])
            host.save(self.op, self._inputs, sizes, goes_on, self.layout, self._flag, self._skip)
            return
        saves.launch(
            self._job,
            self,
            batch,
            goes_on,
            self.layout,
            flag=self._flag,
            skip_prefill=self._skip,
            stream=self._job.stream() if stream is None else stream_handle(stream),
        )

    def __repr__(self) -> str:
        where = "host memory" if self._job is None else f"CUDA device {self._job.device}"
        return f"<Packer {self.op}: batch {self.batch}, {where}>"
