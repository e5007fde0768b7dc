/* What prediction/price does, for one step on many cards at once; the formulas and their sources are
   there, the constants come from there, and tests/properties/test_pricing.py compares. A column is one number a card;
   LANES cards are worked on together, so that everything stays in the cache and loops over cards are vector code. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#define LANES 16
#define MOST_CLOCKS 32
#define MOST_RATES 64
#define BEFORE_RATES 3     /* numbers of a card: multiprocessors, bytes and float32 FLOP a second; then its rates */
#define PRODUCT 8          /* numbers of a product: its place, batch, m, n, k, bytes, rate, whether off the grid */
#define SURELY (1 + 1e-12) /* a bound that is this much beyond the best one is, whatever was rounded */
enum { RUN, WAITS, SYNCHRONIZES, READS };

typedef double Lanes[LANES];
typedef struct { Py_buffer view; int64_t count; } Numbers;
enum { OPS, STRETCH_ENDS, ACTIONS, BODY_ENDS, TURNS, ORDER, PARTS, SILENT, PRODUCTS, GIVEN, LANE_CARDS,
       MOVING, GIVEN_PRICES, LAUNCHES, CARDS, CONSTANTS, INPUTS };
#define Q(which) ((const int64_t *)in[which].view.buf)
#define D(which) ((const double *)in[which].view.buf)

typedef struct { Lanes busy, behind; double launch; } Stretch;

typedef struct {
    double pipeline, off_grid, least_float32, bandwidth, start_s;
    int64_t tiles, splits, rates, bfloat16, float32;   /* the last two: their places among a card's rates */
    const double *tile, *split;
} Products;

static double product_seconds(const int64_t *of, const double *card, const Products *p) {
    double batch = (double)of[1], m = (double)of[2], n = (double)of[3], k = (double)of[4];
    double sms = card[0], rate = card[BEFORE_RATES + of[6]], memory = card[1] * p->bandwidth, best = INFINITY;
    double reached = rate * (of[7] ? p->off_grid : 1.0), per_sm = reached / sms;
    double fill = p->pipeline * rate / card[BEFORE_RATES + p->bfloat16];
    double least = of[6] == p->float32 ? p->least_float32 : 0.0, floor_s = (double)of[5] / memory;
    double work = 2 * batch * m * n * (k + fill);
    for (int64_t i = 0; i < p->tiles; i++) {
        double rows = p->tile[3 * i], columns = p->tile[3 * i + 1], efficiency = p->tile[3 * i + 2];
        if (efficiency < least) efficiency = least;
        if (best <= floor_s || work / (reached * efficiency) > best * SURELY) break;
        double tiles = batch * ceil(m / rows) * ceil(n / columns);
        for (int64_t j = 0; j < (tiles < sms ? p->splits : 1); j++) {
            double split = p->split[j];
            double waves = ceil(tiles * split / sms);
            double compute = waves * 2 * rows * columns * (k / split + fill) / (per_sm * efficiency);
            double parts = split == 1 ? 0.0 : (split + 1) * 4 * batch * m * n / memory;
            if (compute + parts < best) best = compute + parts;
        }
    }
    return (best > floor_s ? best : floor_s) + p->start_s;
}

static void price_stretch(Stretch *out, const int64_t *op, const int64_t *end, int64_t count, const Lanes *prices,
                          const double *launches) {
    Lanes busy, behind;
    double launch = 0.0;
    for (int j = 0; j < LANES; j++) { busy[j] = 0.0; behind[j] = -INFINITY; }
    for (; op < end; op++) {
        const double *price = prices[*op % count];
        launch += launches[*op];
        for (int j = 0; j < LANES; j++) {
            busy[j] += price[j];
            behind[j] = (behind[j] > launch ? behind[j] : launch) + price[j];
        }
    }
    memcpy(out->busy, busy, sizeof(Lanes)); memcpy(out->behind, behind, sizeof(Lanes));
    out->launch = launch;
}

