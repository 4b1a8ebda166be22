/* SPDX-License-Identifier: Apache-2.0
 *
 * The gate: a message that has arrived is opened here, or refused.
 *
 * fdw_open and fdw_open_frame check every number that a message claims against the layout and against the
 * bytes that arrived.  Every read of a message, here and later, goes through fdw_reach.
 */
#ifndef FD_POSTPROC_GATE_H
#define FD_POSTPROC_GATE_H

#include "fd_postproc/headers/checksum.h"
#include "fd_postproc/headers/sections.h"

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
    int64_t claimed;    /* where the last field ends that the message claims to hold */
    uint64_t seq;       /* frames only */
    uint64_t sender;
    uint32_t service;   /* frames: the number of their service; 0: none */
    int64_t extra;      /* frames: where the sections begin; 0: there are none */
    int streamed;       /* it came through FastDeploy's ZeroMQ socket, not through a queue */
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
    FDW_LENGTH, FDW_BATCH, FDW_COLUMNS, FDW_COUNT, FDW_FLAG,
    FDW_FIELD_MAGIC, FDW_FIELD_VERSION, FDW_FIELD_CHANNEL, FDW_FRAGMENT, FDW_ROWS, FDW_TOKEN,
    FDW_CHECKSUM,
    FDW_SECTIONS, FDW_SECTION, FDW_MASKS, /* since FDW_FIELD_MAGIC: frames only */
    FDW_NUMBER, /* tensors only */
    FDW_SERVICE, /* frames of a queue only; see frames.h */
};

/* Why a message was refused: the field, its value, the bound that it violates. */
typedef struct {
    int32_t field;
    int32_t index;      /* request, for FDW_COUNT and FDW_TOKEN, at times for FDW_MASKS; else -1 */
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
 * The column count is in the upper bits of a word; a legacy sender leaves those bits zero. */
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

/* Tokens of request i, or its negative code, where there is no count region: the token itself decides. */
static inline int fdw_count_of_token(const fdw_message *m, int32_t i, int32_t *count)
{
    int32_t word;
    if (fdw_word(m, fdw_place(&m->at.ids, i, 0), &word) < 0)
        return -1;
    *count = word < 0 ? word : 1;
    return 0;
}

/* The same of any message. */
static inline int fdw_count(const fdw_message *m, int32_t i, int32_t *count)
{
    return m->at.counts < 0 ? fdw_count_of_token(m, i, count)
                            : fdw_word(m, m->at.counts + 4 * (int64_t)i, count);
}

/* Where the last byte of request i ends in one of FastDeploy's messages, if it holds `count` tokens.  A slot
 * without a count region is present whatever its token says. */
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

/* Check the counts of one kind of message.  Both kinds are constants where this is called: the loop, over up to
 * 512 slots, has no question but those about a slot. */
static inline __attribute__((always_inline)) int fdw_check_each(fdw_message *m, fdw_fault *fault,
                                                                int has_counts, int is_frame)
{
    const int32_t batch = m->batch, depth = m->at.depth;
    const int may_be_0 = fdw_counts_may_be_0(m->channel);
    int64_t rows = 0, claimed = m->claimed, end;
    for (int32_t i = 0; i < batch; i++) {
        int32_t count = 0;
        if ((has_counts ? fdw_word(m, m->at.counts + 4 * (int64_t)i, &count)
                        : fdw_count_of_token(m, i, &count))
            < 0)
            return fdw_refuse(fault, FDW_LENGTH, -1, m->size, claimed);
        if (count > depth || (count == 0 && !may_be_0))
            return fdw_refuse(fault, FDW_COUNT, i, count, depth);
        rows += count > 0 ? count : 0;
        end = is_frame ? 0 : fdw_slot_end(m, i, count);
        if (end > claimed)
            claimed = end;
    }
    m->claimed = claimed;
    m->rows = (int32_t)rows; /* slots * depth is bounded by the layout */
    return 0;
}

/* Check the counts of a message whose header has been read; computes m->rows, and m->claimed of a stock
 * message. */
static inline int fdw_check_counts(fdw_message *m, fdw_fault *fault)
{
    const int has_counts = m->at.counts >= 0;
    if (m->dialect == FDW_COMPACT)
        return has_counts ? fdw_check_each(m, fault, 1, 1) : fdw_check_each(m, fault, 0, 1);
    return has_counts ? fdw_check_each(m, fault, 1, 0) : fdw_check_each(m, fault, 0, 0);
}

/* Whether messages of another channel may arrive, too: a worker with logprobs enabled sends a plain message
 * when no request of a step has asked for any (FastDeploy's save_output_normal).  Its own engine reads that
 * as a logprob message without columns, and never delivers the tokens. */
static inline int fdw_may_be_plain(int channel)
{
    return channel == FDW_TOPK;
}

/* Whether a logprob message that ends too early is a whole plain one.  Its length decides: that of the
 * structure, which FastDeploy sends, or up to the last request, where our senders truncate it.  No logprob
 * message ends there. */
static inline int fdw_is_plain(const fdw_message *m, const fdw_layout *layout)
{
    const fdw_geometry at = fdw_geometry_of(layout, FDW_PLAIN, FDW_LEGACY, 0);
    return fdw_may_be_plain(m->channel) && m->dialect == FDW_LEGACY
           && (m->size == at.size || m->size == fdw_place(&at.ids, m->batch, 0));
}

/* Check everything that one of FastDeploy's messages claims.  0, or -1 with the reason in *fault.
 * m->channel is the message's channel: `channel`, or FDW_PLAIN where such messages may arrive. */
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
    if (!fdw_is_flag(m->flag))
        return fdw_refuse(fault, FDW_FLAG, -1, m->flag, FDW_FLAG_DRAFT);
    m->at = fdw_geometry_of(layout, channel, m->dialect, m->cols);
    m->claimed = m->at.counts < 0 ? m->at.header : m->at.counts + 4 * (int64_t)m->batch;
    if (m->batch > 0 && m->at.counts < 0)
        m->claimed = fdw_slot_end(m, m->batch - 1, 1);
    if (size < m->claimed) {
        if (fdw_is_plain(m, layout))
            return fdw_open(m, layout, FDW_PLAIN, data, size, fault);
        return fdw_refuse(fault, FDW_LENGTH, -1, size, m->claimed);
    }
    if (fdw_check_counts(m, fault) < 0)
        return -1;
    if (size < m->claimed)
        return fdw_refuse(fault, FDW_LENGTH, -1, size, m->claimed);
    return 0;
}

