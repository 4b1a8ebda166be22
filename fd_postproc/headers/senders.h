/* SPDX-License-Identifier: Apache-2.0
 *
 * The senders of frames in pieces: what has arrived of each one's frame, and whose is given up when room is
 * short.
 *
 * Any process that may write to the queue can begin frames under any number of sender numbers.  So a sender is a
 * stranger until it has completed a frame, and strangers share a room of their own: no number of them costs a
 * known sender anything.  Among strangers, the one of whom least has arrived, in powers of two, goes first,
 * because a genuine frame grows; of equals, the one that has been silent longest.
 *
 * Memory of a stranger's frame grows as pieces arrive.  No system call and no Python; docs/wire-protocol.md,
 * section 13.3, has the rules.
 */
#ifndef FD_POSTPROC_SENDERS_H
#define FD_POSTPROC_SENDERS_H

#include <stdlib.h>

#include "fd_postproc/headers/counter.h"
#include "fd_postproc/headers/gate.h"

#ifndef FDF_LEAST_ROOM /* a fuzzer makes these small */
#define FDF_LEAST_ROOM (512 << 10)      /* bytes for the frames of all strangers, less sections, if the longest frame is shorter */
#define FDF_MOST_KNOWN 64               /* senders that have completed a frame */
#define FDF_MOST_REMEMBERED 256         /* strangers without an open frame, for what they lost */
#define FDF_BUCKET_BITS 11
#endif
#define FDF_KNOWN_ROOMS 8               /* the room of known senders, in rooms of strangers */
#define FDF_ENTRY_COST 192              /* bytes that an open frame is charged with, in addition to its own */
#define FDF_IDLE_NS 5000000000          /* after this long without a piece, a sender goes first */
#define FDF_SILENT_NS 60000000000       /* and after this long its open frame is given up anyway */
#define FDF_STALLED_NS 1000000000       /* after this long, with nothing left to read, it counts as incomplete */
#define FDF_SIZES 16                    /* classes of strangers, by bytes arrived, in powers of two */

enum { FDF_REMEMBERED = FDF_SIZES, FDF_KNOWN_IDLE, FDF_KNOWN_OPEN, FDF_LISTS, FDF_NO_LIST = -1 };
#define FDF_STRANGERS ((1u << FDF_SIZES) - 1)                   /* lists of strangers with an open frame */
#define FDF_OPEN (FDF_STRANGERS | 1u << FDF_KNOWN_OPEN)         /* and of everybody */

typedef struct fdf_sender {
    struct fdf_sender *next;            /* in its bucket */
    struct fdf_sender *older, *newer;   /* in its list */
    uint64_t id;
    uint64_t lost;          /* its last frame of which something is missing: counted, other pieces are skipped */
    int64_t completed;      /* frames; 0: a stranger */
    int64_t heard;          /* monotonic ns of its last message */
    uint64_t turn;          /* the same, but never twice */
    uint8_t *data;          /* its open frame, as if it had arrived whole; NULL: none */
    int64_t room;           /* bytes taken for it */
    int64_t filled;         /* bytes of it that came */
    fdw_frame_header header; /* of its last piece */
    int32_t list;
    int32_t has_lost;
} fdf_sender;
_Static_assert(sizeof(fdf_sender) + 2 * 16 <= FDF_ENTRY_COST, "with what malloc adds to two blocks");

typedef struct {
    fdf_sender *oldest, *newest;
} fdf_list;

typedef struct {
    fdf_sender **buckets;   /* NULL until the first piece of a frame arrives */
    uint64_t multiplier;    /* odd, and unknown to those who choose sender numbers */
    fdf_list lists[FDF_LISTS];
    uint32_t used;          /* bit k: list k is not empty */
    uint64_t turn;
    int64_t limit;          /* bytes for the open frames of strangers */
    int64_t strangers;      /* of those, in use */
    int64_t known;          /* likewise of known senders, of FDF_KNOWN_ROOMS times as many */
    int32_t n_known, n_remembered;
    uint8_t *whole;         /* the frame handed out last; lives until the next message */
    int verify;             /* check the checksum of a frame that has one */
    uint32_t service;       /* number of the service that frames must belong to; 0: any, or none */
    int numbered;           /* a frame with this number has come: its senders know it, so that all must have it */
    int64_t foreign;        /* messages of another service, refused */
    int64_t fragments;      /* received */
    int64_t incomplete;     /* frames given up */
    int64_t open;           /* frames of which something has come, and not all */
} fdf_assembly;

