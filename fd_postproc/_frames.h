/* SPDX-License-Identifier: Apache-2.0
 *
 * Compact frames that are longer than one message may be: cutting them up, and putting them together again.
 *
 * A fragment is the frame's header, with a fragment number of its own, and the next piece of the body.  The
 * fragments of one sender arrive in the order in which it sent them; those of several senders may alternate.
 * No system call and no Python; memory is taken for frames being put together, never more than the layout
 * allows (fdw_open_header has checked the total).
 */
#ifndef FD_POSTPROC_FRAMES_H
#define FD_POSTPROC_FRAMES_H

#include <stdlib.h>

#include "_counter.h"
#include "_gate.h"

/* ---- Cutting ---------------------------------------------------------------------------------------- */

/* Room for the mtype in front of a payload. */
#define FDF_MTYPE_SIZE ((int64_t)sizeof(long))

/* The shortest limit that a frame can be cut to: a later piece's mtype and header are written over the end of
 * the piece before it. */
#define FDF_LEAST_LIMIT (FDW_FRAME_HEADER + FDF_MTYPE_SIZE + FDW_FRAME_HEADER)

/* A message, or a frame in pieces, on its way out.  `message` holds mtype and payload. */
typedef struct {
    uint8_t *message;
    int64_t size;       /* payload bytes of the whole */
    int64_t piece;      /* body bytes of a fragment; 0: sent whole */
    int32_t next;       /* fragment to be sent next */
    int32_t fragments;  /* 1: sent whole */
} fdf_sending;

/* Prepare to send `size` bytes of payload as messages of at most `limit`.  0, or -1 if the limit is below
 * FDF_LEAST_LIMIT, or so small that a header could not number the pieces. */
static inline int fdf_cut(fdf_sending *s, void *message, int64_t size, int64_t limit)
{
    const int64_t body = size - FDW_FRAME_HEADER;
    s->message = (uint8_t *)message;
    s->size = size;
    s->piece = 0;
    s->next = 0;
    s->fragments = 1;
    if (size <= limit)
        return 0;
    s->piece = limit - FDW_FRAME_HEADER;
    if (limit < FDF_LEAST_LIMIT || (body + s->piece - 1) / s->piece > UINT16_MAX)
        return -1;
    s->fragments = (int32_t)((body + s->piece - 1) / s->piece);
    return 0;
}

/* Payload bytes of the next message. */
static inline int64_t fdf_piece_size(const fdf_sending *s)
{
    const int64_t body_left = s->size - FDW_FRAME_HEADER - s->next * s->piece;
    if (s->fragments == 1)
        return s->size;
    return FDW_FRAME_HEADER + (body_left < s->piece ? body_left : s->piece);
}

/* Where the next message begins (its mtype), and in *size its payload bytes.  A later fragment's header is
 * written over the end of the piece before it, which has been sent. */
static inline void *fdf_piece(const fdf_sending *s, int64_t *size)
{
    uint8_t *at = s->message + s->next * s->piece;
    *size = fdf_piece_size(s);
    if (s->fragments > 1) {
        fdw_frame_header h;
        if (s->next > 0)
            memcpy(at, s->message, (size_t)(FDF_MTYPE_SIZE + FDW_FRAME_HEADER));
        memcpy(&h, at + FDF_MTYPE_SIZE, sizeof h);
        h.fragment = (uint16_t)s->next;
        h.fragments = (uint16_t)s->fragments;
        memcpy(at + FDF_MTYPE_SIZE, &h, sizeof h);
    }
    return at;
}

/* ---- Putting together ------------------------------------------------------------------------------- */

#define FDF_OPEN 8                      /* frames being put together at a time */
#define FDF_LOST 16                     /* senders whose last lost frame is remembered */
#define FDF_SILENT_NS 5000000000        /* after this long without a fragment a frame may be given up */

typedef struct {
    uint8_t *data;      /* the frame so far, as if it had come whole; NULL: unused */
    fdw_frame_header header;
    int64_t filled;
    int64_t heard;      /* monotonic ns of the last fragment */
} fdf_frame;

/* The last frame of a sender of which something is missing: counted, its other pieces are skipped. */
typedef struct {
    uint64_t sender;
    uint64_t seq;
} fdf_lost;

typedef struct {
    fdf_frame open[FDF_OPEN];
    uint8_t *whole;         /* the frame handed out last; lives until the next message */
    fdf_lost lost[FDF_LOST];
    int32_t n_lost;         /* entries of it in use */
    int32_t next_lost;      /* the one to be forgotten next */
    int64_t fragments;      /* received */
    int64_t incomplete;     /* frames given up */
} fdf_assembly;

static inline void fdf_forget_whole(fdf_assembly *a)
{
    free(a->whole);
    a->whole = NULL;
}

static inline void fdf_free(fdf_assembly *a)
{
    for (int k = 0; k < FDF_OPEN; k++) {
        free(a->open[k].data);
        a->open[k].data = NULL;
    }
    fdf_forget_whole(a);
}

