# Stand-ins for models of pydantic: the same attributes and the same JSON, without validation by schema.
#
# A field accepts a value of exactly its declared type.  The model itself decides on any other type, and on a
# field that is missing.

cdef long long _written = 0


def written():
    """How many models were written here in this process."""
    return _written


cdef enum:
    AS_STR, AS_INT, AS_FLOAT, AS_INTS, AS_CHOICE, AS_MODEL, AS_MODELS, AS_MASKS, \
        BY_PYDANTIC

KINDS = {
    "str": AS_STR, "int": AS_INT, "float": AS_FLOAT, "ints": AS_INTS, "choice": AS_CHOICE,
    "model": AS_MODEL, "models": AS_MODELS, "masks": AS_MASKS, "other": BY_PYDANTIC,
}


@cython.final
cdef class Field:
    """A field of a model."""

    cdef readonly str name
    cdef readonly object default    # ``...`` if it has none that is a constant; else None, a str or an int
    cdef int kind                   # one of `KINDS`
    cdef bint optional, required    # whether None may be given, and whether a value has to be
    # The class of a model, or of models in a list; the strings that are allowed; otherwise a
    # ``pydantic.TypeAdapter`` of the annotation.
    cdef object more
    cdef bytes key, default_json

    def __init__(self, str name not None, str kind not None, bint optional, default, bint required, more):
        self.name, self.kind, self.optional, self.required = name, KINDS[kind], optional, required
        self.default, self.more = default, more
        self.key = _json_string(name) + b":"
        if default is not ...:
            self.default_json = _json_dumps(default, ensure_ascii=False).encode()

    cdef object accepted(self, value):
        """The value that the model would hold; NotImplemented if only the model can tell."""
        cdef int kind = self.kind
        if value is None:
            return None if self.optional else NotImplemented
        if kind == AS_STR:
            return value if PyUnicode_CheckExact(value) else NotImplemented
        if kind == AS_INT:
            return value if PyLong_CheckExact(value) else NotImplemented
        if kind == AS_FLOAT:
            if PyFloat_CheckExact(value):
                return value
            if PyLong_CheckExact(value) and -(1 << 53) <= value <= 1 << 53:
                return float(value)
            return NotImplemented
        if kind == AS_INTS:
            return _copied_integers(value)
        if kind == AS_CHOICE:
            return value if PyUnicode_CheckExact(value) and value in self.more else NotImplemented
        if kind == AS_MODEL:
            return value if _is_model(value, self.more) else NotImplemented
        if kind == AS_MODELS or kind == AS_MASKS:
            return self.accepted_items(value)
        try:
            return self.more.validate_python(value)
        except Exception:
            return NotImplemented

    cdef object accepted_items(self, value):
        if not PyList_CheckExact(value):
            return NotImplemented
        if self.kind == AS_MASKS:
            rows = [_copied_integers(row) for row in <list>value]
            return NotImplemented if NotImplemented in rows else rows
        for item in <list>value:
            if not _is_model(item, self.more):
                return NotImplemented
        return list(value)

    cdef int write(self, _Writer writer, value) except -1:
        cdef int kind = self.kind
        if value is None:
            return writer.literal(b"null", 4)
        if kind == AS_STR or kind == AS_CHOICE:
            if PyUnicode_CheckExact(value):
                return writer.string(value)
        elif kind == AS_INT:
            if PyLong_CheckExact(value):
                return writer.integer(value)
        elif kind == AS_FLOAT:
            if PyFloat_CheckExact(value):
                return writer.double(PyFloat_AS_DOUBLE(value))
        elif kind == AS_INTS:
            if PyList_CheckExact(value):
                return writer.integers(value)
        elif kind == AS_MODEL:
            return _write_item(writer, value, self.more)
        elif kind == AS_MODELS or kind == AS_MASKS:
            if PyList_CheckExact(value):
                return _write_items(writer, value, self.more)
        else:
            return writer.put(self.more.dump_json(value, exclude_unset=writer.unset))
        raise Unknown("a field was assigned another type")

    cdef object plain(self, value):
        """The value as ``model_dump`` returns it."""
        if value is not None and self.kind == BY_PYDANTIC:
            return self.more.dump_python(full(value))
        if self.kind == AS_INTS and PyList_CheckExact(value):
            return list(value)
        return _plain(value)


