"""FastDeploy's ``ids2tokens`` in place of which ours decodes, by direct calls of a library (`ways`)."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from ...gate import replacements
from ...gate.loading import is_serving
from ...gate.seams import NotPlain
from .answers import Answers, keep

METHOD = "ids2tokens"
ABSTRACT = "BaseDataProcessor"
"""FastDeploy's base of data processors: its method raises NotImplementedError, in every recorded version."""


def install(module: Any) -> Callable[[], None]:
    """Install the fast path in a module's data processors; return a function that restores.

    NotPlain if no class defines the method, an abstract one apart.
    """
    classes = replacements.classes_that_define(module, METHOD)
    known = [cls for cls in classes if cls.__name__ != ABSTRACT]
    if not known:
        raise NotPlain(f"{getattr(module, '__name__', 'its module')} defines no {METHOD}")
    changes = [change for cls in known for change in _changes(cls, getattr(module, "envs", None))]
    return replacements.install("api detokenising", *changes)


def _changes(cls: Any, envs: Any) -> Iterator[tuple[Any, str, Any]]:
    """The replacements for a class's methods."""
    stock, stock_init = vars(cls)[METHOD], cls.__init__
    answers = Answers(stock, envs)

    @functools.wraps(stock_init)
    def __init__(processor: Any, *arguments: Any, **options: Any) -> None:
        stock_init(processor, *arguments, **options)
        if is_serving() and getattr(processor, "tokenizer", None) is not None:
            for prepare in answers.prepares:  # before the first client waits for it
                with contextlib.suppress(Exception):  # a subclass sets more: again at the first answer
                    prepare(processor)

    @functools.wraps(stock)
    def ids2tokens(processor: Any, token_id: Any, task_id: Any, releases: str = "") -> Any:
        return answers.ids2tokens(processor, token_id, task_id, releases)

    keep(ids2tokens, answers)
    yield cls, "__init__", __init__
    yield cls, METHOD, ids2tokens
