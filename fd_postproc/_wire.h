/* SPDX-License-Identifier: Apache-2.0
 *
 * The wire: what FastDeploy's token messages look like, byte for byte.
 *
 * Plain C: no system call, no allocation, no Python.  docs/wire-protocol.md is this file in prose.
 *
 * A message is opened (fdw_open: every number it claims is checked against the layout and against the
 * bytes that arrived), then gathered into a block (fdw_gather) or widened into FastDeploy's receive
 * tensors (fdw_fill).  fdw_plan and fdw_write_step go the other way.  The four channels and their dialects differ only in
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
enum fdw_dialect { FDW_LEGACY, FDW_PACKED, FDW_COMPACT };

/* SysV message type: FastDeploy's messages, and our compact frames. */
enum { FDW_MTYPE_STOCK = 1, FDW_MTYPE_COMPACT = 2 };

/* Token id and score that a legacy sender puts into columns nobody asked for. */
#define FDW_FILLER_ID (-1)
#define FDW_FILLER_SCORE 0.0f

static inline int fdw_has_logprobs(int channel)
{
    return channel == FDW_TOPK || channel == FDW_SPEC_TOPK;
}

/* ---- Geometry ----------------------------------------------------------------------------------- */

/* Where one kind of number lies in a message, in bytes from the start of the payload.  Token j of request i,
 * whose first row is row `first` of the step, has its number at
 *     base + slot * i + dense * first + pitch * j        (+ 4 * k for column k).
 * FastDeploy's messages give every request a slot (dense is 0); a compact frame has no gaps (slot is 0). */
typedef struct {
    int64_t base;
    int64_t slot;
    int64_t dense;
    int64_t pitch;
} fdw_region;

static inline int64_t fdw_place(const fdw_region *region, int64_t i, int64_t first)
{
    return region->base + region->slot * i + region->dense * first;
}

typedef struct {
    int32_t slots;      /* requests a message can hold */
    int32_t depth;      /* tokens of a request */
    int32_t width;      /* columns of a row */
    int64_t header;     /* bytes of header */
    int64_t counts;     /* int32 per request; -1: no such region, the sign of the token decides */
    fdw_region ids;
    fdw_region scores;
    fdw_region ranks;
    int64_t size;       /* payload of a full message; of a compact frame: of this very one */
} fdw_geometry;

/* On the other channels the token tells whether there is one: 1, or a negative code. */
static inline int fdw_counts_may_be_0(int channel)
{
    return channel == FDW_SPEC || channel == FDW_SPEC_TOPK;
}

static inline int32_t fdw_width(const fdw_layout *layout, int channel)
{
    return fdw_has_logprobs(channel) ? layout->top_k + 1 : 1;
}

static inline int32_t fdw_depth(const fdw_layout *layout, int channel)
{
    return fdw_counts_may_be_0(channel) ? layout->max_draft : 1;
}

/* sizeof a C struct that begins with `long mtype`, less that mtype: the tail padding is sent too. */
static inline int64_t fdw_padded(int64_t fields)
{
    return (8 + fields + 7) / 8 * 8 - 8;
}

