/* SPDX-License-Identifier: Apache-2.0
 *
 * The wire: what FastDeploy's token messages look like, byte for byte.
 *
 * Plain C: no system call, no allocation, no Python.  docs/wire-protocol.md is this file in prose.
 *
 * A message is opened (fdw_open: every number it claims is checked against the layout and against the
 * bytes that arrived), then gathered into a block (fdw_gather) or widened into FastDeploy's receive
 * tensors (fdw_fill).  fdw_write goes the other way.  The four channels and their dialects differ only in
 * the header words and in the strides that fdw_geometry_of returns; no loop below knows a channel by name
 * unless its content differs.
 *
 * Every read of a message goes through fdw_reach, every write through fdw_room.
 */
#ifndef FD_POSTPROC_WIRE_H
#define FD_POSTPROC_WIRE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* The four numbers compiled into a FastDeploy build; see layout.py. */
typedef struct {
    int32_t max_batch;
    int32_t top_k;
    int32_t max_draft;
    int32_t spec_batch;
} fdw_layout;

enum fdw_channel { FDW_PLAIN, FDW_TOPK, FDW_SPEC, FDW_SPEC_TOPK };
enum fdw_dialect { FDW_LEGACY, FDW_PACKED };

/* SysV message type of FastDeploy's messages. */
enum { FDW_MTYPE_STOCK = 1 };

/* Token id and score that a legacy sender puts into columns nobody asked for. */
#define FDW_FILLER_ID (-1)
#define FDW_FILLER_SCORE 0.0f

static inline int fdw_has_logprobs(int channel)
{
    return channel == FDW_TOPK || channel == FDW_SPEC_TOPK;
}

/* ---- Geometry ----------------------------------------------------------------------------------- */

/* Where things lie in a message.  All offsets and strides in bytes, from the start of the payload.
 * The id of request i, token j, column k is at  ids + i * ids_slot + j * ids_row + 4 * k ;
 * scores lie likewise, a rank at  ranks + i * ranks_slot + 4 * j . */
typedef struct {
    int32_t slots;      /* requests a message can hold */
    int32_t depth;      /* tokens a slot can hold */
    int32_t width;      /* columns a row can hold */
    int64_t header;     /* bytes of header words */
    int64_t counts;     /* int32 per slot; -1: no such region, the sign of the token decides */
    int64_t ids;
    int64_t ids_slot;
    int64_t ids_row;
    int64_t scores;
    int64_t ranks;
    int64_t ranks_slot;
    int64_t size;       /* payload of a full message, as FastDeploy's own senders send it */
} fdw_geometry;

/* sizeof a C struct that begins with `long mtype`, less that mtype: the tail padding is sent too. */
static inline int64_t fdw_padded(int64_t fields)
{
    return (8 + fields + 7) / 8 * 8 - 8;
}

/* `cols` is read from the header; it matters only to a packed topk message, whose rows are dense. */
static inline fdw_geometry fdw_geometry_of(const fdw_layout *layout, int channel, int dialect, int32_t cols)
{
    const int64_t width = (int64_t)layout->top_k + 1;
    const int64_t batch = layout->max_batch;
    const int64_t depth = layout->max_draft;
    fdw_geometry at;
    memset(&at, 0, sizeof at);
    at.counts = -1;
    switch (channel) {
    case FDW_PLAIN:
        at.slots = layout->max_batch;
        at.depth = 1;
        at.width = 1;
        at.header = 8;
        at.ids = at.header;
        at.ids_slot = at.ids_row = 4;
        at.size = fdw_padded(at.ids + 4 * batch);
        break;
    case FDW_TOPK:
        at.slots = layout->max_batch;
        at.depth = 1;
        at.width = (int32_t)width;
        at.header = 8;
        at.ids = at.header;
        at.ids_slot = at.ids_row = 4 * (dialect == FDW_PACKED ? cols : width);
        at.scores = at.ids + 4 * batch * width;
        at.ranks = at.scores + 4 * batch * width;
        at.ranks_slot = 4;
        at.size = fdw_padded(at.ranks + 4 * batch);
        break;
    case FDW_SPEC:
        at.slots = layout->spec_batch;
        at.depth = layout->max_draft;
        at.width = 1;
        at.header = 8;
        at.counts = at.header;
        at.ids = at.counts + 4 * (int64_t)layout->spec_batch;
        at.ids_slot = 4 * depth;
        at.ids_row = 4;
        at.size = fdw_padded(at.ids + at.ids_slot * layout->spec_batch);
        break;
    case FDW_SPEC_TOPK:
        at.slots = layout->max_batch;
        at.depth = layout->max_draft;
        at.width = (int32_t)width;
        at.header = 12;
        at.counts = at.header;
        at.ids = at.counts + 4 * batch;
        at.ids_slot = at.ranks_slot = 4 * depth * (2 * width + 1);
        at.ids_row = 4 * width; /* in both dialects: a packed sender leaves gaps */
        at.scores = at.ids + 4 * depth * width;
        at.ranks = at.scores + 4 * depth * width;
        at.size = fdw_padded(at.ids + at.ids_slot * batch);
        break;
    }
    return at;
}

