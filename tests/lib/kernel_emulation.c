/* The kernel body on the CPU, and the CPU's own packer beside it. */
#include <stdlib.h>

#include "cuda/decide.h"

/* The arrays in the order of fdk_job. */
enum { TOKENS, IDS, SCORES, RANKS, COUNTS, OFFSETS, DECODED, PROMPTS, PREEMPTED, STEPS, N_ARRAYS };

typedef struct {
    fdw_layout layout;
    int32_t op, dialect, batch, cols, stop_flag, flag, skip_prefill, capacity;
    int64_t width, rows;
    uint64_t seq, sender;
    uint32_t service;
    int64_t on_host;        /* bit k: array k is in host memory; all that decide: the host decides */
    fdk_array arrays[N_ARRAYS];
    const void *contiguous[N_ARRAYS]; /* the same numbers, as fdp_source has them */
    const int32_t *live_batch;
    const uint8_t *not_need_stop;
} call;

static fdp_source source_of(const call *c)
{
    fdp_source s;
    s.op = c->op;
    s.batch = c->batch;
    s.cols = c->cols;
    s.stop_flag = c->stop_flag;
    s.flag = c->flag;
    s.depth = fdw_geometry_of(&c->layout, fdp_channel(c->op), FDW_LEGACY, 0).depth;
    s.skip_prefill = c->skip_prefill;
    s.width = c->width;
    s.rows = c->rows;
    s.tokens = c->contiguous[TOKENS];
    s.ids = c->contiguous[IDS];
    s.scores = c->contiguous[SCORES];
    s.ranks = c->contiguous[RANKS];
    s.counts = c->contiguous[COUNTS];
    s.offsets = c->contiguous[OFFSETS];
    s.decoded = c->contiguous[DECODED];
    s.prompts = c->contiguous[PROMPTS];
    s.preempted = c->contiguous[PREEMPTED];
    s.steps = c->contiguous[STEPS];
    return s;
}

int64_t emu_capacity(const call *c)
{
    return fdk_capacity(&c->layout, fdp_channel(c->op), c->dialect);
}

/* As Sender._save does it: the length of the message, or -1 (nothing written) or -2 with the reason in *fault. */
int64_t emu_on_cpu(const call *c, uint8_t *payload, fdp_fault *fault)
{
    const fdp_source s = source_of(c);
    fdw_message m;
    fdw_draft draft;
    fdp_settled settled[4096];
    if (c->batch > 4096 || fdp_plan(&m, &s, &c->layout, c->dialect, settled, fault) < 0)
        return -1;
    m.seq = c->seq;
    m.sender = c->sender;
    m.service = c->service;
    draft.data = payload;
    draft.size = m.claimed;
    return fdp_write(&m, &s, settled, &draft, fault) < 0 ? -2 : m.claimed;
}

/* xorshift64* */
static uint32_t below(uint64_t *state, uint32_t bound)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return (uint32_t)((*state * 0x2545F4914F6CDD1Du >> 32) % bound);
}

typedef struct {
    int32_t phase, done;
    int32_t *order;     /* of its threads, in this phase */
    uint8_t *shared;
} emulated_block;

static void shuffle(int32_t *order, int32_t n, uint64_t *state)
{
    for (int32_t k = n - 1; k > 0; k--) {
        const int32_t other = (int32_t)below(state, (uint32_t)k + 1), kept = order[k];
        order[k] = order[other];
        order[other] = kept;
    }
}

enum { GUARD = 64 };

/* Run all threads: those of a block in another random order in each phase, the blocks' steps mixed. */
static int run(const fdk_job *job, int32_t blocks, int32_t threads, uint64_t state)
{
    const int64_t bytes = fdk_shared_bytes(job->batch, threads);
    emulated_block *all = calloc((size_t)blocks, sizeof *all);
    int32_t running = blocks, *left = malloc(sizeof *left * (size_t)blocks);
    int intact = 1;
    for (int32_t b = 0; b < blocks; b++) {
        left[b] = b;
        all[b].order = malloc(sizeof(int32_t) * (size_t)threads);
        all[b].shared = malloc((size_t)bytes + GUARD);
        memset(all[b].shared, 0xA5, (size_t)bytes + GUARD);
        for (int32_t k = 0; k < threads; k++)
            all[b].order[k] = k;
        shuffle(all[b].order, threads, &state);
    }
    while (running > 0) {
        const int32_t chosen = (int32_t)below(&state, (uint32_t)running), b = left[chosen];
        emulated_block *block = &all[b];
        const uint32_t some = 1 + below(&state, (uint32_t)threads);
        for (uint32_t k = 0; k < some && block->done < threads; k++)
            fdk_phase(job, block->phase, block->shared, b, block->order[block->done++], blocks, threads);
        if (block->done < threads)
            continue;
        block->done = 0;
        shuffle(block->order, threads, &state);
        if (++block->phase == FDK_PHASES)
            left[chosen] = left[--running];
    }
    for (int32_t b = 0; b < blocks; b++) {
        for (int64_t k = bytes; k < bytes + GUARD; k++)
            intact &= all[b].shared[k] == 0xA5;
        free(all[b].order);
        free(all[b].shared);
    }
    free(all);
    free(left);
    return intact;
}

/* Have the host decide, if it can: 1.  A payload is written to only if it is to be sent. */
static int decide(const call *c, fdk_job *job, int32_t *payload, uint64_t *plan, fdp_fault *fault)
{
    uint8_t on_host[FDK_ARRAYS], *written;
    fdk_array *arrays = &job->tokens;
    int status;
    for (int k = 0; k < FDK_ARRAYS; k++)
        on_host[k] = c->on_host >> k & 1;
    if (!fdk_decidable(job, on_host))
        return 0;
    written = malloc((size_t)c->capacity);
    memcpy(written, payload, (size_t)c->capacity);
    status = fdk_decide(job, on_host[0], (int32_t *)written, plan, fault);
    if (status == 0) {
        memcpy(payload, written, (size_t)c->capacity);
        job->plan = plan;
    }
    free(written);
    for (int k = FDK_FIRST_DECIDING; k < FDK_ARRAYS; k++)
        arrays[k].data = NULL;
    return status < 0 ? -1 : 1;
}

/* 0, or 1 if the host had decided; -1: refused by fdk_prepare, or by the host; -2: a thread wrote behind its block's
 * shared memory.  `blocks` 0: as many as the host would launch. */
int emu_on_device(const call *c, int32_t blocks, int32_t threads, uint64_t seed, int32_t *payload,
                  fdk_result *result, fdp_fault *fault)
{
    const fdp_source s = source_of(c);
    fdk_job job;
    uint64_t *plan;
    int decided, intact;
    if (fdk_prepare(&job, &s, &c->layout, c->dialect, c->seq, c->sender, c->service, c->capacity, fault) < 0)
        return -1;
    memcpy(&job.tokens, c->arrays, sizeof c->arrays); /* in this order, one behind the other */
    job.live_batch = c->live_batch;
    job.not_need_stop = c->not_need_stop;
    job.payload = payload;
    job.result = result;
    plan = malloc((size_t)fdk_plan_bytes(&job) + 1);
    decided = decide(c, &job, payload, plan, fault);
    result->length = FDK_NOT_RUN;
    result->wide = 0;
    blocks = blocks > 0 ? blocks : fdk_blocks(&job);
    intact = decided < 0 || run(&job, blocks, threads, seed | 1);
    free(plan);
    return intact ? decided : -2;
}
