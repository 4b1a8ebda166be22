"""Step times of FastDeploy's own class, to compare with.

Measured on its newest public text (spring 2026) over CPU Paddle 3.3.1, Python 3.11, on a shared machine
with two virtual cores: milliseconds of thread time, garbage collector on, steady decode.  For each case and
batch: the best median of five passes of at least 50 steps, and the best single step.  The ratios between
the entries are what counts.
"""

from __future__ import annotations

BATCHES = (1, 32, 256, 512)

# (channel, columns, accepted): ((median, best), ...) at BATCHES; `spec` has 256 slots only
STEP_MS: dict[tuple[str, int, int], tuple[tuple[float, float], ...]] = {
    ("plain", 1, 1): ((0.07, 0.04), (1.22, 0.74), (9.72, 6.91), (14.60, 12.65)),
    ("topk", 1, 1): ((0.08, 0.07), (1.00, 0.86), (10.49, 7.56), (16.15, 13.36)),
    ("topk", 6, 1): ((0.09, 0.05), (1.21, 0.96), (13.10, 8.72), (19.20, 15.79)),
    ("topk", 21, 1): ((0.10, 0.07), (1.98, 1.18), (10.89, 9.80), (24.55, 21.05)),
    ("spec", 1, 1): ((0.08, 0.07), (1.03, 0.81), (7.24, 6.86)),
    ("spec", 1, 2): ((0.09, 0.08), (1.34, 0.90), (8.76, 7.46)),
    ("spec", 1, 4): ((0.10, 0.09), (1.41, 0.99), (9.35, 8.41)),
    ("spec", 1, 6): ((0.10, 0.07), (1.13, 1.05), (11.06, 9.64)),
    ("spec_topk_target", 1, 1): ((0.29, 0.20), (2.26, 1.72), (19.50, 13.46), (36.87, 27.29)),
    ("spec_topk_target", 6, 1): ((0.29, 0.20), (3.02, 2.05), (21.33, 17.26), (38.36, 28.39)),
    ("spec_topk_target", 21, 1): ((0.32, 0.28), (2.62, 2.32), (31.51, 22.83), (55.20, 40.71)),
    ("spec_topk_target", 1, 2): ((0.30, 0.27), (2.34, 1.88), (18.46, 16.25), (34.31, 27.94)),
    ("spec_topk_target", 6, 2): ((0.29, 0.28), (3.13, 2.08), (24.03, 19.07), (48.60, 40.11)),
    ("spec_topk_target", 21, 2): ((0.34, 0.30), (3.47, 2.84), (30.62, 25.54), (78.12, 63.01)),
    ("spec_topk_target", 1, 4): ((0.29, 0.21), (3.30, 2.32), (21.00, 16.33), (53.09, 36.49)),
    ("spec_topk_target", 6, 4): ((0.30, 0.22), (2.80, 2.44), (30.42, 23.93), (71.57, 50.76)),
    ("spec_topk_target", 21, 4): ((0.35, 0.26), (5.32, 3.94), (43.14, 34.30), (110.52, 80.67)),
    ("spec_topk_target", 1, 6): ((0.30, 0.29), (2.47, 2.19), (22.54, 17.64), (59.05, 41.56)),
    ("spec_topk_target", 6, 6): ((0.31, 0.23), (4.00, 3.01), (29.19, 23.62), (67.23, 52.87)),
    ("spec_topk_target", 21, 6): ((0.35, 0.27), (7.07, 4.21), (42.97, 35.54), (107.73, 83.60)),
    ("spec_topk_draft", 1, 1): ((0.21, 0.19), (0.91, 0.83), (6.97, 6.22), (13.07, 11.53)),
    ("spec_topk_draft", 6, 1): ((0.20, 0.15), (0.86, 0.82), (6.98, 6.10), (14.23, 11.82)),
    ("spec_topk_draft", 21, 1): ((0.21, 0.15), (1.06, 0.90), (7.58, 6.65), (14.14, 12.97)),
    ("spec_topk_draft", 1, 2): ((0.20, 0.19), (1.22, 0.83), (6.58, 6.27), (14.75, 12.47)),
    ("spec_topk_draft", 6, 2): ((0.21, 0.19), (1.20, 0.88), (7.96, 6.23), (16.15, 13.88)),
    ("spec_topk_draft", 21, 2): ((0.22, 0.15), (1.35, 0.93), (9.49, 7.05), (21.62, 16.57)),
    ("spec_topk_draft", 1, 4): ((0.20, 0.19), (1.19, 0.92), (7.36, 6.17), (18.56, 13.83)),
    ("spec_topk_draft", 6, 4): ((0.15, 0.14), (0.97, 0.85), (8.10, 7.22), (19.52, 14.31)),
    ("spec_topk_draft", 21, 4): ((0.20, 0.15), (1.41, 0.91), (11.31, 8.29), (25.58, 18.98)),
    ("spec_topk_draft", 1, 6): ((0.19, 0.19), (1.30, 0.85), (8.24, 6.26), (21.15, 13.64)),
    ("spec_topk_draft", 6, 6): ((0.19, 0.19), (1.15, 0.85), (7.17, 6.26), (20.27, 14.43)),
    ("spec_topk_draft", 21, 6): ((0.16, 0.14), (0.99, 0.89), (8.40, 6.92), (22.95, 15.78)),
}

