"""The host's cost of a token beside other engines: their own code, one load, an environment for each.

``load.py`` is the load and what is right; ``of_ENGINE.py`` an engine's own way from a step's numbers to
results of requests; ``clock.py`` checks and times it; ``play.py`` does so in the engine's environment.
``servers.py`` starts an engine's own API server before a stand-in engine (``vllm_core.py``,
``sglang_serve.py``), which ``clients.py`` loads.  ``environments.py`` installs; ``results.py`` writes.
"""
