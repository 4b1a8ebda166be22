"""The plug-in's token processor on the double, made as FastDeploy's engine gets it."""

import functools
from unittest import mock

import msgpack

from tests.lib.quiet import imported


def new_class():
    """The class for FastDeploy's module as it is now.  It tells its gauges at every step, for comparison."""
    module = imported("fastdeploy.output.token_processor")
    cls = imported("fd_postproc.fastdeploy.engine.processor_class").make_class(module)
    cls.gauge_period = 0
    return cls


def take(processor, content):
    """Give a processor a message of its socket, as its loop does."""
    parts = processor.parts
    with mock.patch.object(parts.socket, "_received", return_value=content):
        parts.loop.round(parts.socket, parts.streamed, processor.counters.stages)


once = functools.cache(new_class)


def plugin_class():
    """A new subclass of the module's TokenProcessor, whose plan all of a process share."""
    return type("TokenProcessor", (once(),), {"__module__": once().__module__})


def new_result(plan, name, tokens=(5,), **values):
    """A result of ours with these tokens, and with values of its own or of its outputs."""
    made = plan.new_result(0, 1, name, 3, None)
    made.outputs.token_ids = list(tokens)
    for key, value in values.items():
        setattr(made.outputs if hasattr(type(made.outputs), key) else made, key, value)
    return made


def sent_by(engine):
    """The messages that an engine of the double has sent since they were last asked for, unpacked."""
    waiting, found = engine.send_response_server.socket.queue, []
    while not waiting.empty():
        found.append(waiting.get())
    return [msgpack.unpackb(one) for one in found]


def stock_class():
    """FastDeploy's own, restated unless the environment names an installed one."""
    return imported("fastdeploy.output.token_processor").TokenProcessor
