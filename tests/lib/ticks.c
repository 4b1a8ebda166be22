/* headers/ticks.h with a counter and a clock that a test sets: each line of stdin is a moment. */
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static uint64_t counter, gap; /* the counter goes on by so much whenever it is read */
static int64_t clock_ns;
static int looks;

static uint64_t ticks_of_test(void)
{
    const uint64_t now = counter;
    counter += gap;
    return now;
}

static int64_t clock_of_test(void)
{
    looks++;
    return clock_ns;
}

#define FDT_TICKS ticks_of_test
#define FDT_CLOCK clock_of_test
#include "fd_postproc/headers/ticks.h"

int main(int argc, char **argv)
{
    fdt_clock clock = {0};
    clock.is_steady = argc > 1 && atoi(argv[1]);
    /* What the counter and the clock are, and how far apart two readings of the counter. */
    while (scanf("%" SCNu64 " %" SCNd64 " %" SCNu64, &counter, &clock_ns, &gap) == 3) {
        looks = 0;
        const int64_t said = fdt_now(&clock);
        printf("%" PRId64 " %d\n", said, looks);
    }
    return 0;
}