/* FastDeploy's own messages.  `cols` matters only to a packed topk message, whose rows are dense. */
static inline fdw_geometry fdw_geometry_of(const fdw_layout *layout, int channel, int dialect, int32_t cols)
{
    const int64_t slots = channel == FDW_SPEC ? layout->spec_batch : layout->max_batch;
    const int64_t width = fdw_width(layout, channel);
    const int64_t depth = fdw_depth(layout, channel);
    fdw_geometry at;
    memset(&at, 0, sizeof at);
    at.slots = (int32_t)slots;
    at.depth = (int32_t)depth;
    at.width = (int32_t)width;
    at.header = channel == FDW_SPEC_TOPK ? 12 : 8;
    at.counts = -1;
    at.ids.base = at.header;
    switch (channel) {
    case FDW_PLAIN:
        at.ids.slot = at.ids.pitch = 4;
        at.size = fdw_padded(at.ids.base + 4 * slots);
        break;
    case FDW_TOPK:
        at.ids.slot = at.ids.pitch = 4 * (dialect == FDW_PACKED ? cols : width);
        at.scores = at.ids;
        at.scores.base = at.ids.base + 4 * slots * width;
        at.ranks.base = at.scores.base + 4 * slots * width;
        at.ranks.slot = at.ranks.pitch = 4;
        at.size = fdw_padded(at.ranks.base + 4 * slots);
        break;
    case FDW_SPEC:
        at.counts = at.header;
        at.ids.base = at.counts + 4 * slots;
        at.ids.slot = 4 * depth;
        at.ids.pitch = 4;
        at.size = fdw_padded(at.ids.base + at.ids.slot * slots);
        break;
    case FDW_SPEC_TOPK:
        at.counts = at.header;
        at.ids.base = at.counts + 4 * slots;
        at.ids.slot = 4 * depth * (2 * width + 1);
        at.ids.pitch = 4 * width; /* in both dialects: a packed sender leaves gaps */
        at.scores = at.ids;
        at.scores.base = at.ids.base + 4 * depth * width;
        at.ranks.base = at.scores.base + 4 * depth * width;
        at.ranks.slot = at.ids.slot;
        at.ranks.pitch = 4;
        at.size = fdw_padded(at.ids.base + at.ids.slot * slots);
        break;
    }
    return at;
}

/* Our own frames: header, then counts[batch], ids[rows][cols], scores[rows][cols], ranks[rows]. */
#define FDW_FRAME_HEADER 64

static inline fdw_geometry fdw_geometry_of_frame(const fdw_layout *layout, int channel, int64_t batch,
                                                 int64_t rows, int64_t cols)
{
    const int64_t cells = rows * cols;
    fdw_geometry at;
    memset(&at, 0, sizeof at);
    at.slots = layout->max_batch; /* on every channel: spec is not held to its 256 slots */
    at.depth = fdw_depth(layout, channel);
    at.width = fdw_width(layout, channel);
    at.header = FDW_FRAME_HEADER;
    at.counts = at.header;
    at.ids.base = at.counts + 4 * batch;
    at.ids.dense = at.ids.pitch = 4 * cols;
    at.size = at.ids.base + 4 * cells;
    if (fdw_has_logprobs(channel)) {
        at.scores = at.ids;
        at.scores.base = at.size;
        at.ranks.base = at.scores.base + 4 * cells;
        at.ranks.dense = at.ranks.pitch = 4;
        at.size = at.ranks.base + 4 * rows;
    }
    return at;
}

/* The longest frame of a channel. */
static inline int64_t fdw_longest_frame(const fdw_layout *layout, int channel)
{
    return fdw_geometry_of_frame(layout, channel, layout->max_batch,
                                 (int64_t)layout->max_batch * fdw_depth(layout, channel),
                                 fdw_width(layout, channel)).size;
}

typedef struct {
    int32_t words[3];   /* -2, 0, 0: to a stock receiver "nothing received, batch 0" */
    uint32_t magic;
    uint8_t version;
    uint8_t channel;
    uint8_t flag;
    uint8_t reserved;
    int32_t stop_flag;
    int32_t batch;
    int32_t cols;
    int32_t rows;
    uint32_t total;     /* bytes of the frame: this header once, and the body */
    uint64_t seq;
    uint64_t sender;
    uint16_t fragment;
    uint16_t fragments;
    uint32_t reserved2;
} fdw_frame_header;

#define FDW_MAGIC 0x50504446u /* "FDPP" */
#define FDW_VERSION 1
_Static_assert(sizeof(fdw_frame_header) == FDW_FRAME_HEADER, "a frame header without padding");
_Static_assert(offsetof(fdw_frame_header, seq) == 40, "a frame header without padding");

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
    uint64_t seq;       /* frames only */
    uint64_t sender;
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

enum fdw_field {
    FDW_LENGTH, FDW_BATCH, FDW_COLUMNS, FDW_COUNT,
    FDW_FIELD_MAGIC, FDW_FIELD_VERSION, FDW_FIELD_CHANNEL, FDW_FRAGMENT, FDW_ROWS, FDW_TOKEN, /* frames only */
};

