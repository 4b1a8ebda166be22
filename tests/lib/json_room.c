/* headers/json.h with buffers that end in bytes of their own: has anything been written behind their room? */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BEHIND 64
#define MARK 0x5a

static size_t room_of;

/* As realloc, with marks behind. */
static void *marked(void *old, size_t size)
{
    uint8_t *made = realloc(old, size + BEHIND);
    if (made != NULL) {
        memset(made + size, MARK, BEHIND);
        room_of = size;
    }
    return made;
}
#define realloc marked
#include "fd_postproc/headers/json.h"
#undef realloc

static int marks_are_there(const fdj_buffer *b)
{
    for (size_t i = 0; i < BEHIND; i++)
        if ((uint8_t)b->data[room_of + i] != MARK)
            return 0;
    return 1;
}

/* Fill a buffer up to `left` bytes, then write `kind`.  1: nothing was written behind its room. */
int stays_inside(int kind, size_t left, size_t n, double value)
{
    static const fdj_style style = {16, -5, 1, 1};
    char *text = calloc(n + 4096, 1); /* control characters: each takes six bytes */
    fdj_buffer b = {NULL, 0, 0};
    int fine = text != NULL && fdj_put(&b, text, 100) == 0;
    fine = fine && left <= b.room - b.used && fdj_put(&b, text, b.room - b.used - left) == 0;
    if (fine && kind == 0)
        fine = fdj_string(&b, text, n) == 0;
    else if (fine && kind == 1)
        fine = fdj_put(&b, text, n) == 0;
    else if (fine && kind == 2)
        fine = fdj_double(&b, value, &style) == 0;
    else if (fine)
        fine = fdj_integer(&b, INT64_MIN) == 0;
    fine = fine && b.used <= b.room && marks_are_there(&b);
    free(text);
    free(b.data);
    return fine;
}
