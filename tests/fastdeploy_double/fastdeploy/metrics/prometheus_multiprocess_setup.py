"""A folder for prometheus_client's memory-mapped values."""

import atexit
import os
import shutil
import tempfile


def setup_multiprocess_prometheus():
    """Point PROMETHEUS_MULTIPROC_DIR at a new folder, removed when this process ends, unless it is set."""
    if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
        return
    folder = tempfile.mkdtemp(prefix="fastdeploy_double_prometheus_")
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
    owner = os.getpid()

    @atexit.register
    def remove():
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)
