"""Every result that a token processor delivers, packed at once and by msgpack: the same bytes."""

import functools

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
