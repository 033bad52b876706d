/* Layers with few weights, one after the other in a single call: y = relu(W x + b), float32, on the CPU.

   A layer is stored in one of four ways. With one sample at a time:
     rows   each output's weights and the inputs they belong to
     cols   each input's weights and the outputs they go to; an input that is zero, as after a ReLU, costs nothing
     tiles  16 outputs side by side, 64 inputs at a time, which are looked up in registers; AVX-512 only
   or, with 16, 32 or 64 samples side by side, feature by feature:
     rows   again, each weight times a row of samples

   An output is summed up by one thread and in one order, so that results do not depend on how many threads there are. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#define TILES 1
#include <immintrin.h>
#else
#define TILES 0
#endif

enum { ROWS, COLS, TILED };
enum { SLICE = 16, TILE = 64 };

typedef struct {
    int32_t kind, inputs, outputs, relu;
    const int32_t *starts; /* where each row, column or slice begins, and where the last one ends */
    const void *places;    /* the input or the output of each weight; in tiles a byte each */
    const uint8_t *counts; /* tiles: how many steps a tile of a slice takes */
    const float *values, *bias;
} Layer;

typedef struct {
    const Layer *layers;
    int32_t count, width; /* width: samples side by side; 0: one at a time */
} Program;

typedef struct {
    int32_t begin, end;
} Range;

/* What a part of a team does of n pieces. */
static Range share(int32_t n, int part, int parts) {
    return (Range){(int32_t)((int64_t)n * part / parts), (int32_t)((int64_t)n * (part + 1) / parts)};
}

static void wait_for_all(int parts) {
#ifdef _OPENMP
    if (parts > 1) {
#pragma omp barrier
    }
#else
    (void)parts;
#endif
}

static float finished(const Layer *l, float sum) { return l->relu && sum < 0.0f ? 0.0f : sum; }

/* ---- one sample at a time ------------------------------------------------------------------------------------- */

static void rows(const Layer *l, const float *restrict x, float *restrict y, Range r) {
    const int32_t *places = l->places;
    const float *v = l->values;
    for (int32_t i = r.begin; i < r.end; i++) {
        float a = l->bias[i], b = 0, c = 0, d = 0;
        int32_t k = l->starts[i], end = l->starts[i + 1];
        for (; k + 4 <= end; k += 4) {
            a += v[k] * x[places[k]];
            b += v[k + 1] * x[places[k + 1]];
            c += v[k + 2] * x[places[k + 2]];
            d += v[k + 3] * x[places[k + 3]];
        }
        for (; k < end; k++) a += v[k] * x[places[k]];
        y[i] = finished(l, (a + b) + (c + d));
    }
}

static void cols(const Layer *l, const float *restrict x, float *restrict y) {
    const int32_t *places = l->places;
    const float *v = l->values;
    memcpy(y, l->bias, sizeof(float) * l->outputs);
    for (int32_t j = 0; j < l->inputs; j++) {
        float t = x[j];
        if (t == 0.0f) continue;
        int32_t k = l->starts[j], end = l->starts[j + 1];
        for (; k + 4 <= end; k += 4) {
            y[places[k]] += v[k] * t;
            y[places[k + 1]] += v[k + 1] * t;
            y[places[k + 2]] += v[k + 2] * t;
            y[places[k + 3]] += v[k + 3] * t;
        }
        for (; k < end; k++) y[places[k]] += v[k] * t;
    }
    if (l->relu)
        for (int32_t i = 0; i < l->outputs; i++) y[i] = finished(l, y[i]);
}

#if TILES
static __mmask16 first(int32_t n) { return n >= 16 ? 0xffff : n <= 0 ? 0 : (__mmask16)((1u << n) - 1); }

typedef struct {
    __m512 a, b, c, d;
} Tile; /* 64 inputs */

static inline Tile whole(const float *x) {
    return (Tile){_mm512_loadu_ps(x), _mm512_loadu_ps(x + 16), _mm512_loadu_ps(x + 32), _mm512_loadu_ps(x + 48)};
}

static inline Tile rest(const float *x, int32_t n) {
    return (Tile){_mm512_maskz_loadu_ps(first(n), x), _mm512_maskz_loadu_ps(first(n - 16), x + 16),
                  _mm512_maskz_loadu_ps(first(n - 32), x + 32), _mm512_maskz_loadu_ps(first(n - 48), x + 48)};
}

