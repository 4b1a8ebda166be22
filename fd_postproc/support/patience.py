"""Waits of `TokenProcessor.health` and ``fd-postproc explain`` before they name a fault."""

STEP_S = 4.5
"""Seconds after which a step in progress is stuck."""

SILENCE_S = 4.0
"""Seconds without a step, or without any entry of the engine, that count as a fault."""

USUAL_TIMES = 3.0
"""Multiple of the usual step time after which a silence of the worker is a fault."""

LONGEST_S = 60.0
"""Seconds after which a silence of the worker is a fault, however slow steps were."""

WORKS = 0.25
"""Share of one processor that a silent worker's work takes at least; FastDeploy's idle worker takes less."""
