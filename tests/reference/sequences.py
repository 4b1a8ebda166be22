"""The numbers of frames: what is missing, came twice or came late, by sender."""

from __future__ import annotations

MOST_SENDERS = 64  # of which the numbers are known: those that were heard last
WINDOW = 64  # frames before the latest of which it is known whether they came
MOST_MISSING = 1 << 20  # that a gap counts as


class Sequences:
    """What a `Receiver` tells in ``stats`` and ``senders``."""

    def __init__(self) -> None:
        self.missing = self.doubled = self.reordered = 0
        self.senders: dict[int, dict[str, int]] = {}  # the one that was heard last is the last
        self._came: dict[int, set[int]] = {}

    def note(self, sender: int, seq: int) -> None:
        """A whole frame has come."""
        one = self.senders.pop(sender, None)
        if one is None:
            if len(self.senders) == MOST_SENDERS:
                self.senders.pop(next(iter(self.senders)))
            one = {"frames": 0, "next": seq, "missing": 0, "doubled": 0, "reordered": 0}
            self._came[sender] = set()
        self.senders[sender] = one
        came = self._came[sender]
        ahead = (seq - one["next"] + (1 << 63)) % (1 << 64) - (1 << 63)  # numbers go round
        trouble, count = None, 1
        if ahead >= 0:
            trouble, count = "missing", min(ahead, MOST_MISSING)
            one["next"] = (seq + 1) % (1 << 64)
        elif ahead >= -WINDOW and seq in came:
            trouble = "doubled"
        else:
            trouble = "reordered"
        one[trouble] += count
        setattr(self, trouble, getattr(self, trouble) + count)
        one["frames"] += 1
        came.add(seq)
