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

/* The table of a dictionary (NULL: none) whose head is in the cache. */
static inline void fda_table(PyObject *dict, int most)
{
    const PyDictObject *d = (const PyDictObject *)dict;
    Py_ssize_t lines;
    if (!d)
        return;
    if (d->ma_values) { /* its keys are its class's */
        fda_lines(d->ma_values, 0, (int)(d->ma_used < 512 ? d->ma_used : 512) / 8);
        return;
    }
    lines = 3 + d->ma_used * 18 / FDA_LINE; /* a head, an index of a byte or two each, entries of 16 bytes */
    fda_lines(d->ma_keys, 0, lines < most ? (int)lines : most);
}

/* Where the next item of a list (NULL: none) will be written. */
static inline void fda_end(PyObject *list)
{
    if (list && PyList_CheckExact(list) && PyList_GET_SIZE(list))
        __builtin_prefetch(&((PyListObject *)list)->ob_item[PyList_GET_SIZE(list)]);
}

/* A borrowed reference, or NULL: item of a list that may be too short; attributes of an object. */
static inline PyObject *fda_item(PyObject *list, Py_ssize_t i)
{
    return i < PyList_GET_SIZE(list) ? PyList_GET_ITEM(list, i) : NULL;
}

static inline PyObject *fda_own(PyObject *o)
{
    PyObject *own = PyObject_GenericGetDict(o, NULL);
    if (!own) {
        PyErr_Clear();
        return NULL;
    }
    Py_DECREF(own); /* its object keeps it */
    return own;
}

#endif
