/* SPDX-License-Identifier: Apache-2.0
 *
 * The numbers of the frames of each sender: which are missing, came twice, or came late.
 *
 * The numbers are a witness, not a judge: every frame that is whole is delivered.  Any process that may write to the
 * queue can use another sender's number, and a recording that is replayed twice has its numbers twice.
 *
 * Memory is fixed: of the senders, the last FDN_MOST are known.  No system call, no allocation and no Python.
 */
#ifndef FD_POSTPROC_SEQUENCES_H
#define FD_POSTPROC_SEQUENCES_H

#include "fd_postproc/headers/counter.h"

#define FDN_MOST 64
#define FDN_WINDOW 64                   /* frames before the latest of which it is known whether they came */
#define FDN_MOST_MISSING (1 << 20)      /* that one gap counts as, however large: the numbers may be forged */

typedef struct {
    int64_t sender;                     /* its number's bits */
    int64_t next;                       /* likewise of the number after the highest that came */
    uint64_t came;                      /* bit k: frame next - 1 - k came */
    int64_t frames;                     /* all that came; 0: a free place */
    int64_t missing, doubled, reordered;
    uint64_t turn;                      /* when it was heard, in frames */
} fdn_sender;

typedef struct {
    fdn_sender senders[FDN_MOST];
    int32_t last;                       /* who was heard last */
    uint64_t turn;
    int64_t missing, doubled, reordered; /* of all */
} fdn_sequences;

/* Forget the senders; what was counted stays. */
static inline void fdn_begin(fdn_sequences *all)
{
    for (int k = 0; k < FDN_MOST; k++)
        fdc_set(&all->senders[k].frames, 0);
    all->last = 0;
}

/* The place of a sender: its own, or that of the one that has been silent longest. */
static inline fdn_sender *fdn_find(fdn_sequences *all, int64_t sender)
{
    fdn_sender *s = &all->senders[all->last], *oldest = s;
    if (s->frames > 0 && s->sender == sender)
        return s;
    for (int32_t k = 0; k < FDN_MOST; k++) {
        s = &all->senders[k];
        if (s->frames > 0 && s->sender == sender) {
            all->last = k;
            return s;
        }
        if (oldest->frames > 0 && (s->frames == 0 || s->turn < oldest->turn))
            oldest = s;
    }
    fdc_set(&oldest->frames, 0);
    fdc_set(&oldest->sender, sender);
    all->last = (int32_t)(oldest - all->senders);
    return oldest;
}

/* A whole frame has come. */
static inline void fdn_note(fdn_sequences *all, uint64_t sender, uint64_t seq)
{
    fdn_sender *s = fdn_find(all, (int64_t)sender);
    const int64_t ahead = (int64_t)(seq - (uint64_t)s->next); /* numbers go round, too */
    s->turn = ++all->turn;
    if (s->frames == 0) { /* a new sender may begin at any number */
        fdc_set(&s->missing, 0);
        fdc_set(&s->doubled, 0);
        fdc_set(&s->reordered, 0);
        s->came = 1;
        fdc_set(&s->next, (int64_t)(seq + 1));
    } else if (ahead >= 0) {
        const int64_t missing = ahead < FDN_MOST_MISSING ? ahead : FDN_MOST_MISSING;
        s->came = ahead < FDN_WINDOW - 1 ? s->came << (ahead + 1) | 1 : 1;
        fdc_set(&s->next, (int64_t)(seq + 1));
        if (missing > 0) {
            fdc_add(&s->missing, missing);
            fdc_add(&all->missing, missing);
        }
    } else if (-(ahead + 1) < FDN_WINDOW && s->came >> -(ahead + 1) & 1) {
        fdc_add(&s->doubled, 1);
        fdc_add(&all->doubled, 1);
    } else { /* also so far behind that it is unknown */
        if (-(ahead + 1) < FDN_WINDOW)
            s->came |= 1ULL << -(ahead + 1);
        fdc_add(&s->reordered, 1);
        fdc_add(&all->reordered, 1);
    }
    fdc_add(&s->frames, 1);
}

#endif