static inline __m512 step(Tile x, const uint8_t *places, const float *v, __m512 sum) {
    __m512i p = _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)places));
    __mmask16 upper = _mm512_test_epi32_mask(p, _mm512_set1_epi32(TILE / 2));
    __m512 low = _mm512_permutex2var_ps(x.a, p, x.b), high = _mm512_permutex2var_ps(x.c, p, x.d);
    return _mm512_fmadd_ps(_mm512_loadu_ps(v), _mm512_mask_blend_ps(upper, low, high), sum);
}

static void tiles(const Layer *l, const float *restrict x, float *restrict y, Range r) {
    const int32_t full = l->inputs / TILE, left = l->inputs % TILE;
    const uint8_t *counts = l->counts + (int64_t)r.begin * (full + (left > 0));
    for (int32_t s = r.begin; s < r.end; s++) {
        const uint8_t *places = (const uint8_t *)l->places + (int64_t)SLICE * l->starts[s];
        const float *v = l->values + (int64_t)SLICE * l->starts[s];
        __mmask16 mine = first(l->outputs - s * SLICE);
        __m512 sum = _mm512_maskz_loadu_ps(mine, l->bias + s * SLICE), other = _mm512_setzero_ps();
        for (int32_t t = 0; t < full; t++) {
            const Tile tile = whole(x + t * TILE);
            int32_t k = *counts++;
            for (; k >= 2; k -= 2, places += 2 * SLICE, v += 2 * SLICE) {
                sum = step(tile, places, v, sum);
                other = step(tile, places + SLICE, v + SLICE, other);
            }
            if (k) sum = step(tile, places, v, sum), places += SLICE, v += SLICE;
        }
        if (left) {
            const Tile tile = rest(x + full * TILE, left);
            for (int32_t k = *counts++; k; k--, places += SLICE, v += SLICE) sum = step(tile, places, v, sum);
        }
        sum = _mm512_add_ps(sum, other);
        if (l->relu) sum = _mm512_mask_mov_ps(sum, _mm512_cmp_ps_mask(sum, _mm512_setzero_ps(), _CMP_LT_OQ), _mm512_setzero_ps());
        _mm512_mask_storeu_ps(y + s * SLICE, mine, sum);
    }
}
#endif

static void one(const Layer *l, const float *x, float *y, int part, int parts) {
    if (l->kind == COLS) {
        if (part == 0) cols(l, x, y);
#if TILES
    } else if (l->kind == TILED) {
        tiles(l, x, y, share((l->outputs + SLICE - 1) / SLICE, part, parts));
#endif
    } else {
        rows(l, x, y, share(l->outputs, part, parts));
    }
}

static void sample(const Program *p, const float *x, float *y, float *own, int64_t size, int part, int parts) {
    const float *from = x;
    for (int32_t i = 0; i < p->count; i++) {
        float *to = i == p->count - 1 ? y : own + (i % 2) * size;
        one(p->layers + i, from, to, part, parts);
        from = to;
        wait_for_all(parts);
    }
}

/* ---- many samples side by side ---------------------------------------------------------------------------------- */

#if defined(__AVX512F__)
enum { BYTES = 64 };
#elif defined(__AVX__)
enum { BYTES = 32 };
#else
enum { BYTES = 16 };
#endif
enum { LANES = BYTES / 4 };
typedef float Many __attribute__((vector_size(BYTES), aligned(4), may_alias)); /* what one register holds */

#define SIDE_BY_SIDE(NAME, WIDTH)                                                                                      \
    static void NAME(const Layer *l, const float *restrict x, float *restrict y, Range r) {                            \
        enum { N = WIDTH / LANES };                                                                                    \
        const int32_t *places = l->places;                                                                             \
        for (int32_t i = r.begin; i < r.end; i++) {                                                                    \
            Many a[N], b[N];                                                                                           \
            for (int q = 0; q < N; q++) a[q] = (Many){0} + l->bias[i], b[q] = (Many){0};                               \
            int32_t k = l->starts[i], end = l->starts[i + 1];                                                          \
            for (; k + 2 <= end; k += 2) {                                                                             \
                const Many *f = (const Many *)(x + (int64_t)places[k] * WIDTH);                                        \
                const Many *g = (const Many *)(x + (int64_t)places[k + 1] * WIDTH);                                    \
                for (int q = 0; q < N; q++) a[q] += l->values[k] * f[q], b[q] += l->values[k + 1] * g[q];              \
            }                                                                                                          \
            if (k < end) {                                                                                             \
                const Many *f = (const Many *)(x + (int64_t)places[k] * WIDTH);                                        \
                for (int q = 0; q < N; q++) a[q] += l->values[k] * f[q];                                               \
            }                                                                                                          \
            float *to = y + (int64_t)i * WIDTH;                                                                        \
            for (int q = 0; q < N; q++) *(Many *)(to + LANES * q) = a[q] + b[q];                                       \
            if (l->relu)                                                                                               \
                for (int q = 0; q < WIDTH; q++) to[q] = finished(l, to[q]);                                            \
        }                                                                                                              \
    }

