/* SPDX-License-Identifier: Apache-2.0
 *
 * The flight recorder's ring: entries of 64 bytes in memory that is mapped to a file.
 *
 * An entry's place follows from its sequence number, and its check word from all of its bytes; so a reader
 * of the file, at any time and after any death of the writer, knows the whole entries, and needs no length
 * or link out of it.  One thread at a time writes: callers hold the GIL.  No system call.
 */
#ifndef FD_POSTPROC_FLIGHT_H
#define FD_POSTPROC_FLIGHT_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "fd_postproc/headers/block.h"

#define FDB_HEAD 4096 /* bytes before the first entry */
#define FDB_ENTRY 64
#define FDB_BODY 40
#define FDB_MOST_SLOTS 1024 /* whose requests are kept apart */

/* Words in the head that change: the rest of it is written by Python, once. */
#define FDB_BUSY 264 /* monotonic ns since which a step is in hand; 0: none is */

enum { FDB_STEP = 1, FDB_LIVE = 2, FDB_TEXT = 3, FDB_QUEUE = 4, FDB_FRAME = 5, FDB_DATA = 6 };

typedef struct {
    uint64_t frame;   /* the sender's number of it, on compact frames */
    uint32_t length;  /* bytes of the message */
    uint32_t rows;
    uint32_t sum;     /* of counts and sampled tokens, under a key that is not in the file */
    float receive, build, put; /* seconds; receive includes waiting */
    uint16_t batch;
    uint16_t results;
    uint32_t sender;  /* of compact frames: identifies the sender */
} fdb_step_body;

typedef struct {
    uint32_t messages, bytes, max_bytes, msgmax;
    int32_t last_sender, last_receiver; /* processes */
    uint16_t running;                   /* requests */
    uint16_t transfers;                 /* of them, those that wait for a cache transfer */
    uint32_t state;                     /* of the sender's process, the letter that /proc shows; 0: it is gone */
    uint32_t ticks;                     /* CPU time of the sender's process so far */
    int32_t code;                       /* minus errno, if the queue could not be asked */
} fdb_queue_body;

typedef struct {
    uint64_t seq;   /* from 1 */
    uint32_t check;
    uint8_t kind;
    uint8_t flags;
    uint16_t slot;  /* a request's; or a number that the kind says */
    int64_t time;   /* monotonic, ns */
    union {
        uint8_t bytes[FDB_BODY];
        int64_t numbers[FDB_BODY / 8];
        fdb_step_body step;
        fdb_queue_body queue;
    } body;
} fdb_entry;

_Static_assert(sizeof(fdb_entry) == FDB_ENTRY, "an entry without padding");

typedef struct {
    uint8_t *memory; /* NULL: nothing is recorded */
    uint64_t entries;
    uint64_t next;   /* sequence number of the next entry */
    uint64_t place;  /* where it goes */
    uint64_t key;
    uint32_t pad[32]; /* as random */
    uint64_t live[FDB_MOST_SLOTS / 64]; /* as of the last entry of that kind */
    uint32_t live_slots;
    uint32_t live_age;                  /* steps since then */
} fdb_ring;

static inline uint64_t fdb_mixed(uint64_t h, uint64_t word)
{
    h = (h ^ word) * 0x9e3779b97f4a7c15u;
    return h ^ (h >> 32);
}

/* The check word of an entry, whose own is taken for 0.  Word by word apart, so that no multiplication waits for
 * the one before. */
static inline uint32_t fdb_check(const uint64_t *words)
{
    uint64_t h = 0;
    for (uint64_t i = 0; i < FDB_ENTRY / 8; i++)
        h += fdb_mixed((i + 1) * 0xd6e8feb86659fd93u, i == 1 ? words[i] >> 32 << 32 : words[i]);
    h = fdb_mixed(h, 0x666c6967);
    return (uint32_t)h == 0 ? 1 : (uint32_t)h;
}

#define FDB_KEY 136 /* bytes of it: random, and nowhere in the file */

/* The ring in `size` bytes, all of them 0 behind the head; its first entry has the number 1. */
static inline void fdb_begin(fdb_ring *ring, void *memory, uint64_t size, const uint8_t *key)
{
    memset(ring, 0, sizeof *ring);
    ring->memory = (uint8_t *)memory;
    ring->entries = (size - FDB_HEAD) / FDB_ENTRY;
    ring->next = ring->place = 1;
    memcpy(ring->pad, key, sizeof ring->pad);
    memcpy(&ring->key, key + sizeof ring->pad, sizeof ring->key);
}

