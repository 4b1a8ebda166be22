/* What must hold of every message that the gate lets through; shared by the fuzz targets. */
#ifndef FD_POSTPROC_FUZZ_CHECK_H
#define FD_POSTPROC_FUZZ_CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fd_postproc/headers/frames.h"
#include "fd_postproc/headers/gather.h"
#include "fd_postproc/headers/write.h"

/* Small layouts, so that small inputs reach their bounds; and FastDeploy's own. */
static const fdw_layout LAYOUTS[] = {{4, 2, 3, 3}, {1, 1, 1, 1}, {9, 20, 6, 5}, {512, 20, 6, 256}};
enum { N_LAYOUTS = sizeof LAYOUTS / sizeof *LAYOUTS };

#define INSIST(condition)                                                           \
    do {                                                                            \
        if (!(condition)) {                                                         \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
            abort();                                                                \
        }                                                                           \
    } while (0)

/* Memory of exactly that size, so that a sanitizer sees a byte too many. */
static void *exactly(int64_t size)
{
    void *memory = malloc((size_t)(size > 0 ? size : 1));
    INSIST(size >= 0 && memory != NULL);
    memset(memory, 0, (size_t)size);
    return memory;
}

/* An opened message as a step of its own memory (to be freed: block.counts). */
static fdw_step gathered(const fdw_message *m)
{
    fdw_step s;
    memset(&s, 0, sizeof s);
    s.channel = m->channel;
    s.stop_flag = m->stop_flag;
    s.flag = m->flag;
    s.batch = m->batch;
    s.rows = m->rows;
    s.cols = m->cols;
    s.seq = m->seq;
    s.block = fdw_block_in(exactly(fdw_block_size(m->channel, m->batch, m->rows, m->cols)), m->channel,
                           m->batch, m->rows, m->cols);
    INSIST(fdw_gather(m, &s.block) == 0);
    INSIST(s.block.offsets[0] == 0 && s.block.offsets[m->batch] == m->rows);
    for (int32_t i = 0; i < m->batch; i++) {
        const int32_t count = s.block.counts[i];
        INSIST(count <= m->at.depth);
        INSIST(s.block.offsets[i + 1] - s.block.offsets[i] == (count > 0 ? count : 0));
    }
    return s;
}

static int same(const fdw_step *a, const fdw_step *b)
{
    const size_t cells = (size_t)a->rows * (size_t)a->cols * 4;
    return a->batch == b->batch && a->rows == b->rows && a->cols == b->cols && a->stop_flag == b->stop_flag
        && memcmp(a->block.counts, b->block.counts, 4 * (size_t)a->batch) == 0
        && memcmp(a->block.ids, b->block.ids, cells) == 0
        && (a->block.scores == NULL
            || (memcmp(a->block.scores, b->block.scores, cells) == 0
                && memcmp(a->block.ranks, b->block.ranks, 4 * (size_t)a->rows) == 0));
}

/* Write the step in a dialect and read it again. */
static inline void goes_round(const fdw_step *s, const fdw_layout *layout, int dialect)
{
    fdw_message m, again;
    fdw_fault fault;
    fdw_draft draft;
    fdw_step copy;
    int status;
    if (fdw_plan_step(&m, layout, s, dialect, &fault) < 0)
        return; /* a frame may hold more requests than a message */
    draft.size = m.claimed;
    draft.data = exactly(m.claimed);
    INSIST(fdw_write_step(&m, s, &draft) == 0);
    if (dialect == FDW_COMPACT)
        fdw_seal(draft.data, draft.size);
    status = dialect == FDW_COMPACT
        ? fdw_open_frame(&again, layout, s->channel, draft.data, draft.size, 1, &fault)
        : fdw_open(&again, layout, s->channel, draft.data, draft.size, &fault);
    INSIST(status == 0 && again.claimed == draft.size);
    copy = gathered(&again);
    if (dialect != FDW_LEGACY || s->cols == m.cols) /* else it got filler columns */
        INSIST(same(s, &copy));
    free(copy.block.counts);
    free(draft.data);
}

/* An opened message: gather it, fill tensors with it, and write it again in every dialect. */
static inline void check_message(const fdw_message *m, const fdw_layout *layout)
{
    const fdw_geometry stock = fdw_geometry_of(layout, m->channel, FDW_PACKED, m->cols);
    const fdw_step s = gathered(m);
    INSIST(m->batch >= 0 && m->rows >= 0 && m->cols >= 1 && m->claimed <= m->size);
    for (int32_t columns = 1; columns <= stock.width; columns += stock.width - 1 ? stock.width - 1 : 1) {
        const int logprobs = fdw_has_logprobs(m->channel);
        fdw_tensors to;
        to.tokens = exactly(8 * fdw_token_elements(&stock));
        to.scores = logprobs ? exactly(4 * fdw_score_elements(&stock)) : NULL;
        to.ranks = logprobs ? exactly(8 * fdw_rank_elements(&stock)) : NULL;
        INSIST(fdw_fill(m, layout, &to, columns) == (m->batch > stock.slots ? -1 : 0));
        free(to.tokens);
        free(to.scores);
        free(to.ranks);
    }
    goes_round(&s, layout, FDW_PACKED);
    goes_round(&s, layout, FDW_LEGACY);
    goes_round(&s, layout, FDW_COMPACT);
    free(s.block.counts);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif
