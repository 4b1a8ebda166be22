# Names a user writes  <->  numbers that wire.h uses; and faults -> exceptions.
from libc.stdint cimport int64_t
from fd_postproc.headers.wire cimport (
    FDW_BATCH, FDW_CHECKSUM, FDW_COLUMNS, FDW_COMPACT, FDW_COUNT, FDW_FIELD_CHANNEL, FDW_FIELD_MAGIC,
    FDW_FIELD_VERSION, FDW_FLAG, FDW_FLAG_DRAFT, FDW_FLAG_TARGET, FDW_FRAGMENT, FDW_LEGACY, FDW_LENGTH,
    FDW_MASKS, FDW_MTYPE_STOCK, FDW_NUMBER, FDW_PACKED, FDW_PLAIN, FDW_SECTION, FDW_SECTIONS,
    FDW_ROWS, FDW_SERVICE, FDW_SPEC, FDW_SPEC_TOPK, FDW_TOKEN, FDW_TOPK, fdw_counts_may_be_0, fdw_fault,
    fdw_has_logprobs, fdw_layout,
)

_CHANNEL_NUMBERS = {
    "plain": FDW_PLAIN, "topk": FDW_TOPK, "spec": FDW_SPEC, "spec_topk": FDW_SPEC_TOPK,
}
cdef tuple _CHANNEL_NAMES = tuple(sorted(_CHANNEL_NUMBERS, key=_CHANNEL_NUMBERS.get))
CHANNELS = _CHANNEL_NAMES  # in the order of their numbers, which frames and recordings hold
_DIALECT_NUMBERS = {"packed": FDW_PACKED, "legacy": FDW_LEGACY, "compact": FDW_COMPACT}
cdef dict _DIALECT_NAMES = {number: name for name, number in _DIALECT_NUMBERS.items()}
TARGET, DRAFT = FDW_FLAG_TARGET, FDW_FLAG_DRAFT  # message flags of spec_topk; elsewhere, and at times, 0
cdef int _NO_DIALECT = -1  # a step made here, not received
cdef dict _FIELD_NAMES = {
    FDW_LENGTH: "length", FDW_BATCH: "batch", FDW_COLUMNS: "columns", FDW_COUNT: "count",
    FDW_FLAG: "flag",
    FDW_FIELD_MAGIC: "magic", FDW_FIELD_VERSION: "version", FDW_FIELD_CHANNEL: "channel",
    FDW_FRAGMENT: "fragment", FDW_ROWS: "rows", FDW_TOKEN: "token",
    FDW_CHECKSUM: "checksum", FDW_SECTIONS: "sections", FDW_SECTION: "section", FDW_MASKS: "masks",
    FDW_NUMBER: "number", FDW_SERVICE: "service",
}


cdef int _number(dict numbers, str what, name) except -1:
    number = numbers.get(name) if isinstance(name, str) else None
    if number is None:
        raise ValueError(f"{what} {checks.shown(name)} is not one of {', '.join(map(repr, numbers))}")
    return number


cdef int _channel_number(name) except -1:
    return _number(_CHANNEL_NUMBERS, "channel", name)


cdef int _dialect_number(name) except -1:
    return _number(_DIALECT_NUMBERS, "dialect", name)


cdef fdw_layout _GPU
_GPU.max_batch, _GPU.top_k, _GPU.max_draft, _GPU.spec_batch = (
    GPU.max_batch, GPU.top_k, GPU.max_draft, GPU.spec_batch)


cdef fdw_layout _c_layout(layout) except *:
    cdef fdw_layout c
    if layout is GPU:
        return _GPU
    if not isinstance(layout, Layout):
        raise TypeError(
            f"layout must be a Layout, not {checks.kind_of(layout)}; GPU and XPU are FastDeploy's two")
    c.max_batch, c.top_k, c.max_draft, c.spec_batch = (
        layout.max_batch, layout.top_k, layout.max_draft, layout.spec_batch)
    return c


cdef object _malformed(int channel, const fdw_fault *fault):
    return MalformedMessage(
        _CHANNEL_NAMES[channel], _FIELD_NAMES[fault.field], fault.value, fault.bound,
        fault.index if fault.index >= 0 else None)


cdef object _too_long(int channel, int64_t size, int64_t limit):
    return MalformedMessage(_CHANNEL_NAMES[channel], "length", size, limit)


cdef object _wrong_mtype(int channel, mtype):
    return MalformedMessage(_CHANNEL_NAMES[channel], "mtype", mtype, FDW_MTYPE_STOCK)


def has_logprobs(channel):
    """Whether a channel carries scores and ranks, and more columns than the sampled token's."""
    return fdw_has_logprobs(_channel_number(channel))


def has_counts(channel):
    """Whether a request of this channel may have several tokens in a step, or none; elsewhere 1 or a code."""
    return fdw_counts_may_be_0(_channel_number(channel))