cdef object _copied_integers(value):
    cdef Py_ssize_t i
    if not PyList_CheckExact(value):
        return NotImplemented
    for i in range(PyList_GET_SIZE(value)):
        if not PyLong_CheckExact(<object>PyList_GET_ITEM(value, i)):
            return NotImplemented
    return list(value)


cdef inline bint _is_model(value, cls):
    return (<StandIn>value).model_class() is cls if isinstance(value, StandIn) else type(value) is cls


cdef int _write_item(_Writer writer, value, cls) except -1:
    """Write a model of a class, or a list of integers where there is none."""
    if isinstance(value, StandIn):
        if (<StandIn>value).model_class() is cls:
            return (<StandIn>value).write(writer)
    elif type(value) is cls:
        return _write_model(writer, value)
    elif cls is None and PyList_CheckExact(value):
        return writer.integers(value)
    raise Unknown("a field was assigned another type")


cdef int _write_items(_Writer writer, list values, cls) except -1:
    cdef Py_ssize_t i
    writer.literal(b"[", 1)
    for i in range(len(values)):
        if i:
            writer.literal(b",", 1)
        _write_item(writer, values[i], cls)
    return writer.literal(b"]", 1)


cdef int _write_model(_Writer writer, model) except -1:
    """Write a full model inside an answer, by its own serialiser."""
    return writer.put(model.model_dump_json(exclude_unset=writer.unset).encode())


cdef object _plain(value):
    """A value in Python's own types: lists are copied, models become maps."""
    if isinstance(value, StandIn):
        return (<StandIn>value).plain()
    if PyList_CheckExact(value):
        return [_plain(item) for item in <list>value]
    return value.model_dump() if hasattr(value, "model_dump") else value


@cython.final
cdef class Models:
    """Replacement for a class of pydantic models; a call returns a stand-in."""

    cdef readonly object cls
    cdef readonly tuple fields   # all of it, in their order
    cdef public object answer    # the class of answers that hold such values; None: a stand-in holds them
    cdef readonly object guard   # of our stand-ins for this class
    cdef bint unmade, unwritten  # whether the last failure was of making one, or of writing one
    cdef dict by_name
    cdef FloatStyle style
    cdef Py_ssize_t required

    def __init__(self, cls, fields, FloatStyle style not None):
        self.cls, self.fields, self.style = cls, tuple(fields), style
        self.guard = Guard("api chunks", api_log)
        self.by_name = {}
        cdef Field field
        for field in self.fields:
            self.by_name[field.name] = field
            self.required += field.required

    def __call__(self, *arguments, **values):
        if arguments:
            return self.cls(*arguments, **values)
        if not self.guard.is_on:
            return self.cls(**{key: full(value) for key, value in values.items()})
        try:
            made = self.made_of(values)
        except Exception as error:
            made = self.cls(**{key: full(value) for key, value in values.items()})
            self.unmade = True
            self.guard.failed(error)
            return made
        if type(made) is not str:
            if self.unmade:
                self.unmade = False
                self.guard.worked()
            return made
        note(f"the model has to look at {self.cls.__name__}: {made}")
        return self.cls(**{key: full(value) for key, value in values.items()})

    cdef object made_of(self, dict values):
        """A stand-in, or an answer; or the text that says why the model has to look at the values."""
        cdef Py_ssize_t required = 0
        cdef PyObject *field
        cdef bint has_others = False
        for name, value in values.items():
            field = PyDict_GetItemWithError(self.by_name, name)
            if field == NULL:
                has_others = True
                continue
            item = (<Field>field).accepted(value)
            if item is NotImplemented:
                return str(name)
            required += (<Field>field).required
            if item is not value:
                PyDict_SetItem(values, name, item)
        if required != self.required:
            return "a field that is missing"
        if has_others:  # pydantic leaves out what it does not know
            values = {key: item for key, item in values.items() if key in self.by_name}
        return self.holding(values) if self.answer is None else _constructed(self.answer, values)

    def holding(self, dict values not None):
        """A stand-in with values that are those of fields."""
        cdef Model model = Model.__new__(Model)
        model.models, model.values = self, values
        return model

    def __getattr__(self, name):
        return getattr(self.cls, name)

    def __instancecheck__(self, other):
        if isinstance(other, StandIn):
            return issubclass((<StandIn>other).model_class(), self.cls)
        return isinstance(other, self.cls)

    def __repr__(self):
        return f"<stand-in for {self.cls.__module__}.{self.cls.__qualname__}>"


