"""Metrics, and the one bucket rule."""


def build_1_2_5_buckets(maximum):
    """1, 2, 5, 10, 20, 50, ... up to `maximum`."""
    buckets, magnitude = [], 1
    while magnitude <= maximum:
        buckets += [step * magnitude for step in (1, 2, 5) if step * magnitude <= maximum]
        magnitude *= 10
    return buckets