/* Count a frame of which something is missing, once. */
static inline void fdf_count_lost(fdf_assembly *a, uint64_t sender, uint64_t seq)
{
    fdf_lost *entry = NULL;
    for (int k = 0; k < a->n_lost && entry == NULL; k++)
        if (a->lost[k].sender == sender)
            entry = &a->lost[k];
    if (entry == NULL) {
        entry = &a->lost[a->next_lost];
        a->next_lost = (a->next_lost + 1) % FDF_LOST;
        if (a->n_lost < FDF_LOST)
            a->n_lost++;
    } else if (entry->seq == seq) {
        return;
    }
    entry->sender = sender;
    entry->seq = seq;
    fdc_add(&a->incomplete, 1);
}

static inline void fdf_give_up(fdf_assembly *a, fdf_frame *f)
{
    free(f->data);
    f->data = NULL;
    fdf_count_lost(a, f->header.sender, f->header.seq);
}

static inline fdf_frame *fdf_find(fdf_assembly *a, uint64_t sender)
{
    for (int k = 0; k < FDF_OPEN; k++)
        if (a->open[k].data != NULL && a->open[k].header.sender == sender)
            return &a->open[k];
    return NULL;
}

/* A place for a new frame: give up those that have long been silent, and if none is free then, the one that
 * has been silent longest. */
static inline fdf_frame *fdf_room(fdf_assembly *a, int64_t now)
{
    fdf_frame *unused = NULL, *oldest = &a->open[0];
    for (int k = 0; k < FDF_OPEN; k++) {
        fdf_frame *f = &a->open[k];
        if (f->data != NULL && now - f->heard >= FDF_SILENT_NS)
            fdf_give_up(a, f);
        if (f->data == NULL)
            unused = f;
        else if (f->heard < oldest->heard)
            oldest = f;
    }
    if (unused == NULL) {
        fdf_give_up(a, oldest);
        unused = oldest;
    }
    return unused;
}

/* Does the header of a fragment belong to this frame, as its next piece? */
static inline int fdf_continues(const fdf_frame *f, const fdw_frame_header *h, int64_t body)
{
    const fdw_frame_header *first = &f->header;
    return h->seq == first->seq && h->fragments == first->fragments && h->total == first->total
        && h->batch == first->batch && h->rows == first->rows && h->cols == first->cols
        && h->flag == first->flag && h->stop_flag == first->stop_flag
        && h->fragment == first->fragment + 1 && body <= (int64_t)h->total - f->filled;
}

enum fdf_result { FDF_REFUSED = -1, FDF_NO_MEMORY = -2, FDF_MORE = 0, FDF_WHOLE = 1 };

/* Take one compact message.  FDF_WHOLE: *m is an opened frame, valid until the next call.  FDF_MORE: wait for
 * the rest (or it was a stray piece, skipped).  FDF_REFUSED: it does not add up, *fault says why. */
static inline int fdf_accept(fdf_assembly *a, const fdw_layout *layout, int channel, const void *data,
                             int64_t size, int64_t now, fdw_message *m, fdw_fault *fault)
{
    fdw_frame_header h;
    fdf_frame *f;
    const int64_t body = size - FDW_FRAME_HEADER;
    fdf_forget_whole(a);
    if (fdw_open_header(m, &h, layout, channel, data, size, fault) < 0)
        return FDF_REFUSED;
    f = fdf_find(a, h.sender);
    if (h.fragments == 1) {
        if (f != NULL)
            fdf_give_up(a, f); /* its sender has gone on to another */
        return fdw_open_frame(m, layout, channel, data, size, fault) < 0 ? FDF_REFUSED : FDF_WHOLE;
    }
    fdc_add(&a->fragments, 1);
    if (h.fragment == 0) {
        if (size > (int64_t)h.total)
            return fdw_refuse(fault, FDW_LENGTH, -1, size, h.total);
        if (f != NULL)
            fdf_give_up(a, f);
        f = fdf_room(a, now);
        f->data = (uint8_t *)malloc(h.total);
        if (f->data == NULL)
            return FDF_NO_MEMORY;
        f->header = h;
        f->filled = size;
        f->heard = now;
        return fdw_copy(m, 0, f->data, size) < 0 ? FDF_REFUSED : FDF_MORE;
    }
    if (f == NULL || !fdf_continues(f, &h, body)) {
        if (f != NULL)
            fdf_give_up(a, f);
        fdf_count_lost(a, h.sender, h.seq);
        return FDF_MORE;
    }
    if (fdw_copy(m, FDW_FRAME_HEADER, f->data + f->filled, body) < 0)
        return FDF_REFUSED;
    f->filled += body;
    f->header.fragment = h.fragment;
    f->heard = now;
    if (h.fragment + 1 < h.fragments)
        return FDF_MORE;
    if (f->filled != (int64_t)h.total) {
        fdf_give_up(a, f);
        return FDF_MORE;
    }
    h.fragment = 0;
    h.fragments = 1;
    memcpy(f->data, &h, sizeof h);
    a->whole = f->data;
    f->data = NULL;
    return fdw_open_frame(m, layout, channel, a->whole, h.total, fault) < 0 ? FDF_REFUSED : FDF_WHOLE;
}

#endif
