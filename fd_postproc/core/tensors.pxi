# The tensors of a get op -> Step: the way back of fdw_fill.
from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc
from libc.stdint cimport int32_t, int64_t, uintptr_t
from libc.string cimport memset
from fd_postproc.headers.counter cimport fdc_read
from fd_postproc.headers.wire cimport (
    FDW_BATCH, FDW_COLUMNS, FDW_COUNT, FDW_FLAG, FDW_FLAG_DRAFT, FDW_LENGTH, FDW_NUMBER, FDW_PACKED,
    FDW_SPEC_TOPK, FDW_TOPK, fdw_block, fdw_block_size, fdw_fault, fdw_geometry, fdw_geometry_of,
    fdw_has_logprobs, fdw_is_flag, fdw_layout, fdw_refuse, fdw_step, fdw_width,
)


cdef int _check_number(int64_t number, fdw_fault *fault) noexcept nogil:
    """Whether it fits the 32 bits that every number of a message has."""
    if number != <int32_t>number:
        return fdw_refuse(fault, FDW_NUMBER, -1, number, 0x7FFFFFFF)
    return 0


cdef int _open_tensors(fdw_step *s, const fdw_geometry *at, const int64_t *words, int64_t n,
                       const int64_t *counts, int32_t *known, fdw_fault *fault) noexcept nogil:
    """Check batch, columns and counts; fill in the rows, and known[batch], the counts.

    The token tensor has `n` elements.  Each count is read once: the tensor may change during the call.
    """
    cdef int64_t i, code, cells
    cells = (counts - words) + (<int64_t>s.batch if at.counts >= 0 else 0)
    if cells > n:
        return fdw_refuse(fault, FDW_LENGTH, -1, n, cells)
    s.rows = 0
    for i in range(s.batch):
        code = fdc_read(&counts[i]) if at.counts >= 0 else 1
        if code > at.depth:
            return fdw_refuse(fault, FDW_COUNT, i, code, at.depth)
        if _check_number(code, fault) < 0:
            return -1
        known[i] = code
        s.rows += code if code > 0 else 0
    return 0


cdef int _read_tensors(fdw_step *s, const fdw_geometry *at, const int64_t *words, int64_t n,
                       const float *scores, int64_t n_scores, const int64_t *ranks, int64_t n_ranks,
                       const int32_t *known, fdw_fault *fault) noexcept nogil:
    """Copy the rows into the step's block.  `words` begins at slot 0."""
    cdef fdw_block *b = &s.block
    # Rows of topk lie `cols` apart, those of spec_topk always as wide as the layout.
    cdef int64_t width = s.cols if s.channel == FDW_TOPK else at.width
    cdef int64_t i, j, k, slot, token, row = 0
    cdef int32_t count
    for i in range(s.batch):
        count = known[i]
        b.offsets[i] = row
        for j in range(count):
            slot = i * at.depth + j
            if slot * width + s.cols > n:
                return fdw_refuse(fault, FDW_LENGTH, i, n, slot * width + s.cols)
            if b.scores != NULL and (slot * width + s.cols > n_scores or slot >= n_ranks):
                return fdw_refuse(fault, FDW_LENGTH, i, min(n_scores, n_ranks), slot * width + s.cols)
            for k in range(s.cols):
                token = fdc_read(&words[slot * width + k])
                if _check_number(token, fault) < 0:
                    return -1
                if k == 0 and token < 0 and at.counts < 0:  # a code in the token's place
                    count = token
                    break
                b.ids[row * s.cols + k] = token
                if b.scores != NULL:
                    b.scores[row * s.cols + k] = scores[slot * width + k]
            if count < 0:
                break
            if b.scores != NULL:
                token = fdc_read(&ranks[slot])
                if _check_number(token, fault) < 0:
                    return -1
                b.ranks[row] = token
            row += 1
        b.counts[i] = count
    b.offsets[s.batch] = row
    s.rows = row  # fewer than the block has room for, if there were codes
    return 0


