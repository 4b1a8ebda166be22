/* SPDX-License-Identifier: Apache-2.0
 *
 * What one request contributes to a message: the six save ops differ here, and nowhere else.
 *
 * Compiled for the CPU (headers/pack.h) and for the GPU (cuda/pack.h).  Includes nothing, because a kernel's
 * compiler may have no standard headers: who includes this has int32_t and int64_t already.
 */
#ifndef FD_POSTPROC_REQUEST_H
#define FD_POSTPROC_REQUEST_H

#ifdef __CUDACC__
#define FDP_FN static __host__ __device__ __inline__
#else
#define FDP_FN static inline
#endif

enum fdp_op {
    FDP_SAVE_OUTPUT,        /* plain */
    FDP_SAVE_OUTPUT_TOPK,   /* topk */
    FDP_SPECULATE,          /* spec */
    FDP_SPECULATE_TOPK,     /* spec_topk */
    FDP_FIRST,              /* spec: first token of a prefill node */
    FDP_FIRST_TOPK,         /* spec_topk: likewise */
};

#define FDP_PREEMPTED (-9)
#define FDP_LEAST (-2147483647 - 1)
#define FDP_MOST 2147483647

/* Of these ops every slot has one token, which tells by its sign whether it is one. */
FDP_FN int fdp_one_token(int op)
{
    return op == FDP_SAVE_OUTPUT || op == FDP_SAVE_OUTPUT_TOPK;
}

/* What all requests of a call have in common. */
typedef struct {
    int32_t op;
    int32_t skip_prefill;   /* FDP_SPECULATE, FDP_FIRST: requests in chunked prefill send nothing */
    int32_t depth;          /* tokens that a slot can hold */
    int64_t width;          /* columns of the sampled tokens */
    int64_t rows;           /* logprob rows there are */
} fdp_terms;

/* What the tensors say about one request; 0 where the op has no such tensor. */
typedef struct {
    int64_t token;      /* first sampled token; asked for only if fdp_one_token */
    int32_t count;      /* accepted tokens */
    int32_t in_prefill; /* not all of its prompt is processed */
    int32_t preempted;
    int64_t first;      /* first logprob row */
    int64_t step;
} fdp_given;

/* What the request contributes. */
typedef struct {
    int32_t count;      /* the number on the wire: tokens, or a code */
    int32_t filled;     /* tokens that FastDeploy writes into the slot, counted or not */
    int32_t scored;     /* of those, the first ones with logprobs */
    int32_t code;       /* written instead of every token id, if not 0 */
    int64_t first;      /* logprob row of its first token */
} fdp_request;

FDP_FN fdp_request fdp_decide(const fdp_terms *terms, int64_t i, const fdp_given *g)
{
    fdp_request r = {0, 0, 0, 0, 0};
    switch (terms->op) {
    case FDP_SAVE_OUTPUT:
    case FDP_SAVE_OUTPUT_TOPK:
        r.count = g->token >= 0 ? 1 : g->token < FDP_LEAST ? FDP_LEAST : (int32_t)g->token;
        r.filled = 1;
        r.scored = terms->op == FDP_SAVE_OUTPUT_TOPK;
        r.code = g->preempted ? FDP_PREEMPTED : 0;
        r.first = i;
        break;
    case FDP_SPECULATE:
        r.count = terms->skip_prefill && g->in_prefill ? 0 : g->count;
        r.filled = (int32_t)(terms->width < terms->depth ? terms->width : terms->depth); /* accepted or not */
        break;
    case FDP_FIRST:
        /* Later steps are the decode node's: FastDeploy repeats old tokens then. */
        r.count = g->step == 1 && !(terms->skip_prefill && g->in_prefill) ? 2 : 0;
        r.filled = r.count;
        break;
    case FDP_SPECULATE_TOPK:
        r.count = g->in_prefill ? 0 : g->count;
        r.filled = r.scored = r.count;
        r.first = g->first;
        break;
    case FDP_FIRST_TOPK: /* the first token, and the draft tokens that the decode node goes on from */
        r.count = g->in_prefill ? 0 : g->count;
        r.count += r.count > 0 && r.count < FDP_MOST;
        r.filled = r.count;
        r.scored = r.count > 0;
        r.first = g->first;
        break;
    }
    if (g->preempted) { /* the slot is filled, but never read: no reason to refuse the step */
        r.count = FDP_PREEMPTED;
        if (r.code == 0 && (r.filled > terms->width || r.filled > terms->depth || r.first < 0
                            || r.first + r.scored > terms->rows))
            r.filled = r.scored = 0;
    }
    return r;
}

enum fdp_reason {
    FDP_TOO_MANY,       /* tokens of one request: value, bound */
    FDP_TOO_NARROW,     /* the sampled tokens have fewer columns (bound) than the request has tokens (value) */
    FDP_NO_ROW,         /* logprob row (value) of a request beyond the tensor's (bound) */
    FDP_TOKEN_WIDE, FDP_ID_WIDE, FDP_RANK_WIDE, /* element index: value does not fit 32 bits */
    FDP_BATCH, FDP_COLUMNS, /* value, bound */
};

typedef struct {
    int32_t reason;
    int64_t index;      /* request, or flat index of the element */
    int64_t value;
    int64_t bound;
} fdp_fault;

FDP_FN int fdp_refuse(fdp_fault *fault, int reason, int64_t index, int64_t value, int64_t bound)
{
    fault->reason = reason;
    fault->index = index;
    fault->value = value;
    fault->bound = bound;
    return -1;
}

/* Every number that decides where something of this request is read or written.  0, or -1 with the reason. */
FDP_FN int fdp_check(const fdp_terms *terms, int64_t i, const fdp_given *g, const fdp_request *r,
                     fdp_fault *fault)
{
    const int32_t live = terms->op == FDP_SPECULATE ? r->count : r->filled; /* tokens that have to be there */
    if (live > terms->depth)
        return fdp_refuse(fault, FDP_TOO_MANY, i, live, terms->depth);
    if (live > terms->width)
        return fdp_refuse(fault, FDP_TOO_NARROW, i, live, terms->width);
    if (r->scored > 0 && (r->first < 0 || r->first + r->scored > terms->rows))
        return fdp_refuse(fault, FDP_NO_ROW, i, r->first < 0 ? r->first : r->first + r->scored - 1,
                          terms->rows);
    if (fdp_one_token(terms->op) && r->code == 0 && g->token < FDP_LEAST)
        return fdp_refuse(fault, FDP_TOKEN_WIDE, i * terms->width, g->token, 0);
    return 0;
}

#endif
