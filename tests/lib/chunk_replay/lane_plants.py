"""Bugs planted into the lane, which a replay over sockets must see."""

import sys

from fd_postproc.fastdeploy.api import lane, lane_chunks, steady, streaming_response


def a_framing():
    """The size of a chunk is one too high; no stream may take the lane."""
    framed = lane.framed
    lane.framed = streaming_response.framed = lambda body: framed(body + b" ")


def a_count():
    """A chunk's tokens are not counted for the generator: the end's usage and reason are wrong."""
    for kind in (lane_chunks.ChatLane, lane_chunks.CompletionLane):
        advanced = kind.advanced

        def uncounted(self, result, advanced=advanced):
            before = self.counts[:]
            made = advanced(self, result)
            self.counts[:] = before
            return made

        kind.advanced = uncounted


def an_order():
    """What is pending is not written before the generator goes on."""
    flush = lane.Lane.flush

    def only_by_the_dispatcher(self):
        if sys._getframe(1).f_code.co_name in ("write", "_turn"):
            flush(self)

    lane.Lane.flush = only_by_the_dispatcher


def a_steady_count():
    """Tokens of chunks that are written from the message are counted somewhere else."""
    stock = lane.steady_of

    def steady_of(one, *arguments):
        counts, one.counts = one.counts, one.counts[:]
        try:
            return stock(one, *arguments)
        finally:
            one.counts = counts

    lane.steady_of = steady_of


def a_steady_text():
    """Texts of chunks that are written from the message begin where the one before began."""
    stock = steady.Premises

    def premises(hold, requests, answers, new_text, *others):
        def again(ids, prefix, read):
            told = new_text(ids, prefix, read)
            return told and (told[0], prefix, read)

        return stock(hold, requests, answers, again, *others)

    steady.Premises = premises


def a_template():
    """A value's place is one byte late: no stream may be written from the message."""
    stock = steady._place
    steady._place = lambda *arguments: (lambda at: (at[0] + 1, at[1] + 1, at[2]))(stock(*arguments))
