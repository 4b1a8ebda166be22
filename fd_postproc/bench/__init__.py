"""Microbenchmarks: what this package costs, beside a floor in C and beside other ways to do the same.

``cases.py`` makes every input.  Each question is one file (``decode.py``, ``lists.py``, ...) that offers

* ``ABOUT``, one line saying what is measured,
* ``REFERENCE``, the contender that the others are divided by,
* ``comparisons(quick)``, the `Comparison`s to make.

A contender is a function that builds its input, checks that its own answer is right, and returns a
`Ready`.  ``worker.py`` times one contender in one fresh process, with pyperf; ``runner.py`` starts the
workers of one comparison in turn, round after round; ``report.py`` prints.
"""

QUESTIONS = ("decode", "unused", "lists", "views", "receive", "save", "frames")
QUEUE_QUESTIONS = ("receive", "save", "frames")  # run in an IPC namespace of their own
QUICK_ROUNDS = 3
FULL_ROUNDS = 5
