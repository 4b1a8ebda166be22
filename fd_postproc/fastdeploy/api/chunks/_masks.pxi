# Sampling masks: token ids of each token's candidates, as bytes from the message to the JSON.


@cython.final
@cython.no_gc
cdef class PackedMasks(Packed):
    """A list of token ids, or a list of such lists; these are packed themselves.

    What it holds are numbers: the garbage collector does not see it.
    """

    cdef size_t count
    cdef bint nested

    cdef list unpacked(self):
        """The list, cached after the first call."""
        cdef fdu_bytes source
        cdef size_t n, i
        cdef int inner
        cdef const unsigned char *begin
        cdef PackedMasks row
        if self.lists is not None or not self.nested:
            return Packed.unpacked(self)
        made = []
        source.at, source.end = self.packed, self.packed + self.size
        fdu_list(&source, &n)
        for i in range(self.count):
            value = _packed_masks(&source)
            made.append(_unpacked(&source, 0, False) if value is None else value)  # none: an empty list
        self.lists = made
        return made

    def __len__(self):
        return self.count if self.lists is None else len(self.lists)

    def __getitem__(self, place):
        cdef fdu_bytes source
        cdef int64_t integer
        cdef size_t n
        if self.lists is None and not self.nested and type(place) is int and place == 0:
            source.at, source.end = self.packed, self.packed + self.size
            fdu_list(&source, &n)
            fdu_integer(&source, &integer)
            return integer
        return self.unpacked()[place]

    cdef int write(self, _Writer writer) except -1:
        """Write the JSON of a list that has not been unpacked."""
        cdef fdu_bytes source
        source.at, source.end = self.packed, self.packed + self.size
        return self.write_list(writer, &source, self.nested)

    cdef int write_list(self, _Writer writer, fdu_bytes *source, bint nested) except -1:
        cdef size_t n, i
        cdef int64_t integer
        cdef int failed = 0
        fdu_list(source, &n)
        failed |= fdj_put(&writer.out, b"[", 1)
        for i in range(n):
            if i:
                failed |= fdj_put(&writer.out, b",", 1)
            if nested:
                self.write_list(writer, source, False)
            else:
                fdu_integer(source, &integer)
                failed |= fdj_integer(&writer.out, integer)
        if failed or fdj_put(&writer.out, b"]", 1):
            raise MemoryError
        return 0


cdef object _packed_masks(fdu_bytes *source):
    """Masks, still packed; None if the value here is something else."""
    cdef const unsigned char *begin = source.at
    cdef size_t count
    cdef int nested
    if not fdu_masks(source, &count, &nested):
        return None
    cdef PackedMasks made = PackedMasks.__new__(PackedMasks)
    made.keep(begin, source.at - begin)
    made.count, made.nested = count, nested
    return made


cdef object _taken_masks(value):
    """A list of lists of integers, as a model would hold it; NotImplemented if only the model can tell."""
    if type(value) is PackedMasks:
        return value if (<PackedMasks>value).nested else NotImplemented
    if not PyList_CheckExact(value):
        return NotImplemented
    made = []
    for row in <list>value:
        if type(row) is PackedMasks and not (<PackedMasks>row).nested:
            made.append(row)
            continue
        row = _copied_integers(row)
        if row is NotImplemented:
            return NotImplemented
        made.append(row)
    return made


cdef int _write_masks(_Writer writer, value) except -1:
    cdef Py_ssize_t i
    if type(value) is PackedMasks and (<PackedMasks>value).lists is None:
        return (<PackedMasks>value).write(writer)
    rows = (<PackedMasks>value).lists if type(value) is PackedMasks else value
    if not PyList_CheckExact(rows):
        raise Unknown("a field was assigned another type")
    if writer.parts is not None and PyList_GET_SIZE(rows) >= MANY:
        return writer.leave(_MaskRows.of(rows))
    writer.literal(b"[", 1)
    for i in range(PyList_GET_SIZE(rows)):
        if i:
            writer.literal(b",", 1)
        _write_mask(writer, <object>PyList_GET_ITEM(rows, i))
    return writer.literal(b"]", 1)


cdef int _write_mask(_Writer writer, row) except -1:
    if type(row) is PackedMasks:
        if (<PackedMasks>row).lists is None:
            return (<PackedMasks>row).write(writer)
        row = (<PackedMasks>row).lists
    if not PyList_CheckExact(row):
        raise Unknown("a field was assigned another type")
    return writer.integers(row)


cdef object _plain_masks(value):
    """Lists of Python's for masks; any other value unchanged."""
    if isinstance(value, Packed):
        return [_plain_masks(item) for item in (<Packed>value).unpacked()]
    if PyList_CheckExact(value):
        return [_plain_masks(item) for item in <list>value]
    return value