/* Read and check the header of a compact frame, or of a fragment of one.  m->claimed is the whole frame's
 * length, m->at its geometry; both follow from numbers that are bounded by the layout, and the limit of its
 * sections. */
static inline int fdw_open_header(fdw_message *m, fdw_frame_header *h, const fdw_layout *layout, int channel,
                                  const void *data, int64_t size, int streamed, fdw_fault *fault)
{
    const int64_t most_extra = streamed ? FDW_MOST_STREAMED : FDW_MOST_EXTRA;
    int64_t most_rows;
    memset(m, 0, sizeof *m);
    m->data = (const uint8_t *)data;
    m->size = size;
    m->streamed = streamed;
    m->dialect = FDW_COMPACT;
    if (fdw_copy(m, 0, h, sizeof *h) < 0)
        return fdw_refuse(fault, FDW_LENGTH, -1, size, FDW_FRAME_HEADER);
    if (h->magic != FDW_MAGIC)
        return fdw_refuse(fault, FDW_FIELD_MAGIC, -1, h->magic, FDW_MAGIC);
    if (h->version != FDW_VERSION)
        return fdw_refuse(fault, FDW_FIELD_VERSION, -1, h->version, FDW_VERSION);
    if (h->channel == FDW_PLAIN && fdw_may_be_plain(channel))
        channel = FDW_PLAIN;
    if (streamed && h->channel == FDW_SPEC && channel == FDW_SPEC_TOPK)
        channel = FDW_SPEC; /* queues have one key each, the socket is for both */
    if (h->channel != channel)
        return fdw_refuse(fault, FDW_FIELD_CHANNEL, -1, h->channel, channel);
    m->channel = channel;
    if (h->fragment >= h->fragments)
        return fdw_refuse(fault, FDW_FRAGMENT, -1, h->fragment, h->fragments);
    if (h->batch < 0 || h->batch > layout->max_batch)
        return fdw_refuse(fault, FDW_BATCH, -1, h->batch, layout->max_batch);
    if (h->cols < 1 || h->cols > fdw_width(layout, channel))
        return fdw_refuse(fault, FDW_COLUMNS, -1, h->cols, fdw_width(layout, channel));
    if (channel != FDW_SPEC_TOPK && h->flag != 0) /* a stock message of this channel has no such word */
        return fdw_refuse(fault, FDW_FLAG, -1, h->flag, 0);
    if (!fdw_is_flag(h->flag))
        return fdw_refuse(fault, FDW_FLAG, -1, h->flag, FDW_FLAG_DRAFT);
    most_rows = (int64_t)layout->max_batch * fdw_depth(layout, channel);
    if (h->rows < 0 || h->rows > most_rows)
        return fdw_refuse(fault, FDW_ROWS, -1, h->rows, most_rows);
    m->at = fdw_geometry_of_frame(layout, channel, h->batch, h->rows, h->cols);
    if (h->features & FDW_SECTIONED) {
        m->extra = fdz_padded(m->at.size);
        if (h->total < m->extra || h->total > m->extra + most_extra)
            return fdw_refuse(fault, FDW_LENGTH, -1, h->total,
                              h->total < m->extra ? m->extra : m->extra + most_extra);
    } else if (h->total != m->at.size) {
        return fdw_refuse(fault, FDW_LENGTH, -1, h->total, m->at.size);
    }
    m->stop_flag = h->stop_flag;
    m->flag = h->flag;
    m->batch = h->batch;
    m->cols = h->cols;
    m->claimed = h->total;
    m->seq = h->seq;
    m->sender = h->sender;
    m->service = fdw_service_of(h);
    return 0;
}

