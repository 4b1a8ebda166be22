/* Prints what fdb_sum_counts and fdb_sum_tokens make of steps of every size: the same with SSE2 and without. */
#include <stdio.h>
#include <stdlib.h>

#include "fd_postproc/headers/flight.h"

#define MOST 1100

int main(void)
{
    static uint8_t memory[FDB_HEAD + 64 * FDB_ENTRY], key[FDB_KEY];
    static fdb_ring ring;
    int32_t *ids = malloc(6 * MOST * sizeof *ids);
    for (int i = 0; i < FDB_KEY; i++)
        key[i] = (uint8_t)(37 * i + 11);
    fdb_begin(&ring, memory, sizeof memory, key);
    srand(3);
    for (int i = 0; i < 6 * MOST; i++)
        ids[i] = rand();
    for (int32_t batch = 0; batch <= MOST; batch++) {
        int32_t *counts = malloc(((size_t)batch + 1) * sizeof *counts); /* so that a sanitizer sees its end */
        uint64_t live[FDB_MOST_SLOTS / 64] = {0}, sum, all = 0;
        uint32_t wrong = 0;
        fdw_step step = {0};
        for (int32_t i = 0; i < batch; i++)
            counts[i] = i % 5 ? rand() % 9 - 4 : rand() - RAND_MAX / 2;
        step.batch = batch;
        step.rows = 2 * batch;
        step.cols = 3;
        step.block.counts = counts;
        step.block.ids = ids;
        sum = fdb_sum_counts(&ring, &step, live);
        for (int32_t i = 0; i < FDB_MOST_SLOTS; i++)
            wrong += (live[i / 64] >> i % 64 & 1) != (i < batch && counts[i] > 0);
        for (int k = 0; k < FDB_MOST_SLOTS / 64; k++)
            all += fdb_ones(live[k]) - (uint32_t)__builtin_popcountll(live[k]);
        printf("%d %llx %x %u %llu\n", batch, (unsigned long long)sum, fdb_sum_tokens(&ring, sum, &step), wrong,
               (unsigned long long)all);
        free(counts);
    }
    free(ids);
    return 0;
}
