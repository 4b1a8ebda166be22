/* SPDX-License-Identifier: Apache-2.0
 *
 * CRC-32C, the checksum of compact frames: polynomial 0x1EDC6F41 (Castagnoli), reflected, as in iSCSI (RFC 3720).
 *
 * x86-64 has an instruction for it since 2008 (SSE4.2), 64-bit ARM since ARMv8.1; the processor is asked at run
 * time.  One such instruction waits three cycles for the one before it, so three streams are summed at a time and
 * then joined.  Everywhere else tables do it, eight bytes at a time.
 */
#ifndef FD_POSTPROC_CRC32C_H
#define FD_POSTPROC_CRC32C_H

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#ifdef __clang__ /* which has split the instruction off SSE4.2 */
#define FDI_HARDWARE __attribute__((target("sse4.2,crc32")))
#else
#define FDI_HARDWARE __attribute__((target("sse4.2")))
#endif
#define FDI_ADD_8(crc, word) __builtin_ia32_crc32di(crc, word)
#define FDI_ADD_1(crc, byte) __builtin_ia32_crc32qi((uint32_t)(crc), byte)
#elif defined(__aarch64__) && defined(__linux__)
#include <arm_acle.h>
#include <sys/auxv.h>
#define FDI_HARDWARE __attribute__((target("+crc")))
#define FDI_CAPABILITY (1ul << 7) /* HWCAP_CRC32 in <asm/hwcap.h> */
#define FDI_ADD_8(crc, word) __crc32cd((uint32_t)(crc), word)
#define FDI_ADD_1(crc, byte) __crc32cb((uint32_t)(crc), byte)
#endif

#define FDI_POLYNOMIAL 0x82F63B78u
#define FDI_STREAM 512 /* bytes of each of the three streams */

/* Where there is no instruction: [k][b] is byte b, followed by k bytes of 0. */
static uint32_t fdi_bytes[8][256];
static int fdi_has_instruction;

static inline uint64_t fdi_load(const uint8_t *at)
{
    uint64_t word;
    memcpy(&word, at, sizeof word);
    return word;
}

static inline void fdi_fill_bytes(void)
{
    for (uint32_t b = 0; b < 256; b++) {
        uint32_t crc = b;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? FDI_POLYNOMIAL : 0);
        fdi_bytes[0][b] = crc;
    }
    for (int k = 1; k < 8; k++)
        for (int b = 0; b < 256; b++)
            fdi_bytes[k][b] = fdi_bytes[k - 1][b] >> 8 ^ fdi_bytes[0][fdi_bytes[k - 1][b] & 0xFF];
}

/* Continue a sum, which is not inverted, by tables. */
static inline uint32_t fdi_by_tables(uint32_t crc, const uint8_t *at, int64_t size)
{
    for (; size >= 8; at += 8, size -= 8) {
        const uint64_t word = fdi_load(at) ^ crc;
        crc = 0;
        for (int k = 0; k < 8; k++)
            crc ^= fdi_bytes[7 - k][word >> 8 * k & 0xFF];
    }
    for (; size > 0; at++, size--)
        crc = crc >> 8 ^ fdi_bytes[0][(crc ^ *at) & 0xFF];
    return crc;
}

#ifdef FDI_HARDWARE

/* What FDI_STREAM bytes of 0 make of a sum: [k] of its byte k. */
static uint32_t fdi_zeros[4][256];

/* Likewise by the instruction, in one stream. */
FDI_HARDWARE static inline uint32_t fdi_one_stream(uint32_t crc, const uint8_t *at, int64_t size)
{
    uint64_t sum = crc;
    for (; size >= 8; at += 8, size -= 8)
        sum = FDI_ADD_8(sum, fdi_load(at));
    for (; size > 0; at++, size--)
        sum = FDI_ADD_1(sum, *at);
    return (uint32_t)sum;
}

static inline uint64_t fdi_over_zeros(uint64_t crc)
{
    return fdi_zeros[0][crc & 0xFF] ^ fdi_zeros[1][crc >> 8 & 0xFF] ^ fdi_zeros[2][crc >> 16 & 0xFF]
           ^ fdi_zeros[3][crc >> 24 & 0xFF];
}

/* And in three. */
FDI_HARDWARE static inline uint32_t fdi_by_instruction(uint32_t crc, const uint8_t *at, int64_t size)
{
    uint64_t first = crc;
    for (; size >= 3 * FDI_STREAM; at += 3 * FDI_STREAM, size -= 3 * FDI_STREAM) {
        uint64_t second = 0, third = 0;
        for (const uint8_t *end = at + FDI_STREAM; at < end; at += 8) {
            first = FDI_ADD_8(first, fdi_load(at));
            second = FDI_ADD_8(second, fdi_load(at + FDI_STREAM));
            third = FDI_ADD_8(third, fdi_load(at + 2 * FDI_STREAM));
        }
        at -= FDI_STREAM;
        first = fdi_over_zeros(fdi_over_zeros(first) ^ second) ^ third;
    }
    return fdi_one_stream((uint32_t)first, at, size);
}

static inline void fdi_fill_zeros(void)
{
    static const uint8_t zeros[FDI_STREAM];
    for (int k = 0; k < 4; k++)
        for (uint32_t b = 1; b < 256; b++) { /* a bit of its own, then sums of what is there already */
            const uint32_t lowest = b & -b;
            fdi_zeros[k][b] = b == lowest ? fdi_one_stream(b << 8 * k, zeros, FDI_STREAM)
                                          : fdi_zeros[k][lowest] ^ fdi_zeros[k][b ^ lowest];
        }
}

#endif

/* When the library is loaded, before any thread can ask. */
__attribute__((constructor)) static void fdi_begin(void)
{
#if defined(__x86_64__)
    /* Not __builtin_cpu_supports, which says no where the compiler has its own run-time library, as Zig's. */
    uint32_t a, b, c = 0, d;
    fdi_has_instruction = __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_SSE4_2) != 0;
#elif defined(FDI_HARDWARE)
    fdi_has_instruction = (getauxval(AT_HWCAP) & FDI_CAPABILITY) != 0;
#endif
#ifdef FDI_HARDWARE
    if (fdi_has_instruction) {
        fdi_fill_zeros();
        return;
    }
#endif
    fdi_fill_bytes();
}

/* Continue a sum; begin with fdi_first, end with fdi_last. */
static inline uint32_t fdi_add(uint32_t crc, const void *data, int64_t size)
{
#ifdef FDI_HARDWARE
    if (fdi_has_instruction)
        return fdi_by_instruction(crc, (const uint8_t *)data, size);
#endif
    return fdi_by_tables(crc, (const uint8_t *)data, size);
}

#define FDI_FIRST 0xFFFFFFFFu

static inline uint32_t fdi_last(uint32_t crc)
{
    return ~crc;
}

#endif
