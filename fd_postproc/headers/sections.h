/* SPDX-License-Identifier: Apache-2.0
 *
 * Sections: named parts behind a step's numbers, each of which says whether a reader may pass it over.
 *
 * Frames through FastDeploy's socket consist of them; behind a compact frame's body they carry what its fixed
 * layout has no place for.  Plain C: no system call, no allocation, no Python; nothing is assumed of alignment.
 */
#ifndef FD_POSTPROC_SECTIONS_H
#define FD_POSTPROC_SECTIONS_H

#include <stdint.h>
#include <string.h>

#define FDZ_SECTION_HEADER 24
#define FDZ_MOST_SECTIONS 64
#define FDZ_REQUIRED 1u /* mark: who does not know the section must refuse the frame */

/* A section of an area, which begins at a multiple of 8 bytes of its frame. */
typedef struct {
    uint64_t name;      /* 8 characters, padded with 0 */
    uint32_t marks;
    int64_t begin;      /* of its content */
    int64_t length;
} fdz_section;

static inline int64_t fdz_padded(int64_t length)
{
    return (length + 7) & ~(int64_t)7;
}

static inline uint64_t fdz_name(const char *text)
{
    uint64_t name = 0;
    memcpy(&name, text, strlen(text) < 8 ? strlen(text) : 8);
    return name;
}

/* The section that begins at *at, which is moved behind it: 1; 0 at the end of the area; -1 if there is not
 * room for what it claims. */
static inline int fdz_next(const uint8_t *area, int64_t size, int64_t *at, fdz_section *s)
{
    if (*at == size)
        return 0;
    if (*at < 0 || *at > size - FDZ_SECTION_HEADER)
        return -1;
    memcpy(&s->name, area + *at, 8);
    memcpy(&s->marks, area + *at + 8, 4);
    memcpy(&s->length, area + *at + 16, 8);
    s->begin = *at + FDZ_SECTION_HEADER;
    if (s->length < 0 || s->length > size - s->begin || fdz_padded(s->length) > size - s->begin)
        return -1;
    *at = s->begin + fdz_padded(s->length);
    return 1;
}

/* ---- Sampling masks --------------------------------------------------------------------------------- */

#define FDZ_ONE_MASK (-1)

/* Content of the section masks/2: int32 slots and masks; int32 counts[slots]: FDZ_ONE_MASK, one mask by itself;
 * 0, none; n, a list of n masks, one for each accepted token; int32 begins[masks + 1], from 0 and ascending;
 * int32 ids. */
typedef struct {
    int32_t slots, masks;
    const uint8_t *counts, *begins, *ids;
} fdz_masks;

static inline int32_t fdz_number(const uint8_t *numbers, int64_t k)
{
    int32_t number;
    memcpy(&number, numbers + 4 * k, sizeof number);
    return number;
}

/* What is wrong with masks. */
enum fdz_fault { FDZ_FINE, FDZ_SHORT, FDZ_SLOTS, FDZ_COUNT, FDZ_MASKS, FDZ_BEGIN };

/* Check the masks of a step of `slots` requests.  FDZ_FINE, or what is wrong; then *where is the request or
 * mask, *value what it says, and *bound what it may say. */
static inline int fdz_open_masks(fdz_masks *m, const uint8_t *content, int64_t length, int64_t slots, int64_t *where,
                                 int64_t *value, int64_t *bound)
{
    int64_t numbers = length / 4, counted = 0, ids;
    int32_t last = 0;
    *where = -1;
    *value = length;
    *bound = 12;
    if (length % 4 != 0 || numbers < 3)
        return FDZ_SHORT;
    m->slots = fdz_number(content, 0);
    m->masks = fdz_number(content, 1);
    *value = m->slots;
    *bound = slots;
    if (m->slots != slots)
        return FDZ_SLOTS;
    *value = m->masks;
    *bound = numbers - 3 - slots;
    if (m->masks < 0 || m->masks > *bound)
        return FDZ_MASKS;
    m->counts = content + 8;
    m->begins = m->counts + 4 * (int64_t)m->slots;
    m->ids = m->begins + 4 * ((int64_t)m->masks + 1);
    ids = numbers - 3 - slots - m->masks;
    for (int64_t i = 0; i < slots; i++) {
        const int32_t count = fdz_number(m->counts, i);
        *where = i;
        *value = count;
        *bound = m->masks - counted;
        if (count < FDZ_ONE_MASK || count > *bound)
            return FDZ_COUNT;
        counted += count == FDZ_ONE_MASK ? 1 : count;
    }
    *where = -1;
    *value = m->masks;
    *bound = counted;
    if (counted != m->masks)
        return FDZ_MASKS;
    for (int64_t k = 0; k <= m->masks; k++) {
        const int32_t begin = fdz_number(m->begins, k);
        *where = k;
        *value = begin;
        *bound = k == m->masks && begin >= last ? ids : last; /* the first begins at 0 */
        if (begin < last || begin > ids || (k == 0 && begin != 0) || (k == m->masks && begin != ids))
            return FDZ_BEGIN;
        last = begin;
    }
    return FDZ_FINE;
}

#endif
