/* SPDX-License-Identifier: Apache-2.0
 *
 * Python objects' memory into the cache, without waiting for it: a hint, which may be wrong, and never reads
 * more than the object's own head.
 */
#ifndef FD_POSTPROC_PREFETCH_H
#define FD_POSTPROC_PREFETCH_H

#include <Python.h>

#define FDA_LINE 64

/* Lines of an object (NULL: none), from one to another. */
static inline void fda_lines(const void *o, int from, int to)
{
    int line;
    for (line = from; line <= to && o; line++)
        __builtin_prefetch((const char *)o + FDA_LINE * line);
}

/* Where the table of a dictionary (NULL: none) lies, whose head is in the cache, and how many lines it has. */
static inline const void *fda_table_of(const PyObject *dict, int *lines)
{
    const PyDictObject *d = (const PyDictObject *)dict;
    if (!d) {
        *lines = 0;
        return NULL;
    }
    if (d->ma_values) { /* its keys are its class's */
        *lines = (int)(d->ma_used < 512 ? d->ma_used : 512) / 8 + 1;
        return d->ma_values;
    }
    /* a head, an index of a byte or two each, entries of 16 bytes */
    *lines = 4 + (int)((d->ma_used < 4096 ? d->ma_used : 4096) * 18 / FDA_LINE);
    return d->ma_keys;
}

/* That table, up to a number of lines. */
static inline void fda_table(PyObject *dict, int most)
{
    int lines;
    const void *table = fda_table_of(dict, &lines);
    fda_lines(table, 0, (lines < most ? lines : most) - 1);
}

/* Where what a request refers to lay at its last step.  It may be elsewhere by now, or gone: these are no
 * references, and are never read. */
typedef struct {
    const void *own, *table, *metrics, *tokens, *end, *stops, *settings, *name, *heads, *head_items, *sent;
    int table_lines;
} fda_places;

static inline int fda_moved(const fda_places *at, PyObject *own, PyObject *metrics, PyObject *tokens)
{
    int lines;
    return at->own != own || at->table != fda_table_of(own, &lines) || at->metrics != metrics
        || at->tokens != tokens;
}

static inline void fda_note(fda_places *at, PyObject *own, PyObject *metrics, PyObject *tokens, PyObject *stops,
                            PyObject *settings, PyObject *name, PyObject *heads)
{
    at->own = own;
    at->table = fda_table_of(own, &at->table_lines);
    at->metrics = metrics;
    at->tokens = tokens;
    at->stops = stops;
    at->settings = settings;
    at->name = name;
    at->heads = heads;
    at->head_items = heads && PyList_CheckExact(heads) ? ((PyListObject *)heads)->ob_item : NULL;
}

/* What is another in each step: where the next token will be written, and the number of tokens. */
static inline void fda_note_end(fda_places *at, PyObject *tokens, PyObject *sent)
{
    at->sent = sent;
    at->end = &((PyListObject *)tokens)->ob_item[PyList_GET_SIZE(tokens)];
}

static inline void fda_fetch_table(const fda_places *at)
{
    fda_lines(at->own, 0, 1);
    fda_lines(at->table, 0, (at->table_lines < 32 ? at->table_lines : 32) - 1);
}

static inline void fda_fetch_values(const fda_places *at)
{
    fda_lines(at->metrics, 0, 4);
    fda_lines(at->tokens, 0, 0);
    fda_lines(at->end, 0, 0);
    fda_lines(at->stops, 0, 0);
    fda_lines(at->settings, -1, 0);
    fda_lines(at->name, 0, 0);
    fda_lines(at->heads, 0, 0);
    fda_lines(at->head_items, 0, 0);
    fda_lines(at->sent, 0, 0);
}

/* A borrowed reference, or NULL: item of a list that may be too short. */
static inline PyObject *fda_item(PyObject *list, Py_ssize_t i)
{
    return i < PyList_GET_SIZE(list) ? PyList_GET_ITEM(list, i) : NULL;
}

#endif