def step_from_tensors(channel, tokens, scores=None, ranks=None, *, layout=GPU):
    """The step that a get op left in its tensors.

    Parameters
    ----------
    channel : {"plain", "topk", "spec", "spec_topk"}
    tokens : tensor, int64
        As `fd_postproc.ops` and FastDeploy's own ops fill it.  It may be shorter than they require, as long
        as everything that its header claims is there.
    scores : tensor, float32, optional
        On ``topk`` and ``spec_topk``.
    ranks : tensor, int64, optional
        Likewise.
    layout : Layout, optional

    Returns
    -------
    Step
        A header without a number of columns, as the legacy dialect leaves it, means all ``top_k + 1``: what
        FastDeploy's token processor asks for.

    Raises
    ------
    MalformedMessage
        If anything is inconsistent, or a number does not fit 32 bits.
    TypeError, ValueError
        If a tensor is of another kind, or not in host memory.
    """
    cdef int number = _channel_number(channel)
    cdef fdw_layout c = _c_layout(layout)
    cdef fdw_geometry at = fdw_geometry_of(&c, number, FDW_PACKED, fdw_width(&c, number))
    cdef HostInput id_tensor = host_input(tokens, "tokens", "int64")
    cdef HostInput score_tensor = None, rank_tensor = None
    cdef const int64_t *words = <const int64_t *><uintptr_t>id_tensor.address
    cdef int64_t header = 3 if number == FDW_SPEC_TOPK else 2
    cdef int64_t n = id_tensor.size, first = header + (at.slots if at.counts >= 0 else 0), k
    cdef int64_t read[3]  # the header: each number once
    cdef fdw_fault fault
    cdef fdw_step head
    memset(&head, 0, sizeof(head))
    if n < header:
        fdw_refuse(&fault, FDW_LENGTH, -1, n, header)
        raise _malformed(number, &fault)
    for k in range(header):
        read[k] = fdc_read(&words[k])
        if _check_number(read[k], &fault) < 0:
            raise _malformed(number, &fault)
    head.channel = number
    head.stop_flag = read[0]
    head.batch = read[header - 1]
    head.cols = 1
    if number == FDW_TOPK:
        head.cols = (read[1] >> 16) & 0xFFFF
        head.batch = read[1] & 0xFFFF
    elif number == FDW_SPEC_TOPK:
        head.flag = read[1] & 0xFF
        head.cols = (read[1] >> 8) & 0xFFFFFF
    if head.cols == 0:  # the legacy dialect
        head.cols = at.width
    if not fdw_is_flag(head.flag):
        fdw_refuse(&fault, FDW_FLAG, -1, head.flag, FDW_FLAG_DRAFT)
        raise _malformed(number, &fault)
    if not 0 <= head.batch <= at.slots:
        fdw_refuse(&fault, FDW_BATCH, -1, head.batch, at.slots)
        raise _malformed(number, &fault)
    if not 1 <= head.cols <= at.width:
        fdw_refuse(&fault, FDW_COLUMNS, -1, head.cols, at.width)
        raise _malformed(number, &fault)
    if fdw_has_logprobs(number):
        score_tensor = host_input(scores, "scores", "float32")
        rank_tensor = host_input(ranks, "ranks", "int64")

    cdef int32_t *known = <int32_t *>PyMem_RawMalloc(sizeof(int32_t) * head.batch)
    cdef void *memory = NULL
    cdef Step step
    try:
        if known == NULL:
            raise MemoryError
        if _open_tensors(&head, &at, words, n, words + header, known, &fault) < 0:
            raise _malformed(number, &fault)
        memory = PyMem_RawMalloc(fdw_block_size(number, head.batch, head.rows, head.cols))
        if memory == NULL:
            raise MemoryError
        step = _step_in(memory, number, FDW_PACKED, head.flag, head.stop_flag, head.batch, head.rows,
                        head.cols)
        if _read_tensors(&step.raw, &at, words + first, n - first,
                         NULL if score_tensor is None else <const float *>score_tensor.address,
                         0 if score_tensor is None else score_tensor.size,
                         NULL if rank_tensor is None else <const int64_t *>rank_tensor.address,
                         0 if rank_tensor is None else rank_tensor.size, known, &fault) < 0:
            raise _malformed(number, &fault)
        return step
    finally:
        PyMem_RawFree(known)
