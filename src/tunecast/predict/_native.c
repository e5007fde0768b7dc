/* What predict/replay.py does with predict/allocator.py, for a whole run at once, twenty times as fast, under the
   settings almost every job has: one stream, no expandable segments, no garbage collection, no rounding to powers of 2,
   no limit on splitting. The decisions are the same (tests/properties/test_replay.py compares them), and so are their
   sources. Blocks of a segment are chained by address; the free ones are a sorted array a pool. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>
#include <stdint.h>
#include <string.h>

#define FREE_ROW (-1)
#define EMPTY_ROW (-3)
#define MIB ((int64_t)1 << 20)
#define SMALL (1 * MIB)
#define NONE (-1)
#define NO_BYTES (-2)

typedef struct { int64_t address, size; int32_t before, after; int8_t large, is_free; } Block;
typedef struct { int64_t size, address; int32_t block; } Key;
typedef struct { Key *keys; int64_t count, room; int64_t unsplit; } Pool;

typedef struct {
    Block *blocks; int32_t count, room, unused;   /* unused: a chain of blocks through `after` */
    int32_t *live; int64_t names;
    Pool pools[2];
    int64_t next_address, allocated, reserved, peak_allocated, peak_reserved, limit, refused, retries, large_segment;
    int oldest_first;
} Allocator;

static int64_t place_of(const Pool *pool, int64_t size, int64_t address) {
    int64_t low = 0, high = pool->count;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        const Key *key = &pool->keys[middle];
        if (key->size < size || (key->size == size && key->address < address)) low = middle + 1; else high = middle;
    }
    return low;
}

static void take(Pool *pool, int64_t place) {
    memmove(&pool->keys[place], &pool->keys[place + 1], (size_t)(--pool->count - place) * sizeof(Key));
}

static int put(Allocator *a, int32_t number) {
    Block *block = &a->blocks[number];
    Pool *pool = &a->pools[block->large];
    if (pool->count == pool->room) {
        int64_t room = pool->room ? 2 * pool->room : 256;
        Key *keys = PyMem_Realloc(pool->keys, (size_t)room * sizeof(Key));
        if (!keys) return -1;
        pool->keys = keys; pool->room = room;
    }
    int64_t place = place_of(pool, block->size, block->address);
    memmove(&pool->keys[place + 1], &pool->keys[place], (size_t)(pool->count++ - place) * sizeof(Key));
    pool->keys[place] = (Key){block->size, block->address, number};
    block->is_free = 1;
    return 0;
}

static int32_t new_block(Allocator *a) {
    if (a->unused != NONE) { int32_t number = a->unused; a->unused = a->blocks[number].after; return number; }
    if (a->count == a->room) {
        int32_t room = a->room ? 2 * a->room : 4096;
        Block *blocks = PyMem_Realloc(a->blocks, (size_t)room * sizeof(Block));
        if (!blocks) return NONE;
        a->blocks = blocks; a->room = room;
    }
    return a->count++;
}

static void drop(Allocator *a, int32_t number) { a->blocks[number].after = a->unused; a->unused = number; }

static void empty_cache(Allocator *a) {
    for (int large = 1; large >= 0; large--) {
        Pool *pool = &a->pools[large];
        int64_t kept = 0;
        for (int64_t i = 0; i < pool->count; i++) {
            Block *block = &a->blocks[pool->keys[i].block];
            if (block->before == NONE && block->after == NONE) {
                a->reserved -= block->size;
                drop(a, pool->keys[i].block);
            } else {
                pool->keys[kept++] = pool->keys[i];
            }
        }
        pool->count = kept;
    }
}

/* A new segment as one block; NONE: no room, or no memory (then a Python error is set). */
static int32_t new_segment(Allocator *a, int large, int64_t segment) {
    if (a->reserved + segment > a->limit) {
        if (a->reserved + segment < a->refused) a->refused = a->reserved + segment;
        return NONE;
    }
    int32_t number = new_block(a);
    if (number == NONE) { PyErr_NoMemory(); return NONE; }
    int64_t address;
    if (a->oldest_first) { address = a->next_address; a->next_address += segment + 512; }
    else address = a->next_address = a->next_address - segment - 512;
    a->blocks[number] = (Block){address, segment, NONE, NONE, (int8_t)large, 0};
    a->reserved += segment;
    if (a->reserved > a->peak_reserved) a->peak_reserved = a->reserved;
    return number;
}