SIDE_BY_SIDE(side_by_side_16, 16)
SIDE_BY_SIDE(side_by_side_32, 32)
SIDE_BY_SIDE(side_by_side_64, 64)

/* n samples, which stand one after the other, feature by feature; and back. */
static void turn(const float *x, float *to, int32_t features, int32_t n, int32_t width, Range r) {
    for (int32_t j = r.begin; j < r.end; j++) {
        for (int32_t b = 0; b < n; b++) to[(int64_t)j * width + b] = x[(int64_t)b * features + j];
        for (int32_t b = n; b < width; b++) to[(int64_t)j * width + b] = 0.0f;
    }
}

static void turn_back(const float *x, float *to, int32_t features, int32_t n, int32_t width, Range r) {
    for (int32_t b = 0; b < n; b++)
        for (int32_t j = r.begin; j < r.end; j++) to[(int64_t)b * features + j] = x[(int64_t)j * width + b];
}

static void block(const Program *p, const float *x, float *y, float *own, int64_t size, int32_t n, int part, int parts) {
    const int32_t w = p->width, inputs = p->layers[0].inputs, outputs = p->layers[p->count - 1].outputs;
    turn(x, own, inputs, n, w, share(inputs, part, parts));
    wait_for_all(parts);
    float *from = own, *to = own + size;
    for (int32_t i = 0; i < p->count; i++) {
        const Layer *l = p->layers + i;
        Range r = share(l->outputs, part, parts);
        if (w == 16) side_by_side_16(l, from, to, r);
        else if (w == 32) side_by_side_32(l, from, to, r);
        else side_by_side_64(l, from, to, r);
        float *last = from;
        from = to, to = last;
        wait_for_all(parts);
    }
    turn_back(from, y, outputs, n, w, share(outputs, part, parts));
    wait_for_all(parts);
}

/* ---- the call ---------------------------------------------------------------------------------------------------- */

/* How many floats one of the two buffers of a thread has. */
static int64_t buffer(const Program *p) {
    int64_t most = p->width ? p->layers[0].inputs : 0;
    for (int32_t i = 0; i < p->count; i++)
        if (most < p->layers[i].outputs) most = p->layers[i].outputs;
    return (most * (p->width ? p->width : 1) + 63) / 64 * 64;
}

/* Blocks or samples are shared out where there are enough for all threads; otherwise each is a job for all of them. */
static void part_of(const Program *p, const float *x, float *y, int64_t samples, float *own, int part, int parts) {
    const int64_t inputs = p->layers[0].inputs, outputs = p->layers[p->count - 1].outputs, size = buffer(p);
    const int64_t w = p->width ? p->width : 1, units = (samples + w - 1) / w;
    const int alone = units >= parts;
    const int64_t begin = alone ? units * part / parts : 0, end = alone ? units * (part + 1) / parts : units;
    float *mine = alone ? own + 2 * size * part : own;
    for (int64_t u = begin; u < end; u++) {
        const float *from = x + u * w * inputs;
        float *to = y + u * w * outputs;
        const int me = alone ? 0 : part, all = alone ? 1 : parts;
        if (p->width) block(p, from, to, mine, size, (int32_t)(samples - u * w < w ? samples - u * w : w), me, all);
        else sample(p, from, to, mine, size, me, all);
    }
}

/* x (samples, inputs) to y (samples, outputs), both contiguous; 0, or 1 where there is no memory. */
int prunewald_run(const Program *p, const float *x, float *y, int64_t samples, int32_t threads) {
#ifndef _OPENMP
    threads = 1;
#endif
    float *own = malloc(sizeof(float) * (2 * buffer(p) * threads + 16));
    if (!own) return 1;
    float *aligned = (float *)(((uintptr_t)own + 63) / 64 * 64);
    if (threads == 1) {
        part_of(p, x, y, samples, aligned, 0, 1);
    } else {
#ifdef _OPENMP
#pragma omp parallel num_threads(threads)
        part_of(p, x, y, samples, aligned, omp_get_thread_num(), omp_get_num_threads());
#endif
    }
    free(own);
    return 0;
}

/* Bit 0: tiles; bit 1: threads. */
int prunewald_abilities(void) {
    int found = TILES;
#ifdef _OPENMP
    found |= 2;
#endif
    return found;
}
