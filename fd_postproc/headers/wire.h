/* SPDX-License-Identifier: Apache-2.0
 *
 * The wire: the layout of FastDeploy's token messages, and of our frames, byte for byte.
 *
 * Plain C: no system call, no allocation, no Python; the same goes for gate.h, block.h, gather.h and
 * write.h, which read and write what is described here.  docs/wire-protocol.md is these files in prose.
 *
 * The four channels and their dialects differ only in the header words and in the strides that
 * fdw_geometry_of returns; no loop elsewhere knows a channel by name unless its content differs.
 */
#ifndef FD_POSTPROC_WIRE_H
#define FD_POSTPROC_WIRE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* The four numbers compiled into a FastDeploy build; see core/layout.py. */
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

/* Message flags.  FastDeploy's senders write no others: a message with another flag belongs to another
 * channel, which has its batch or a count in that word. */
enum { FDW_FLAG_NONE = 0, FDW_FLAG_TARGET = 3, FDW_FLAG_DRAFT = 4 };

static inline int fdw_is_flag(int32_t flag)
{
    return flag == FDW_FLAG_TARGET || flag == FDW_FLAG_DRAFT || flag == FDW_FLAG_NONE;
}

/* Token id that a legacy sender puts into unrequested columns; their score is 0.0, all bits zero. */
#define FDW_FILLER_ID (-1)

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

/* On the other channels the token decides whether there is one: 1, or a negative code. */
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
    at.slots = layout->max_batch; /* on every channel: spec is not limited to its 256 slots */
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

/* The longest frame of a channel, without sections. */
static inline int64_t fdw_longest_frame(const fdw_layout *layout, int channel)
{
    return fdw_geometry_of_frame(layout, channel, layout->max_batch,
                                 (int64_t)layout->max_batch * fdw_depth(layout, channel),
                                 fdw_width(layout, channel)).size;
}

/* What may follow the body of a frame, from a multiple of 8 on; see sections.h.  A process that may write to
 * a queue can have a receiver keep so much more of every frame in pieces, so it is bounded. */
#ifndef FDW_MOST_EXTRA /* a fuzzer makes it small */
#define FDW_MOST_EXTRA ((int64_t)1 << 20)
#endif

/* Limits of a frame through FastDeploy's ZeroMQ socket.  It arrives whole, so its length bounds everything
 * else; 256 requests with the log-probabilities of a vocabulary of 500,000 fit. */
#define FDW_MOST_STREAMED ((int64_t)1 << 30)
#define FDW_MOST_STREAMED_BATCH (1 << 16)

typedef struct {
    int32_t words[3];   /* -2, 0, 0: to a stock receiver "nothing received, batch 0" */
    uint32_t magic;
    uint8_t version;
    uint8_t channel;
    uint8_t flag;
    uint8_t features;   /* FDW_CHECKSUMMED, FDW_SECTIONED, FDW_NUMBERED; others mean nothing yet and are sent as 0 */
    int32_t stop_flag;
    int32_t batch;
    int32_t cols;
    int32_t rows;
    uint32_t total;     /* bytes of the frame: this header once, the body, and the sections */
    uint64_t seq;
    uint64_t sender;
    uint16_t fragment;
    uint16_t fragments;
    uint32_t checksum;  /* see checksum.h; 0 without FDW_CHECKSUMMED */
} fdw_frame_header;

#define FDW_MAGIC 0x50504446u /* "FDPP" */
#define FDW_VERSION 1
#define FDW_CHECKSUMMED 1 /* readers that know nothing of it ignore both members, so it is no other version */
#define FDW_SECTIONED 2 /* sections follow the body; readers that know nothing of it refuse the length */
#define FDW_NUMBERED 4 /* the upper half of `sender` is the service's number; other readers see a random one */
_Static_assert(sizeof(fdw_frame_header) == FDW_FRAME_HEADER, "a frame header without padding");
_Static_assert(offsetof(fdw_frame_header, seq) == 40, "a frame header without padding");

/* The number of the service that a frame belongs to; 0: it has none. */
static inline uint32_t fdw_service_of(const fdw_frame_header *h)
{
    return h->features & FDW_NUMBERED ? (uint32_t)(h->sender >> 32) : 0;
}

/* A sender's number, in which the service's takes the place of the upper half, if there is one. */
static inline uint64_t fdw_sender_in(uint32_t service, uint64_t sender)
{
    return service != 0 ? (uint64_t)service << 32 | (uint32_t)sender : sender;
}

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "FastDeploy's messages are little-endian and read in place"
#endif

#endif