cdef object _constructed(cls, dict values):
    return cls.model_construct(_fields_set=set(values), **values)


@cython.final
cdef class Model(StandIn):
    """Stand-in for a model: the values that were set, by name."""

    cdef Models models
    cdef dict values

    def __getattr__(self, name):
        cdef PyObject *value
        cdef PyObject *field
        if self.whole is None:
            value = PyDict_GetItemWithError(self.values, name)
            if value != NULL:
                return <object>value
            field = PyDict_GetItemWithError(self.models.by_name, name)
            if field != NULL and (<Field>field).default is not ...:
                return (<Field>field).default
        return getattr(self.whole_model(), name)

    def __setattr__(self, name, value):
        if self.whole is None and PyDict_GetItemWithError(self.models.by_name, name) != NULL:
            PyDict_SetItem(self.values, name, value)
        else:
            setattr(self.whole_model(), name, value)

    cdef int write_own(self, _Writer writer) except -1:
        cdef Field field
        cdef PyObject *value
        cdef size_t begin = writer.out.used
        for item in self.models.fields:
            field = <Field>item
            value = PyDict_GetItemWithError(self.values, field.name)
            if value == NULL and writer.unset:
                continue
            writer.literal(b"{" if writer.out.used == begin else b",", 1)
            writer.put(field.key)
            if value != NULL:
                held = <object>value  # what writes it may set another one
                field.write(writer, held)
            elif field.default_json is not None:
                writer.put(field.default_json)
            else:
                raise Unknown("a field that was not set has no constant for a default")
        if writer.out.used == begin:
            writer.literal(b"{", 1)
        return writer.literal(b"}", 1)

    cdef object plain_own(self):
        cdef Field field
        cdef PyObject *value
        plain = {}
        for item in self.models.fields:
            field = <Field>item
            value = PyDict_GetItemWithError(self.values, field.name)
            if value == NULL and field.default is ...:
                return self.whole_model().model_dump()
            held = field.default if value == NULL else <object>value
            plain[field.name] = held if value == NULL else field.plain(held)
        return plain

    cdef object new_model(self):
        note(f"the full {self.models.cls.__name__} was asked for")
        return _constructed(self.models.cls, {name: full(value) for name, value in self.values.items()})

    cdef object model_class(self):
        return self.models.cls

    def model_dump_json(self, *, exclude_unset=False, **options):
        """The JSON of the full model."""
        global _written
        if not options and self.whole is None:
            text = self.json(exclude_unset)
            if text is not None:
                _written += 1
                return text
        return self.whole_model().model_dump_json(exclude_unset=exclude_unset, **options)

    def model_dump(self, **options):
        """The dictionary of the full model."""
        return self.whole_model().model_dump(**options) if options else self.plain()

    cdef object json(self, bint unset):
        """The JSON; None if only the full model can write it."""
        cdef _Writer writer = _Writer.begin(self.models.style)
        writer.unset = unset
        try:
            self.write(writer)
            if self.models.unwritten:
                self.models.unwritten = False
                self.models.guard.worked()
            return writer.text()
        except (Unknown, UnicodeEncodeError) as error:
            note_unwritten(error)
            return None
        except Exception as error:
            self.failed(error)
            return None
        finally:
            writer.end()

    def failed(self, error):
        """Report a failure of ours, for which the full model has taken over."""
        self.models.unwritten = True
        self.models.guard.failed(error)


def note_unwritten(error):
    """Note why an answer was not written here: Unknown, or a text with a lone surrogate."""
    note(str(error) if isinstance(error, Unknown) else "a text is no Unicode")


from json import dumps as _json_dumps
from fd_postproc.fastdeploy.fallback import Guard
from fd_postproc.fastdeploy.logs import api_log
