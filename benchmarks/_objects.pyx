# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3, embedsignature=True, auto_pickle=False, autotestdict=False, binding=False
"""The floor of making results: the same Python objects by bare C-API calls."""
cimport cython
from cpython.object cimport PyTypeObject

cdef extern from "_objects.h":
    ctypedef struct obj_classes:
        pass
    bint obj_learn(obj_classes *all, PyTypeObject *type, bint has_dict)
    object obj_make(const obj_classes *all, object o)


@cython.final
cdef class Objects:
    """Makes a graph of Python objects again; see _objects.h for what is new in it and what is shared.

    Parameters
    ----------
    original : object
        Lists and dicts, and instances of `classes` in them.
    classes : dict of type to bool
        Classes whose instances are made anew, named tuples among them, and whether an instance has a dict.

    Raises
    ------
    ValueError
        If there are more than 16 classes, or a class has more than 64 slots.
    """

    cdef obj_classes classes
    cdef dict known  # owns the classes
    cdef object original

    def __init__(self, original, dict classes not None):
        self.original = original
        self.known = dict(classes)
        for cls, has_dict in self.known.items():
            if not obj_learn(&self.classes, <PyTypeObject *>cls, has_dict):
                raise ValueError(f"no room for {cls.__qualname__}: 16 classes of 64 slots at most")

    def make(self):
        """The objects, new."""
        return obj_make(&self.classes, self.original)