/* seed: a random number. */
static inline void fdf_begin(fdf_assembly *a, const fdw_layout *layout, int channel, int verify, uint64_t seed)
{
    const int64_t longest = fdz_padded(fdw_longest_frame(layout, channel)) + FDF_ENTRY_COST;
    memset(a, 0, sizeof *a);
    a->multiplier = seed | 1;
    a->verify = verify;
    a->limit = (longest > FDF_LEAST_ROOM ? longest : FDF_LEAST_ROOM) + FDW_MOST_EXTRA;
}

/* ---- Lists: who was heard when ------------------------------------------------------------------------ */

static inline void fdf_unlist(fdf_assembly *a, fdf_sender *s)
{
    fdf_list *list;
    if (s->list == FDF_NO_LIST)
        return;
    list = &a->lists[s->list];
    *(s->older != NULL ? &s->older->newer : &list->oldest) = s->newer;
    *(s->newer != NULL ? &s->newer->older : &list->newest) = s->older;
    a->n_remembered -= s->list == FDF_REMEMBERED;
    if (list->oldest == NULL)
        a->used &= ~(1u << s->list);
    s->list = FDF_NO_LIST;
}

static inline void fdf_list_as(fdf_assembly *a, fdf_sender *s, int list)
{
    fdf_list *to = &a->lists[list];
    if (s->list == list && to->newest == s)
        return;
    fdf_unlist(a, s);
    s->older = to->newest;
    s->newer = NULL;
    *(to->newest != NULL ? &to->newest->newer : &to->oldest) = s;
    to->newest = s;
    s->list = list;
    a->used |= 1u << list;
    a->n_remembered += list == FDF_REMEMBERED;
}

/* The class of a stranger's open frame. */
static inline int fdf_size_class(int64_t filled)
{
    const int bits = 63 - __builtin_clzll((uint64_t)filled | FDW_FRAME_HEADER) - 6;
    return bits < FDF_SIZES ? bits : FDF_SIZES - 1;
}
_Static_assert(FDW_FRAME_HEADER == 1 << 6, "the shortest piece of a frame is of class 0");

/* ---- The table ---------------------------------------------------------------------------------------- */

static inline fdf_sender **fdf_bucket(const fdf_assembly *a, uint64_t id)
{
    return &a->buckets[id * a->multiplier >> (64 - FDF_BUCKET_BITS)];
}

static inline fdf_sender *fdf_find(const fdf_assembly *a, uint64_t id)
{
    fdf_sender *s = a->buckets != NULL ? *fdf_bucket(a, id) : NULL;
    while (s != NULL && s->id != id)
        s = s->next;
    return s;
}

static inline void fdf_heard(fdf_assembly *a, fdf_sender *s, int64_t now)
{
    s->heard = now;
    s->turn = ++a->turn;
}

/* A new stranger, in no list; NULL: no memory. */
static inline fdf_sender *fdf_add(fdf_assembly *a, uint64_t id, int64_t now)
{
    fdf_sender *s, **bucket;
    if (a->buckets == NULL) {
        a->buckets = (fdf_sender **)calloc((size_t)1 << FDF_BUCKET_BITS, sizeof *a->buckets);
        if (a->buckets == NULL)
            return NULL;
    }
    s = (fdf_sender *)calloc(1, sizeof *s);
    if (s == NULL)
        return NULL;
    bucket = fdf_bucket(a, id);
    s->id = id;
    s->list = FDF_NO_LIST;
    s->next = *bucket;
    *bucket = s;
    fdf_heard(a, s, now);
    return s;
}