static void later(Lanes a, const Lanes b) { for (int j = 0; j < LANES; j++) a[j] = a[j] > b[j] ? a[j] : b[j]; }

/* Through a body once: `columns` of each clock, one for the clocks themselves, as many as clocks for a matrix. */
static void pass(const int64_t *action, const int64_t *end, Lanes *rows, int64_t clocks, int64_t columns,
                 const Stretch *stretches) {
    for (; action < end; action += 3) {
        Lanes *host = rows, *here = rows + action[1] * columns;
        switch (action[0]) {
        case RUN: {
            const Stretch *stretch = &stretches[action[2]];
            for (int64_t i = 0; i < columns; i++) {
                double *restrict card = here[i], *restrict launched = host[i];
                const double *restrict busy = stretch->busy, *restrict behind = stretch->behind;
                for (int j = 0; j < LANES; j++) {
                    double a = card[j] + busy[j], b = launched[j] + behind[j];
                    card[j] = a > b ? a : b;
                    launched[j] += stretch->launch;
                }
            }
            break;
        }
        case WAITS: for (int64_t i = 0; i < columns; i++) later(here[i], rows[action[2] * columns + i]); break;
        case READS: for (int64_t i = 0; i < columns; i++) later(host[i], here[i]); break;
        default:
            for (int64_t clock = 1; clock < clocks; clock++)
                for (int64_t i = 0; i < columns; i++) later(host[i], rows[clock * columns + i]);
        }
    }
}

/* out = after x before in (max, +); `before` has so many columns. */
static void multiply(Lanes *out, const Lanes *after, const Lanes *before, int64_t clocks, int64_t columns) {
    for (int64_t i = 0; i < clocks; i++)
        for (int64_t c = 0; c < columns; c++) {
            Lanes most;
            for (int j = 0; j < LANES; j++) most[j] = -INFINITY;
            for (int64_t k = 0; k < clocks; k++) {
                const double *a = after[i * clocks + k], *b = before[k * columns + c];
                for (int j = 0; j < LANES; j++) most[j] = most[j] > a[j] + b[j] ? most[j] : a[j] + b[j];
            }
            memcpy(out[i * columns + c], most, sizeof(Lanes));
        }
}

/* matrix to the power of `times`, into `out`; `spare` is another one. */
static void raise_to(Lanes *out, Lanes *matrix, Lanes *spare, int64_t times, int64_t clocks) {
    size_t size = (size_t)(clocks * clocks) * sizeof(Lanes);
    int empty = 1;
    for (; times; times >>= 1) {
        if (times & 1) {
            if (empty) memcpy(out, matrix, size);
            else { multiply(spare, matrix, out, clocks, clocks); memcpy(out, spare, size); }
            empty = 0;
        }
        if (times > 1) { multiply(spare, matrix, matrix, clocks, clocks); memcpy(matrix, spare, size); }
    }
}

typedef struct { Lanes *clocks, *matrix, *spare, *powers; char *known; } Scratch;

static void run_course(double *out, const Numbers *in, int64_t clocks, const Stretch *stretches, Scratch *s) {
    const int64_t *body_ends = Q(BODY_ENDS), *turns = Q(TURNS);
    int64_t size = clocks * clocks;
    memset(s->clocks, 0, (size_t)clocks * sizeof(Lanes));
    memset(s->known, 0, (size_t)in[TURNS].count / 3);
    for (int64_t at = 0; at < in[ORDER].count; at++) {
        int64_t number = Q(ORDER)[at], body = turns[3 * number], times = turns[3 * number + 1];
        const int64_t *first = Q(ACTIONS) + (body ? 3 * body_ends[body - 1] : 0);
        const int64_t *end = Q(ACTIONS) + 3 * body_ends[body];
        if (!turns[3 * number + 2]) {
            for (int64_t i = 0; i < times; i++) pass(first, end, s->clocks, clocks, 1, stretches);
            continue;
        }
        Lanes *power = s->powers + number * size;
        if (!s->known[number]) {
            for (int64_t i = 0; i < size; i++)
                for (int j = 0; j < LANES; j++) s->matrix[i][j] = i % (clocks + 1) ? -INFINITY : 0.0;
            pass(first, end, s->matrix, clocks, clocks, stretches);
            raise_to(power, s->matrix, s->spare, times, clocks);
            s->known[number] = 1;
        }
        multiply(s->spare, (const Lanes *)power, (const Lanes *)s->clocks, clocks, 1);
        memcpy(s->clocks, s->spare, (size_t)clocks * sizeof(Lanes));
    }
    for (int64_t i = 1; i < clocks; i++) later(s->clocks[0], s->clocks[i]);
    memcpy(out, s->clocks[0], sizeof(Lanes));
}

