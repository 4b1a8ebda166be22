"""This module makes answers that are not streamed: of FastDeploy's own class, but written without pydantic.

FastDeploy's application asks whether an answer is of its class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ._chunks import Models, full

NAMES = ("ChatCompletionResponse", "CompletionResponse")  # classes of such answers


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
                return self.stand_in().model_dump(**options)
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
