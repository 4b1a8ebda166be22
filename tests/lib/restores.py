"""A restored snapshot (CRIU), as ``/proc`` shows it: process numbers stay, start times are new."""

from fd_postproc.support import process_stat


def restores(monkeypatch):
    """A function that gives every process a later start time, for all who ask `process_stat`."""
    stock, ticks = process_stat.process_stat, [0]

    def process_stat_of(pid):
        fields = stock(pid)
        fields[19] = str(int(fields[19]) + ticks[0])
        return fields

    def restore(later=1000):
        ticks[0] += later

    monkeypatch.setattr(process_stat, "process_stat", process_stat_of)
    return restore
