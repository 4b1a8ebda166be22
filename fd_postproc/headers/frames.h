/* SPDX-License-Identifier: Apache-2.0
 *
 * Compact frames that are longer than one message may be: splitting them, and reassembling them.
 *
 * A fragment is the frame's header, with a fragment number of its own, and the next piece of the body.  The
 * fragments of one sender arrive in the order in which it sent them; those of several senders may alternate.
 * No system call and no Python; senders.h decides whose frames are open, and in how much memory.
 */
#ifndef FD_POSTPROC_FRAMES_H
#define FD_POSTPROC_FRAMES_H

#include "fd_postproc/headers/senders.h"

/* ---- Splitting -------------------------------------------------------------------------------------- */

/* Room for the mtype in front of a payload. */
#define FDF_MTYPE_SIZE ((int64_t)sizeof(long))

/* The smallest limit that a frame can be split for: a later piece's mtype and header are written over the end
 * of the previous piece. */
#define FDF_LEAST_LIMIT (FDW_FRAME_HEADER + FDF_MTYPE_SIZE + FDW_FRAME_HEADER)

/* A message, or a frame in pieces, on its way out.  `message` holds mtype and payload. */
typedef struct {
    uint8_t *message;
    int64_t size;       /* payload bytes of the whole */
    int64_t piece;      /* body bytes of a fragment; 0: sent whole */
    int32_t next;       /* fragment to be sent next */
    int32_t fragments;  /* 1: sent whole */
    int32_t sealed;     /* it has its checksum */
    int32_t asked;      /* the limit was asked for since the message is on its way */
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

/* ---- Reassembling ----------------------------------------------------------------------------------- */

/* Does the header of a fragment belong to the open frame of its sender, as its next piece? */
static inline int fdf_continues(const fdf_sender *s, const fdw_frame_header *h, int64_t body)
{
    fdw_frame_header next = s->header; /* all of it: no checksum covers what only a later piece says */
    next.fragment++;
    return memcmp(&next, h, sizeof next) == 0 && body <= (int64_t)h->total - s->filled;
}

enum fdf_result { FDF_REFUSED = -1, FDF_NO_MEMORY = -2, FDF_MORE = 0, FDF_WHOLE = 1 };

/* The first fragment of a frame. */
static inline int fdf_accept_first(fdf_assembly *a, const fdw_frame_header *h, const fdw_message *m, int64_t now)
{
    fdf_sender *s;
    fdf_lose_silent(a, now); /* before looking for the sender: one that has long been silent may be forgotten */
    s = fdf_find(a, h->sender);
    if (s == NULL) {
        if ((s = fdf_add(a, h->sender, now)) == NULL)
            return FDF_NO_MEMORY;
    } else {
        fdf_heard(a, s, now);
        if (s->data != NULL)
            fdf_lose(a, s); /* it has begun another */
    }
    if (fdf_open(a, s, h, m->size, now) < 0)
        return FDF_NO_MEMORY;
    return fdw_copy(m, 0, s->data, m->size) < 0 ? FDF_REFUSED : FDF_MORE;
}

/* A fragment that continues no open frame; s: its sender, NULL if nothing is known about it. */
static inline int fdf_skip(fdf_assembly *a, fdf_sender *s, const fdw_frame_header *h, int64_t now)
{
    if (s == NULL) {
        if ((s = fdf_add(a, h->sender, now)) == NULL) { /* nothing to remember it by */
            fdc_add(&a->incomplete, 1);
            return FDF_MORE;
        }
    } else {
        fdf_heard(a, s, now);
        if (s->data != NULL)
            fdf_lose(a, s);
    }
    fdf_count_lost(a, s, h->seq);
    fdf_rest(a, s);
    return FDF_MORE;
}

/* The last fragment of a frame has arrived. */
static inline int fdf_finish(fdf_assembly *a, fdf_sender *s, const fdw_layout *layout, int channel, int64_t now,
                             fdw_message *m, fdw_fault *fault)
{
    fdw_frame_header h = s->header;
    if (s->filled != (int64_t)h.total) {
        fdf_lose(a, s);
        return FDF_MORE;
    }
    h.fragment = 0;
    h.fragments = 1;
    memcpy(s->data, &h, sizeof h);
    a->whole = fdf_take_data(a, s);
    if (fdw_open_frame(m, layout, channel, a->whole, h.total, a->verify, fault) < 0) {
        fdf_rest(a, s);
        return FDF_REFUSED;
    }
    a->numbered |= m->service != 0;
    fdf_count_completed(a, s, now);
    return FDF_WHOLE;
}

/* Refuse what belongs to another service, which shares the queue.  A frame whose checksum is wrong is not judged
 * by its number, which may be what has changed. */
static inline int fdf_check_service(fdf_assembly *a, const void *data, int64_t size, fdw_fault *fault)
{
    const uint32_t service = fdw_service_in(data, size);
    fdw_frame_header h;
    if (a->service == 0 || service == a->service || (service == 0 && !a->numbered) || !fdw_is_frame(data, size))
        return 0;
    memcpy(&h, data, sizeof h);
    if (a->verify && h.fragments == 1 && h.features & FDW_CHECKSUMMED && h.checksum != fdw_checksum_of(data, size))
        return 0;
    fdc_add(&a->foreign, 1);
    return fdw_refuse(fault, FDW_SERVICE, -1, service, a->service);
}

/* Take one compact message.  FDF_WHOLE: *m is an opened frame, valid until the next call.  FDF_MORE: wait for
 * the rest (or it was a stray piece, skipped).  FDF_REFUSED: it is inconsistent, *fault says why.
 * FDF_NO_MEMORY: there is none for this piece of a frame, which is lost. */
static inline int fdf_accept(fdf_assembly *a, const fdw_layout *layout, int channel, const void *data,
                             int64_t size, int64_t now, fdw_message *m, fdw_fault *fault)
{
    fdw_frame_header h;
    fdf_sender *s;
    const int64_t body = size - FDW_FRAME_HEADER;
    if (a->whole != NULL) {
        free(a->whole);
        a->whole = NULL;
    }
    if (fdf_check_service(a, data, size, fault) < 0 || fdw_open_header(m, &h, layout, channel, data, size, 0, fault) < 0)
        return FDF_REFUSED;
    if (h.fragments == 1) {
        const int status = fdw_open_frame(m, layout, channel, data, size, a->verify, fault);
        if (status < 0 && fault->field == FDW_CHECKSUM)
            return FDF_REFUSED; /* its sender is unknown */
        s = fdf_find(a, h.sender);
        if (s != NULL) {
            fdf_heard(a, s, now);
            if (s->data != NULL)
                fdf_lose(a, s); /* its sender has begun another */
        }
        a->numbered |= status == 0 && m->service != 0;
        return status < 0 ? FDF_REFUSED : FDF_WHOLE;
    }
    fdc_add(&a->fragments, 1);
    if (h.fragment == 0) {
        if (size > (int64_t)h.total)
            return fdw_refuse(fault, FDW_LENGTH, -1, size, h.total);
        return fdf_accept_first(a, &h, m, now);
    }
    s = fdf_find(a, h.sender);
    if (s == NULL || s->data == NULL || !fdf_continues(s, &h, body))
        return fdf_skip(a, s, &h, now);
    fdf_heard(a, s, now);
    if (fdf_grow(a, s, body, now) < 0)
        return FDF_NO_MEMORY;
    if (fdw_copy(m, FDW_FRAME_HEADER, s->data + s->filled, body) < 0)
        return FDF_REFUSED;
    s->filled += body;
    s->header.fragment = h.fragment;
    return h.fragment + 1 < h.fragments ? FDF_MORE : fdf_finish(a, s, layout, channel, now, m, fault);
}

#endif
