"""Which token processor FastDeploy loads with ``FD_PLUGINS=fd_postproc``, and without it.

Needs FastDeploy; importing it takes a while.  ``fd-postproc doctor`` says the same and more: whether our
class is then used, which is decided by trying both.
"""

from __future__ import annotations

import importlib
import os
import sys


def loaded(plugins: str) -> str:
    os.environ["FD_PLUGINS"] = plugins  # what a service is started with
    try:
        cls = importlib.import_module("fastdeploy.plugins.token_processor").load_token_processor_plugins()
    except ModuleNotFoundError as error:
        sys.exit(f"FastDeploy cannot be imported here: {error}")
    except StopIteration:  # no plug-in: FastDeploy takes its own
        cls = importlib.import_module("fastdeploy.output.token_processor").TokenProcessor
    return f"{cls.__module__}.{cls.__qualname__}"


if __name__ == "__main__":
    for plugins in ("", "fd_postproc"):
        print(f"FD_PLUGINS={plugins or '(none)'}: {loaded(plugins)}")