static int within(const int64_t *values, int64_t count, int64_t step, int64_t low, int64_t high) {
    for (int64_t i = 0; i < count; i += step) if (values[i] < low || values[i] >= high) return 0;
    return 1;
}

static int climbs(const int64_t *ends, int64_t count, int64_t last) {
    int64_t before = 0;
    for (int64_t i = 0; i < count; i++) { if (ends[i] < before) return 0; before = ends[i]; }
    return before == last;
}

/* Every number that is an index points at something, and every list has the length the others ask for. */
static int is_sound(const Numbers *in, int64_t clocks, int64_t count, int64_t parts, int64_t rates) {
    int64_t stretches = in[STRETCH_ENDS].count, bodies = in[BODY_ENDS].count, turns = in[TURNS].count / 3;
    int64_t lanes = in[LANE_CARDS].count, card = BEFORE_RATES + rates, cards = in[CARDS].count / card;
    const int64_t *action = Q(ACTIONS), *turn = Q(TURNS);
    if (clocks < 2 || clocks > MOST_CLOCKS || count < 0 || count > INT32_MAX) return 0;
    if (parts < 0 || parts > 1000 || lanes > INT32_MAX) return 0;
    if (in[ACTIONS].count % 3 || in[TURNS].count % 3 || in[PARTS].count % 3 || in[PRODUCTS].count % PRODUCT) return 0;
    if (in[CARDS].count % card || in[MOVING].count != 3 * count || in[LAUNCHES].count != 3 * count) return 0;
    if (in[GIVEN].count && in[GIVEN_PRICES].count / in[GIVEN].count != lanes) return 0;
    if (in[GIVEN_PRICES].count != in[GIVEN].count * lanes) return 0;
    if (!within(Q(OPS), in[OPS].count, 1, 0, 3 * count) || !climbs(Q(STRETCH_ENDS), stretches, in[OPS].count)) return 0;
    if (!climbs(Q(BODY_ENDS), bodies, in[ACTIONS].count / 3)) return 0;
    if (!within(Q(ORDER), in[ORDER].count, 1, 0, turns)) return 0;
    if (!within(Q(LANE_CARDS), lanes, 1, 0, cards) || !within(Q(GIVEN), in[GIVEN].count, 1, 0, count)) return 0;
    if (!within(Q(SILENT), in[SILENT].count, 1, 0, count)) return 0;
    if (!within(Q(PRODUCTS), in[PRODUCTS].count, PRODUCT, 0, count)) return 0;
    if (in[PRODUCTS].count && !within(Q(PRODUCTS) + 6, in[PRODUCTS].count - 6, PRODUCT, 0, rates)) return 0;
    if (!within(Q(PARTS), in[PARTS].count, 3, 0, parts)) return 0;
    if (in[PARTS].count && !within(Q(PARTS) + 1, in[PARTS].count - 1, 3, 0, count)) return 0;
    for (int64_t i = 0; i < in[ACTIONS].count; i += 3) {
        if (action[i] < RUN || action[i] > READS || action[i + 1] < 1 || action[i + 1] >= clocks) return 0;
        int64_t most = action[i] == RUN ? stretches : clocks;
        if (action[i + 2] < 0 || action[i + 2] >= most) return 0;
    }
    for (int64_t i = 0; i < in[TURNS].count; i += 3)
        if (turn[i] < 0 || turn[i] >= bodies || turn[i + 1] < 1 || (!turn[i + 2] && turn[i + 1] > clocks)) return 0;
    return 1;
}

