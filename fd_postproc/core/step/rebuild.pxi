# From the bytes of arrays to a Step: memory of its own, and everything checked.
from cpython.bytes cimport PyBytes_AS_STRING
from cpython.mem cimport PyMem_RawMalloc
from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.string cimport memcpy
from fd_postproc.headers.product cimport fdo_times
from fd_postproc.headers.wire cimport (
    FDW_PLAIN, FDW_SPEC_TOPK, FDW_TOPK, fdw_block, fdw_block_in, fdw_block_size, fdw_has_logprobs,
    fdw_is_flag,
)


cdef Step _step_in(void *memory, int channel, int dialect, int32_t flag, int32_t stop_flag, int32_t batch,
                   int32_t rows, int32_t cols):
    """A Step that takes over `memory` (of fdw_block_size bytes)."""
    cdef Step step = Step.__new__(Step)
    step.memory = memory
    step.dialect_number = dialect
    step.raw.channel = channel
    step.raw.flag = flag
    step.raw.stop_flag = stop_flag
    step.raw.batch = batch
    step.raw.rows = rows
    step.raw.cols = cols
    step.raw.block = fdw_block_in(memory, channel, batch, rows, cols)
    return step


def _rebuild_step(channel, dialect, int32_t flag, int32_t stop_flag, int32_t cols, bytes counts not None,
                  bytes ids not None, bytes scores not None, bytes ranks not None, uint64_t seq=0,
                  bytes extra=None):
    """Make a Step from the bytes of its arrays (for unpickling, and for from_arrays).

    Offsets are computed, never copied, and every size is checked: a damaged pickle must not read
    outside its own memory.
    """
    cdef int number = _channel_number(channel)
    cdef int dialect_number = _NO_DIALECT if dialect is None else _dialect_number(dialect)
    cdef Py_ssize_t batch = len(counts) // 4, i
    cdef const int32_t *count = <const int32_t *>PyBytes_AS_STRING(counts)
    cdef int64_t rows = 0
    cdef int32_t token
    for i in range(batch):
        rows += count[i] if count[i] > 0 else 0
        if (number == FDW_PLAIN or number == FDW_TOPK) and (count[i] == 0 or count[i] > 1):
            raise ValueError(
                f"count {count[i]} on channel {channel!r}: 1, or a negative code such as -1 (no token)")
    if not fdw_is_flag(flag) or (flag != 0 and number != FDW_SPEC_TOPK):
        raise ValueError(f"flag {flag} on channel {channel!r}")
    if cols != 1 and not fdw_has_logprobs(number):
        raise ValueError(f"{cols} columns on channel {channel!r}")
    cdef int64_t size
    cdef bint logprobs = fdw_has_logprobs(number)
    if (cols < 1 or batch > 0x7FFFFFFE or rows > 0x7FFFFFFF or fdo_times(4 * rows, cols, &size) < 0
            or len(counts) != 4 * batch or len(ids) != size or len(scores) != (size if logprobs else 0)
            or len(ranks) != (4 * rows if logprobs else 0)):
        raise ValueError("the arrays of a step do not fit each other")
    if number == FDW_PLAIN or number == FDW_TOPK:
        for i in range(rows):
            memcpy(&token, PyBytes_AS_STRING(ids) + 4 * cols * i, sizeof(token))
            if token < 0:
                raise ValueError(f"the sampled token {token} on channel {channel!r}: codes are counts")
    cdef void *memory = PyMem_RawMalloc(fdw_block_size(number, batch, rows, cols))
    if memory == NULL:
        raise MemoryError
    cdef Step step = _step_in(memory, number, dialect_number, flag, stop_flag, batch, rows, cols)
    cdef fdw_block *b = &step.raw.block
    step.raw.seq = seq
    memcpy(b.counts, count, 4 * batch)
    memcpy(b.ids, PyBytes_AS_STRING(ids), len(ids))
    if b.scores != NULL:
        memcpy(b.scores, PyBytes_AS_STRING(scores), len(scores))
        memcpy(b.ranks, PyBytes_AS_STRING(ranks), len(ranks))
    b.offsets[0] = 0
    for i in range(batch):
        b.offsets[i + 1] = b.offsets[i] + (count[i] if count[i] > 0 else 0)
    if extra is not None:
        _give_extra(step, extra)
        _check_extra(step)
    return step
