/* SPDX-License-Identifier: Apache-2.0
 *
 * The monotonic clock in less than half of its time: the processor's own counter, set by the clock once a second.
 *
 * Only where the kernel makes its own clock of that counter: so it has found it to run steadily, and alike on
 * every core.  Elsewhere, at first, and whenever two measurements of the counter's pace differ, this is the clock
 * itself.  Within a second it is off by no more than the pace has changed since the second before: a stage of a
 * step is as long as the clock says, to one part in a thousand.  Callers hold the GIL.
 */
#ifndef FD_POSTPROC_TICKS_H
#define FD_POSTPROC_TICKS_H

#include <stdint.h>

#ifndef FDT_TICKS /* a test has its own */
#include "fd_postproc/headers/sysv.h"
#define FDT_CLOCK fds_now
#ifdef __x86_64__
#define FDT_TICKS() ((uint64_t)__builtin_ia32_rdtsc())
#define FDT_SOURCE "tsc" /* what the kernel calls it */
#else
#define FDT_TICKS() ((uint64_t)0)
#define FDT_SOURCE ""
#endif
#endif

#define FDT_LEAST 100000000  /* ns that a measurement of the pace takes, at least */
#define FDT_TRUST 1000000000 /* ns for which it is believed */
#define FDT_GAP 20000        /* ticks within which the clock was read: more, and something came between */

typedef struct {
    int64_t base;   /* the clock, ns, when */
    uint64_t ticks; /* the counter was that */
    uint64_t span;  /* ticks for which the counter tells the time since then; 0: it does not */
    uint64_t pace;  /* ns a tick, times 2^32; 0: not known */
    int64_t last;   /* what was said last: time never goes back */
    int is_steady;  /* whether the counter may be used at all */
} fdt_clock;

static inline int64_t fdt_said(fdt_clock *c, int64_t now)
{
    if (now > c->last)
        c->last = now;
    return c->last;
}

/* The counter was between `before` and `after` at `now`. */
static inline void fdt_set(fdt_clock *c, int64_t now, uint64_t before, uint64_t after)
{
    const uint64_t ticks = before + (after - before) / 2, passed = ticks - c->ticks, known = c->pace;
    const int64_t ns = now - c->base;
    if (after - before > FDT_GAP)
        return;
    if (c->ticks != 0 && passed != 0 && passed >> 63 == 0 && ns >= 0) {
        if (ns < FDT_LEAST)
            return;
        c->pace = (uint64_t)((double)ns * 4294967296.0 / (double)passed);
    } else { /* the first time, or the counter was set back */
        c->pace = 0;
    }
    c->base = now;
    c->ticks = ticks;
    c->span = 0;
    if (c->pace != 0 && (c->pace > known ? c->pace - known : known - c->pace) <= known >> 10)
        c->span = ((uint64_t)FDT_TRUST << 32) / c->pace;
}

/* The time by the clock itself, which the counter is set by. */
static __attribute__((noinline, cold)) int64_t fdt_look(fdt_clock *c)
{
    const uint64_t before = FDT_TICKS();
    const int64_t now = FDT_CLOCK();
    if (c->is_steady)
        fdt_set(c, now, before, FDT_TICKS());
    return fdt_said(c, now);
}

/* Monotonic ns. */
static inline int64_t fdt_now(fdt_clock *c)
{
    uint64_t since;
    if (c->span == 0)
        return fdt_look(c);
    since = FDT_TICKS() - c->ticks; /* beyond any span, if it was set back */
    if (since >= c->span)
        return fdt_look(c);
    return fdt_said(c, c->base + (int64_t)((since * c->pace) >> 32));
}

#endif
