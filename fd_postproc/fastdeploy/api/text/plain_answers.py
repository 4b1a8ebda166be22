"""Text of a result that goes straight into its response, where no parser reads it.

Without a parser FastDeploy's ``process_response_dict_streaming`` has nothing to do but take the new text, and
set what has no value.  Which keys these are, a trial of FastDeploy's own method says, once a data processor.
The last result of an answer stays FastDeploy's: it takes end tokens off, and forgets the answer.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from ...gate.seams import NotPlain
from .answer_text import AnswerText
from .growing_answers import GrowingAnswers
from .joined_results import are_expected

METHODS = ("process_response_dict", "process_response_dict_streaming", "ids2tokens")
"""Methods that a subclass may not have, nor a processor itself."""

_TEXTS = ("text", "completion_tokens")
_REPLACED = "\ufffd"


def way_of(
    processor: Any,
    cls: type,
    stock: Any,
    view_of: Callable[[Any], Any],
    tokenizer: Any,
    growing: GrowingAnswers,
) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """The function that completes the response of a result that does not end its answer.

    Parameters
    ----------
    processor : BaseTextProcessor
        A data processor without parsers.
    cls : type
        Its class that defines `stock`.
    stock : function
        FastDeploy's ``process_response_dict_streaming``.
    view_of : callable
        Makes a view of the processor from the ``ids2tokens`` that it is to have.
    tokenizer : object
        The processor's.
    growing : GrowingAnswers
        They give the new text where the tokenizer has to be asked.

    Raises
    ------
    NotPlain
        If the class is not FastDeploy's own, or if its method does more than take the text.
    """
    check_class(processor, cls)
    template = _template(stock, view_of)
    guard, ids2tokens = growing.answers.guard, growing.ids2tokens
    processor_of = weakref.ref(processor)

    def text_of(token_ids: Any, task_id: Any) -> str:
        status = processor_of().decode_status.get(task_id)  # type: ignore[union-attr]
        known = None
        if (
            status is not None
            and type(answer := status[-1]) is AnswerText
            and type(token_ids) is list
            and guard.is_on
            and not (len(token_ids) > 1 and are_expected())
        ):
            known = answer.way
        if known is not None and known[0] is tokenizer and known[1] is not None:
            ids = status[2]
            count = len(ids)
            ids.extend(token_ids)
            try:
                new = known[1](ids, status[0], status[1])
            except Exception:  # as below, where it is reported
                new = None
            if new is not None and _REPLACED not in new[0]:
                text: str
                text, status[0], status[1] = new
                if text:
                    answer.append(text)
                return text
            del ids[count:]
        text = ids2tokens(token_ids, task_id)[0]
        return text

    def process(response_dict: dict[str, Any]) -> dict[str, Any]:
        outputs = response_dict["outputs"]
        text = text_of(outputs["token_ids"], response_dict["request_id"])
        outputs.update(template)
        outputs["text"] = outputs["completion_tokens"] = text
        return response_dict

    return process


def check_class(processor: Any, cls: type) -> None:
    """Raise NotPlain if a data processor has methods besides those of FastDeploy's class."""
    own = type(processor)
    for one in own.__mro__[: own.__mro__.index(cls)]:
        if not one.__module__.startswith("fastdeploy."):
            raise NotPlain(f"{own.__name__} is a plug-in's")
        if not vars(one).keys().isdisjoint(METHODS):
            raise NotPlain(f"{own.__name__} has methods of its own")
    if not vars(processor).keys().isdisjoint(METHODS):
        raise NotPlain("a method was set on the data processor")


def _template(stock: Any, view_of: Callable[[Any], Any]) -> dict[str, Any]:
    """Values that the method sets besides the text, in its order, with a place for the text."""
    made = [_tried(stock, view_of, *one) for one in (("a", [5]), ("", [7, 8]), ("\n", []))]
    template = made[0]
    if {*_TEXTS} - template.keys() or any(one != template or [*one] != [*template] for one in made):
        raise NotPlain("the method does more than take the text")
    if any(type(value) not in (type(None), bool, str) for value in template.values()):
        raise NotPlain("the method sets values that may change")
    return template


def _tried(stock: Any, view_of: Callable[[Any], Any], text: str, ids: list[int]) -> dict[str, Any]:
    """Values that the method adds to the outputs of a canned result, without the text."""
    view = view_of(lambda token_ids, task_id: (text, [*token_ids], ""))
    outputs: dict[str, Any] = {"token_ids": [*ids]}
    result = {"finished": False, "request_id": "chatcmpl-trial_0", "outputs": outputs}
    made = stock(view, result, stream=True, include_stop_str_in_output=False, request=None)
    expected = {"finished": False, "request_id": "chatcmpl-trial_0", "outputs": outputs}
    if made is not result or result != expected or result["outputs"] is not outputs:
        raise NotPlain("the method changes more than the outputs")
    if outputs.pop("token_ids") != ids or any(outputs.get(name) != text for name in _TEXTS):
        raise NotPlain("the method does more than take the text")
    return {name: "" if name in _TEXTS else value for name, value in outputs.items()}