/* Without a count region in FastDeploy's message, a negative token is a code: a reader who gets the frame's
 * content in another form could not distinguish such a token from a code. */
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

/* Check the checksum of a whole frame.  One that has none must not have lost it. */
static inline int fdw_check_checksum(const fdw_message *m, const fdw_frame_header *h, fdw_fault *fault)
{
    const uint8_t *frame = fdw_reach(m, 0, m->size);
    const uint32_t expected = h->features & FDW_CHECKSUMMED ? fdw_checksum_of(frame, m->size) : 0;
    return h->checksum == expected ? 0 : fdw_refuse(fault, FDW_CHECKSUM, -1, h->checksum, expected);
}

/* The names of the sections that are known behind a compact frame's body. */
#define FDW_MASKS_NAME "masks/2"
#define FDW_WEIGHTS_NAME "weights"

/* Those that are known in FastDeploy's socket only, too; who uses one checks what is in it.  What they hold is
 * written in docs/wire-protocol.md, section 14. */
#define FDW_TOKENS_NAME "tokens"
#define FDW_PROMPT_NAME "prompt"
#define FDW_POOLED_NAME "pooled"
#define FDW_SPAN_NAME "span"

static inline int fdw_is_known(const fdw_message *m, uint64_t name)
{
    if (name == fdz_name(FDW_WEIGHTS_NAME))
        return 1;
    return m->streamed
           && (name == fdz_name(FDW_TOKENS_NAME) || name == fdz_name(FDW_PROMPT_NAME)
               || name == fdz_name(FDW_POOLED_NAME) || name == fdz_name(FDW_SPAN_NAME));
}

static inline int fdw_check_masks(const fdw_message *m, const fdz_section *s, fdw_fault *fault)
{
    fdz_masks masks;
    int64_t where, value, bound;
    const uint8_t *content = fdw_reach(m, m->extra + s->begin, s->length);
    if (content == NULL)
        return fdw_refuse(fault, FDW_SECTIONS, -1, s->length, m->size);
    if (fdz_open_masks(&masks, content, s->length, m->batch, &where, &value, &bound) != FDZ_FINE)
        return fdw_refuse(fault, FDW_MASKS, (int32_t)where, value, bound);
    return 0;
}

/* Check the sections of a whole frame: that they fill it, that no name comes twice, and that all which are
 * required are known.  What is known is checked, too. */
