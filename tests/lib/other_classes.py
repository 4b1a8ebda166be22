"""Classes that the differential trial compares with FastDeploy's."""

from tools.accept import classes, prove

VARIANT = "fastdeploy.output.token_processor_variant"
ROUNDS = 48
"""Random scripts: each channel in each role three times."""


def same(module):
    """A class of our own that is FastDeploy's."""
    return type("Same", (module.TokenProcessor,), {"fd": module})


def ours(**changed):
    """make_class of a class of ours with some methods changed; each gets the inherited method first."""

    def make(module):
        base = module.TokenProcessor

        def override(name, method):
            inherited = getattr(base, name)
            return lambda self, *arguments, **named: method(inherited, self, *arguments, **named)

        body = {name: override(name, method) for name, method in changed.items()}
        return type("Ours", (base,), {"fd": module, **body})

    return make


def difference_of(module, make):
    """The first difference of FastDeploy's class and of the one that is made, in random steps."""
    with classes.trusting():
        return prove._told(prove.processor, module, ROUNDS, False, {}, lambda *_: None, make)
