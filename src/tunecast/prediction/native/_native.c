/* What prediction/memory does with replay.py and allocator.py, for a whole run at once, twenty times as fast, under the
   settings almost every job has: no garbage collection, no rounding to powers of 2, no limit on splitting. The
   decisions are the same (tests/properties/test_replay.py compares them), and so are their sources. Blocks of a segment
   are chained by address; the free ones are a sorted array a pool, and so are the holes of expandable segments
   (memory/expandable.py), which are blocks of their chain too. The module is made here; its other functions are
   in _pricing.c and _columns.c. CHECKSUM is of all (native.py). */

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
#define MOST_BYTES ((int64_t)1 << 56)   /* of one block; with it no sum below leaves 64 bits */
#define FARTHEST (INT64_MAX / 2)
#define UNLIMITED ((int64_t)1 << 62)
#define MOST_STREAMS 4096
#define FREE 1
#define HOLE 2                          /* no memory is behind it */
#define FIRST_RANGE ((int64_t)1 << 40)

typedef struct { int64_t address, size; int32_t before, after, pool; int8_t is_free; } Block; /* 0, FREE, HOLE */
typedef struct { int64_t size, address; int32_t block; } Key;
typedef struct { Key *keys; int64_t count, room; } Pool;
typedef struct { int64_t start, length; } Span;