static int read_constants(Products *out, const Numbers *in) {
    const double *given = D(CONSTANTS);
    int64_t count = in[CONSTANTS].count, sizes[5];
    if (count < 10) return 0;
    for (int i = 0; i < 5; i++) {
        if (!(given[5 + i] >= 0 && given[5 + i] < 1000)) return 0;
        sizes[i] = (int64_t)given[5 + i];
    }
    *out = (Products){given[0], given[1], given[2], given[3], given[4],
                      sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], given + 10, given + 10 + 3 * sizes[0]};
    return count == 10 + 3 * sizes[0] + sizes[1] && sizes[1] > 0 && sizes[2] < MOST_RATES && sizes[3] < sizes[2]
        && sizes[4] < sizes[2];
}

static void price_ops(Lanes *prices, const Numbers *in, int64_t count, int64_t numbers, int64_t first, int64_t some,
                      const double *products) {
    int64_t lanes = in[LANE_CARDS].count, cards = in[CARDS].count / numbers;
    for (int j = 0; j < LANES; j++) {
        int64_t card = Q(LANE_CARDS)[first + (j < some ? j : 0)];
        const double *of = D(CARDS) + card * numbers, *terms = D(MOVING);
        for (int64_t i = 0; i < count; i++, terms += 3) prices[i][j] = terms[0] / of[1] + terms[1] / of[2] + terms[2];
        for (int64_t i = 0; i < in[PRODUCTS].count / PRODUCT; i++)
            prices[Q(PRODUCTS)[PRODUCT * i]][j] = products[i * cards + card];
        for (int64_t i = 0; i < in[GIVEN].count; i++)
            prices[Q(GIVEN)[i]][j] = D(GIVEN_PRICES)[i * lanes + first + (j < some ? j : 0)];
    }
}

/* price(clocks, count, parts, *inputs): see pricing.py. Bytes of doubles, a column after another: when the step ends,
   when it would without what is silent, what each part takes. */
