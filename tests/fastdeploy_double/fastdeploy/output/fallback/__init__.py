"""Output fallback of #7942: strategies that repair or end an answer's text before the parsers see it."""

from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass
class OutputFallbackContext:
    """What a strategy may know of an answer."""

    request: Any
    request_id: str
    stream: bool
    output: dict
    full_text: str | None = None
    delta_text: str | None = None


@dataclass
class StreamFallbackDecision:
    """A strategy's word on a delta: ``send``, ``hold``, ``flush`` or ``truncate``, and its text."""

    action: str
    text: str = ""


class OutputFallbackStrategy:
    """Base of strategies; what a subclass keeps of an answer is in `state`."""

    name = ""

    def should_apply(self, text, context):
        return False

    def apply(self, text, context):
        return text

    def on_delta(self, delta_text, context, state):
        applies = self.should_apply(delta_text, context)
        return StreamFallbackDecision("send", self.apply(delta_text, context) if applies else delta_text)

    def on_finish(self, context, state):
        return StreamFallbackDecision("flush")


class OutputFallbackManager:
    """Strategies by name, and those of a server, one after the other.

    Parameters
    ----------
    strategies : list of str
        ``--output-fallback``.
    """

    known: ClassVar[dict] = {}

    @classmethod
    def register(cls, name, module):
        cls.known[name] = module

    def __init__(self, strategies):
        self.instances = [self.known[name]() for name in strategies]
        self.states, self.held = {}, {}

    def apply(self, text, context):
        for strategy in self.instances:
            if strategy.should_apply(text, context):
                text = strategy.apply(text, context)
        return text

    def on_delta(self, request_id, delta_text, context):
        text = self.held.pop(request_id, "") + delta_text
        action = "send"
        for strategy in self.instances:
            state = self.states.setdefault((request_id, strategy.name), {})
            decision = strategy.on_delta(text, context, state)
            if decision.action == "hold" and action == "send":
                self.held[request_id] = text
                return StreamFallbackDecision("hold")
            if decision.action != "hold":
                text = decision.text
                action = "truncate" if decision.action == "truncate" else action
        return StreamFallbackDecision(action, text)

    def on_finish(self, request_id, context):
        text = self.held.pop(request_id, "")
        for strategy in self.instances:
            text += strategy.on_finish(context, self.states.pop((request_id, strategy.name), {})).text
        return StreamFallbackDecision("flush", text)