# Per cent of a step at batch 256 that each part costs, by removing one part after the other, collector off.
PROFILED: tuple[tuple[str, int, int], ...] = (
    ("plain", 1, 1),
    ("topk", 1, 1),
    ("topk", 21, 1),
    ("spec", 1, 2),
    ("spec_topk_target", 1, 2),
    ("spec_topk_target", 21, 2),
)
PROFILE_MS = (6.10, 7.29, 11.08, 7.21, 17.80, 32.93)
SHARES: dict[str, tuple[int, ...]] = {
    "repr of every result": (54, 52, 69, 49, 27, 39),
    "prometheus, per request": (12, 16, 8, 12, 5, 7),
    "copy.copy of the metrics": (16, 15, 9, 13, 2, 0),
    "stamping the metrics": (1, 0, 1, 3, 10, 1),
    "tracing, switched off": (1, 1, 0, 2, 3, -1),
    "task.get, twice": (1, 0, 2, 0, -5, 0),
    "environment look-up, per token": (6, 5, 4, 9, 0, 2),
    "acceptance tables and gauges": (0, 0, -1, 2, 3, 4),
    "accept counts from a tensor": (0, 0, 0, 0, 47, 28),
    "header as Paddle scalars": (1, 0, -1, 1, 0, -3),
    "nested lists": (0, 0, 2, 0, 0, 21),
    "making the result": (4, 3, 2, 3, 4, 1),
    "per-token loop": (2, 4, 3, 2, 3, 1),
    "remainder": (3, 3, 2, 4, 2, 1),
}

# Milliseconds of what follows the step at batch 256, and the bytes of the message.
CONSUMER_PARTS = (
    "repr of the list, once",
    "to_dict",
    "of it, the metrics",
    "msgpack",
    "unpacked by the client",
)
CONSUMER: dict[tuple[str, int, int], tuple[float, ...]] = {
    ("plain", 1, 1): (3.6, 7.0, 7.0, 0.51, 1.3, 397741),
    ("topk", 1, 1): (4.7, 7.9, 7.9, 1.13, 1.5, 404695),
    ("topk", 6, 1): (4.9, 7.9, 7.2, 0.67, 1.6, 421524),
    ("topk", 21, 1): (7.9, 7.4, 7.0, 0.81, 1.8, 472915),
    ("spec", 1, 2): (3.1, 8.6, 7.5, 0.92, 2.3, 398795),
    ("spec_topk_target", 1, 2): (4.1, 7.1, 6.7, 0.87, 2.5, 409835),
    ("spec_topk_target", 21, 2): (10.4, 7.5, 7.5, 2.11, 2.3, 546305),
}
