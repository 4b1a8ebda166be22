/* What translated PTX (ptx_translation.py) runs on: memory that is watched, barriers, threads in any order.
 *
 * Every access is checked: it lies within one of the kernel's arrays, it is aligned, what is read has been written,
 * and no two threads meet at a word without a barrier between them.  The first fault ends the run.
 */
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/prepare.h"

#define PARAM_BASE (UINT64_C(1) << 60)
#define SHARED_BASE (UINT64_C(1) << 59)

enum { GUARD_WORDS = 16 };
enum { AT_BARRIER, ENDED };

/* Who was last at a word of 4 bytes, and when: the block's barriers so far are its epoch. */
typedef struct {
    int32_t writer, write_epoch; /* writer: block * threads + thread; -1: nobody yet */
    int32_t reader, read_epoch;
} word_watch;

typedef struct {
    const char *name;
    uint64_t from, size;
    int readable, writable;
    int anybody;        /* several threads may write the same word */
    word_watch *words;
} region;

typedef struct {
    uint32_t r[N_R];
    uint64_t rd[N_RD];
    uint16_t rs[N_RS];
    uint8_t p[N_P];
    int32_t pc;         /* the barrier that it waits at */
    int32_t barriers;   /* that it has passed */
    int32_t block, thread;
} thread_state;

typedef struct {
    int32_t running, epoch, pc;
    int32_t *order;
    int32_t next;
    uint8_t *shared;
    word_watch *words;
    thread_state *threads;
} block_state;

static const fdk_job *job;
static int32_t n_blocks, n_threads;
static int64_t shared_bytes;
int64_t ptx_missing_shared; /* bytes that a launch asks for too few */
static region regions[20];
static int n_regions;
static block_state *blocks;
static jmp_buf end;
static char fault[256];

/* Stores into the message, for who counts lines: pc, thread, and the word's address. */
typedef struct { int32_t pc, block, thread, ordinal; uint64_t at; } store;
static store *stores;
static int64_t n_stores, most_stores;

const char *ptx_fault(void) { return fault; }
int64_t ptx_stores(const store **from) { *from = stores; return n_stores; }

static void fail(const thread_state *t, int line, const char *what, uint64_t at)
{
    if (fault[0] == 0)
        snprintf(fault, sizeof fault, "line %d: block %d, thread %d: %s (address %#llx)", line, t->block, t->thread,
                 what, (unsigned long long)at);
    longjmp(end, 1);
}

/* One access to a word that threads share. */
static void watch(thread_state *t, int line, word_watch *w, int is_write, int across_blocks, int anybody, uint64_t at)
{
    const int32_t me = t->block * n_threads + t->thread, epoch = blocks[t->block].epoch;
    const int wrote = w->writer >= 0 && w->writer != me
                      && (w->write_epoch == epoch || (across_blocks && w->writer / n_threads != t->block));
    const int read = w->reader >= -1 && w->reader != me && w->read_epoch == epoch;
    if (anybody)
        return;
    if (wrote)
        fail(t, line, is_write ? "two threads write a word" : "a thread reads what another writes", at);
    if (is_write && read)
        fail(t, line, "a thread writes what another reads", at);
    if (is_write) {
        w->writer = me;
        w->write_epoch = epoch;
    } else if (w->reader != me || w->read_epoch != epoch) {
        w->reader = w->reader >= -1 && w->read_epoch == epoch ? -1 : me; /* -1: several */
        w->read_epoch = epoch;
    }
}

static uint64_t get(const uint8_t *from, int size)
{
    uint64_t value = 0;
    memcpy(&value, from, (size_t)size);
    return value;
}

static uint64_t access_param(thread_state *t, int line, uint64_t at, int size)
{
    if (at < PARAM_BASE || at + (uint64_t)size > PARAM_BASE + sizeof *job)
        fail(t, line, "outside of the argument", at);
    return get((const uint8_t *)job + (at - PARAM_BASE), size);
}

static uint64_t access_shared(thread_state *t, int line, uint64_t at, int size, int is_write, uint64_t value)
{
    block_state *b = &blocks[t->block];
    const uint64_t offset = at - SHARED_BASE;
    if (at < SHARED_BASE || offset + (uint64_t)size > (uint64_t)shared_bytes)
        fail(t, line, "outside of shared memory", at);
    for (uint64_t k = offset / 4; k < (offset + (uint64_t)size + 3) / 4; k++) {
        if (!is_write && b->words[k].writer < 0)
            fail(t, line, "shared memory that nobody has written is read", at);
        watch(t, line, &b->words[k], is_write, 0, 0, at);
    }
    if (is_write)
        memcpy(b->shared + offset, &value, (size_t)size);
    return is_write ? 0 : get(b->shared + offset, size);
}

static uint64_t access_global(thread_state *t, int line, uint64_t at, int size, int is_write, uint64_t value)
{
    region *r = NULL;
    for (int k = 0; k < n_regions && r == NULL; k++)
        if (at >= regions[k].from && at + (uint64_t)size <= regions[k].from + regions[k].size)
            r = &regions[k];
    if (r == NULL)
        fail(t, line, "outside of every array", at);
    if (is_write ? !r->writable : !r->readable)
        fail(t, line, is_write ? "an array that is only read is written" : "what is only written is read", at);
    if (r->words != NULL)
        for (uint64_t k = (at - r->from) / 4; k < (at - r->from + (uint64_t)size + 3) / 4; k++)
            watch(t, line, &r->words[k], is_write, 1, r->anybody, at);
    if (!is_write)
        return get((const uint8_t *)at, size);
    memcpy((void *)at, &value, (size_t)size);
    if (strcmp(r->name, "payload") == 0) {
        if (n_stores == most_stores)
            stores = realloc(stores, sizeof *stores * (size_t)(most_stores = 2 * most_stores + 1024));
        stores[n_stores++] = (store){line, t->block, t->thread, 0, at};
    }
    return 0;
}

enum space { PARAM, SHARED, GLOBAL };

static uint64_t load(thread_state *t, int line, enum space space, uint64_t at, int size)
{
    return space == PARAM ? access_param(t, line, at, size)
                          : (space == SHARED ? access_shared : access_global)(t, line, at, size, 0, 0);
}

static void put(thread_state *t, int line, enum space space, uint64_t at, int size, uint64_t value)
{
    (space == SHARED ? access_shared : access_global)(t, line, at, size, 1, value);
}

/* Of all of a vector at once. */
static void aligned(thread_state *t, int line, uint64_t at, int size)
{
    if (at % (uint64_t)size != 0)
        fail(t, line, "not aligned", at);
}

static int32_t divide(thread_state *t, int line, int32_t a, int32_t b)
{
    if (b == 0)
        fail(t, line, "division by zero", 0);
    return b == -1 ? (int32_t)-(uint32_t)a : a / b;
}