typedef struct {
    Block *blocks; int32_t count, room, unused;   /* unused: a chain of blocks through `after` */
    int32_t *live; int64_t names;
    Pool *pools, *holes; int32_t pool_count;      /* of each stream its small one, then its large one */
    int64_t next_address, allocated, reserved, peak_allocated, peak_reserved, limit, refused, retries, large_segment;
    int64_t emptied;                              /* how often the cache was */
    int64_t device_total, physical;               /* of expandable segments: the card, and what can be mapped of it */
    int oldest_first, is_expandable;
    int64_t arena;                                /* memory/addresses.py */
    Span *spare; int64_t spare_count, spare_room; /* of arenas, by address */
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

static int insert(Pool *pool, Key key) {
    if (pool->count == pool->room) {
        int64_t room = pool->room ? 2 * pool->room : 256;
        Key *keys = PyMem_Realloc(pool->keys, (size_t)room * sizeof(Key));
        if (!keys) return -1;
        pool->keys = keys; pool->room = room;
    }
    int64_t place = place_of(pool, key.size, key.address);
    memmove(&pool->keys[place + 1], &pool->keys[place], (size_t)(pool->count++ - place) * sizeof(Key));
    pool->keys[place] = key;
    return 0;
}

static int put(Allocator *a, int32_t number) {
    Block *block = &a->blocks[number];
    block->is_free = FREE;
    return insert(&a->pools[block->pool], (Key){block->size, block->address, number});
}

static int put_hole(Allocator *a, int32_t number) { /* by address alone */
    Block *block = &a->blocks[number];
    block->is_free = HOLE;
    return insert(&a->holes[block->pool], (Key){0, block->address, number});
}

static void take_hole(Allocator *a, int32_t number) {
    Block *block = &a->blocks[number];
    Pool *holes = &a->holes[block->pool];
    take(holes, place_of(holes, 0, block->address));
    block->is_free = 0;
}

static int32_t new_block(Allocator *a) {
    if (a->unused != NONE) { int32_t number = a->unused; a->unused = a->blocks[number].after; return number; }
    if (a->count == a->room) {
        if (a->room > INT32_MAX / 2) return NONE;
        int32_t room = a->room ? 2 * a->room : 4096;
        Block *blocks = PyMem_Realloc(a->blocks, (size_t)room * sizeof(Block));
        if (!blocks) return NONE;
        a->blocks = blocks; a->room = room;
    }
    return a->count++;
}

static void drop(Allocator *a, int32_t number) {
    a->blocks[number].is_free = 1;
    a->blocks[number].after = a->unused;
    a->unused = number;
}

/* A block whose back becomes a block of its own, in no pool; that one, or NONE: no memory. */
static int32_t split(Allocator *a, int32_t number, int64_t size) {
    int32_t back = new_block(a);
    if (back == NONE) { PyErr_NoMemory(); return NONE; }
    Block *block = &a->blocks[number];
    a->blocks[back] = (Block){block->address + size, block->size - size, number, block->after, block->pool, 0};
    if (block->after != NONE) a->blocks[block->after].before = back;
    block->after = back;
    block->size = size;
    return back;
}

/* A block takes in the one after it, which is in no pool. */
static void join(Allocator *a, int32_t number) {
    Block *block = &a->blocks[number], *next = &a->blocks[block->after];
    int32_t gone = block->after;
    block->size += next->size;
    block->after = next->after;
    if (next->after != NONE) a->blocks[next->after].before = number;
    drop(a, gone);
}

/* Into its pool, merged with free neighbours; the block it is then, or NONE: no memory. */
static int32_t settle(Allocator *a, int32_t number) {
    Pool *pool = &a->pools[a->blocks[number].pool];
    int32_t after = a->blocks[number].after, before = a->blocks[number].before;
    if (after != NONE && a->blocks[after].is_free == FREE) {
        take(pool, place_of(pool, a->blocks[after].size, a->blocks[after].address));
        join(a, number);
    }
    if (before != NONE && a->blocks[before].is_free == FREE) {
        take(pool, place_of(pool, a->blocks[before].size, a->blocks[before].address));
        join(a, before);
        number = before;
    }
    if (put(a, number)) { PyErr_NoMemory(); return NONE; }
    return number;
}

static int64_t page_of(const Allocator *a, int32_t pool) { return pool % 2 ? a->large_segment : 2 * MIB; }

/* The whole pages of a free block become a hole (ExpandableSegments._unmap). 0, or -1: an error. */
static int unmap(Allocator *a, int32_t number) {
    int64_t page = page_of(a, a->blocks[number].pool), address = a->blocks[number].address;
    int64_t size = a->blocks[number].size;
    int64_t start = (address + page - 1) / page * page, end = (address + size) / page * page;
    if (start >= end) return 0;
    Pool *pool = &a->pools[a->blocks[number].pool];
    take(pool, place_of(pool, size, address));
    a->blocks[number].is_free = 0;
    if (start > address) {
        int32_t back = split(a, number, start - address);
        if (back == NONE || put(a, number)) return -1;
        number = back;
    }
    if (end < address + size) {
        int32_t back = split(a, number, end - start);
        if (back == NONE || put(a, back)) return -1;
    }
    a->reserved -= end - start;
    int32_t after = a->blocks[number].after, before = a->blocks[number].before;
    if (after != NONE && a->blocks[after].is_free == HOLE) { take_hole(a, after); join(a, number); }
    if (before != NONE && a->blocks[before].is_free == HOLE) { take_hole(a, before); join(a, before); number = before; }
    if (a->blocks[number].before == NONE && a->blocks[number].after == NONE) { drop(a, number); return 0; }
    return put_hole(a, number);
}

/* 0, or -1: an error. */
static int unmap_all(Allocator *a) {
    for (int32_t of = 0; of < a->pool_count; of++) {
        Pool *pool = &a->pools[of];
        int64_t count = pool->count;
        Key *keys = PyMem_Malloc((size_t)(count + 1) * sizeof(Key));
        if (!keys) { PyErr_NoMemory(); return -1; }
        if (count) memcpy(keys, pool->keys, (size_t)count * sizeof(Key)); /* ends of blocks come back as others */
        for (int64_t i = 0; i < count; i++) {
            if (unmap(a, keys[i].block)) {
                if (!PyErr_Occurred()) PyErr_NoMemory();
                PyMem_Free(keys);
                return -1;
            }
        }
        PyMem_Free(keys);
    }
    return 0;
}

/* The first block of a row of free blocks and holes of this size, at the lowest address (ExpandableSegments._room). */
static int32_t room_for(Allocator *a, int32_t of, int64_t size) {
    Pool *holes = &a->holes[of];
    for (int64_t i = 0; i < holes->count; i++) {
        int32_t start = holes->keys[i].block, before = a->blocks[start].before;
        if (before != NONE && a->blocks[before].is_free == FREE) start = before;
        int64_t found = 0;
        for (int32_t at = start; found < size && at != NONE && a->blocks[at].is_free; at = a->blocks[at].after)
            found += a->blocks[at].size;
        if (found >= size) return start;
    }
    int64_t page = page_of(a, of), wide = a->device_total + a->device_total / 8;
    int64_t length = ((wide > size ? wide : size) + page - 1) / page * page;
    int64_t start = (a->next_address + page - 1) / page * page;
    int32_t number = new_block(a);
    if (number == NONE || start > FARTHEST) { PyErr_NoMemory(); return NONE; }
    a->next_address = start + length + page;
    a->blocks[number] = (Block){start, length, NONE, NONE, of, 0};
    if (put_hole(a, number)) { PyErr_NoMemory(); return NONE; }
    return number;
}

/* Pages from the start of a hole, merged with their free neighbours; NONE: no page is left, or an error is set. */
static int32_t map(Allocator *a, int32_t hole, int64_t size) {
    int64_t page = page_of(a, a->blocks[hole].pool), mapped = (size + page - 1) / page * page;
    if (a->reserved + mapped > a->physical) return NONE;
    take_hole(a, hole);
    if (mapped < a->blocks[hole].size) {
        int32_t rest = split(a, hole, mapped);
        if (rest == NONE) return NONE;
        if (put_hole(a, rest)) { PyErr_NoMemory(); return NONE; }
    }
    a->reserved += mapped;
    return settle(a, hole);
}

/* ExpandableSegments.grow; the block is in no pool. */
static int32_t grow(Allocator *a, int32_t of, int64_t size) {
    int32_t at = room_for(a, of, size);
    while (at != NONE && (a->blocks[at].is_free == HOLE || a->blocks[at].size < size)) {
        int64_t mapped = a->blocks[at].is_free == HOLE ? 0 : a->blocks[at].size;
        int32_t hole = mapped ? a->blocks[at].after : at;
        int64_t lacks = size - mapped;
        at = map(a, hole, lacks < a->blocks[hole].size ? lacks : a->blocks[hole].size);
    }
    if (at == NONE) return NONE;
    Pool *pool = &a->pools[of];
    take(pool, place_of(pool, a->blocks[at].size, a->blocks[at].address));
    a->blocks[at].is_free = 0;
    return at;
}

static int64_t can_become(const Allocator *a, const Key *key) {
    int32_t after = a->blocks[key->block].after;
    return key->size + (after != NONE && a->blocks[after].is_free == HOLE ? a->blocks[after].size : 0);
}

/* ExpandableSegments.best_fit */
static int64_t best_fit(const Allocator *a, const Pool *pool, int64_t place) {
    int64_t here = can_become(a, &pool->keys[place]);
    for (int64_t i = place + 1; i < pool->count; i++) {
        int64_t following = can_become(a, &pool->keys[i]);
        if (following >= here) break;
        place = i; here = following;
    }
    return place;
}

/* 0, or -1: an error. */
static int empty_cache(Allocator *a) {
    a->emptied++;
    if (a->is_expandable) return unmap_all(a);
    for (int32_t number = 0; number < a->pool_count; number++) {
        Pool *pool = &a->pools[number];
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
    return 0;
}

/* Addresses.take of segments that do not ascend. 0, or -1: no memory. */
static int take_address(Allocator *a, int64_t segment, int64_t *address) {
    int64_t place = 0, arena = a->arena ? a->arena : segment;
    while (place < a->spare_count && a->spare[place].length < segment) place++;
    Span span;
    if (place < a->spare_count) {
        span = a->spare[place];
        memmove(&a->spare[place], &a->spare[place + 1], (size_t)(--a->spare_count - place) * sizeof(Span));
    } else {
        span.length = (segment + arena - 1) / arena * arena;
        span.start = a->next_address = a->next_address - span.length;
    }
    *address = span.start;
    if (span.length == segment) return 0;
    if (a->spare_count == a->spare_room) {
        int64_t room = a->spare_room ? 2 * a->spare_room : 64;
        Span *spare = PyMem_Realloc(a->spare, (size_t)room * sizeof(Span));
        if (!spare) return -1;
        a->spare = spare; a->spare_room = room;
    }
    for (place = a->spare_count++; place > 0 && a->spare[place - 1].start > span.start; place--)
        a->spare[place] = a->spare[place - 1];
    a->spare[place] = (Span){span.start + segment, span.length - segment};
    return 0;
}

/* A new segment as one block, or of an expandable one a block of the size at least; NONE: no room, or no memory (then a
   Python error is set). */
static int32_t new_segment(Allocator *a, int32_t pool, int64_t segment, int64_t size) {
    if (a->reserved + segment > a->limit) {
        if (a->reserved + segment < a->refused) a->refused = a->reserved + segment;
        return NONE;
    }
    if (a->is_expandable) {
        int32_t grown = grow(a, pool, size);
        if (a->reserved > a->peak_reserved) a->peak_reserved = a->reserved;
        return grown;
    }
    int32_t number = new_block(a);
    if (number == NONE) { PyErr_NoMemory(); return NONE; }
    int64_t address;
    if (a->next_address > FARTHEST || a->next_address < -FARTHEST) { PyErr_NoMemory(); return NONE; }
    if (a->oldest_first) { address = a->next_address; a->next_address += segment; }
    else if (take_address(a, segment, &address)) { PyErr_NoMemory(); return NONE; }
    a->blocks[number] = (Block){address, segment, NONE, NONE, pool, 0};
    a->reserved += segment;
    if (a->reserved > a->peak_reserved) a->peak_reserved = a->reserved;
    return number;
}

/* 0: done; 1: out of memory; -1: an error. */
static int request(Allocator *a, int64_t name, int64_t nbytes, int64_t stream, int64_t *given, int64_t *segment) {
    int64_t size = (nbytes + 511) & ~(int64_t)511;
    int large = size > SMALL;
    int32_t of = (int32_t)(2 * stream) + large;
    Pool *pool = &a->pools[of];
    int64_t place = place_of(pool, size, 0);
    int32_t number;
    if (place < pool->count) {
        if (a->is_expandable) place = best_fit(a, pool, place);
        number = pool->keys[place].block;
        take(pool, place);
        a->blocks[number].is_free = 0;
    } else {
        *segment = !large ? 2 * MIB : size < 10 * MIB ? a->large_segment : (size + 2 * MIB - 1) / (2 * MIB) * (2 * MIB);
        number = new_segment(a, of, *segment, size);
        if (number == NONE && !PyErr_Occurred()) {
            if (empty_cache(a)) return -1;
            a->retries++;
            number = new_segment(a, of, *segment, size);
        }
        if (number == NONE) return PyErr_Occurred() ? -1 : 1;
    }
    int64_t rest = a->blocks[number].size - size;
    if (rest > (large && !a->is_expandable ? SMALL : 511)) {
        int32_t left = split(a, number, size);
        if (left == NONE) return -1;
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
    if (block->is_free) { PyErr_SetString(PyExc_ValueError, "a block that is freed twice"); return -1; }
    a->allocated -= block->size;
    return settle(a, number) == NONE ? -1 : 0;
}

static int is_numbers(const Py_buffer *of) { return of->len % 8 == 0 && (!of->len || (uintptr_t)of->buf % 8 == 0); }

/* A program's rows, as replay.py's `in_c` makes them: blocks, sizes, streams (none: all of one), how many names there
   are, of each stretch as it is taken its first row, its end, the end of the renames before it, and where its sizes
   begin in the table, the renames, and the table. Without a table sizes are themselves; with one they are places in it,
   and marks are themselves. */
typedef struct {
    Py_buffer blocks, sizes, streams, plan, renames, table;
    long long names;
    const int64_t *block, *size, *stream, *step, *pair, *value;
    int64_t count, stretches, pairs, values, requests;   /* the last: the most there can be */
    int64_t *moved;
} Rows;

static void close_rows(Rows *r) {
    PyMem_Free(r->moved);
    PyBuffer_Release(&r->blocks); PyBuffer_Release(&r->sizes); PyBuffer_Release(&r->streams);
    PyBuffer_Release(&r->plan); PyBuffer_Release(&r->renames); PyBuffer_Release(&r->table);
}

/* Whether every row, stretch and rename points at something, and no sum of sizes leaves 64 bits; else: an error. */
static int is_sound(Rows *r, int64_t *streams) {
    int sound = r->blocks.len == r->sizes.len && (!r->streams.len || r->streams.len == r->sizes.len)
        && is_numbers(&r->blocks) && is_numbers(&r->sizes) && is_numbers(&r->streams) && is_numbers(&r->plan)
        && is_numbers(&r->renames) && is_numbers(&r->table) && r->plan.len % 32 == 0 && r->names >= 0
        && r->names < INT32_MAX;
    int64_t last = 0, most = 0;
    *streams = 1;
    for (int64_t i = 0; sound && i < r->stretches; i++) {
        int64_t first = r->step[4 * i], end = r->step[4 * i + 1], until = r->step[4 * i + 2];
        sound = first >= 0 && first <= end && end <= r->count && until >= last && until <= r->pairs
            && r->step[4 * i + 3] >= 0 && r->step[4 * i + 3] <= r->values
            && r->requests <= INT64_MAX / 16 - r->count;
        r->requests += end - first;
        last = until;
    }
    for (int64_t i = 0; sound && i < 2 * r->pairs; i++) sound = r->pair[i] >= 0 && r->pair[i] < r->names;
    for (int64_t i = 0; sound && i < r->count; i++) {
        if (!r->value && r->size[i] > most) most = r->size[i];
        sound = r->size[i] < FREE_ROW || (r->block[i] >= 0 && r->block[i] < r->names);
        if (!r->stream) continue;
        sound &= r->stream[i] >= 0 && r->stream[i] < MOST_STREAMS;
        if (r->stream[i] >= *streams) *streams = r->stream[i] + 1;
    }
    for (int64_t i = 0; sound && i < r->values; i++) if (r->value[i] > most) most = r->value[i];
    if (!sound) PyErr_SetString(PyExc_ValueError, "a plan for other rows");
    else if (most > MOST_BYTES) PyErr_SetString(PyExc_OverflowError, "a block larger than any memory");
    return sound && most <= MOST_BYTES;
}

/* Rows that were just read, and an allocator for them; 0: an error is set. `device_total` 0: no expandable segments. */
static int open_rows(Rows *r, Allocator *a, int64_t bytes, int oldest_first, int64_t arena, int64_t large_segment,
                     int64_t device_total) {
    int64_t streams;
    r->block = r->blocks.buf; r->size = r->sizes.buf; r->step = r->plan.buf; r->pair = r->renames.buf;
    r->stream = r->streams.len ? r->streams.buf : NULL;
    r->value = r->table.len ? r->table.buf : NULL; r->values = r->table.len / 8;
    r->count = r->sizes.len / 8; r->stretches = r->plan.len / 32; r->pairs = r->renames.len / 16;
    if (bytes < -UNLIMITED || bytes > UNLIMITED || large_segment <= 0 || large_segment > MOST_BYTES
        || device_total < 0 || device_total > MOST_BYTES || arena < 0 || arena > MOST_BYTES) {
        PyErr_SetString(PyExc_OverflowError, "no capacity");
        return 0;
    }
    if (!is_sound(r, &streams)) return 0;
    a->oldest_first = oldest_first; a->arena = arena; a->large_segment = large_segment; a->names = r->names;
    a->is_expandable = device_total > 0; a->device_total = device_total; a->physical = UNLIMITED;
    a->pool_count = (int32_t)(2 * streams);
    a->pools = PyMem_Calloc((size_t)a->pool_count, sizeof(Pool));
    a->holes = PyMem_Calloc((size_t)a->pool_count, sizeof(Pool));
    a->live = PyMem_Calloc((size_t)r->names + 1, sizeof(int32_t));
    r->moved = PyMem_Calloc((size_t)r->pairs + 1, sizeof(int64_t));
    if (!a->pools || !a->holes || !a->live || !r->moved) { PyErr_NoMemory(); return 0; }
    return 1;
}

static void close_allocator(Allocator *a) {
    for (int32_t i = 0; a->pools && i < a->pool_count; i++) PyMem_Free(a->pools[i].keys);
    for (int32_t i = 0; a->holes && i < a->pool_count; i++) PyMem_Free(a->holes[i].keys);
    PyMem_Free(a->pools); PyMem_Free(a->holes); PyMem_Free(a->blocks); PyMem_Free(a->live);
    PyMem_Free(a->spare);
}

/* Nothing is allocated; the room that was made stays. */
static void begin(Allocator *a, int64_t limit) {
    for (int32_t i = 0; i < a->pool_count; i++) a->pools[i].count = a->holes[i].count = 0;
    for (int64_t i = 0; i < a->names; i++) a->live[i] = NONE;
    a->count = 0; a->spare_count = 0; a->unused = NONE; a->limit = limit; a->refused = UNLIMITED;
    a->next_address = a->is_expandable ? FIRST_RANGE : INT64_MAX / 4;
    a->allocated = a->reserved = a->peak_allocated = a->peak_reserved = a->retries = a->emptied = 0;
}

static void rename_blocks(Allocator *a, const Rows *r, int64_t from, int64_t until) {
    for (int64_t i = from; i < until; i++) r->moved[i - from] = a->live[r->pair[2 * i]];
    for (int64_t i = from; i < until; i++) a->live[r->pair[2 * i]] = NONE;
    for (int64_t i = from; i < until; i++) a->live[r->pair[2 * i + 1]] = (int32_t)r->moved[i - from];
}

typedef struct { int64_t served, segment, *gave, wanted; } Served; /* `gave` may be NULL: nobody asks what was given */

/* A row whose sizes begin at `at`: 0, or 1: out of memory, or -1: an error. */
static int take_row(Allocator *a, const Rows *r, int64_t row, int64_t at, Served *so_far) {
    int64_t nbytes = r->size[row], name = r->block[row], given = 0;
    if (r->value && nbytes >= 0) {
        if (nbytes >= r->values - at || r->value[at + nbytes] < 0) {
            PyErr_SetString(PyExc_ValueError, "a table for other rows");
            return -1;
        }
        nbytes = r->value[at + nbytes];
    }
    so_far->wanted = nbytes;
    if (nbytes > 0) {
        int failed = request(a, name, nbytes, r->stream ? r->stream[row] : 0, &given, &so_far->segment);
        if (failed) return failed;
    } else if (nbytes == FREE_ROW) {
        if (a->live[name] == NONE) { PyErr_SetString(PyExc_ValueError, "a block that is not alive"); return -1; }
        return release(a, name);
    } else if (!nbytes) {
        a->live[name] = NO_BYTES;
    } else {
        return nbytes == EMPTY_ROW ? empty_cache(a) : 0;
    }
    if (so_far->gave) so_far->gave[so_far->served] = given;
    so_far->served++;
    return 0;
}

/* Rounds: a step is taken again and again, and after one or two the large blocks do the same each time (replay.py,
   `_Known`). Where a round begins with large blocks, alive and free, as the one before it began, and that one emptied
   no cache and so made no large segment, it ends as that one ended: its small blocks alone are played, which share
   nothing with the large ones but the capacity. Where that would have the cache emptied, all is played once more. */

#define LONGEST_ROUND 256              /* stretches */
#define REDO 2

typedef struct { int64_t size, address; } Place;

typedef struct {
    int64_t start, length, next;     /* stretches: where the one that is known began, and where it may come again */
    int64_t known_until;             /* up to this stretch the small blocks alone are played */
    int64_t allocated, emptied;      /* when it began */
    Place *held; Key *keys; int64_t count, room; /* of each name its large block; the free ones */
    int is_off;
} Round;

static int is_round_again(const Rows *r, int64_t one, int64_t other, int64_t length) {
    if (other + length > r->stretches) return 0;
    for (int64_t i = 0; i < length; i++) {
        const int64_t *a = &r->step[4 * (one + i)], *b = &r->step[4 * (other + i)];
        if (a[0] != b[0] || a[1] != b[1] || a[3] != b[3]) return 0;
        if (i && (a[2] != a[-2] || b[2] != b[-2])) return 0; /* blocks are renamed within */
    }
    return 1;
}

static Place large_place(const Allocator *a, int64_t name) {
    int32_t number = a->live[name];
    if (number < 0 || !(a->blocks[number].pool & 1)) return (Place){0, 0};
    return (Place){a->blocks[number].size, a->blocks[number].address};
}

static int is_as_it_began(const Allocator *a, const Round *round) {
    const Pool *pool = &a->pools[1];
    if (a->allocated != round->allocated || a->emptied != round->emptied || pool->count != round->count) return 0;
    for (int64_t i = 0; i < pool->count; i++) {
        if (pool->keys[i].size != round->keys[i].size || pool->keys[i].address != round->keys[i].address) return 0;
    }
    for (int64_t name = 0; name < a->names; name++) {
        Place here = large_place(a, name);
        if (here.size != round->held[name].size || here.address != round->held[name].address) return 0;
    }
    return 1;
}

/* 0, or -1: no memory. */
static int remember(const Allocator *a, Round *round) {
    const Pool *pool = &a->pools[1];
    if (!round->held && !(round->held = PyMem_Malloc((size_t)(a->names + 1) * sizeof(Place)))) return -1;
    if (pool->count > round->room) {
        Key *keys = PyMem_Realloc(round->keys, (size_t)pool->room * sizeof(Key));
        if (!keys) return -1;
        round->keys = keys; round->room = pool->room;
    }
    if (pool->count) memcpy(round->keys, pool->keys, (size_t)pool->count * sizeof(Key));
    for (int64_t name = 0; name < a->names; name++) round->held[name] = large_place(a, name);
    round->count = pool->count; round->allocated = a->allocated; round->emptied = a->emptied;
    return 0;
}

/* The large blocks renamed from `from` on go by the names they had; 0: one of these is taken, and all is as it was. */
static int rename_large_back(Allocator *a, const Rows *r, int64_t from, int64_t until) {
    int is_free = 1;
    for (int64_t i = from; i < until; i++) {
        int32_t *live = &a->live[r->pair[2 * i + 1]];
        int is_large = *live >= 0 && (a->blocks[*live].pool & 1);
        r->moved[i - from] = is_large ? *live : NONE;
        if (is_large) *live = NONE;
    }
    for (int64_t i = from; i < until; i++) is_free &= r->moved[i - from] == NONE || a->live[r->pair[2 * i]] == NONE;
    for (int64_t i = from; i < until; i++) {
        if (r->moved[i - from] != NONE) a->live[r->pair[2 * i + !is_free]] = (int32_t)r->moved[i - from];
    }
    return is_free;
}

/* Whether of a stretch, before which blocks were renamed from `renamed` on, the small blocks alone are to be played;
   -1: no memory. */
static int is_known(Allocator *a, const Rows *r, Round *round, int64_t stretch, int64_t renamed) {
    if (stretch < round->known_until) return 1;
    if (round->is_off || a->pool_count != 2 || a->is_expandable || stretch < round->next) return 0;
    if (round->length && stretch == round->next && is_round_again(r, round->start, stretch, round->length)
        && is_as_it_began(a, round) && rename_large_back(a, r, renamed, r->step[4 * stretch + 2])) {
        round->next = round->known_until = stretch + round->length;
        return 1;
    }
    round->length = 0;
    for (int64_t length = 1; length <= LONGEST_ROUND && !round->length; length++) {
        if (is_round_again(r, stretch, stretch + length, length)) round->length = length;
    }
    if (!round->length) return 0;
    round->start = stretch; round->next = stretch + round->length;
    if (remember(a, round)) { PyErr_NoMemory(); return -1; }
    return 0;
}

static void forget(Round *round) { round->length = round->next = round->known_until = 0; }

static void close_round(Round *round) { PyMem_Free(round->held); PyMem_Free(round->keys); }

/* A row of a known round. 0: done; REDO: the cache was emptied; -1: an error. */
static int take_small_row(Allocator *a, const Rows *r, int64_t row, int64_t at, Served *so_far) {
    int64_t nbytes = r->size[row], name = r->block[row], given = 0, emptied = a->emptied;
    if (r->value && nbytes >= 0) nbytes = r->value[at + nbytes];
    if (nbytes >= 0) so_far->served++;
    if (nbytes > 0 && nbytes <= SMALL) {
        if (request(a, name, nbytes, 0, &given, &so_far->segment) < 0) return -1;
        return a->emptied == emptied ? 0 : REDO;
    }
    if (nbytes == FREE_ROW) {
        int32_t number = a->live[name];
        if (number != NONE && (number == NO_BYTES || !(a->blocks[number].pool & 1))) return release(a, name);
    } else if (!nbytes) {
        a->live[name] = NO_BYTES;
    }
    return 0;
}

/* A stretch of a known round, with the figures it had in the round before; `gave` may be NULL. As take_small_row. */
static int take_known(Allocator *a, const Rows *r, int64_t stretch, int64_t length, int64_t *course, int64_t *gave,
                      Served *so_far) {
    int64_t *own = &course[4 * stretch], *before = &course[4 * (stretch - length)], first = so_far->served, back = 0;
    for (int64_t row = r->step[4 * stretch]; row < r->step[4 * stretch + 1]; row++) {
        int failed = take_small_row(a, r, row, r->step[4 * stretch + 3], so_far);
        if (failed) return failed;
    }
    for (int64_t i = stretch - length; i < stretch; i++) back += course[4 * i + 3];
    if (gave) memcpy(&gave[first], &gave[first - back], (size_t)before[3] * sizeof(int64_t));
    own[0] = before[0]; own[1] = before[1]; own[2] = a->peak_reserved; own[3] = before[3];
    return 0;
}

/* run(*rows, limit, oldest_first, arena, large_segment, device_total, physical, asked)
   Returns (given, courses, retries, refused, allocated, reserved, died, moments): given and courses (allocated at its
   start, most allocated, most reserved, requests served) as bytes of int64; died None or (requested, segment,
   allocated, reserved). `asked` None: given is of all requests; else numbers of stretches in order, given is empty, and
   moments has of each what every name holds when it begins and what its requests are given. */
static PyObject *run(PyObject *self, PyObject *args) {
    Rows r = {0};
    Allocator a = {0};
    Served so_far = {0};
    Round round = {0};
    Py_buffer asked = {0};
    PyObject *asked_object;
    long long limit, arena, large_segment, device_total, physical;
    int oldest_first;
    if (!PyArg_ParseTuple(args, "y*y*y*Ly*y*y*LpLLLLO", &r.blocks, &r.sizes, &r.streams, &r.names, &r.plan, &r.renames,
                          &r.table, &limit, &oldest_first, &arena, &large_segment, &device_total, &physical,
                          &asked_object))
        return NULL;
    PyObject *result = NULL, *died = NULL, *moments = NULL;
    int64_t *course = NULL, *held = NULL, renamed = 0, stretch = 0, next = 0, served = 0;
    int some = asked_object != Py_None;
    if (some && PyObject_GetBuffer(asked_object, &asked, PyBUF_SIMPLE)) goto done;
    if (some && !is_numbers(&asked)) { PyErr_SetString(PyExc_ValueError, "no numbers of stretches"); goto done; }
    if (!open_rows(&r, &a, limit, oldest_first, arena, large_segment, device_total)) goto done;
    a.physical = physical;
    const int64_t *wanted = asked.buf;
    int64_t wanted_count = some ? asked.len / 8 : 0, most = 0;
    for (int64_t i = 0; some && i < r.stretches; i++) {
        int64_t rows = r.step[4 * i + 1] - r.step[4 * i];
        if (rows > most) most = rows;
    }
    so_far.gave = PyMem_Calloc((size_t)(some ? most : r.requests) + 1, sizeof(int64_t));
    course = PyMem_Calloc((size_t)r.stretches + 1, 4 * sizeof(int64_t));
    held = some ? PyMem_Calloc((size_t)r.names + 1, sizeof(int64_t)) : NULL;
    moments = PyList_New(0);
    if (!so_far.gave || !course || (some && !held)) { PyErr_NoMemory(); goto done; }
    if (!moments) goto done;
    begin(&a, limit);
    round.is_off = wanted_count > 0; /* what every name holds is known between rounds only */
    for (; stretch < r.stretches && !died; stretch++) {
        rename_blocks(&a, &r, renamed, r.step[4 * stretch + 2]);
        int known = is_known(&a, &r, &round, stretch, renamed);
        if (known < 0) goto done;
        renamed = r.step[4 * stretch + 2];
        a.peak_reserved = a.reserved;
        if (known) {
            int again = take_known(&a, &r, stretch, round.length, course, some ? NULL : so_far.gave, &so_far);
            if (again < 0) goto done;
            if (again == REDO) {
                begin(&a, limit); forget(&round); round.is_off = 1;
                renamed = so_far.served = 0; stretch = -1;
            }
            continue;
        }
        a.peak_allocated = course[4 * stretch] = a.allocated;
        int is_wanted = some && next < wanted_count && wanted[next] == stretch;
        if (is_wanted) {
            for (int64_t i = 0; i < r.names; i++) held[i] = a.live[i] < 0 ? 0 : a.blocks[a.live[i]].size;
        }
        if (some) so_far.served = 0;
        int64_t first = so_far.served, at = r.step[4 * stretch + 3];
        for (int64_t row = r.step[4 * stretch]; row < r.step[4 * stretch + 1] && !died; row++) {
            int failed = take_row(&a, &r, row, at, &so_far);
            if (failed < 0) goto done;
            if (failed && !(died = Py_BuildValue("LLLL", (long long)so_far.wanted, (long long)so_far.segment,
                                                 (long long)a.allocated, (long long)a.reserved)))
                goto done;
        }
        served = so_far.served - first;
        course[4 * stretch + 1] = a.peak_allocated;
        course[4 * stretch + 2] = a.peak_reserved;
        course[4 * stretch + 3] = served;
        if (is_wanted) {
            PyObject *one = Py_BuildValue("y#y#", (char *)held, (Py_ssize_t)r.names * 8, (char *)so_far.gave,
                                          (Py_ssize_t)served * 8);
            int failed = !one || PyList_Append(moments, one);
            Py_XDECREF(one);
            if (failed) goto done;
            if (++next == wanted_count) { stretch++; break; }
        }
    }
    result = Py_BuildValue(
        "y#y#LLLLOO", (char *)so_far.gave, some ? (Py_ssize_t)0 : (Py_ssize_t)so_far.served * 8, (char *)course,
        (Py_ssize_t)stretch * 32, (long long)a.retries, (long long)a.refused, (long long)a.allocated,
        (long long)a.reserved, died ? died : Py_None, moments);
done:
    Py_XDECREF(died); Py_XDECREF(moments);
    PyMem_Free(so_far.gave); PyMem_Free(course); PyMem_Free(held);
    close_round(&round);
    if (asked.obj) PyBuffer_Release(&asked);
    close_allocator(&a); close_rows(&r);
    return result;
}

/* The search for the least capacity (memory/needs.py, smallest_capacity_bytes): the same probes in the same order, of
   which only how they end is kept. */

typedef struct { int64_t from, until, lacked; } Ended; /* lacked 0: it completed; the same from `from` up to `until` */

/* 0: done; -1: an error. */
static int attempt(Allocator *a, const Rows *r, Round *round, int64_t limit, int is_physical, Ended *end) {
    Served so_far = {0};
    int64_t renamed = 0, most = 0;
    int by_page = a->is_expandable && is_physical;
    begin(a, by_page ? UNLIMITED : limit);
    a->physical = by_page ? limit : UNLIMITED;
    *end = (Ended){0, 0, 0};
    forget(round);
    for (int64_t stretch = 0; stretch < r->stretches && !end->lacked; stretch++) {
        rename_blocks(a, r, renamed, r->step[4 * stretch + 2]);
        int known = is_known(a, r, round, stretch, renamed);
        if (known < 0) return -1;
        renamed = r->step[4 * stretch + 2];
        a->peak_reserved = a->reserved;
        for (int64_t row = r->step[4 * stretch]; row < r->step[4 * stretch + 1] && !end->lacked; row++) {
            int failed = (known ? take_small_row : take_row)(a, r, row, r->step[4 * stretch + 3], &so_far);
            if (failed < 0) return -1;
            if (failed == REDO) {
                round->is_off = 1;
                failed = attempt(a, r, round, limit, is_physical, end);
                round->is_off = 0;
                return failed;
            }
            if (failed) end->lacked = a->reserved + so_far.segment;
        }
        if (a->peak_reserved > most) most = a->peak_reserved;
    }
    end->from = most; end->until = a->refused;
    return 0;
}

/* Most bytes alive at once, each request rounded: of rows without a table as they are written. */
static int64_t live_peak(const Rows *r, int64_t *held) {
    int64_t now = 0, most = 0, renamed = 0;
    int64_t stretches = r->value ? r->stretches : 1;
    for (int64_t i = 0; i < stretches && most <= UNLIMITED; i++) {
        const int64_t *step = &r->step[4 * i];
        int64_t row = r->value ? step[0] : 0, end = r->value ? step[1] : r->count;
        if (r->value) {
            for (int64_t p = renamed; p < step[2]; p++) r->moved[p - renamed] = held[r->pair[2 * p]];
            for (int64_t p = renamed; p < step[2]; p++) held[r->pair[2 * p]] = 0;
            for (int64_t p = renamed; p < step[2]; p++) held[r->pair[2 * p + 1]] = r->moved[p - renamed];
            renamed = step[2];
        }
        for (; row < end && most <= UNLIMITED; row++) {
            int64_t nbytes = r->size[row], name = r->block[row];
            if (r->value && nbytes >= 0) nbytes = nbytes < r->values - step[3] ? r->value[step[3] + nbytes] : 0;
            if (nbytes > 0) {
                now += held[name] = (nbytes + 511) & ~(int64_t)511;
                if (now > most) most = now;
            } else if (nbytes == FREE_ROW) {
                now -= held[name]; held[name] = 0;
            }
        }
    }
    return most;
}

#define ENDS 64
#define STEP (2 * MIB)

/* least(*rows, most, oldest_first, arena, large_segment, device_total, is_physical) -> bytes; most: what is reserved
   without a limit. A capacity of expandable segments changes the run before it binds: each is tried, and the most may
   not do. */
static PyObject *least(PyObject *self, PyObject *args) {
    Rows r = {0};
    Allocator a = {0};
    Round round = {0};
    Ended ends[ENDS];
    long long most, arena, large_segment, device_total;
    int oldest_first, is_physical;
    if (!PyArg_ParseTuple(args, "y*y*y*Ly*y*y*LpLLLp", &r.blocks, &r.sizes, &r.streams, &r.names, &r.plan, &r.renames,
                          &r.table, &most, &oldest_first, &arena, &large_segment, &device_total, &is_physical))
        return NULL;
    PyObject *result = NULL;
    int64_t *held = NULL, known = 0;
    if (!open_rows(&r, &a, most, oldest_first, arena, large_segment, device_total)) goto done;
    held = PyMem_Calloc((size_t)r.names + 1, sizeof(int64_t));
    if (!held) { PyErr_NoMemory(); goto done; }
    int64_t alive = live_peak(&r, held);
    if (alive > UNLIMITED) { PyErr_SetString(PyExc_OverflowError, "more than any memory"); goto done; }
    if (most < 0) { PyErr_SetString(PyExc_ValueError, "less than nothing"); goto done; }
    if (a.is_expandable) alive -= large_segment;
    int64_t fails = alive > 0 ? (alive - 1) / STEP : -1, completes = (most + STEP - 1) / STEP;
    while (a.is_expandable) {
        if (attempt(&a, &r, &round, completes * STEP, is_physical, &ends[0])) goto done;
        if (!ends[0].lacked) break;
        fails = completes;
        completes += completes > 16 ? completes / 16 : 1;
        if (completes > UNLIMITED / STEP) { PyErr_SetString(PyExc_OverflowError, "more than any memory"); goto done; }
    }
    int64_t probe = fails + 1;
    while (completes - fails > 1) {
        int64_t limit = probe * STEP, place = 0;
        while (place < known && !(ends[place].from <= limit && limit < ends[place].until)) place++;
        if (place == known) {
            if (known == ENDS) place = known = 0;
            if (attempt(&a, &r, &round, limit, is_physical, &ends[place])) goto done;
            if (!a.is_expandable) known++;
        }
        int64_t lacked = (ends[place].lacked + STEP - 1) / STEP;
        if (!lacked) {
            completes = probe; probe = (fails + probe) / 2;
        } else {
            fails = probe;
            probe = fails < lacked && lacked < completes ? lacked : (fails + completes) / 2;
        }
    }
    result = PyLong_FromLongLong(completes * STEP);
done:
    PyMem_Free(held);
    close_round(&round); close_allocator(&a); close_rows(&r);
    return result;
}

PyObject *price(PyObject *self, PyObject *args); /* _pricing.c */
PyObject *shifted(PyObject *self, PyObject *args); /* _columns.c */
PyObject *gathered(PyObject *self, PyObject *args);
PyObject *marks(PyObject *self, PyObject *args);
PyObject *lives(PyObject *self, PyObject *args);

static PyMethodDef methods[] = {
    {"run", run, METH_VARARGS, "Replay a run."},
    {"least", least, METH_VARARGS, "The least capacity a run completes with."},
    {"price", price, METH_VARARGS, "Price a step on many cards."},
    {"shifted", shifted, METH_VARARGS, "Numbers of blocks."},
    {"gathered", gathered, METH_VARARGS, "Values of rows."},
    {"marks", marks, METH_VARARGS, "Rows of phases and emptied caches."},
    {"lives", lives, METH_VARARGS, "Which blocks outlive their step."},
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_native", NULL, -1, methods, NULL, NULL, NULL, NULL};
PyMODINIT_FUNC PyInit__native(void) {
    PyObject *made = PyModule_Create(&module), *checksum = made ? PyLong_FromUnsignedLong(CHECKSUM) : NULL;
    if (!checksum || PyModule_AddObjectRef(made, "checksum", checksum)) Py_CLEAR(made);
    Py_XDECREF(checksum);
    return made;
}
