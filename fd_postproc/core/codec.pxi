# decode and encode: bytes <-> Step.
from cpython.buffer cimport (
    PyBUF_FORMAT, PyBUF_STRIDES, PyBuffer_IsContiguous, PyBuffer_Release, PyObject_CheckBuffer,
    PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_RawMalloc
from libc.stdint cimport uint8_t
from libc.string cimport memset, strpbrk
from fd_postproc.headers.wire cimport (
    FDW_COMPACT, FDW_MTYPE_COMPACT, FDW_MTYPE_STOCK, fdi_has_instruction, fdw_block_size, fdw_draft,
    fdw_fault, fdw_gather, fdw_is_frame, fdw_layout, fdw_message, fdw_open, fdw_open_frame, fdw_plan_step,
    fdw_seal, fdw_service_in, fdw_write_step,
)


cdef Step _gathered(const fdw_message *m):
    """The Step of an opened message."""
    cdef void *memory = PyMem_RawMalloc(fdw_block_size(m.channel, m.batch, m.rows, m.cols))
    if memory == NULL:
        raise MemoryError
    cdef Step step = _step_in(memory, m.channel, m.dialect, m.flag, m.stop_flag, m.batch, m.rows, m.cols)
    step.raw.seq = m.seq
    step.length, step.sender = m.claimed, m.sender
    if m.extra > 0:
        _give_extra(step, PyBytes_FromStringAndSize(<const char *>m.data + m.extra, m.claimed - m.extra))
    cdef int status = fdw_gather(m, &step.raw.block)
    if status < 0:
        raise ValueError("the message changed while it was decoded; decode a copy of shared memory")
    return step


cdef int _get_bytes(payload, Py_buffer *view) except -1:
    """The buffer of a message; the caller releases it."""
    if not PyObject_CheckBuffer(payload):
        raise TypeError(f"payload must be bytes-like, not {checks.kind_of(payload)}")
    PyObject_GetBuffer(payload, view, PyBUF_STRIDES | PyBUF_FORMAT)
    cdef bint numbers = view.format != NULL and strpbrk(view.format, "efdgFDGO") != NULL
    if not numbers and PyBuffer_IsContiguous(view, c"C"):
        return 0
    PyBuffer_Release(view)
    if numbers:
        raise TypeError(
            f"payload must be bytes, not a {type(payload).__name__} of floats or objects; if it holds "
            "the bytes of a message, give .tobytes()")
    raise ValueError(f"payload is a {type(payload).__name__} that is not contiguous; give a copy of it")


def _service_of(payload, mtype):
    """Number of the service in a compact frame, or in a piece of one; 0: it has none, or is none."""
    cdef Py_buffer view
    _get_bytes(payload, &view)
    try:
        return fdw_service_in(view.buf, view.len) if mtype == FDW_MTYPE_COMPACT else 0
    finally:
        PyBuffer_Release(&view)


def decode(payload, channel, *, mtype=1, layout=GPU):
    """Decode one message.

    Parameters
    ----------
    payload : bytes-like
        The message without its 8-byte ``mtype``: a contiguous buffer of bytes, or of integers.  One of
        FastDeploy's may be shorter than a full message, as long as all that its header claims is there.
    channel : {"plain", "topk", "spec", "spec_topk"}
    mtype : int, optional
        System V message type: 1 is FastDeploy's, 2 a whole compact frame.  One in pieces is several messages:
        a `Receiver` joins them, or ``Recording.steps()``.
    layout : Layout, optional
        Geometry of the sender's build.

    Returns
    -------
    Step
        Of the channel ``plain`` if a queue of ``topk`` carried a plain message: FastDeploy's workers send one
        when no request of a step has asked for logprobs.

    Raises
    ------
    MalformedMessage
        If anything is inconsistent; it names the field, its value and the bound.
    TypeError
        If payload, mtype or layout are of another kind.
    ValueError
        If there is no such channel, the payload is not contiguous, or it lies in shared memory and was
        changed during the call.
    """
    cdef int number = _channel_number(channel)
    cdef fdw_layout c = _c_layout(layout)
    cdef fdw_message m
    cdef fdw_fault fault
    cdef Py_buffer view
    cdef int status
    if type(mtype) is not int:
        mtype = checks.whole_number(mtype, "mtype", -math.inf, math.inf)
    if mtype != FDW_MTYPE_STOCK and mtype != FDW_MTYPE_COMPACT:
        raise _wrong_mtype(number, mtype)
    _get_bytes(payload, &view)
    try:
        if mtype == FDW_MTYPE_STOCK and fdw_is_frame(view.buf, view.len):
            raise MalformedMessage(_CHANNEL_NAMES[number], "mtype", mtype, FDW_MTYPE_COMPACT)
        if mtype == FDW_MTYPE_STOCK:
            status = fdw_open(&m, &c, number, view.buf, view.len, &fault)
        else:
            status = fdw_open_frame(&m, &c, number, view.buf, view.len, _checksums(), &fault)
        if status < 0:
            raise _malformed(number, &fault)
        return _gathered(&m)
    finally:
        PyBuffer_Release(&view)


def encode(step, dialect="packed", *, layout=GPU):
    """Write a step as a message.

    Parameters
    ----------
    step : Step
    dialect : {"packed", "legacy", "compact"}
        ``"packed"`` and ``"legacy"`` are FastDeploy's forms of the logprob channels; others have only one.
        Legacy messages always have all columns; those that the step lacks are filled with id -1 and score
        0.0, as FastDeploy does.  ``"compact"`` is a whole frame, to be sent as type 2.
    layout : Layout, optional
        Geometry of the receiver's build.

    Returns
    -------
    bytes
        The payload without ``mtype``.  A stock message ends after the last live slot: FastDeploy's receivers
        ignore a message's length, and read what its header claims.

    Raises
    ------
    TypeError
        If it is not a Step.
    ValueError
        If the layout cannot carry the step; the text names the value and the bound.
    """
    cdef Step one = _a_step(step)
    cdef fdw_layout c = _c_layout(layout)
    cdef fdw_message m
    cdef fdw_draft draft
    _plan_step(&m, &c, one, _dialect_number(dialect))
    cdef bytes out = PyBytes_FromStringAndSize(NULL, m.claimed)
    draft.data = <uint8_t *>PyBytes_AS_STRING(out)
    draft.size = m.claimed
    memset(draft.data, 0, draft.size)
    if fdw_write_step(&m, &one.raw, &draft) < 0:
        raise AssertionError("a planned message did not fit its own length")
    if m.dialect == FDW_COMPACT and _checksums():
        fdw_seal(draft.data, draft.size)
    return out


def _sums_by_instruction():
    """Whether checksums are made by the processor's instruction; else by tables, ten times as slow."""
    return fdi_has_instruction != 0


cdef Step _a_step(step):
    if not isinstance(step, Step):
        raise TypeError(
            f"step must be a Step, not {checks.kind_of(step)}; Step.from_arrays makes one of arrays")
    return <Step>step


cdef int _plan_step(fdw_message *m, const fdw_layout *layout, Step step, int dialect) except -1:
    cdef fdw_fault fault
    if step.extra is not None and dialect != FDW_COMPACT:
        _refuse_required(step)
    if fdw_plan_step(m, layout, &step.raw, dialect, &fault) < 0:
        what = _FIELD_NAMES[fault.field] + (f" of request {fault.index}" if fault.index >= 0 else "")
        raise ValueError(
            f"the {step.channel} channel of this layout cannot carry the step: {what} is {fault.value}, "
            f"at most {fault.bound} fit")
    return 0