/* 0: done; 1: out of memory; -1: an error. */
static int request(Allocator *a, int64_t name, int64_t nbytes, int64_t *given, int64_t *segment) {
    int64_t size = (nbytes + 511) & ~(int64_t)511;
    int large = size > SMALL;
    Pool *pool = &a->pools[large];
    int64_t place = place_of(pool, size, 0);
    int32_t number;
    if (place < pool->count) {
        number = pool->keys[place].block;
        take(pool, place);
        a->blocks[number].is_free = 0;
    } else {
        *segment = !large ? 2 * MIB : size < 10 * MIB ? a->large_segment : (size + 2 * MIB - 1) / (2 * MIB) * (2 * MIB);
        number = new_segment(a, large, *segment);
        if (number == NONE && !PyErr_Occurred()) {
            empty_cache(a);
            a->retries++;
            number = new_segment(a, large, *segment);
        }
        if (number == NONE) return PyErr_Occurred() ? -1 : 1;
    }
    int64_t rest = a->blocks[number].size - size;
    if (rest > pool->unsplit) {
        int32_t left = new_block(a);
        if (left == NONE) { PyErr_NoMemory(); return -1; }
        Block *block = &a->blocks[number];
        a->blocks[left] = (Block){block->address + size, rest, number, block->after, (int8_t)large, 0};
        if (block->after != NONE) a->blocks[block->after].before = left;
        block->after = left;
        block->size = size;
        if (put(a, left)) { PyErr_NoMemory(); return -1; }
    }
    a->live[name] = number;
    *given = a->blocks[number].size;
    a->allocated += *given;
    if (a->allocated > a->peak_allocated) a->peak_allocated = a->allocated;
    return 0;
}

static int release(Allocator *a, int64_t name) {
    int32_t number = a->live[name];
    a->live[name] = NONE;
    if (number == NO_BYTES) return 0;
    Block *block = &a->blocks[number];
    Pool *pool = &a->pools[block->large];
    a->allocated -= block->size;
    int32_t after = block->after, before = block->before;
    if (after != NONE && a->blocks[after].is_free) {
        Block *next = &a->blocks[after];
        take(pool, place_of(pool, next->size, next->address));
        block->size += next->size;
        block->after = next->after;
        if (next->after != NONE) a->blocks[next->after].before = number;
        drop(a, after);
    }
    if (before != NONE && a->blocks[before].is_free) {
        Block *previous = &a->blocks[before];
        take(pool, place_of(pool, previous->size, previous->address));
        previous->size += block->size;
        previous->after = block->after;
        if (block->after != NONE) a->blocks[block->after].before = before;
        drop(a, number);
        number = before;
    }
    if (put(a, number)) { PyErr_NoMemory(); return -1; }
    return 0;
}

/* run(blocks, sizes, names, plan, renames, limit, oldest_first, large_segment)
   plan: for each stretch its first row, its end, and the end of the renames that come before it.
   Returns (given, courses, retries, refused, allocated, reserved, died): given and courses (allocated at its start,
   most allocated, most reserved, requests served) as bytes of int64; died None or (requested, segment, allocated,
   reserved). */
