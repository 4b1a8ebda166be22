/* SPDX-License-Identifier: Apache-2.0
 *
 * The shortest decimal digits that read back as the same double, and how serialisers of JSON write them.
 *
 * The digits are found by Raffaello Giulietti's Schubfach ("The Schubfach way to render doubles", 2020), which
 * needs one table of powers of ten and no division of large numbers.  Its table is made at load
 * (`fdj_powers`, filled by _numbers.pxi), by exact arithmetic.
 */
#ifndef FDJ_SHORTEST_H
#define FDJ_SHORTEST_H

#include <stdint.h>
#include <string.h>

#define FDJ_POWER_MIN (-292)
#define FDJ_POWER_MAX 324
#define FDJ_DOUBLE_ROOM 32 /* bytes that any double takes at most, with room for whole words */

/* 10^k, as 128 bits rounded up, the highest bit set; high word first. */
static uint64_t fdj_powers[FDJ_POWER_MAX - FDJ_POWER_MIN + 1][2];

/* Where plain notation ends, and how an exponent looks. */
typedef struct {
    int least;    /* plain from a decimal point this many places before the first digit (-4: 0.00001) ... */
    int most;     /* ... to this many behind it */
    int plus;     /* 1e+16 rather than 1e16 */
    int two;      /* two digits of an exponent at least */
} fdj_style;

typedef struct {
    uint64_t digits;
    int exponent;
} fdj_decimal;

static inline int fdj_log2_of_pow10(int e) { return (int)(((int64_t)e * 1741647) >> 19); }
static inline int fdj_log10_of_pow2(int e) { return (int)(((int64_t)e * 1262611) >> 22); }
static inline int fdj_log10_of_three_quarters(int e) { return (int)(((int64_t)e * 1262611 - 524031) >> 22); }

static inline uint64_t fdj_round_to_odd(const uint64_t *power, uint64_t c) {
    unsigned __int128 low = (unsigned __int128)power[1] * c;
    unsigned __int128 high = (unsigned __int128)power[0] * c + (uint64_t)(low >> 64);
    return (uint64_t)(high >> 64) | ((uint64_t)high > 1);
}

/* Of a finite double that is not zero. */
static inline fdj_decimal fdj_shortest(uint64_t bits) {
    const uint64_t fraction = bits & ((UINT64_C(1) << 52) - 1);
    const int biased = (int)(bits >> 52 & 0x7FF);
    uint64_t c;
    int q;
    if (biased) {
        c = fraction | UINT64_C(1) << 52;
        q = biased - 1075;
        if (q <= 0 && q > -53 && !(c & ((UINT64_C(1) << -q) - 1)))
            return (fdj_decimal){c >> -q, 0};
    } else {
        c = fraction;
        q = -1074;
    }
    const int odd = (int)(c & 1);
    const int closer = fraction == 0 && biased > 1; /* the next double below is nearer than the one above */
    const int k = closer ? fdj_log10_of_three_quarters(q) : fdj_log10_of_pow2(q);
    const int h = q + fdj_log2_of_pow10(-k) + 1;
    const uint64_t *power = fdj_powers[-k - FDJ_POWER_MIN];
    const uint64_t lower = fdj_round_to_odd(power, (4 * c - 2 + (uint64_t)closer) << h) + (uint64_t)odd;
    const uint64_t value = fdj_round_to_odd(power, 4 * c << h);
    const uint64_t upper = fdj_round_to_odd(power, (4 * c + 2) << h) - (uint64_t)odd;
    const uint64_t s = value / 4;
    if (s >= 10) {
        const uint64_t tens = s / 10;
        const int down = lower <= 40 * tens, up = 40 * tens + 40 <= upper;
        if (down != up)
            return (fdj_decimal){tens + (uint64_t)up, k + 1};
    }
    const int down = lower <= 4 * s, up = 4 * s + 4 <= upper;
    if (down != up)
        return (fdj_decimal){s + (uint64_t)up, k};
    const uint64_t middle = 4 * s + 2;
    return (fdj_decimal){s + (uint64_t)(value > middle || (value == middle && (s & 1))), k};
}

static const char fdj_pairs[] =
    "0001020304050607080910111213141516171819202122232425262728293031323334353637383940414243444546474849"
    "5051525354555657585960616263646566676869707172737475767778798081828384858687888990919293949596979899";

/* Digits of a number, right-aligned before `end`; where they begin. */
static inline char *fdj_digits(char *end, uint64_t n) {
    while (n >= 100) {
        end -= 2;
        memcpy(end, fdj_pairs + 2 * (n % 100), 2);
        n /= 100;
    }
    if (n >= 10) {
        end -= 2;
        memcpy(end, fdj_pairs + 2 * n, 2);
    } else {
        *--end = (char)('0' + n);
    }
    return end;
}

/* Write a finite double; FDJ_DOUBLE_ROOM bytes must be there.  The end of what was written. */
static inline char *fdj_write_double(char *out, double value, const fdj_style *style) {
    uint64_t bits;
    memcpy(&bits, &value, 8);
    if (bits >> 63)
        *out++ = '-';
    bits &= ~(UINT64_C(1) << 63);
    if (!bits) {
        memcpy(out, "0.0", 3);
        return out + 3;
    }
    fdj_decimal decimal = fdj_shortest(bits);
    char digits[24];
    char *first = fdj_digits(digits + 20, decimal.digits), *last = digits + 20;
    while (last - first > 1 && last[-1] == '0') {
        last--;
        decimal.exponent++;
    }
    const int n = (int)(last - first);
    const int point = n + decimal.exponent; /* places from the first digit to the decimal point */
    if (point > style->most || point <= style->least) {
        *out++ = *first;
        if (n > 1) {
            *out++ = '.';
            memcpy(out, first + 1, (size_t)n - 1);
            out += n - 1;
        }
        *out++ = 'e';
        int exponent = point - 1;
        if (exponent < 0) {
            *out++ = '-';
            exponent = -exponent;
        } else if (style->plus) {
            *out++ = '+';
        }
        if (style->two && exponent < 10)
            *out++ = '0';
        char *from = fdj_digits(digits + 24, (uint64_t)exponent);
        memcpy(out, from, (size_t)(digits + 24 - from));
        return out + (digits + 24 - from);
    }
    if (point <= 0) {
        memcpy(out, "0.0000000000000000", 18);
        out += 2 - point;
        memcpy(out, first, (size_t)n);
        return out + n;
    }
    if (n <= point) {
        memcpy(out, first, (size_t)n);
        memset(out + n, '0', (size_t)(point - n));
        memcpy(out + point, ".0", 2);
        return out + point + 2;
    }
    memcpy(out, first, (size_t)point);
    out[point] = '.';
    memcpy(out + point + 1, first + point, (size_t)(n - point));
    return out + n + 1;
}

#endif
