"""The table of save ops, held to the ops themselves and to the numbers of the C code."""

import inspect

from fd_postproc import ops
from fd_postproc._core import _OP_NUMBERS, CHANNELS
from fd_postproc.core.tensors import ROLES
from fd_postproc.ops.table import SAVE_OPS
from tests.lib.rows import each


@each("name", SAVE_OPS)
def test_parameters_are_those_of_the_op(name):
    spec, parameters = SAVE_OPS[name], inspect.signature(getattr(ops, name)).parameters
    positional = [one.name for one in parameters.values() if one.kind is one.POSITIONAL_OR_KEYWORD]
    assert spec.parameters == tuple(positional)
    assert set(spec.roles.values()) <= set(spec.parameters)
    assert set(spec.roles) <= set(ROLES)
    assert spec.channel in CHANNELS


def test_every_op_has_a_number():
    assert set(SAVE_OPS) == set(_OP_NUMBERS)
    assert sorted(_OP_NUMBERS.values()) == list(range(len(SAVE_OPS)))