/* Forget a sender that has no open frame. */
static inline void fdf_forget(fdf_assembly *a, fdf_sender *s)
{
    fdf_sender **at = fdf_bucket(a, s->id);
    fdf_unlist(a, s);
    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
    free(s);
}

/* Put a sender without an open frame into the list where it belongs. */
static inline void fdf_rest(fdf_assembly *a, fdf_sender *s)
{
    fdf_list_as(a, s, s->completed > 0 ? FDF_KNOWN_IDLE : FDF_REMEMBERED);
    if (a->n_remembered > FDF_MOST_REMEMBERED)
        fdf_forget(a, a->lists[FDF_REMEMBERED].oldest);
}

static inline void fdf_free(fdf_assembly *a)
{
    for (int list = 0; list < FDF_LISTS; list++)
        for (fdf_sender *s = a->lists[list].oldest, *newer; s != NULL; s = newer) {
            newer = s->newer;
            free(s->data);
            free(s);
        }
    memset(a->lists, 0, sizeof a->lists);
    a->used = 0;
    free(a->buckets);
    a->buckets = NULL;
    free(a->whole);
    a->whole = NULL;
}

/* ---- Losing frames ------------------------------------------------------------------------------------ */

/* Take an open frame away from its sender, which stays in its list. */
static inline uint8_t *fdf_take_data(fdf_assembly *a, fdf_sender *s)
{
    uint8_t *data = s->data;
    if (s->completed > 0)
        a->known -= s->room + FDF_ENTRY_COST;
    else
        a->strangers -= s->filled + FDF_ENTRY_COST;
    s->data = NULL;
    fdc_add(&a->open, -1);
    return data;
}

/* Count a frame of which something is missing, once. */
static inline void fdf_count_lost(fdf_assembly *a, fdf_sender *s, uint64_t seq)
{
    if (s->has_lost && s->lost == seq)
        return;
    s->has_lost = 1;
    s->lost = seq;
    fdc_add(&a->incomplete, 1);
}

/* Give up an open frame. */
static inline void fdf_lose(fdf_assembly *a, fdf_sender *s)
{
    free(fdf_take_data(a, s));
    fdf_count_lost(a, s, s->header.seq);
    fdf_rest(a, s);
}

/* Give up the frames that have been silent for very long. */
static inline void fdf_lose_silent(fdf_assembly *a, int64_t now)
{
    for (uint32_t used = a->used & FDF_OPEN; used != 0; used &= used - 1) {
        const fdf_list *list = &a->lists[__builtin_ctz(used)];
        while (list->oldest != NULL && now - list->oldest->heard >= FDF_SILENT_NS)
            fdf_lose(a, list->oldest);
    }
}

/* Count the open frames of which no more has come for FDF_STALLED_NS: their senders have died, or are stopped.
 * They stay open.  To be called when nothing is left to read. */
static inline void fdf_count_stalled(fdf_assembly *a, int64_t now)
{
    for (uint32_t used = a->used & FDF_OPEN; used != 0; used &= used - 1) {
        fdf_sender *s = a->lists[__builtin_ctz(used)].oldest;
        for (; s != NULL && now - s->heard >= FDF_STALLED_NS; s = s->newer)
            fdf_count_lost(a, s, s->header.seq);
    }
}

/* Whether `one` has to go before `other`: the one that has long been idle; otherwise the one that has
 * completed fewer frames; of equals, the one that was heard first. */
static inline int fdf_goes_before(const fdf_sender *one, const fdf_sender *other, int64_t now)
{
    const int idle = now - one->heard >= FDF_IDLE_NS, other_idle = now - other->heard >= FDF_IDLE_NS;
    if (idle != other_idle)
        return idle;
    if (!idle && one->completed != other->completed)
        return one->completed < other->completed;
    return one->turn < other->turn;
}

