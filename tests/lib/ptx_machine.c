/* How the threads of translated PTX run; see ptx_machine.h. */

static int run_thread(thread_state *t);

static void add_region(const char *name, const void *from, int64_t size, int writable, int anybody)
{
    region *r = &regions[n_regions++];
    if (from == NULL || size <= 0) {
        n_regions--;
        return;
    }
    *r = (region){name, (uint64_t)(uintptr_t)from, (uint64_t)size, !writable, writable, anybody, NULL};
    if (writable) {
        r->words = malloc(sizeof *r->words * (size_t)(size / 4 + 1));
        for (int64_t k = 0; k <= size / 4; k++)
            r->words[k] = (word_watch){-1, 0, -2, -1};
    }
}

static int64_t extent(const fdk_array *a, int64_t rows, int64_t cols)
{
    const int64_t last = (rows - 1) * a->row + (cols - 1) * a->col;
    return rows <= 0 || cols <= 0 ? 0 : (last + 1) * (a->type == FDK_INT64 ? 8 : 4);
}

static void add_regions(void)
{
    const fdk_array *arrays = &job->tokens;
    uint8_t *result = (uint8_t *)job->result;
    const int64_t wide = offsetof(fdk_result, wide);
    add_region("tokens", job->tokens.data, extent(&job->tokens, job->batch, job->terms.width), 0, 0);
    add_region("ids", job->ids.data, extent(&job->ids, job->terms.rows, job->cols), 0, 0);
    add_region("scores", job->scores.data, extent(&job->scores, job->terms.rows, job->cols), 0, 0);
    add_region("ranks", job->ranks.data, extent(&job->ranks, job->terms.rows, 1), 0, 0);
    for (int k = 4; k < FDK_ARRAYS; k++)
        add_region("of requests", arrays[k].data, extent(&arrays[k], job->batch, 1), 0, 0);
    add_region("live_batch", job->live_batch, 4, 0, 0);
    add_region("not_need_stop", job->not_need_stop, 1, 0, 0);
    add_region("plan", job->plan, 8 * (int64_t)job->planned_rows, 0, 0);
    add_region("payload", job->payload, 4 * (int64_t)job->capacity, 1, 0);
    add_region("length", result, wide, 1, 0);
    add_region("wide", result + wide, 8, 1, 1);
    add_region("fault", result + wide + 8, (int64_t)sizeof(fdk_result) - wide - 8, 1, 0);
}

static uint64_t state;

static int32_t below(int32_t bound)
{
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return (int32_t)((state * 0x2545F4914F6CDD1Du >> 32) % (uint32_t)bound);
}

static void shuffle(int32_t *order)
{
    for (int32_t k = n_threads - 1; k > 0; k--) {
        const int32_t other = below(k + 1), kept = order[k];
        order[k] = order[other];
        order[other] = kept;
    }
}

static void begin_block(int32_t index)
{
    block_state *b = &blocks[index];
    *b = (block_state){n_threads, 0, 0, malloc(sizeof(int32_t) * (size_t)n_threads), 0,
                       malloc((size_t)shared_bytes + 1), malloc(sizeof(word_watch) * (size_t)(shared_bytes / 4 + 1)),
                       malloc(sizeof(thread_state) * (size_t)n_threads)};
    memset(b->shared, 0xA5, (size_t)shared_bytes);
    memset(b->threads, 0xA5, sizeof(thread_state) * (size_t)n_threads);
    for (int64_t k = 0; k <= shared_bytes / 4; k++)
        b->words[k] = (word_watch){-1, 0, -2, -1};
    for (int32_t k = 0; k < n_threads; k++) {
        thread_state *t = &b->threads[k];
        b->order[k] = k;
        t->pc = t->barriers = 0;
        t->block = index;
        t->thread = k;
    }
    shuffle(b->order);
}

/* Let one thread run to its next barrier.  1: the block has ended. */
static int advance(block_state *b)
{
    thread_state *t = &b->threads[b->order[b->next]];
    const int answer = run_thread(t);
    if (answer == ENDED)
        b->running--;
    if (b->next == 0)
        b->pc = answer == ENDED ? -1 : t->pc;
    if (b->pc != (answer == ENDED ? -1 : t->pc))
        fail(t, 0, "threads of a block are not at the same barrier", 0);
    if (++b->next < n_threads)
        return 0;
    b->next = 0;
    b->epoch++;
    shuffle(b->order);
    return b->pc == -1;
}

/* For emu_use: run the kernel.  0: a fault, see ptx_fault. */
int ptx_run(const fdk_job *with, int32_t n, int32_t threads, uint64_t seed)
{
    int32_t *left = malloc(sizeof *left * (size_t)n);
    volatile int32_t running = n;
    job = with;
    n_blocks = n;
    n_threads = threads;
    shared_bytes = job->plan != NULL ? 0 : fdk_shared_bytes(job->batch, threads) - ptx_missing_shared;
    n_regions = 0;
    n_stores = 0;
    state = seed;
    fault[0] = 0;
    add_regions();
    blocks = calloc((size_t)n, sizeof *blocks);
    for (int32_t k = 0; k < n; k++) {
        left[k] = k;
        begin_block(k);
    }
    if (setjmp(end) == 0)
        while (running > 0) {
            const int32_t chosen = below(running);
            const int32_t some = 1 + below(n_threads);
            for (int32_t k = 0; k < some; k++)
                if (advance(&blocks[left[chosen]])) {
                    left[chosen] = left[running - 1];
                    running--;
                    break;
                }
        }
    for (int32_t k = 0; k < n; k++) {
        free(blocks[k].order);
        free(blocks[k].shared);
        free(blocks[k].words);
        free(blocks[k].threads);
    }
    for (int k = 0; k < n_regions; k++)
        free(regions[k].words);
    free(blocks);
    free(left);
    return fault[0] == 0;
}