static inline int fdw_check_sections(const fdw_message *m, fdw_fault *fault)
{
    const int64_t size = m->size - m->extra;
    const uint8_t *area = fdw_reach(m, m->extra, size);
    const uint64_t masks = fdz_name(FDW_MASKS_NAME);
    uint64_t seen[FDZ_MOST_SECTIONS];
    fdz_section s;
    int64_t at = 0;
    int status, n = 0;
    if (area == NULL)
        return fdw_refuse(fault, FDW_SECTIONS, -1, m->size, m->extra);
    while ((status = fdz_next(area, size, &at, &s)) > 0) {
        if (n == FDZ_MOST_SECTIONS)
            return fdw_refuse(fault, FDW_SECTIONS, -1, n + 1, FDZ_MOST_SECTIONS);
        for (int k = 0; k < n; k++)
            if (seen[k] == s.name)
                return fdw_refuse(fault, FDW_SECTIONS, -1, m->extra + s.begin, m->size);
        seen[n++] = s.name;
        if (s.name == masks) {
            if (fdw_check_masks(m, &s, fault) < 0)
                return -1;
        } else if (s.marks & FDZ_REQUIRED && !fdw_is_known(m, s.name)) {
            return fdw_refuse(fault, FDW_SECTION, -1, (int64_t)s.name, 0);
        }
    }
    return status == 0 ? 0 : fdw_refuse(fault, FDW_SECTIONS, -1, m->extra + at, m->size);
}

/* Whether bytes are meant as a compact frame, of whatever version. */
static inline int fdw_is_frame(const void *data, int64_t size)
{
    fdw_frame_header h;
    if (size < FDW_FRAME_HEADER)
        return 0;
    memcpy(&h, data, sizeof h);
    return h.magic == FDW_MAGIC;
}

/* The number of the service that bytes belong to, if they are a compact frame, or a piece of one, that has one;
 * else 0. */
static inline uint32_t fdw_service_in(const void *data, int64_t size)
{
    fdw_frame_header h;
    if (!fdw_is_frame(data, size))
        return 0;
    memcpy(&h, data, sizeof h);
    return h.version == FDW_VERSION ? fdw_service_of(&h) : 0;
}

/* Check everything that a whole compact frame claims; `verify`: its checksum, too.  `streamed`: it came through
 * FastDeploy's socket, where `channel` is one with log-probabilities, and frames without any come, too. */
static inline int fdw_open_any_frame(fdw_message *m, const fdw_layout *layout, int channel, const void *data,
                                     int64_t size, int verify, int streamed, fdw_fault *fault)
{
    fdw_frame_header h;
    if (fdw_open_header(m, &h, layout, channel, data, size, streamed, fault) < 0)
        return -1;
    if (h.fragments != 1)
        return fdw_refuse(fault, FDW_FRAGMENT, -1, h.fragments, 1);
    if (size != m->claimed)
        return fdw_refuse(fault, FDW_LENGTH, -1, size, m->claimed);
    if (verify && fdw_check_checksum(m, &h, fault) < 0)
        return -1;
    if (fdw_check_counts(m, fault) < 0)
        return -1;
    if (h.rows != m->rows)
        return fdw_refuse(fault, FDW_ROWS, -1, h.rows, m->rows);
    if (!fdw_counts_may_be_0(m->channel) && fdw_check_tokens(m, fault) < 0)
        return -1;
    return m->extra == 0 ? 0 : fdw_check_sections(m, fault);
}

static inline int fdw_open_frame(fdw_message *m, const fdw_layout *layout, int channel, const void *data,
                                 int64_t size, int verify, fdw_fault *fault)
{
    return fdw_open_any_frame(m, layout, channel, data, size, verify, 0, fault);
}

static inline int fdw_open_streamed(fdw_message *m, int channel, int32_t max_draft, const void *data,
                                    int64_t size, int verify, fdw_fault *fault)
{
    const fdw_layout any = {FDW_MOST_STREAMED_BATCH, INT32_MAX - 1, max_draft, FDW_MOST_STREAMED_BATCH};
    return fdw_open_any_frame(m, &any, channel, data, size, verify, 1, fault);
}

#endif
