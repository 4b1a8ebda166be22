"""Every result that a token processor delivers, packed at once and by msgpack: the same bytes.

A program, too: ``packed_results.py SCRIPTS`` runs so many scripts of the trial on the FastDeploy that can be
imported, and prints one JSON object.
"""

import functools
import json
import sys

import msgpack

from fd_postproc.fastdeploy.engine.results._results import Messages


class Packed:
    """What was compared.

    Attributes
    ----------
    results : int
    asked : int
        Results of which a dictionary was made.
    difference : str or None
        The first.
    """

    def __init__(self, default=None):
        self.default, self.pack = default, functools.partial(msgpack.packb, default=default)
        self.results = self.asked = 0
        self.difference = None

    def compare(self, plan, results):
        """Pack results before anybody has read them, by their dictionaries, and again."""
        messages = Messages(plan, self.default)
        batch = [[result] for result in results]
        first = outcome(lambda: messages.pack(batch))
        self.results, self.asked = self.results + messages.packed, self.asked + messages.asked
        expected = outcome(lambda: self.pack([[one.to_dict() for one in some] for some in batch]))
        again = outcome(lambda: messages.pack(batch))
        if not are_same(first, expected) or not are_same(again, expected):
            self.difference = self.difference or f"{first}, {again}: not {expected}"


def are_same(made, expected):
    """The same bytes; or both were refused."""
    return made == expected if isinstance(expected, bytes) else isinstance(made, str)


def outcome(call):
    """Bytes, or the exception's type."""
    try:
        return call()
    except Exception as error:
        return type(error).__name__


def checking(cls, packed):
    """A token processor's class that compares what it delivers."""

    class Checking(cls):
        @functools.cached_property
        def parts(self):
            parts = super().parts
            put = parts.pairing.deliver

            def deliver(results):
                packed.compare(self.plan, results)
                put(results)

            parts.pairing.deliver = deliver
            return parts

    Checking.__name__ = cls.__name__
    return Checking


def main(count):
    import importlib

    from fd_postproc.fastdeploy.engine.processor_class import make_class
    from tools.accept.classes import prepared
    from tools.accept.features import ABORT_SETS
    from tools.accept.random_steps import script as random_script
    from tools.accept.trial import Trial

    module = importlib.import_module("fastdeploy.output.token_processor")
    server = importlib.import_module("fastdeploy.inter_communicator.zmq_server")
    packed = Packed(getattr(server, "_msgpack_default", None))
    (_, (box, cls)), facts = prepared(module, lambda real: checking(make_class(real), packed))
    for number in range(count):
        script = facts.applies(random_script(number, facts))
        Trial(box, cls, script, facts.abort_set or ABORT_SETS[0], facts.packed(script.channel)).run()
        if packed.difference:
            break
    told = {"results": packed.results, "asked": packed.asked, "difference": packed.difference}
    print("told: " + json.dumps(told))


if __name__ == "__main__":
    main(int(sys.argv[1]))