/* Which sender of a list has to go first.  Only for known senders: there are few. */
static inline fdf_sender *fdf_first_to_go(const fdf_assembly *a, int list, fdf_sender *first, int64_t now)
{
    for (fdf_sender *s = a->lists[list].oldest; s != NULL; s = s->newer)
        if (first == NULL || fdf_goes_before(s, first, now))
            first = s;
    return first;
}

/* The stranger that has to go first. */
static inline fdf_sender *fdf_least_stranger(const fdf_assembly *a, int64_t now)
{
    fdf_sender *least = NULL, *idlest = NULL;
    for (uint32_t used = a->used & FDF_STRANGERS; used != 0; used &= used - 1) {
        fdf_sender *s = a->lists[__builtin_ctz(used)].oldest;
        if (least == NULL)
            least = s;
        if (now - s->heard >= FDF_IDLE_NS && (idlest == NULL || s->turn < idlest->turn))
            idlest = s;
    }
    return idlest != NULL ? idlest : least;
}

/* A sender has completed a frame. */
static inline void fdf_count_completed(fdf_assembly *a, fdf_sender *s, int64_t now)
{
    s->completed++;
    fdf_rest(a, s);
    if (s->completed > 1 || ++a->n_known <= FDF_MOST_KNOWN)
        return;
    s = fdf_first_to_go(a, FDF_KNOWN_OPEN, fdf_first_to_go(a, FDF_KNOWN_IDLE, NULL, now), now);
    a->n_known--;
    if (s->data != NULL)
        fdf_lose(a, s);
    s->completed = 0;
    fdf_rest(a, s);
}

/* ---- Taking memory ------------------------------------------------------------------------------------ */

/* Charge a sender, which is in no list, with `more` bytes; others are given up if needed.  One always fits.
 * */
static inline void fdf_charge(fdf_assembly *a, const fdf_sender *s, int64_t more, int64_t now)
{
    if (s->completed > 0) {
        while (a->known + more > FDF_KNOWN_ROOMS * a->limit)
            fdf_lose(a, fdf_first_to_go(a, FDF_KNOWN_OPEN, NULL, now));
        a->known += more;
    } else {
        while (a->strangers + more > a->limit)
            fdf_lose(a, fdf_least_stranger(a, now));
        a->strangers += more;
    }
}

/* Open a frame of a sender that has none.  0, or -1: no memory. */
static inline int fdf_open(fdf_assembly *a, fdf_sender *s, const fdw_frame_header *h, int64_t size, int64_t now)
{
    const int known = s->completed > 0;
    fdf_unlist(a, s);
    s->room = known ? (int64_t)h->total : size;
    s->data = (uint8_t *)malloc((size_t)s->room);
    if (s->data == NULL) {
        fdf_rest(a, s);
        return -1;
    }
    fdf_charge(a, s, s->room + FDF_ENTRY_COST, now);
    fdc_add(&a->open, 1);
    s->header = *h;
    s->filled = size;
    fdf_list_as(a, s, known ? FDF_KNOWN_OPEN : fdf_size_class(size));
    return 0;
}

/* Make room for `more` bytes of an open frame.  0, or -1: no memory, and the frame is given up. */
static inline int fdf_grow(fdf_assembly *a, fdf_sender *s, int64_t more, int64_t now)
{
    const int64_t need = s->filled + more, total = (int64_t)s->header.total;
    if (s->completed > 0) {
        fdf_list_as(a, s, FDF_KNOWN_OPEN);
        return 0;
    }
    if (need > s->room) {
        int64_t room = s->room + s->room / 2;
        uint8_t *data;
        room = room < need ? need : room < total ? room : total;
        data = (uint8_t *)realloc(s->data, (size_t)room);
        if (data == NULL) {
            fdf_lose(a, s);
            return -1;
        }
        s->data = data;
        s->room = room;
    }
    fdf_unlist(a, s);
    fdf_charge(a, s, more, now);
    fdf_list_as(a, s, fdf_size_class(need));
    return 0;
}

#endif
