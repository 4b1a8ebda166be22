"""The events of one request in a flight recorder's file."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any

from ..flight.codes import End, Kind, request_hash
from ..flight.reading import Event, StepEntry
from ..support.checks import plural
from .findings import ERROR, Finding, findings
from .timeline import SHOWN, Gap, Picture, with_slots

_ITS_OWN = (Kind.SEATED, Kind.BEGAN, Kind.ENDED, Kind.FAILED, Kind.PREEMPTED, Kind.ABORTED, Kind.LEFT)
_ENDS = (Kind.ENDED, Kind.FAILED, Kind.ABORTED, Kind.LEFT)
_HOW = {
    End.TOKEN: "an end token (the worker sends one at the limit of tokens, too)",
    End.PREFILLED: "its prefill: it goes on in another instance",
    End.RECOVERY: "a recovery stop of the worker",
    End.CLEARED: "clearing: every slot was freed",
}


@dataclass(frozen=True)
class Story:
    """The events of a request."""

    events: list[Event]  # its own, in order
    steps: list[StepEntry]  # those in which it had tokens
    gaps: list[Gap]  # between these, longer than usual for it, the longest first
    usual_gap: float | None  # seconds

    def first(self, *kinds: Kind) -> Event | None:
        return next((event for event in self.events if event.kind in kinds), None)

    @property
    def end(self) -> Event | None:
        """The request's end; None if there is none."""
        last = next((event for event in reversed(self.events) if event.kind != Kind.TEXT), None)
        return last if last is not None and last.kind in _ENDS else None

    @property
    def tokens(self) -> int | None:
        """Number of its tokens, if its end has one."""
        end = self.end
        return end.numbers[1] if end is not None and end.kind == Kind.ENDED else None


def story_of(picture: Picture, name: str) -> Story | None:
    """Find the request with this id; None if the file does not have it.

    The API server's answer has the id without the ``_0`` that FastDeploy adds for the first choice.
    """
    own = [event for event in picture.events if event.kind in _ITS_OWN]
    numbers = [request_hash(one) for one in (name, f"{name}_0")]
    events = next(
        filter(None, ([event for event in own if event.numbers[0] == one] for one in numbers)), None
    )
    if events is None:
        return None
    stays = _stays(events, picture.end)
    steps = [
        step
        for step, slots in with_slots(picture.flight)
        if any(slot in slots and _within(step, begin, end) for slot, begin, end in stays)
    ]
    gaps = picture.gaps_of(steps)
    usual = median(gap.seconds for gap in gaps) if gaps else None
    long = [gap for gap in gaps if usual is not None and gap.seconds > max(4 * usual, 0.05)]
    return Story(events, steps, sorted(long, key=lambda gap: -gap.seconds)[:SHOWN], usual)


def _within(step: StepEntry, begin: float, end: float) -> bool:
    """Whether a step belongs to a stay: a step is stamped when it is done, after the stay's begin or end."""
    began = step.at - step.build - step.put
    return began <= end and step.at >= begin


def _stays(events: list[Event], until: float) -> list[tuple[int, float, float]]:
    """Stays in slots: slot, from and to."""
    stays: list[tuple[int, float, float]] = []
    slot, since = -1, 0.0
    for event in events:
        if event.kind in (Kind.SEATED, Kind.BEGAN):
            if slot < 0:
                slot, since = event.slot, event.at
        elif slot >= 0:
            stays.append((slot, since, event.at))
            slot = -1
        elif not stays:  # its beginning was overwritten
            stays.append((event.slot, float("-inf"), event.at))
    if slot >= 0:
        stays.append((slot, since, until))
    return stays


