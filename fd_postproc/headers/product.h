/* SPDX-License-Identifier: Apache-2.0
 *
 * Products of sizes that come from outside: a message, a pickle, a tensor of another library.
 *
 * A product that overflows looks like a small size.  So products of two such sizes are made
 * here, and nowhere else.
 */
#ifndef FD_POSTPROC_PRODUCT_H
#define FD_POSTPROC_PRODUCT_H

#include <stdint.h>

/* *product = a * b.  0, or -1 if one is negative or the product has no room in 63 bits. */
static inline int fdo_times(int64_t a, int64_t b, int64_t *product)
{
    return a < 0 || b < 0 || __builtin_mul_overflow(a, b, product) ? -1 : 0;
}

#endif
