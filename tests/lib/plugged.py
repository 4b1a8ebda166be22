"""The plug-in's token processor on the double, made as FastDeploy's engine gets it."""

from tests.lib.quiet import imported


def plugin_class():
    """A new subclass of the module's TokenProcessor.  It tells its gauges at every step, for comparison."""
    module = imported("fastdeploy.output.token_processor")
    cls = imported("fd_postproc.fastdeploy.engine.processor_class").make_class(module)
    cls.gauge_period = 0
    return cls


def stock_class():
    """FastDeploy's own, restated unless the environment names an installed one."""
    return imported("fastdeploy.output.token_processor").TokenProcessor
