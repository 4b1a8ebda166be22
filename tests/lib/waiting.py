"""Waiting for something that other threads or processes do."""

import time


def until(condition, seconds=20):
    """What the condition gave in the end; fails if it stays false."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.005)
    return found