/* FastDeploy's CUDA build as C structs, so that the compiler checks the arithmetic above (in the tests,
 * against fdw_geometry_of) and the sizes seen on the wire (here). */
typedef struct { int64_t mtype; int32_t words[2]; int32_t ids[512]; } fdw_gpu_plain;
typedef struct {
    int64_t mtype; int32_t words[2]; int32_t ids[512 * 21]; float scores[512 * 21]; int32_t ranks[512];
} fdw_gpu_topk;
typedef struct { int64_t mtype; int32_t words[2]; int32_t counts[256]; int32_t ids[256 * 6]; } fdw_gpu_spec;
typedef struct {
    int64_t mtype; int32_t words[3]; int32_t counts[512];
    struct { int32_t ids[6 * 21]; float scores[6 * 21]; int32_t ranks[6]; } slots[512];
} fdw_gpu_spec_topk;

#define FDW_ASSERT_SIZE(type, payload) \
    _Static_assert(sizeof(type) - sizeof(int64_t) == (payload), #type " is not what FastDeploy sends")
FDW_ASSERT_SIZE(fdw_gpu_plain, 2056);
FDW_ASSERT_SIZE(fdw_gpu_topk, 88072);
FDW_ASSERT_SIZE(fdw_gpu_spec, 7176);
FDW_ASSERT_SIZE(fdw_gpu_spec_topk, 530448);
_Static_assert(offsetof(fdw_gpu_topk, scores) - 8 == 43016, "topk scores");
_Static_assert(offsetof(fdw_gpu_topk, ranks) - 8 == 86024, "topk ranks");
_Static_assert(offsetof(fdw_gpu_spec, ids) - 8 == 1032, "spec ids");
_Static_assert(offsetof(fdw_gpu_spec_topk, slots) - 8 == 2060, "spec_topk slots");
_Static_assert(sizeof(((fdw_gpu_spec_topk *)0)->slots[0]) == 1032, "spec_topk slot");
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "FastDeploy's messages are little-endian and read in place"
#endif

/* ---- The gate ----------------------------------------------------------------------------------- */

/* A message opened for reading: the bytes that arrived, and what its header says about them. */
typedef struct {
    const uint8_t *data;
    int64_t size;
    int32_t channel;
    int32_t dialect;
    int32_t stop_flag;
    int32_t flag;       /* 3 target, 4 draft; 0 where the channel has none */
    int32_t batch;
    int32_t cols;
    int32_t rows;       /* accepted tokens of all requests */
    int64_t claimed;    /* where the last thing ends that the message claims to hold */
    fdw_geometry at;
} fdw_message;

/* The one place where an offset becomes an address: NULL unless all of it was received. */
static inline const uint8_t *fdw_reach(const fdw_message *m, int64_t offset, int64_t length)
{
    return offset >= 0 && length >= 0 && offset <= m->size - length ? m->data + offset : NULL;
}

static inline int fdw_copy(const fdw_message *m, int64_t offset, void *to, int64_t length)
{
    const uint8_t *from = fdw_reach(m, offset, length);
    if (from == NULL)
        return -1;
    memcpy(to, from, (size_t)length); /* not a cast: a payload may begin at any address */
    return 0;
}

/* One row of n numbers.  A row of one is a word: it needs no call to memcpy. */
static inline int fdw_row(const fdw_message *m, int64_t offset, void *to, int32_t n)
{
    return n == 1 ? fdw_copy(m, offset, to, 4) : fdw_copy(m, offset, to, 4 * (int64_t)n);
}

static inline int fdw_word(const fdw_message *m, int64_t offset, int32_t *to)
{
    return fdw_copy(m, offset, to, sizeof *to);
}

/* ---- Opening a message --------------------------------------------------------------------------- */

enum fdw_field { FDW_LENGTH, FDW_BATCH, FDW_COLUMNS, FDW_COUNT };

/* Why a message was refused: the field, its value, the bound it breaks. */
typedef struct {
    int32_t field;
    int32_t index;      /* request, for FDW_COUNT; else -1 */
    int64_t value;
    int64_t bound;
} fdw_fault;

static inline int fdw_refuse(fdw_fault *fault, int field, int32_t index, int64_t value, int64_t bound)
{
    fault->field = field;
    fault->index = index;
    fault->value = value;
    fault->bound = bound;
    return -1;
}

/* Header words -> stop_flag, flag, batch, cols, dialect.
 * The column count rides in the upper bits of a word that a legacy sender leaves zero there. */
static inline int fdw_read_header(fdw_message *m, const fdw_layout *layout)
{
    int32_t second = 0, third = 0;
    uint32_t word;
    if (fdw_word(m, 0, &m->stop_flag) < 0 || fdw_word(m, 4, &second) < 0)
        return -1;
    word = (uint32_t)second;
    m->dialect = FDW_LEGACY;
    m->flag = 0;
    m->batch = second;
    m->cols = 1;
    if (m->channel == FDW_TOPK) {
        m->batch = (int32_t)(word & 0xFFFFu);
        m->cols = (int32_t)(word >> 16);
    } else if (m->channel == FDW_SPEC_TOPK) {
        if (fdw_word(m, 8, &third) < 0)
            return -1;
        m->flag = (int32_t)(word & 0xFFu);
        m->cols = (int32_t)(word >> 8);
        m->batch = third;
    }
    if (fdw_has_logprobs(m->channel)) {
        if (m->cols != 0)
            m->dialect = FDW_PACKED;
        else
            m->cols = layout->top_k + 1;
    }
    return 0;
}

/* Tokens of request i, or its negative code.  Without a count region the token itself tells. */
static inline int fdw_count(const fdw_message *m, int32_t i, int32_t *count)
{
    int32_t word;
    if (m->at.counts >= 0)
        return fdw_word(m, m->at.counts + 4 * (int64_t)i, count);
    if (fdw_word(m, m->at.ids + m->at.ids_slot * i, &word) < 0)
        return -1;
    *count = word < 0 ? word : 1;
    return 0;
}

/* Where the last byte of request i ends, if it holds `count` tokens.  A slot without a count region is
 * there whatever its token says. */
static inline int64_t fdw_slot_end(const fdw_message *m, int32_t i, int32_t count)
{
    const fdw_geometry *at = &m->at;
    const int32_t rows = at->counts < 0 ? 1 : count;
    if (rows <= 0)
        return 0;
    if (fdw_has_logprobs(m->channel))
        return at->ranks + at->ranks_slot * i + 4 * (int64_t)rows; /* ranks lie last */
    return at->ids + at->ids_slot * i + at->ids_row * (rows - 1) + 4 * (int64_t)m->cols;
}

/* Check everything that a message claims.  0, or -1 with the reason in *fault. */
static inline int fdw_open(fdw_message *m, const fdw_layout *layout, int channel, const void *data,
                           int64_t size, fdw_fault *fault)
{
    int64_t rows = 0;
    memset(m, 0, sizeof *m);
    m->data = (const uint8_t *)data;
    m->size = size;
    m->channel = channel;
    m->at = fdw_geometry_of(layout, channel, FDW_LEGACY, 0);
    if (size > m->at.size)
        return fdw_refuse(fault, FDW_LENGTH, -1, size, m->at.size);
    if (fdw_read_header(m, layout) < 0)
        return fdw_refuse(fault, FDW_LENGTH, -1, size, m->at.header);
    if (m->batch < 0 || m->batch > m->at.slots)
        return fdw_refuse(fault, FDW_BATCH, -1, m->batch, m->at.slots);
    if (m->cols > m->at.width)
        return fdw_refuse(fault, FDW_COLUMNS, -1, m->cols, m->at.width);
    m->at = fdw_geometry_of(layout, channel, m->dialect, m->cols);
    m->claimed = m->at.counts < 0 ? m->at.header : m->at.counts + 4 * (int64_t)m->batch;
    if (m->batch > 0 && m->at.counts < 0)
        m->claimed = fdw_slot_end(m, m->batch - 1, 1);
    if (size < m->claimed)
        return fdw_refuse(fault, FDW_LENGTH, -1, size, m->claimed);
    for (int32_t i = 0; i < m->batch; i++) {
        int32_t count = 0;
        int64_t end;
        if (fdw_count(m, i, &count) < 0)
            return fdw_refuse(fault, FDW_LENGTH, -1, size, m->claimed);
        if (count > m->at.depth)
            return fdw_refuse(fault, FDW_COUNT, i, count, m->at.depth);
        rows += count > 0 ? count : 0;
        end = fdw_slot_end(m, i, count);
        if (end > m->claimed)
            m->claimed = end;
    }
    if (size < m->claimed)
        return fdw_refuse(fault, FDW_LENGTH, -1, size, m->claimed);
    m->rows = (int32_t)rows; /* slots * depth is bounded by the layout */
    return 0;
}

/* ---- The block: a step in memory ------------------------------------------------------------------ */

/* Structure of arrays, accepted rows only, in one allocation. */
typedef struct {
    int32_t *counts;    /* [batch] tokens of each request, or its negative code */
    int32_t *offsets;   /* [batch + 1] first row of each request */
    int32_t *ids;       /* [rows][cols] */
    float *scores;      /* [rows][cols]; NULL on channels without logprobs */
    int32_t *ranks;     /* [rows]; NULL likewise */
} fdw_block;

static inline int64_t fdw_block_size(int channel, int32_t batch, int32_t rows, int32_t cols)
{
    const int64_t cells = (int64_t)rows * cols;
    return 4 * (2 * (int64_t)batch + 1 + cells + (fdw_has_logprobs(channel) ? cells + rows : 0));
}

/* Divide `memory` (fdw_block_size bytes, aligned to 4) into the arrays. */
static inline fdw_block fdw_block_in(void *memory, int channel, int32_t batch, int32_t rows, int32_t cols)
{
    const int64_t cells = (int64_t)rows * cols;
    fdw_block b;
    b.counts = (int32_t *)memory;
    b.offsets = b.counts + batch;
    b.ids = b.offsets + batch + 1;
    b.scores = NULL;
    b.ranks = NULL;
    if (fdw_has_logprobs(channel)) {
        b.scores = (float *)(b.ids + cells);
        b.ranks = (int32_t *)(b.scores + cells);
    }
    return b;
}

/* Copy the accepted rows of an opened message, and only the columns sent, into a block.
 * Counts are checked again: the bytes may lie in memory that somebody else writes to. */
static inline int fdw_gather(const fdw_message *m, const fdw_block *to)
{
    const fdw_geometry *at = &m->at;
    int64_t row = 0;
    for (int32_t i = 0; i < m->batch; i++) {
        int32_t count = 0;
        if (fdw_count(m, i, &count) < 0 || count > m->rows - row)
            return -1;
        to->counts[i] = count;
        to->offsets[i] = (int32_t)row;
        for (int32_t j = 0; j < count; j++, row++) {
            const int64_t cell = at->ids_slot * i + at->ids_row * j;
            if (fdw_row(m, at->ids + cell, to->ids + row * m->cols, m->cols) < 0)
                return -1;
            if (to->scores == NULL)
                continue;
            if (fdw_row(m, at->scores + cell, to->scores + row * m->cols, m->cols) < 0
                || fdw_word(m, at->ranks + at->ranks_slot * i + 4 * (int64_t)j, to->ranks + row) < 0)
                return -1;
        }
    }
    to->offsets[m->batch] = (int32_t)row;
    return row == m->rows ? 0 : -1;
}

/* ---- FastDeploy's receive tensors ------------------------------------------------------------------ */

/* What a get op writes into: int64 tokens with the header in front, float32 scores, int64 ranks. */
typedef struct {
    int64_t *tokens;
    float *scores;
    int64_t *ranks;
} fdw_tensors;

/* Elements that each tensor must have for any message of the layout. */
static inline int64_t fdw_token_elements(const fdw_geometry *at)
{
    const int64_t counts = at->counts < 0 ? 0 : at->slots;
    return at->header / 4 + counts + (int64_t)at->slots * at->depth * at->width;
}
static inline int64_t fdw_score_elements(const fdw_geometry *at)
{
    return (int64_t)at->slots * at->depth * at->width;
}
static inline int64_t fdw_rank_elements(const fdw_geometry *at)
{
    return (int64_t)at->slots * at->depth;
}

static inline int fdw_widen(const fdw_message *m, int64_t offset, int64_t *to, int64_t n)
{
    for (int64_t k = 0; k < n; k++) {
        int32_t word;
        if (fdw_word(m, offset + 4 * k, &word) < 0)
            return -1;
        to[k] = word;
    }
    return 0;
}

/* Write an opened message into a get op's tensors as FastDeploy's op does, and touch nothing else.
 * `columns` is the op's k + 1: columns that the legacy dialect copies (packed ignores it). */
static inline int fdw_fill(const fdw_message *m, const fdw_tensors *to, int32_t columns)
{
    const fdw_geometry *at = &m->at;
    const int64_t words = at->header / 4;
    const int64_t first = words + (at->counts < 0 ? 0 : at->slots); /* tokens[first]: slot 0 */
    const int32_t cols = m->dialect == FDW_PACKED || columns > m->cols ? m->cols : columns;
    if (m->channel == FDW_SPEC) { /* upstream copies the whole message, live or not */
        const int64_t end = at->ids + at->ids_slot * at->slots;
        return fdw_widen(m, 0, to->tokens, (m->size < end ? m->size : end) / 4);
    }
    if (fdw_widen(m, 0, to->tokens, words) < 0)
        return -1;
    for (int32_t i = 0; i < m->batch; i++) {
        int32_t count = 1; /* a slot without a count region is copied whatever its token says */
        if (at->counts >= 0) {
            if (fdw_count(m, i, &count) < 0 || count > at->depth)
                return -1;
            to->tokens[words + i] = count;
        }
        for (int32_t j = 0; j < count; j++) {
            const int64_t cell = at->ids_slot * i + at->ids_row * j;
            /* Rows keep the message's stride; but a speculative slot of a tensor has no scores and ranks
             * inside, so there slots lie depth * width apart. */
            const int64_t at_row = at->counts < 0 ? cell / 4
                                                  : ((int64_t)i * at->depth + j) * at->width;
            if (fdw_widen(m, at->ids + cell, to->tokens + first + at_row, cols) < 0)
                return -1;
            if (to->scores == NULL)
                continue;
            if (fdw_copy(m, at->scores + cell, to->scores + at_row, 4 * (int64_t)cols) < 0
                || fdw_widen(m, at->ranks + at->ranks_slot * i + 4 * (int64_t)j,
                             to->ranks + (int64_t)i * at->depth + j, 1) < 0)
                return -1;
        }
    }
    return 0;
}

/* ---- Writing ---------------------------------------------------------------------------------------- */

/* What a step needs to become a message. */
typedef struct {
    int32_t channel;
    int32_t stop_flag;
    int32_t flag;
    int32_t batch;
    int32_t rows;
    int32_t cols;
    fdw_block block;
} fdw_step;

/* A message being written into zeroed memory. */
typedef struct {
    uint8_t *data;
    int64_t size;
} fdw_draft;

static inline uint8_t *fdw_room(const fdw_draft *d, int64_t offset, int64_t length)
{
    return offset >= 0 && length >= 0 && offset <= d->size - length ? d->data + offset : NULL;
}

static inline int fdw_put(const fdw_draft *d, int64_t offset, const void *from, int64_t length)
{
    uint8_t *to = fdw_room(d, offset, length);
    if (to == NULL)
        return -1;
    memcpy(to, from, (size_t)length);
    return 0;
}

static inline int fdw_put_word(const fdw_draft *d, int64_t offset, int32_t word)
{
    return fdw_put(d, offset, &word, sizeof word);
}

/* Can this layout carry the step?  Leaves in *m what fdw_open would say of the message; m->claimed is its
 * length: it ends after the last live slot, which every FastDeploy receiver accepts. */
static inline int fdw_plan(fdw_message *m, const fdw_layout *layout, const fdw_step *s, int dialect,
                           fdw_fault *fault)
{
    memset(m, 0, sizeof *m);
    m->channel = s->channel;
    m->dialect = dialect;
    m->stop_flag = s->stop_flag;
    m->flag = s->flag;
    m->batch = s->batch;
    m->rows = s->rows;
    /* A legacy message always has all columns. */
    m->at = fdw_geometry_of(layout, s->channel, dialect, s->cols);
    m->cols = dialect == FDW_PACKED ? s->cols : m->at.width;
    if (s->batch > m->at.slots)
        return fdw_refuse(fault, FDW_BATCH, -1, s->batch, m->at.slots);
    if (s->cols > m->at.width)
        return fdw_refuse(fault, FDW_COLUMNS, -1, s->cols, m->at.width);
    m->claimed = m->at.counts < 0 ? m->at.header : m->at.counts + 4 * (int64_t)s->batch;
    for (int32_t i = 0; i < s->batch; i++) {
        const int32_t count = s->block.counts[i];
        int64_t end;
        if (count > m->at.depth)
            return fdw_refuse(fault, FDW_COUNT, i, count, m->at.depth);
        end = fdw_slot_end(m, i, count);
        if (end > m->claimed)
            m->claimed = end;
    }
    return 0;
}

static inline int fdw_write_header(const fdw_message *m, const fdw_draft *d)
{
    const int32_t packed = m->dialect == FDW_PACKED ? m->cols : 0;
    int32_t second = m->batch;
    if (m->channel == FDW_TOPK)
        second = (int32_t)((uint32_t)m->batch | (uint32_t)packed << 16);
    else if (m->channel == FDW_SPEC_TOPK)
        second = (int32_t)((uint32_t)m->flag | (uint32_t)packed << 8);
    if (fdw_put_word(d, 0, m->stop_flag) < 0 || fdw_put_word(d, 4, second) < 0)
        return -1;
    return m->channel == FDW_SPEC_TOPK ? fdw_put_word(d, 8, m->batch) : 0;
}

/* Write a planned step into m->claimed bytes of zeroed memory. */
static inline int fdw_write(const fdw_message *m, const fdw_step *s, const fdw_draft *d)
{
    const fdw_geometry *at = &m->at;
    const fdw_block *b = &s->block;
    int64_t row = 0;
    if (fdw_write_header(m, d) < 0)
        return -1;
    for (int32_t i = 0; i < s->batch; i++) {
        const int32_t count = b->counts[i];
        if (at->counts >= 0) {
            if (fdw_put_word(d, at->counts + 4 * (int64_t)i, count) < 0)
                return -1;
        } else if (count < 0) {
            for (int32_t k = 0; k < m->cols; k++)
                if (fdw_put_word(d, at->ids + at->ids_slot * i + 4 * (int64_t)k, count) < 0)
                    return -1;
        }
        for (int32_t j = 0; j < count; j++, row++) {
            const int64_t cell = at->ids_slot * i + at->ids_row * j;
            if (fdw_put(d, at->ids + cell, b->ids + row * s->cols, 4 * (int64_t)s->cols) < 0)
                return -1;
            if (b->scores == NULL)
                continue;
            if (fdw_put(d, at->scores + cell, b->scores + row * s->cols, 4 * (int64_t)s->cols) < 0
                || fdw_put_word(d, at->ranks + at->ranks_slot * i + 4 * (int64_t)j, b->ranks[row]) < 0)
                return -1;
            for (int32_t k = s->cols; k < m->cols; k++) /* FDW_FILLER_SCORE is already there: zero */
                if (fdw_put_word(d, at->ids + cell + 4 * (int64_t)k, FDW_FILLER_ID) < 0)
                    return -1;
        }
    }
    return 0;
}

#endif
