"""A double of FastDeploy for tests and benchmarks; see ../README.md."""

from fastdeploy import _layer
from fastdeploy.metrics.prometheus_multiprocess_setup import setup_multiprocess_prometheus

__version__ = "2.6.0+double"

_layer.install()
setup_multiprocess_prometheus()  # before anything imports prometheus_client, which decides at import
