/* SPDX-License-Identifier: Apache-2.0
 *
 * Counters that one thread at a time writes, without the GIL, while others read them.
 *
 * Relaxed atomics cost no more than plain memory accesses, and are not a data race.
 */
#ifndef FD_POSTPROC_COUNTER_H
#define FD_POSTPROC_COUNTER_H

#include <stdint.h>

static inline int64_t fdc_read(const int64_t *counter)
{
    return __atomic_load_n(counter, __ATOMIC_RELAXED);
}

static inline void fdc_set(int64_t *counter, int64_t value)
{
    __atomic_store_n(counter, value, __ATOMIC_RELAXED);
}

static inline void fdc_add(int64_t *counter, int64_t more)
{
    fdc_set(counter, *counter + more);
}

#endif