/* Why a message was refused: the field, its value, the bound it breaks. */
typedef struct {
    int32_t field;
    int32_t index;      /* request, for FDW_COUNT and FDW_TOKEN; else -1 */
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
    if (fdw_word(m, fdw_place(&m->at.ids, i, 0), &word) < 0)
        return -1;
    *count = word < 0 ? word : 1;
    return 0;
}

/* Where the last byte of request i ends in one of FastDeploy's messages, if it holds `count` tokens.  A slot
 * without a count region is there whatever its token says. */
static inline int64_t fdw_slot_end(const fdw_message *m, int32_t i, int32_t count)
{
    const fdw_geometry *at = &m->at;
    const int32_t rows = at->counts < 0 ? 1 : count;
    if (rows <= 0)
        return 0;
    if (fdw_has_logprobs(m->channel))
        return fdw_place(&at->ranks, i, 0) + 4 * (int64_t)rows; /* ranks lie last */
    return fdw_place(&at->ids, i, 0) + at->ids.pitch * (rows - 1) + 4 * (int64_t)m->cols;
}

/* Check the counts of a message whose header is read; sums up m->rows, and m->claimed of a stock message. */
static inline int fdw_check_counts(fdw_message *m, fdw_fault *fault)
{
    int64_t rows = 0;
    for (int32_t i = 0; i < m->batch; i++) {
        int32_t count = 0;
        int64_t end;
        if (fdw_count(m, i, &count) < 0)
            return fdw_refuse(fault, FDW_LENGTH, -1, m->size, m->claimed);
        if (count > m->at.depth || (count == 0 && !fdw_counts_may_be_0(m->channel)))
            return fdw_refuse(fault, FDW_COUNT, i, count, m->at.depth);
        rows += count > 0 ? count : 0;
        end = m->dialect == FDW_COMPACT ? 0 : fdw_slot_end(m, i, count);
        if (end > m->claimed)
            m->claimed = end;
    }
    m->rows = (int32_t)rows; /* slots * depth is bounded by the layout */
    return 0;
}

/* Check everything that one of FastDeploy's messages claims.  0, or -1 with the reason in *fault. */
static inline int fdw_open(fdw_message *m, const fdw_layout *layout, int channel, const void *data,
                           int64_t size, fdw_fault *fault)
{
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
    if (fdw_check_counts(m, fault) < 0)
        return -1;
    if (size < m->claimed)
        return fdw_refuse(fault, FDW_LENGTH, -1, size, m->claimed);
    return 0;
}

/* Read and check the header of a compact frame, or of a fragment of one.  m->claimed is the whole frame's
 * length, m->at its geometry; both follow from numbers that are bounded by the layout. */
static inline int fdw_open_header(fdw_message *m, fdw_frame_header *h, const fdw_layout *layout, int channel,
                                  const void *data, int64_t size, fdw_fault *fault)
{
    const int64_t most_rows = (int64_t)layout->max_batch * fdw_depth(layout, channel);
    memset(m, 0, sizeof *m);
    m->data = (const uint8_t *)data;
    m->size = size;
    m->channel = channel;
    m->dialect = FDW_COMPACT;
    if (fdw_copy(m, 0, h, sizeof *h) < 0)
        return fdw_refuse(fault, FDW_LENGTH, -1, size, FDW_FRAME_HEADER);
    if (h->magic != FDW_MAGIC)
        return fdw_refuse(fault, FDW_FIELD_MAGIC, -1, h->magic, FDW_MAGIC);
    if (h->version != FDW_VERSION)
        return fdw_refuse(fault, FDW_FIELD_VERSION, -1, h->version, FDW_VERSION);
    if (h->channel != channel)
        return fdw_refuse(fault, FDW_FIELD_CHANNEL, -1, h->channel, channel);
    if (h->fragment >= h->fragments)
        return fdw_refuse(fault, FDW_FRAGMENT, -1, h->fragment, h->fragments);
    if (h->batch < 0 || h->batch > layout->max_batch)
        return fdw_refuse(fault, FDW_BATCH, -1, h->batch, layout->max_batch);
    if (h->cols < 1 || h->cols > fdw_width(layout, channel))
        return fdw_refuse(fault, FDW_COLUMNS, -1, h->cols, fdw_width(layout, channel));
    if (h->rows < 0 || h->rows > most_rows)
        return fdw_refuse(fault, FDW_ROWS, -1, h->rows, most_rows);
    m->at = fdw_geometry_of_frame(layout, channel, h->batch, h->rows, h->cols);
    if (h->total != m->at.size)
        return fdw_refuse(fault, FDW_LENGTH, -1, h->total, m->at.size);
    m->stop_flag = h->stop_flag;
    m->flag = h->flag;
    m->batch = h->batch;
    m->cols = h->cols;
    m->claimed = m->at.size;
    m->seq = h->seq;
    m->sender = h->sender;
    return 0;
}