PyObject *price(PyObject *self, PyObject *args) {
    Numbers in[INPUTS];
    long long clocks, count, parts;
    memset(in, 0, sizeof in);
    if (!PyArg_ParseTuple(args, "LLLy*y*y*y*y*y*y*y*y*y*y*y*y*y*y*y*", &clocks, &count, &parts, &in[0].view,
                          &in[1].view, &in[2].view, &in[3].view, &in[4].view, &in[5].view, &in[6].view, &in[7].view,
                          &in[8].view, &in[9].view, &in[10].view, &in[11].view, &in[12].view, &in[13].view,
                          &in[14].view, &in[15].view))
        return NULL;
    PyObject *result = NULL;
    Products constants;
    Lanes *prices = NULL;
    Stretch *stretches = NULL;
    Scratch s = {0};
    char *talks = NULL, *silent = NULL;
    double *out = NULL, *products = NULL;
    int whole = 1;
    for (int i = 0; i < INPUTS; i++) {
        whole &= in[i].view.len % 8 == 0 && (!in[i].view.len || (uintptr_t)in[i].view.buf % 8 == 0);
        in[i].count = in[i].view.len / 8;
    }
    if (!whole || !read_constants(&constants, in) || !is_sound(in, clocks, count, parts, constants.rates)) {
        PyErr_SetString(PyExc_ValueError, "a step whose numbers do not belong together");
        goto done;
    }
    int64_t numbers = BEFORE_RATES + constants.rates, cards = in[CARDS].count / numbers, lanes = in[LANE_CARDS].count;
    int64_t made = in[STRETCH_ENDS].count;
    int64_t size = clocks * clocks, items = in[PRODUCTS].count / PRODUCT;
    prices = PyMem_Calloc((size_t)count + 1, sizeof(Lanes));
    stretches = PyMem_Calloc((size_t)made + 1, sizeof(Stretch));
    s.clocks = PyMem_Calloc((size_t)clocks, sizeof(Lanes));
    s.matrix = PyMem_Calloc((size_t)size, sizeof(Lanes));
    s.spare = PyMem_Calloc((size_t)size, sizeof(Lanes));
    s.powers = PyMem_Calloc((size_t)(in[TURNS].count / 3 * size) + 1, sizeof(Lanes));
    s.known = PyMem_Calloc((size_t)in[TURNS].count / 3 + 1, 1);
    talks = PyMem_Calloc((size_t)made + 1, 1);
    silent = PyMem_Calloc((size_t)count + 1, 1);
    out = PyMem_Calloc((size_t)(lanes * (parts + 2)) + 1, sizeof(double));
    products = PyMem_Calloc((size_t)(items * cards) + 1, sizeof(double));
    if (!prices || !stretches || !s.clocks || !s.matrix || !s.spare || !s.powers || !s.known || !talks || !silent
        || !out || !products) {
        PyErr_NoMemory();
        goto done;
    }
    for (int64_t i = 0; i < in[SILENT].count; i++) silent[Q(SILENT)[i]] = 1;
    for (int64_t i = 0; i < made; i++)
        for (int64_t at = i ? Q(STRETCH_ENDS)[i - 1] : 0; at < Q(STRETCH_ENDS)[i]; at++)
            talks[i] |= silent[Q(OPS)[at] % count];
    for (int64_t i = 0; i < items; i++)
        for (int64_t card = 0; card < cards; card++)
            products[i * cards + card] =
                product_seconds(Q(PRODUCTS) + PRODUCT * i, D(CARDS) + numbers * card, &constants);
    for (int64_t first = 0; first < lanes; first += LANES) {
        int64_t some = lanes - first < LANES ? lanes - first : LANES;
        Lanes end, alone;
        price_ops(prices, in, count, numbers, first, some, products);
        for (int64_t part = 0; part < in[PARTS].count; part += 3) {
            const int64_t *of = Q(PARTS) + part;
            double *sum = out + (2 + of[0]) * lanes + first;
            for (int64_t j = 0; j < some; j++) sum[j] += prices[of[1]][j] * (double)of[2];
        }
        for (int silently = 0; silently < (in[SILENT].count ? 2 : 1); silently++) {
            if (silently) for (int64_t i = 0; i < in[SILENT].count; i++) memset(prices[Q(SILENT)[i]], 0, sizeof(Lanes));
            for (int64_t i = 0; i < made; i++)
                if (!silently || talks[i])
                    price_stretch(&stretches[i], Q(OPS) + (i ? Q(STRETCH_ENDS)[i - 1] : 0), Q(OPS) + Q(STRETCH_ENDS)[i],
                                  count, (const Lanes *)prices, D(LAUNCHES));
            run_course(silently ? alone : end, in, clocks, stretches, &s);
        }
        memcpy(out + first, end, (size_t)some * sizeof(double));
        memcpy(out + lanes + first, in[SILENT].count ? alone : end, (size_t)some * sizeof(double));
    }
    result = PyBytes_FromStringAndSize((char *)out, (Py_ssize_t)(lanes * (parts + 2) * 8));
done:
    PyMem_Free(prices); PyMem_Free(stretches); PyMem_Free(s.clocks); PyMem_Free(s.matrix); PyMem_Free(s.spare);
    PyMem_Free(s.powers); PyMem_Free(s.known); PyMem_Free(talks); PyMem_Free(silent); PyMem_Free(out);
    PyMem_Free(products);
    for (int i = 0; i < INPUTS; i++) PyBuffer_Release(&in[i].view);
    return result;
}
