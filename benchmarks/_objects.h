/* SPDX-License-Identifier: Apache-2.0
 *
 * A graph of Python objects made again by bare C-API calls: what it costs to have these objects at all.
 *
 * Made anew: lists, the numbers in lists, dicts, and instances of the classes that it was told of.  Shared with the
 * original: everything else, such as strings, None, and numbers held by dicts and instances.
 * Nothing is checked, not even an allocation.
 */
#ifndef FD_POSTPROC_OBJECTS_H
#define FD_POSTPROC_OBJECTS_H

#include <Python.h>
#include <structmember.h>

enum { OBJ_CLASSES = 16, OBJ_SLOTS = 64 };

/* A class, and where its instances keep their attributes. */
typedef struct {
    PyTypeObject *type;
    Py_ssize_t slots;
    Py_ssize_t offsets[OBJ_SLOTS];
    int has_dict; /* its instances keep attributes in a dict, too */
} obj_class;

typedef struct {
    int known;
    obj_class classes[OBJ_CLASSES];
} obj_classes;

/* Learn a class and its slots; 0 if there is no room. */
static inline int obj_learn(obj_classes *all, PyTypeObject *type, int has_dict)
{
    if (all->known == OBJ_CLASSES)
        return 0;
    obj_class *one = &all->classes[all->known++];
    one->type = type;
    one->has_dict = has_dict;
    one->slots = 0;
    PyObject *mro = type->tp_mro;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(mro); i++) {
        const PyMemberDef *member = ((PyTypeObject *)PyTuple_GET_ITEM(mro, i))->tp_members;
        for (; member != NULL && member->name != NULL; member++) {
            if (member->type != T_OBJECT_EX)
                continue;
            if (one->slots == OBJ_SLOTS)
                return 0;
            one->offsets[one->slots++] = member->offset;
        }
    }
    return 1;
}

static PyObject *obj_make(const obj_classes *all, PyObject *o);

static inline PyObject *obj_instance(const obj_classes *all, const obj_class *c, PyObject *o)
{
    PyObject *made;
    if (PyTuple_Check(o)) {
        const Py_ssize_t n = PyTuple_GET_SIZE(o);
        made = c->type->tp_alloc(c->type, n);
        for (Py_ssize_t k = 0; k < n; k++)
            PyTuple_SET_ITEM(made, k, obj_make(all, PyTuple_GET_ITEM(o, k)));
        return made;
    }
    made = c->type->tp_alloc(c->type, 0);
    for (Py_ssize_t k = 0; k < c->slots; k++) {
        PyObject *held = *(PyObject **)((char *)o + c->offsets[k]);
        *(PyObject **)((char *)made + c->offsets[k]) = held == NULL ? NULL : obj_make(all, held);
    }
    if (c->has_dict) {
        PyObject *held = PyObject_GenericGetDict(o, NULL), *dict = PyDict_Copy(held), *key, *value;
        Py_ssize_t at = 0;
        while (PyDict_Next(held, &at, &key, &value)) {
            PyObject *own = obj_make(all, value);
            if (own != value)
                PyDict_SetItem(dict, key, own);
            Py_DECREF(own);
        }
        PyObject_GenericSetDict(made, dict, NULL);
        Py_DECREF(dict);
        Py_DECREF(held);
    }
    return made;
}

static inline PyObject *obj_dict(const obj_classes *all, PyObject *o)
{
    PyObject *made = PyDict_New(), *key, *held;
    Py_ssize_t at = 0;
    while (PyDict_Next(o, &at, &key, &held)) {
        PyObject *value = obj_make(all, held);
        PyDict_SetItem(made, key, value);
        Py_DECREF(value);
    }
    return made;
}

static inline PyObject *obj_list(const obj_classes *all, PyObject *o)
{
    const Py_ssize_t n = PyList_GET_SIZE(o);
    PyObject *made = PyList_New(n);
    for (Py_ssize_t k = 0; k < n; k++) {
        PyObject *held = PyList_GET_ITEM(o, k), *value;
        if (PyFloat_CheckExact(held))
            value = PyFloat_FromDouble(PyFloat_AS_DOUBLE(held));
        else if (PyLong_CheckExact(held))
            value = PyLong_FromLong(PyLong_AsLong(held));
        else
            value = obj_make(all, held);
        PyList_SET_ITEM(made, k, value);
    }
    return made;
}

/* A new reference: the object made again, or itself. */
static PyObject *obj_make(const obj_classes *all, PyObject *o)
{
    if (PyList_CheckExact(o))
        return obj_list(all, o);
    if (PyDict_CheckExact(o))
        return obj_dict(all, o);
    for (int k = 0; k < all->known; k++)
        if (Py_TYPE(o) == all->classes[k].type)
            return obj_instance(all, &all->classes[k], o);
    Py_INCREF(o);
    return o;
}

#endif
