"""The host's cost of a token beside other engines: their own code, one load, an environment for each.

``load.py`` is the load and what is right; ``of_ENGINE.py`` an engine's own way from a step's numbers to
results of requests; ``clock.py`` checks and times it; ``play.py`` does so in the engine's environment.
``environments.py`` installs; ``results.py`` and ``picture.py`` write.
"""
