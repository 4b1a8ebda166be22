"""Pickled steps, read without making a tensor of everything that is one.

Paddle pickles a tensor as the name of a file of shared memory, and unpickles it by mapping that file: three
files and three tensors for the log-probabilities of each request.  Here the numbers are copied out of them.
"""

from __future__ import annotations

import importlib
import io
import pickle
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

from ._results import SharedTensor, TensorFiles

REDUCTIONS = "paddle.incubate.multiprocessing.reductions"
_FILE, _TENSOR = "_rebuild_lodtensor_filename", "_rebuild_tensor"


class Pickles:
    """Reads FastDeploy's pickles.

    What is in one is trusted, as FastDeploy trusts it: whoever may write to the socket may have any function
    called.

    Parameters
    ----------
    log : callable
        ``log(text)`` says, once, that tensors are made after all.
    """

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log
        self._files: dict[str, Callable[..., Any]] | None = (
            None  # by name, what stands for Paddle's functions
        )

    def loads(self, content: bytes) -> Any:
        """The object; its tensors are `SharedTensor` where that is possible.  Raises what pickle raises."""
        return _Reader(io.BytesIO(content), self.found).load()

    def found(self, name: str, original: Any) -> Any:
        """What stands for one of Paddle's functions."""
        if self._files is None:
            try:
                files = _files_of(importlib.import_module(REDUCTIONS))
                self._files = {_FILE: files.of_file, _TENSOR: files.of_tensor}
            except Exception as error:
                self._files = {}
                why = f"{type(error).__name__}: {error}"
                self._log(f"tensors are unpickled by Paddle itself, which takes longer: {why}")
        return self._files.get(name, original)


class _Reader(pickle.Unpickler):
    """Asks for each name once a message: pickle remembers them."""

    def __init__(self, content: io.BytesIO, found: Callable[[str, Any], Any]) -> None:
        super().__init__(content)
        self._found = found

    def find_class(self, module: str, name: str) -> Any:
        original = super().find_class(module, name)
        return self._found(name, original) if module == REDUCTIONS else original


def _files_of(reductions: Any) -> TensorFiles:
    """What stands for Paddle's functions, after both have read the same two tensors.

    Raises
    ------
    ValueError
        If Paddle pickles, or counts the users of a file, in another way than is known here.
    """
    paddle: Any = importlib.import_module("paddle")
    kinds, numbers = [], ([[3, 2**40 + 5]], [[-0.5, 2.0]])
    for dtype, rows in zip(("int64", "float32"), numbers, strict=True):
        seen: list[Any] = []

        def kept(*arguments: Any, seen: list[Any] = seen) -> Any:
            seen.append(arguments[4])
            return getattr(reductions, _FILE)(*arguments)

        told = bytes(ForkingPickler.dumps(paddle.to_tensor(rows, dtype=dtype, place="cpu")))
        again = _Reader(io.BytesIO(told), lambda name, own: kept if name == _FILE else own).load()
        if again.tolist() != rows or len(seen) != 1:
            raise ValueError(f"a tensor of {dtype} is pickled in another way")
        kinds.append(seen[0])
    files = TensorFiles(getattr(reductions, _FILE), getattr(reductions, _TENSOR), *kinds)
    ours = {_FILE: files.of_file, _TENSOR: files.of_tensor}
    for dtype, rows in zip(("int64", "float32"), numbers, strict=True):
        sent = paddle.to_tensor(rows, dtype=dtype, place="cpu")
        told = bytes(ForkingPickler.dumps(sent))
        read = _Reader(io.BytesIO(told), lambda name, own: ours.get(name, own)).load()
        if type(read) is not SharedTensor or read.tolist() != rows:
            raise ValueError(f"the file of a tensor of {dtype} looks otherwise")
        if sent.tolist() != rows:
            raise ValueError(f"reading a tensor of {dtype} has changed it")
    return files
