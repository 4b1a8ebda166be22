"""This module makes answers that are not streamed: of FastDeploy's own class, but written without pydantic.

FastDeploy's application asks whether an answer is of its class, and calls
``JSONResponse(content=answer.model_dump())``.  Our dump is a dictionary that is filled at the first access.
Our response class (`responses`) writes the JSON without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ._chunks import Models, full

NAMES = ("ChatCompletionResponse", "CompletionResponse")  # classes of such answers

_dumps_late = False


def dump_late(late: bool) -> None:
    """Have ``model_dump()`` of answers return a `Dump`, or a plain dictionary."""
    global _dumps_late
    _dumps_late = late


def answer_class(models: Models) -> Any:
    """A subclass of an answer's class, whose instances hold stand-ins for the parts; `models` writes them."""
    cls: Any = models.cls

    class Answer(cls):  # type: ignore[misc]
        def stand_in(self) -> Any:
            names = self.model_fields_set
            return models.holding({name: value for name, value in vars(self).items() if name in names})

        def model_dump_json(self, **options: Any) -> str:
            try:
                text: str = self.stand_in().model_dump_json(**options)
            except Exception as error:
                text = self.of_fastdeploys().model_dump_json(**options)  # raises what pydantic raises
                models.guard.failed(error)
            return text

        def model_dump(self, **options: Any) -> Any:
            try:
                answer = self.stand_in()
                return Dump(answer) if _dumps_late and not options else answer.model_dump(**options)
            except Exception as error:
                dump = self.of_fastdeploys().model_dump(**options)
                models.guard.failed(error)
                return dump

        def of_fastdeploys(self) -> Any:
            """The same answer, of FastDeploy's class and with its parts."""
            names = self.model_fields_set
            values = {name: full(value) for name, value in vars(self).items() if name in names}
            return cls.model_construct(_fields_set=set(names), **values)

        def __reduce_ex__(self, protocol: Any) -> Any:
            return full, (full(self.stand_in()),)

    names = ("__eq__", "__repr__", "__str__", "__copy__", "__deepcopy__", "model_copy")
    _forward(Answer, names, lambda self: full(self.stand_in()))
    Answer.__name__, Answer.__qualname__, Answer.__doc__ = cls.__name__, cls.__qualname__, cls.__doc__
    return Answer


def _forward(cls: Any, names: Iterable[str], target: Callable[[Any], Any]) -> None:
    """Have methods of a class call those of another object, which is made when it is called."""

    def method(name: str) -> Callable[..., Any]:
        def call(self: Any, *arguments: Any, **named: Any) -> Any:
            return getattr(target(self), name)(*arguments, **named)

        call.__name__ = name
        return call

    for name in names:
        setattr(cls, name, method(name))


class Dump(dict):  # type: ignore[type-arg]
    """The result of an answer's ``model_dump()``, filled at the first access from the stand-in."""

    def __init__(self, answer: Any) -> None:
        super().__init__({"": None})  # json takes an empty one for one without entries
        self.answer = answer

    def fill(self) -> Dump:
        """Fill the dictionary, which is an ordinary one from then on."""
        answer, self.answer = self.answer, None
        if answer is not None:
            try:
                values = answer.model_dump()
            except Exception as error:
                values = full(answer).model_dump()
                answer.failed(error)
            super().clear()
            super().update(values)
        return self


_DICTS_METHODS = (
    *("__getitem__", "__setitem__", "__delitem__", "__contains__", "__iter__", "__len__", "__eq__", "__ne__"),
    *("__repr__", "__or__", "__ror__", "__ior__", "__reversed__", "clear", "copy", "get", "items", "keys"),
    *("pop", "popitem", "setdefault", "update", "values"),
)
_forward(Dump, _DICTS_METHODS, lambda self: super(Dump, self.fill()))
setattr(Dump, "__reduce_ex__", lambda self, protocol: (dict, (dict(self.fill()),)))  # noqa: B010