/* Without a count region in FastDeploy's message, a negative token is a code: as a token it could not be told
 * from one by anybody who gets the frame's content in another form. */
static inline int fdw_check_tokens(const fdw_message *m, fdw_fault *fault)
{
    int64_t row = 0;
    for (int32_t i = 0; i < m->batch; i++) {
        int32_t count = 0, token = 0;
        if (fdw_count(m, i, &count) < 0 || count <= 0)
            continue;
        if (fdw_word(m, fdw_place(&m->at.ids, i, row++), &token) < 0 || token < 0)
            return fdw_refuse(fault, FDW_TOKEN, i, token, 0);
    }
    return 0;
}

/* Check everything that a whole compact frame claims. */
static inline int fdw_open_frame(fdw_message *m, const fdw_layout *layout, int channel, const void *data,
                                 int64_t size, fdw_fault *fault)
{
    fdw_frame_header h;
    if (fdw_open_header(m, &h, layout, channel, data, size, fault) < 0)
        return -1;
    if (h.fragments != 1)
        return fdw_refuse(fault, FDW_FRAGMENT, -1, h.fragments, 1);
    if (size != m->claimed)
        return fdw_refuse(fault, FDW_LENGTH, -1, size, m->claimed);
    if (fdw_check_counts(m, fault) < 0)
        return -1;
    if (h.rows != m->rows)
        return fdw_refuse(fault, FDW_ROWS, -1, h.rows, m->rows);
    return fdw_counts_may_be_0(channel) ? 0 : fdw_check_tokens(m, fault);
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
        const int64_t ids = fdw_place(&at->ids, i, row);
        const int64_t scores = fdw_place(&at->scores, i, row);
        const int64_t ranks = fdw_place(&at->ranks, i, row);
        for (int32_t j = 0; j < count; j++, row++) {
            if (fdw_row(m, ids + at->ids.pitch * j, to->ids + row * m->cols, m->cols) < 0)
                return -1;
            if (to->scores == NULL)
                continue;
            if (fdw_row(m, scores + at->scores.pitch * j, to->scores + row * m->cols, m->cols) < 0
                || fdw_word(m, ranks + at->ranks.pitch * j, to->ranks + row) < 0)
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

/* The header words that FastDeploy's own sender would have written; returns how many. */
static inline int fdw_stock_words(const fdw_message *m, int32_t words[3])
{
    const uint32_t cols = m->dialect == FDW_LEGACY ? 0 : (uint32_t)m->cols;
    words[0] = m->stop_flag;
    words[1] = words[2] = m->batch;
    if (m->channel == FDW_TOPK)
        words[1] = (int32_t)((uint32_t)m->batch | cols << 16);
    if (m->channel == FDW_SPEC_TOPK)
        words[1] = (int32_t)((uint32_t)m->flag | cols << 8);
    return m->channel == FDW_SPEC_TOPK ? 3 : 2;
}

/* Write an opened message into a get op's tensors as FastDeploy's op does, and touch nothing else.  A compact
 * frame is written as the packed message that means the same.  `columns` is the op's k + 1: columns that the
 * legacy dialect copies. */
static inline int fdw_fill(const fdw_message *m, const fdw_layout *layout, const fdw_tensors *to,
                           int32_t columns)
{
    const fdw_geometry *at = &m->at;
    const fdw_geometry stock = fdw_geometry_of(layout, m->channel, FDW_PACKED, m->cols);
    const int32_t cols = m->dialect == FDW_LEGACY && columns < m->cols ? columns : m->cols;
    int32_t words[3];
    const int header = fdw_stock_words(m, words);
    int64_t *counts = to->tokens + header;
    int64_t *tokens = counts + (stock.counts < 0 ? 0 : stock.slots); /* of slot 0 */
    int64_t row = 0;
    if (m->batch > stock.slots)
        return -1;
    for (int k = 0; k < header; k++)
        to->tokens[k] = words[k];
    if (m->channel == FDW_SPEC && m->dialect != FDW_COMPACT) { /* upstream copies it all, live or not */
        const int64_t end = stock.ids.base + stock.ids.slot * stock.slots;
        return fdw_widen(m, 0, to->tokens, (m->size < end ? m->size : end) / 4);
    }
    for (int32_t i = 0; i < m->batch; i++) {
        int64_t ids, scores, ranks;
        int32_t count;
        if (fdw_count(m, i, &count) < 0 || count > at->depth)
            return -1;
        if (stock.counts >= 0)
            counts[i] = count;
        else if (at->counts < 0)
            count = 1; /* such a slot is copied whatever its token says */
        else if (count < 0)
            for (int32_t k = 0; k < cols; k++)
                tokens[(int64_t)i * cols + k] = count;
        ids = fdw_place(&at->ids, i, row);
        scores = fdw_place(&at->scores, i, row);
        ranks = fdw_place(&at->ranks, i, row);
        for (int32_t j = 0; j < count; j++, row++) {
            /* Rows of a tensor lie as wide apart as in a message, but its slots hold nothing else. */
            const int64_t width = m->channel != FDW_TOPK || m->dialect == FDW_LEGACY ? at->width : m->cols;
            const int64_t slot = (int64_t)i * at->depth + j;
            if (fdw_widen(m, ids + at->ids.pitch * j, tokens + slot * width, cols) < 0)
                return -1;
            if (to->scores == NULL)
                continue;
            if (fdw_copy(m, scores + at->scores.pitch * j, to->scores + slot * width, 4 * (int64_t)cols) < 0
                || fdw_widen(m, ranks + at->ranks.pitch * j, to->ranks + slot, 1) < 0)
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
    uint64_t seq;       /* of a compact frame */
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

/* One row of n numbers; see fdw_row. */
static inline int fdw_put_row(const fdw_draft *d, int64_t offset, const void *from, int64_t n)
{
    return n == 1 ? fdw_put(d, offset, from, 4) : fdw_put(d, offset, from, 4 * n);
}

static inline int fdw_put_word(const fdw_draft *d, int64_t offset, int32_t word)
{
    return fdw_put(d, offset, &word, sizeof word);
}

/* Begin a message: what fdw_open would read in its header.  m->claimed has to be grown to its length by
 * fdw_plan_request; a compact frame also has to know its rows beforehand. */
static inline int fdw_plan(fdw_message *m, const fdw_layout *layout, int channel, int dialect, int32_t batch,
                           int32_t rows, int32_t cols, fdw_fault *fault)
{
    memset(m, 0, sizeof *m);
    m->channel = channel;
    m->dialect = dialect;
    m->batch = batch;
    m->rows = rows;
    m->at = dialect == FDW_COMPACT ? fdw_geometry_of_frame(layout, channel, batch, rows, cols)
                                   : fdw_geometry_of(layout, channel, dialect, cols);
    m->cols = dialect == FDW_LEGACY ? m->at.width : cols; /* a legacy message always has all columns */
    if (batch > m->at.slots)
        return fdw_refuse(fault, FDW_BATCH, -1, batch, m->at.slots);
    if (cols > m->at.width)
        return fdw_refuse(fault, FDW_COLUMNS, -1, cols, m->at.width);
    m->claimed = m->at.counts < 0 ? m->at.header : m->at.counts + 4 * (int64_t)batch;
    if (dialect == FDW_COMPACT)
        m->claimed = m->at.size;
    return 0;
}

/* Count request i, which will have `count` tokens or a code, into m->claimed.  A message ends after its last
 * live slot: every FastDeploy receiver accepts that. */
static inline int fdw_plan_request(fdw_message *m, int32_t i, int32_t count, fdw_fault *fault)
{
    const int64_t end = m->dialect == FDW_COMPACT ? 0 : fdw_slot_end(m, i, count);
    if (count > m->at.depth)
        return fdw_refuse(fault, FDW_COUNT, i, count, m->at.depth);
    if (end > m->claimed)
        m->claimed = end;
    return 0;
}

/* The header of a planned message.  m->seq and m->sender go into a frame. */
static inline int fdw_write_header(const fdw_message *m, const fdw_draft *d)
{
    int32_t words[3];
    fdw_frame_header h;
    if (m->dialect != FDW_COMPACT)
        return fdw_put(d, 0, words, 4 * fdw_stock_words(m, words));
    memset(&h, 0, sizeof h);
    h.words[0] = -2;
    h.magic = FDW_MAGIC;
    h.version = FDW_VERSION;
    h.channel = (uint8_t)m->channel;
    h.flag = (uint8_t)m->flag;
    h.stop_flag = m->stop_flag;
    h.batch = m->batch;
    h.cols = m->cols;
    h.rows = m->rows;
    h.total = (uint32_t)m->claimed;
    h.seq = m->seq;
    h.sender = m->sender;
    h.fragments = 1;
    return fdw_put(d, 0, &h, sizeof h);
}

/* Can this layout carry the step? */
static inline int fdw_plan_step(fdw_message *m, const fdw_layout *layout, const fdw_step *s, int dialect,
                                fdw_fault *fault)
{
    if (fdw_plan(m, layout, s->channel, dialect, s->batch, s->rows, s->cols, fault) < 0)
        return -1;
    m->stop_flag = s->stop_flag;
    m->flag = s->flag;
    m->seq = s->seq;
    for (int32_t i = 0; i < s->batch; i++)
        if (fdw_plan_request(m, i, s->block.counts[i], fault) < 0)
            return -1;
    return 0;
}

/* Write a planned step into m->claimed bytes of zeroed memory. */
static inline int fdw_write_step(const fdw_message *m, const fdw_step *s, const fdw_draft *d)
{
    const fdw_geometry *at = &m->at;
    const fdw_block *b = &s->block;
    int64_t row = 0;
    if (fdw_write_header(m, d) < 0)
        return -1;
    for (int32_t i = 0; i < s->batch; i++) {
        const int32_t count = b->counts[i];
        const int64_t ids = fdw_place(&at->ids, i, row);
        const int64_t scores = fdw_place(&at->scores, i, row);
        const int64_t ranks = fdw_place(&at->ranks, i, row);
        if (at->counts >= 0) {
            if (fdw_put_word(d, at->counts + 4 * (int64_t)i, count) < 0)
                return -1;
        } else if (count < 0) {
            for (int32_t k = 0; k < m->cols; k++)
                if (fdw_put_word(d, ids + 4 * (int64_t)k, count) < 0)
                    return -1;
        }
        for (int32_t j = 0; j < count; j++, row++) {
            const int64_t cell = ids + at->ids.pitch * j;
            if (fdw_put_row(d, cell, b->ids + row * s->cols, s->cols) < 0)
                return -1;
            if (b->scores == NULL)
                continue;
            if (fdw_put_row(d, scores + at->scores.pitch * j, b->scores + row * s->cols, s->cols) < 0
                || fdw_put_word(d, ranks + at->ranks.pitch * j, b->ranks[row]) < 0)
                return -1;
            for (int32_t k = s->cols; k < m->cols; k++) /* FDW_FILLER_SCORE is already there: zero */
                if (fdw_put_word(d, cell + 4 * (int64_t)k, FDW_FILLER_ID) < 0)
                    return -1;
        }
    }
    return 0;
}

#endif
