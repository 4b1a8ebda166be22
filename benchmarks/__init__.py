"""Microbenchmarks: what this package costs, beside a floor in C and beside other ways to do the same.

``cases.py`` makes every input.  Each question is one file (``receive.py``, ``step.py``, ...) that offers

* ``ABOUT``, one line saying what is measured,
* ``REFERENCE``, the contender that the others are divided by, the floor, or empty,
* ``BASELINE``, the contender that does it as FastDeploy does,
* ``load()``, optional: imports what the contenders need, once for all of them,
* ``comparisons()``, the `Comparison`s to make: all that a page quotes, and no other.

A contender is a function that builds its input, checks that its own answer is right, and returns a
`Ready`.  ``worker.py`` times one contender in one fresh process, with pyperf; ``runner.py`` has the
contenders of one comparison timed in turn, round after round; ``report.py`` prints and ``charts.py`` draws
where a step's time goes.
"""

QUESTIONS = ("receive", "save", "step", "engine", "api")
QUEUE_QUESTIONS = ("receive", "save", "engine")
"""Those that run in an IPC namespace of their own."""
QUICK_ROUNDS = 3
FULL_ROUNDS = 5