static inline void fdb_set(fdb_ring *ring, int where, uint64_t value)
{
    __atomic_store_n((uint64_t *)(void *)(ring->memory + where), value, __ATOMIC_RELEASE);
}

/* Write an entry, all but its number and its check word.  A reader never takes the half of it for the whole: its
 * check word is 0 meanwhile, which no whole one's may be. */
static inline void fdb_put_words(fdb_ring *ring, uint64_t *words)
{
    uint64_t *to = (uint64_t *)(void *)(ring->memory + FDB_HEAD + FDB_ENTRY * ring->place);
    words[0] = ring->next;
    words[1] = words[1] >> 32 << 32;
    __atomic_store_n(&to[1], words[1], __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    to[0] = words[0];
    for (int i = 2; i < FDB_ENTRY / 8; i++)
        to[i] = words[i];
    __atomic_store_n(&to[1], words[1] | fdb_check(words), __ATOMIC_RELEASE);
    ring->next++;
    if (++ring->place == ring->entries)
        ring->place = 0;
}

/* The same of an entry whose kind, flags, slot, time and body are set. */
static inline void fdb_put(fdb_ring *ring, const fdb_entry *entry)
{
    uint64_t words[FDB_ENTRY / 8];
    memcpy(words, entry, sizeof words);
    fdb_put_words(ring, words);
}

/* Bytes in as many entries as they take, one after the other. */
static inline void fdb_put_bytes(fdb_ring *ring, int kind, int64_t now, const uint8_t *bytes, int64_t size)
{
    fdb_entry entry;
    int64_t at, part;
    for (at = 0; at < size; at += part) {
        part = size - at < FDB_BODY ? size - at : FDB_BODY;
        memset(&entry, 0, sizeof entry);
        entry.kind = (uint8_t)kind;
        entry.slot = (uint16_t)part;
        entry.flags = at + part < size; /* more follows */
        entry.time = now;
        memcpy(entry.body.bytes, bytes + at, (size_t)part);
        fdb_put(ring, &entry);
    }
}

/* ---- Steps ------------------------------------------------------------------------------------------- */

#ifdef __SSE2__
static inline __m128i fdb_load(const void *words)
{
    return _mm_loadu_si128((const __m128i *)words);
}

/* Add the products of four words with four. */
static inline __m128i fdb_add_products(__m128i sum, __m128i a, __m128i b)
{
    sum = _mm_add_epi64(sum, _mm_mul_epu32(a, b));
    return _mm_add_epi64(sum, _mm_mul_epu32(_mm_srli_epi64(a, 32), _mm_srli_epi64(b, 32)));
}

static inline uint64_t fdb_both(__m128i sum)
{
    return (uint64_t)_mm_cvtsi128_si64(_mm_add_epi64(sum, _mm_unpackhi_epi64(sum, sum)));
}
#endif

/* How many bits are set.  The instruction for it is newer than the oldest x86-64. */
static inline uint32_t fdb_ones(uint64_t bits)
{
    bits -= bits >> 1 & 0x5555555555555555u;
    bits = (bits & 0x3333333333333333u) + (bits >> 2 & 0x3333333333333333u);
    return (uint32_t)(((bits + (bits >> 4)) & 0x0f0f0f0f0f0f0f0fu) * 0x0101010101010101u >> 56);
}

#define FDB_BLOCK 32   /* words that are multiplied pairwise, side by side: as NH of UMAC */
#define FDB_SUMMED 128 /* rows at most whose tokens count */

/* `n` of them: FDB_BLOCK, or half as many. */
static inline uint64_t fdb_sum_block(const fdb_ring *ring, const uint32_t *words, int n)
{
    const int half = n / 2;
#ifdef __SSE2__
    const uint32_t *pad = ring->pad;
    __m128i sum = _mm_setzero_si128();
    for (int i = 0; i < half; i += 4) {
        const __m128i a = _mm_add_epi32(fdb_load(words + i), fdb_load(pad + i));
        const __m128i b = _mm_add_epi32(fdb_load(words + half + i), fdb_load(pad + half + i));
        sum = fdb_add_products(sum, a, b);
    }
    return fdb_both(sum);
#else
    uint64_t sum = 0;
    for (int i = 0; i < half; i++)
        sum += (uint64_t)(words[i] + ring->pad[i]) * (words[half + i] + ring->pad[half + i]);
    return sum;
#endif
}

#ifdef __SSE2__
/* Four words `pitch` words apart. */
static inline __m128i fdb_gather(const int32_t *from, int64_t pitch)
{
    const __m128i a = _mm_unpacklo_epi32(_mm_cvtsi32_si128(from[0]), _mm_cvtsi32_si128(from[pitch]));
    const __m128i b = _mm_unpacklo_epi32(_mm_cvtsi32_si128(from[2 * pitch]), _mm_cvtsi32_si128(from[3 * pitch]));
    return _mm_unpacklo_epi64(a, b);
}
#endif

/* fdb_sum_block of FDB_BLOCK words `pitch` words apart.  They are not gathered in memory first: vectors loaded
 * from words that were just stored one by one would wait for all of these stores. */
static inline uint64_t fdb_sum_apart(const fdb_ring *ring, const int32_t *from, int64_t pitch)
{
    const int half = FDB_BLOCK / 2;
    const int32_t *second = from + half * pitch;
    const uint32_t *pad = ring->pad;
#ifdef __SSE2__
    __m128i sum = _mm_setzero_si128();
    for (int i = 0; i < half; i += 4, from += 4 * pitch, second += 4 * pitch)
        sum = fdb_add_products(sum, _mm_add_epi32(fdb_gather(from, pitch), fdb_load(pad + i)),
                               _mm_add_epi32(fdb_gather(second, pitch), fdb_load(pad + half + i)));
    return fdb_both(sum);
#else
    uint64_t sum = 0;
    for (int i = 0; i < half; i++, from += pitch, second += pitch)
        sum += (uint64_t)((uint32_t)*from + pad[i]) * ((uint32_t)*second + pad[half + i]);
    return sum;
#endif
}

/* Of `n` words, `pitch` words apart. */
static inline uint64_t fdb_sum_words(const fdb_ring *ring, uint64_t sum, const int32_t *from, int64_t n,
                                     int64_t pitch)
{
    int64_t at;
    for (at = 0; at + FDB_BLOCK <= n; at += FDB_BLOCK, from += FDB_BLOCK * pitch)
        sum = fdb_mixed(sum, fdb_sum_apart(ring, from, pitch));
    for (; at < n; at++, from += pitch)
        sum = fdb_mixed(sum, (uint32_t)*from);
    return sum;
}

/* Two counts of FDB_BLOCK in a word, and a bit for each that is positive.  One beyond 16 bits, which no message
 * may have, is taken for the nearest. */
static inline uint32_t fdb_narrow(const int32_t *counts, uint32_t *words)
{
#ifdef __SSE2__
    const __m128i zero = _mm_setzero_si128();
    __m128i positive[4];
    for (int i = 0; i < 4; i++) {
        const __m128i eight = _mm_packs_epi32(fdb_load(counts + 8 * i), fdb_load(counts + 8 * i + 4));
        _mm_storeu_si128((__m128i *)(void *)(words + 4 * i), eight);
        positive[i] = _mm_cmpgt_epi16(eight, zero);
    }
    return (uint32_t)_mm_movemask_epi8(_mm_packs_epi16(positive[0], positive[1])) |
           (uint32_t)_mm_movemask_epi8(_mm_packs_epi16(positive[2], positive[3])) << 16;
#else
    int16_t narrow[FDB_BLOCK];
    uint32_t positive = 0;
    for (int i = 0; i < FDB_BLOCK; i++) {
        const int32_t count = counts[i];
        narrow[i] = (int16_t)(count > INT16_MAX ? INT16_MAX : count < INT16_MIN ? INT16_MIN : count);
        positive |= (uint32_t)(count > 0) << i;
    }
    memcpy(words, narrow, sizeof narrow);
    return positive;
#endif
}

/* The sum of all counts; and which of the first slots have tokens, a bit each, in `live`. */
static inline uint64_t fdb_sum_counts(const fdb_ring *ring, const fdw_step *s, uint64_t *live)
{
    uint64_t sum = ring->key;
    uint32_t words[FDB_BLOCK / 2], bits;
    int32_t at, last[FDB_BLOCK];
    for (at = 0; at < s->batch; at += FDB_BLOCK) {
        const int32_t *counts = s->block.counts + at;
        if (s->batch - at < FDB_BLOCK) {
            memset(last, 0, sizeof last);
            for (int32_t i = 0; i < s->batch - at; i++)
                last[i] = counts[i];
            counts = last;
        }
        bits = fdb_narrow(counts, words);
        sum = fdb_mixed(sum, fdb_sum_block(ring, words, FDB_BLOCK / 2));
        if (at < FDB_MOST_SLOTS)
            live[at / 64] |= (uint64_t)bits << at % 64;
    }
    return fdb_mixed(sum, (uint32_t)s->batch);
}

/* Of the sampled tokens, some of many. */
static inline uint32_t fdb_sum_tokens(const fdb_ring *ring, uint64_t sum, const fdw_step *s)
{
    const uint32_t rows = (uint32_t)s->rows, apart = (rows + FDB_SUMMED - 1) / FDB_SUMMED;
    if (s->rows > 0)
        sum = fdb_sum_words(ring, sum, s->block.ids, (rows + apart - 1) / apart, (int64_t)apart * s->cols);
    return (uint32_t)fdb_mixed(sum, ring->key);
}

#define FDB_LIVE_AGAIN 1024 /* steps after which the slots are written although they are the same */

/* Write which slots have tokens, if that is something else than before; return how many have. */
static inline uint32_t fdb_live(fdb_ring *ring, const uint64_t *live, int32_t slots, int64_t now)
{
    const int32_t words = (slots + 63) / 64;
    uint64_t others = ring->live_slots ^ (uint32_t)slots;
    uint32_t n = 0;
    int32_t k, first;
    fdb_entry entry;
    for (k = 0; k < words; k++) {
        n += fdb_ones(live[k]);
        others |= live[k] ^ ring->live[k];
    }
    if (others == 0 && ++ring->live_age < FDB_LIVE_AGAIN)
        return n;
    for (first = 0; first == 0 || first < words; first += FDB_BODY / 8) {
        memset(&entry, 0, sizeof entry);
        entry.kind = FDB_LIVE;
        entry.time = now;
        entry.slot = (uint16_t)(64 * first);
        entry.flags = first + FDB_BODY / 8 < words; /* more follows */
        for (k = first; k < words && k < first + FDB_BODY / 8; k++)
            entry.body.numbers[k - first] = (int64_t)live[k];
        fdb_put(ring, &entry);
    }
    memcpy(ring->live, live, 8 * (size_t)words);
    ring->live_slots = (uint32_t)slots;
    ring->live_age = 0;
    return n;
}

/* Two numbers in a word, as they lie in memory. */
static inline uint64_t fdb_pair(uint32_t first, uint32_t second)
{
    return first | (uint64_t)second << 32;
}

static inline uint32_t fdb_bits(float seconds)
{
    uint32_t bits;
    memcpy(&bits, &seconds, sizeof bits);
    return bits;
}

_Static_assert(offsetof(fdb_entry, kind) == 12 && offsetof(fdb_entry, body.step.sum) == 40 &&
                   offsetof(fdb_entry, body.step.batch) == 56, "words as fdb_step makes them");

/* A step is done.  `body` has the stage times, the message's length and its sender, and the results; the rest is
 * taken from the step.  Made word by word: loading words from fields that were just stored would wait for them. */
static inline void fdb_step(fdb_ring *ring, const fdw_step *s, int dialect, int64_t now, const fdb_step_body *body)
{
    uint64_t live[FDB_MOST_SLOTS / 64] = {0}, words[FDB_ENTRY / 8];
    const uint64_t sum = fdb_sum_counts(ring, s, live);
    const uint32_t slots = fdb_live(ring, live, s->batch < FDB_MOST_SLOTS ? s->batch : FDB_MOST_SLOTS, now);
    const uint32_t flags = (uint8_t)((dialect & 3) | s->channel << 2);
    words[1] = fdb_pair(0, FDB_STEP | flags << 8 | slots << 16);
    words[2] = (uint64_t)now;
    words[3] = s->seq;
    words[4] = fdb_pair(body->length, (uint32_t)s->rows);
    words[5] = fdb_pair(fdb_sum_tokens(ring, sum, s), fdb_bits(body->receive));
    words[6] = fdb_pair(fdb_bits(body->build), fdb_bits(body->put));
    words[7] = fdb_pair((uint16_t)s->batch | (uint32_t)body->results << 16, body->sender);
    fdb_put_words(ring, words);
    fdb_set(ring, FDB_BUSY, 0);
}

#endif
