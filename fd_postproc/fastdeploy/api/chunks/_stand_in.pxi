# What every stand-in for a model of FastDeploy's can do.


cdef class StandIn:
    """Part of an answer that can write itself, or become the model that it stands in for."""

    cdef object whole    # the full model, from its first use on

    cdef int write(self, _Writer writer) except -1:
        return self.write_own(writer) if self.whole is None else _write_model(writer, self.whole)

    cdef object plain(self):
        """The value in Python's own types, as ``model_dump`` returns it."""
        return self.plain_own() if self.whole is None else self.whole.model_dump()

    cdef object whole_model(self):
        if self.whole is None:
            self.whole = self.new_model()
        return self.whole

    cdef int write_own(self, _Writer writer) except -1:
        raise NotImplementedError

    cdef object plain_own(self):
        raise NotImplementedError

    cdef object new_model(self):
        raise NotImplementedError

    cdef object model_class(self):
        """The class that this object stands in for."""
        raise NotImplementedError

    def __getattr__(self, name):
        return getattr(self.whole_model(), name)

    def __setattr__(self, name, value):
        setattr(self.whole_model(), name, value)

    def __delattr__(self, name):
        delattr(self.whole_model(), name)

    def __eq__(self, other):
        return self.whole_model() == (full(other) if isinstance(other, StandIn) else other)

    __hash__ = None

    def __repr__(self):
        return repr(self.whole_model())

    def __str__(self):
        return str(self.whole_model())

    def __iter__(self):
        return iter(self.whole_model())

    def __dir__(self):
        return dir(self.whole_model())

    def __copy__(self):
        return self.whole_model().__copy__()

    def __deepcopy__(self, memo):
        return self.whole_model().__deepcopy__(memo)

    def __reduce_ex__(self, protocol):
        return full, (self.whole_model(),)


cpdef object full(value):
    """The value that the model itself accepts: the full model of a stand-in, the lists of what was packed."""
    if isinstance(value, StandIn):
        return (<StandIn>value).whole_model()
    if isinstance(value, Packed):
        return (<Packed>value).unpacked()
    if PyList_CheckExact(value):
        return [full(item) for item in <list>value]
    return value
