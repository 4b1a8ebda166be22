# The tensors of a get op -> Step: the way back of fdw_fill.


cdef int _open_tensors(fdw_step *s, const fdw_geometry *at, const int64_t *words, int64_t n,
                       const int64_t *counts, fdw_fault *fault) noexcept nogil:
    """Check batch, columns and counts; fill in the rows.  `n` elements are in the token tensor."""
    cdef int64_t i, code, cells
    if not 0 <= s.batch <= at.slots:
        return fdw_refuse(fault, FDW_BATCH, -1, s.batch, at.slots)
    if not 1 <= s.cols <= at.width:
        return fdw_refuse(fault, FDW_COLUMNS, -1, s.cols, at.width)
    cells = (counts - words) + (<int64_t>s.batch if at.counts >= 0 else 0)
    if cells > n:
        return fdw_refuse(fault, FDW_LENGTH, -1, n, cells)
    s.rows = 0
    for i in range(s.batch):
        code = counts[i] if at.counts >= 0 else 1
        if code > at.depth:
            return fdw_refuse(fault, FDW_COUNT, i, code, at.depth)
        s.rows += code if code > 0 else 0
    return 0


def step_from_tensors(channel, tokens, scores=None, ranks=None, *, layout=GPU):
    """The step that a get op left in its tensors.

    Parameters
    ----------
    channel : {"plain", "topk", "spec", "spec_topk"}
    tokens : tensor, int64
        As `fd_postproc.ops` and FastDeploy's own ops fill it.  It may be shorter than they ask for, as long
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
        If anything does not add up.
    TypeError, ValueError
        If a tensor is of another kind, or not in host memory.
    """
    cdef int number = _channel_number(channel)
    cdef fdw_layout c = _c_layout(layout)
    cdef fdw_geometry at = fdw_geometry_of(&c, number, FDW_PACKED, fdw_width(&c, number))
    cdef HostInput id_tensor = host_input(tokens, "tokens", "int64")
    cdef HostInput score_tensor, rank_tensor
    cdef const int64_t *words = <const int64_t *><uintptr_t>id_tensor.address
    cdef const int64_t *counts
    cdef const int64_t *rank_words = NULL
    cdef const float *score_cells = NULL
    cdef int64_t header = 3 if number == FDW_SPEC_TOPK else 2
    cdef int64_t n = id_tensor.size, i, j, k, count, token, row = 0, width, slot, first
    cdef bint logprobs = fdw_has_logprobs(number)
    cdef fdw_fault fault
    cdef fdw_step head
    if n < header:
        fdw_refuse(&fault, FDW_LENGTH, -1, n, header)
        raise _malformed(number, &fault)
    head.flag = 0
    head.cols = 1
    head.batch = _clipped(words[header - 1])
    if number == FDW_TOPK:
        head.cols = (words[1] >> 16) & 0xFFFF
        head.batch = words[1] & 0xFFFF
    elif number == FDW_SPEC_TOPK:
        head.flag = words[1] & 0xFF
        head.cols = (words[1] >> 8) & 0xFFFFFF
    if head.cols == 0:  # the legacy dialect
        head.cols = at.width
    if not fdw_is_flag(head.flag):
        fdw_refuse(&fault, FDW_FLAG, -1, head.flag, FDW_FLAG_DRAFT)
        raise _malformed(number, &fault)
    counts = words + header
    if _open_tensors(&head, &at, words, n, counts, &fault) < 0:
        raise _malformed(number, &fault)
    first = header + (at.slots if at.counts >= 0 else 0)
    # Rows of topk lie `cols` apart, those of spec_topk always as wide as the layout.
    width = head.cols if number == FDW_TOPK else at.width
    if logprobs:
        score_tensor = host_input(scores, "scores", "float32")
        rank_tensor = host_input(ranks, "ranks", "int64")
        score_cells = <const float *><uintptr_t>score_tensor.address
        rank_words = <const int64_t *><uintptr_t>rank_tensor.address

    cdef void *memory = PyMem_RawMalloc(fdw_block_size(number, head.batch, head.rows, head.cols))
    if memory == NULL:
        raise MemoryError
    cdef Step step = _step_in(memory, number, FDW_PACKED, head.flag,
                              <int32_t>words[0], head.batch, head.rows, head.cols)
    cdef fdw_block *b = &step.at.block
    for i in range(head.batch):
        count = counts[i] if at.counts >= 0 else 1
        b.offsets[i] = row
        for j in range(count):
            slot = i * at.depth + j
            if first + slot * width + head.cols > n:
                fdw_refuse(&fault, FDW_LENGTH, i, n, first + slot * width + head.cols)
                raise _malformed(number, &fault)
            if logprobs and (slot * width + head.cols > score_tensor.size or slot >= rank_tensor.size):
                fdw_refuse(&fault, FDW_LENGTH, i, min(score_tensor.size, rank_tensor.size),
                           slot * width + head.cols)
                raise _malformed(number, &fault)
            token = words[first + slot * width]
            if at.counts < 0 and token < 0:  # a code in the token's place
                count = token
                break
            for k in range(head.cols):
                b.ids[row * head.cols + k] = words[first + slot * width + k]
                if logprobs:
                    b.scores[row * head.cols + k] = score_cells[slot * width + k]
            if logprobs:
                b.ranks[row] = rank_words[slot]
            row += 1
        b.counts[i] = max(count, -0x80000000)
    b.offsets[head.batch] = row
    step.at.rows = row  # fewer than the block has room for, if there were codes
    return step


cdef int32_t _clipped(int64_t value) noexcept:
    """For a bound check in 32 bits."""
    return <int32_t>min(max(value, -1), 0x7FFFFFFF)