static PyObject *run(PyObject *self, PyObject *args) {
    Py_buffer blocks, sizes, plan, renames;
    long long names, limit, large_segment;
    int oldest_first;
    if (!PyArg_ParseTuple(
            args, "y*y*Ly*y*LpL", &blocks, &sizes, &names, &plan, &renames, &limit, &oldest_first, &large_segment))
        return NULL;
    const int64_t *block = blocks.buf, *size = sizes.buf, *step = plan.buf, *pair = renames.buf;
    int64_t stretches = plan.len / 24, rows = sizes.len / 8, pairs = renames.len / 16;
    int64_t renamed = 0, requests = 0, served = 0, segment = 0, stretch = 0;
    Allocator a = {0};
    a.unused = NONE; a.next_address = INT64_MAX / 4; a.limit = limit; a.refused = (int64_t)1 << 62;
    a.oldest_first = oldest_first; a.large_segment = large_segment; a.names = names;
    a.pools[0].unsplit = 511; a.pools[1].unsplit = SMALL;
    PyObject *result = NULL, *died = NULL;
    int64_t *moved = NULL, *gave = NULL, *course = NULL;
    for (int64_t i = 0; i < stretches; i++) {
        if (step[3 * i] < 0 || step[3 * i + 1] > rows || step[3 * i + 2] > pairs || blocks.len != sizes.len) {
            PyErr_SetString(PyExc_ValueError, "a plan for other rows");
            goto done;
        }
        requests += step[3 * i + 1] - step[3 * i];
    }
    a.live = PyMem_Calloc((size_t)names + 1, sizeof(int32_t));
    moved = PyMem_Calloc((size_t)pairs + 1, sizeof(int64_t));
    gave = PyMem_Calloc((size_t)requests + 1, sizeof(int64_t));
    course = PyMem_Calloc((size_t)stretches + 1, 4 * sizeof(int64_t));
    if (!a.live || !moved || !gave || !course) { PyErr_NoMemory(); goto done; }
    for (int64_t i = 0; i < names; i++) a.live[i] = NONE;
    for (; stretch < stretches && !died; stretch++) {
        int64_t until = step[3 * stretch + 2];
        for (int64_t i = renamed; i < until; i++) moved[i - renamed] = a.live[pair[2 * i]];
        for (int64_t i = renamed; i < until; i++) a.live[pair[2 * i + 1]] = (int32_t)moved[i - renamed];
        renamed = until;
        a.peak_allocated = course[4 * stretch] = a.allocated;
        a.peak_reserved = a.reserved;
        int64_t first = served;
        for (int64_t row = step[3 * stretch]; row < step[3 * stretch + 1]; row++) {
            int64_t nbytes = size[row], name = block[row];
            if (nbytes >= FREE_ROW && (name < 0 || name >= names || (nbytes == FREE_ROW && a.live[name] == NONE))) {
                PyErr_SetString(PyExc_ValueError, "a block that is not alive");
                goto done;
            }
            if (nbytes > 0) {
                int failed = request(&a, name, nbytes, &gave[served], &segment);
                if (failed < 0) goto done;
                if (failed) {
                    died = Py_BuildValue(
                        "LLLL", (long long)nbytes, (long long)segment, (long long)a.allocated, (long long)a.reserved);
                    if (!died) goto done;
                    break;
                }
                served++;
            } else if (nbytes == FREE_ROW) {
                if (release(&a, name)) goto done;
            } else if (!nbytes) {
                a.live[name] = NO_BYTES;
                gave[served++] = 0;
            } else if (nbytes == EMPTY_ROW) {
                empty_cache(&a);
            }
        }
        course[4 * stretch + 1] = a.peak_allocated;
        course[4 * stretch + 2] = a.peak_reserved;
        course[4 * stretch + 3] = served - first;
    }
    result = Py_BuildValue(
        "y#y#LLLLO", (char *)gave, (Py_ssize_t)served * 8, (char *)course, (Py_ssize_t)stretch * 32,
        (long long)a.retries, (long long)a.refused, (long long)a.allocated, (long long)a.reserved,
        died ? died : Py_None);
done:
    Py_XDECREF(died);
    PyMem_Free(a.blocks); PyMem_Free(a.live); PyMem_Free(a.pools[0].keys); PyMem_Free(a.pools[1].keys);
    PyMem_Free(moved); PyMem_Free(gave); PyMem_Free(course);
    PyBuffer_Release(&blocks); PyBuffer_Release(&sizes); PyBuffer_Release(&plan); PyBuffer_Release(&renames);
    return result;
}

static PyMethodDef methods[] = {{"run", run, METH_VARARGS, "Replay a run."}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_native", NULL, -1, methods, NULL, NULL, NULL, NULL};
PyMODINIT_FUNC PyInit__native(void) { return PyModule_Create(&module); }