def told(picture: Picture, story: Story) -> list[str]:
    """The events in sentences."""
    lines: list[str] = []
    clock, first = picture.clock, story.events[0]
    seated, began, end = story.first(Kind.SEATED), story.first(Kind.BEGAN), story.end
    if seated is not None:
        lines.append(f"It was seen in slot {seated.slot} at {clock(seated.at)}.")
    elif picture.flight.overwritten:
        lines.append("Its beginning is not in the file any more.")
    if began is not None:
        prompt, micros = began.numbers[1], began.numbers[2]
        # Its arrival is a stamp of the wall clock, which may have been set since.
        after = f", {micros / 1e6:.3f} s after it had arrived by the wall clock" if micros >= 0 else ""
        of = f" ({plural(prompt, 'prompt token')})" if prompt >= 0 else ""
        lines.append(f"Its first token came at {clock(began.at)}{after}{of}.")
    elif seated is not None and not story.steps:
        lines.append("No token has come for it.")
    if story.steps:
        count = f"{plural(story.tokens, 'token')} in " if story.tokens is not None else ""
        span = story.steps[-1].at - story.steps[0].at
        usual = f", usually {story.usual_gap * 1e3:.3g} ms apart" if story.usual_gap is not None else ""
        verb = "It had" if story.tokens is not None else "It had tokens in"
        lines.append(f"{verb} {count}{plural(len(story.steps), 'step')} over {span:.3f} s{usual}.")
    for gap in sorted(story.gaps):
        lines.append(f"A gap of {gap.seconds:.3f} s ended at {clock(gap.at)}, {_side(gap)}.")
    for event in story.events:
        if event.kind == Kind.PREEMPTED:
            lines.append(f"It was preempted at {clock(event.at)}, and queued again.")
    if end is None:
        lines += _no_end(picture, story, first)
    elif end.kind == Kind.ENDED:
        known = end.numbers[2] in set(End)
        how = _HOW[End(end.numbers[2])] if known else "something that this version does not know"
        lines.append(f"It ended at {clock(end.at)}, with {how}.")
    elif end.kind == Kind.FAILED:
        lines.append(f"It ended at {clock(end.at)} with an error of the token processor: {end.text}.")
    elif end.kind == Kind.ABORTED:
        lines.append(f"It was aborted at {clock(end.at)}.")
    else:
        lines.append(
            f"By {clock(end.at)} it had left its slot without an end that the token processor saw: "
            "aborted by "
            "FastDeploy, most likely because its client had gone."
        )
    return lines


def _side(gap: Gap) -> str:
    if gap.side == "worker":
        return "on the worker's side of the queue: nothing came"
    return "on the engine's side: it was at work on a step, did nothing, or left messages in the queue"


def _no_end(picture: Picture, story: Story, first: Event) -> list[str]:
    last = story.steps[-1].at if story.steps else first.at
    ago = picture.end - last
    lines = [f"It has no end; its last step was {ago:.3f} s before {_until(picture)}."]
    blamed = [one for one in findings(picture) if one.severity == ERROR and one.at >= last - 1]
    if blamed:
        lines.append(
            "What went wrong since then: " + "; ".join(_blame(picture, one) for one in blamed[:3]) + "."
        )
    elif picture.is_alive and ago < 5:
        lines.append("It is running.")
    return lines


def _blame(picture: Picture, one: Finding) -> str:
    return f"{one.text} ({picture.clock(one.at)})"


def _until(picture: Picture) -> str:
    return "now" if picture.is_alive else "the end of the file"


def as_dict(picture: Picture, story: Story) -> dict[str, Any]:
    """The events for JSON; times are seconds before the end of the picture."""
    end = story.end

    def ago(at: float) -> float:
        return round(picture.end - at, 6)

    return {
        "events": [
            {"kind": Kind(event.kind).name.lower(), "slot": event.slot, "seconds_ago": ago(event.at),
             "text": event.text}
            for event in story.events
        ],
        "steps": len(story.steps),
        "tokens": story.tokens,
        "usual_gap": story.usual_gap,
        "gaps": [
            {"seconds_ago": ago(gap.at), "seconds": round(gap.seconds, 6), "side": gap.side}
            for gap in story.gaps
        ],
        "end": None if end is None else Kind(end.kind).name.lower(),
        "told": told(picture, story),
    }  # fmt: skip
