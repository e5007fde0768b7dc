/* What tape/columns.py does with a program's columns, of which each is an array of int64; tests/unit/test_columns.py
   compares the two. Part of the module that _native.c makes. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>
#include <stdint.h>
#include <string.h>

#define FREE_ROW (-1)

static int is_numbers(const Py_buffer *of) { return of->len % 8 == 0 && (!of->len || (uintptr_t)of->buf % 8 == 0); }

/* A bytes object to be filled with numbers; NULL: an error is set. */
static PyObject *new_numbers(int64_t count, int64_t **numbers) {
    PyObject *made = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)count * 8);
    if (made) *numbers = (int64_t *)(void *)PyBytes_AsString(made);
    return made;
}

/* shifted(starts, origins, places) -> starts[origin] + place of each row */
PyObject *shifted(PyObject *self, PyObject *args) {
    Py_buffer starts, origins, places;
    PyObject *made = NULL;
    int64_t *out;
    if (!PyArg_ParseTuple(args, "y*y*y*", &starts, &origins, &places)) return NULL;
    int sound = is_numbers(&starts) && is_numbers(&origins) && is_numbers(&places) && origins.len == places.len;
    int64_t count = origins.len / 8, known = starts.len / 8;
    const int64_t *start = starts.buf, *origin = origins.buf, *place = places.buf;
    for (int64_t i = 0; sound && i < count; i++) sound = origin[i] >= 0 && origin[i] < known;
    if (!sound) PyErr_SetString(PyExc_ValueError, "an origin of other rows");
    else if ((made = new_numbers(count, &out)))
        for (int64_t i = 0; i < count; i++) out[i] = (int64_t)((uint64_t)start[origin[i]] + (uint64_t)place[i]);
    PyBuffer_Release(&starts); PyBuffer_Release(&origins); PyBuffer_Release(&places);
    return made;
}

/* gathered(values, places) -> values[place] of each row, from their end where it is negative */
PyObject *gathered(PyObject *self, PyObject *args) {
    Py_buffer values, places;
    PyObject *made = NULL;
    int64_t *out;
    if (!PyArg_ParseTuple(args, "y*y*", &values, &places)) return NULL;
    int sound = is_numbers(&values) && is_numbers(&places);
    int64_t count = places.len / 8, known = values.len / 8;
    const int64_t *value = values.buf, *place = places.buf;
    for (int64_t i = 0; sound && i < count; i++) sound = place[i] >= -known && place[i] < known;
    if (!sound) PyErr_SetString(PyExc_ValueError, "a place of other values");
    else if ((made = new_numbers(count, &out)))
        for (int64_t i = 0; i < count; i++) out[i] = value[place[i] < 0 ? place[i] + known : place[i]];
    PyBuffer_Release(&values); PyBuffer_Release(&places);
    return made;
}

/* marks(sizes) -> the rows that neither ask for anything nor free it */
PyObject *marks(PyObject *self, PyObject *args) {
    Py_buffer sizes;
    PyObject *made = NULL;
    int64_t *out;
    if (!PyArg_ParseTuple(args, "y*", &sizes)) return NULL;
    int64_t count = sizes.len / 8, found = 0;
    const int64_t *size = sizes.buf;
    if (!is_numbers(&sizes)) {
        PyErr_SetString(PyExc_ValueError, "no numbers");
    } else {
        for (int64_t i = 0; i < count; i++) found += size[i] < FREE_ROW;
        if ((made = new_numbers(found, &out)))
            for (int64_t i = 0, at = 0; i < count; i++) if (size[i] < FREE_ROW) out[at++] = i;
    }
    PyBuffer_Release(&sizes);
    return made;
}

/* lives(blocks, sizes, bounds, names) -> (whether one is freed twice; of each step the blocks of it that the next one
   frees, in the order they were made, as one bytes object a step; and whether all that it makes is freed). Steps lie
   between two bounds. */
PyObject *lives(PyObject *self, PyObject *args) {
    Py_buffer blocks, sizes, bounds;
    long long names;
    PyObject *result = NULL, *left = NULL, *closed = NULL;
    int64_t *freed = NULL, *kept = NULL;
    if (!PyArg_ParseTuple(args, "y*y*y*L", &blocks, &sizes, &bounds, &names)) return NULL;
    int64_t count = sizes.len / 8, steps = bounds.len / 8 - 1, twice = 0;
    const int64_t *block = blocks.buf, *size = sizes.buf, *bound = bounds.buf;
    int sound = is_numbers(&blocks) && is_numbers(&sizes) && is_numbers(&bounds) && blocks.len == sizes.len
        && steps >= 0 && names >= 0 && names < INT32_MAX;
    for (int64_t i = 0; sound && i <= steps; i++)
        sound = bound[i] >= (i ? bound[i - 1] : 0) && bound[i] <= count;
    for (int64_t i = 0; sound && i < count; i++) sound = size[i] < FREE_ROW || (block[i] >= 0 && block[i] < names);
    if (!sound) { PyErr_SetString(PyExc_ValueError, "blocks of other rows"); goto done; }
    freed = PyMem_Malloc(((size_t)names + 1) * 8);
    kept = PyMem_Malloc(((size_t)count + 1) * 8);
    left = PyList_New(0);
    closed = PyList_New(0);
    if (!freed || !kept || !left || !closed) { PyErr_NoMemory(); goto done; }
    memset(freed, -1, (size_t)names * 8);
    for (int64_t i = 0; i < count; i++) {
        if (size[i] != FREE_ROW) continue;
        twice |= freed[block[i]] >= 0;
        freed[block[i]] = i;
    }
    for (int64_t step = 0; step < steps; step++) {
        int64_t end = bound[step + 1], after = step + 1 < steps ? bound[step + 2] : end, found = 0;
        int all = 1;
        for (int64_t i = bound[step]; i < end; i++) {
            if (size[i] < 0) continue;
            int64_t gone = freed[block[i]];
            all &= gone >= 0;
            if (gone >= end && gone < after) kept[found++] = block[i];
        }
        PyObject *one = PyBytes_FromStringAndSize((char *)kept, (Py_ssize_t)found * 8);
        int failed = !one || PyList_Append(left, one) || PyList_Append(closed, all ? Py_True : Py_False);
        Py_XDECREF(one);
        if (failed) goto done;
    }
    result = Py_BuildValue("OOO", twice ? Py_True : Py_False, left, closed);
done:
    Py_XDECREF(left); Py_XDECREF(closed);
    PyMem_Free(freed); PyMem_Free(kept);
    PyBuffer_Release(&blocks); PyBuffer_Release(&sizes); PyBuffer_Release(&bounds);
    return result;
}
