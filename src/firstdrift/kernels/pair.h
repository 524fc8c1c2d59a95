/* What the passes share: formats, geometry and what accumulates. See definition.py for what is computed, and why. */
#ifndef FIRSTDRIFT_PAIR_H
#define FIRSTDRIFT_PAIR_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define RUN 64
#define PANEL 64
#define TOGETHER 2           /* runs worked on at a time */
#define STRIP 65536          /* columns worked on at a time, so that what accumulates stays in cache */
#define MAX_COLUMNS 65536    /* wider matrices have no column sums */
#define MAX_BANDS 16
#define BAND_SIZE (1 << 20)
#define SAMPLED_SIZE (1 << 20)
#define SAMPLE_STEP 8
#define STATS_CHUNK 65536
#define BUCKETS 496
#define COPIES 8             /* of the histogram: neighbours in one bucket would wait for each other's store */

#define LEAST_REFERENCE 1e-12 /* a difference is relative to the reference, or to this where that is smaller */

#define AHEAD 2048           /* bytes from what is worked on to what is fetched into cache */

#define INLINE static inline __attribute__((always_inline))

typedef enum { F64, F32, F16, BF16, KINDS } Kind;

typedef uint16_t u16 __attribute__((aligned(1), may_alias));
typedef uint32_t u32 __attribute__((aligned(1), may_alias));
typedef uint64_t u64 __attribute__((aligned(1), may_alias));
typedef unsigned char byte;
typedef double v4 __attribute__((vector_size(32), may_alias));
typedef int64_t v4i __attribute__((vector_size(32), may_alias));

typedef struct { int64_t row, stop_row, column, stop_column; } Span;
typedef struct { double mean; int64_t row, column; } Worst;

enum { SQUARE_R, SQUARE_C, SQUARE_D, DOT, DIFFERENCE, SUM_R, SUMS };

/* One band's share of the result; `columns` doubles and `columns` uint32_t follow it when columns are summed. */
typedef struct {
    uint64_t excluded, differing, nan_r, nan_c, inf_r, inf_c, mismatches, flips, max_ulp;
    int64_t mismatch_index, max_index;
    double max_abs, max_rel;
    double sums[SUMS];
    Worst row, block;
    double row_squares[PANEL];
    uint64_t row_excluded[PANEL];
    uint32_t histogram[COPIES][BUCKETS];
} Band;

typedef struct {
    const byte *reference, *candidate;
    int64_t rows, columns;
    int full, sampled;
} Pair;

typedef struct { int64_t nan, inf; double min, max, origin, sums[3]; int found; } Totals;

INLINE int64_t item_size(Kind kind) { return kind == F64 ? 8 : kind == F32 ? 4 : 2; }
INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
INLINE int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0); }

INLINE int64_t band_step(int64_t rows, int64_t columns)
{
    int64_t length = rows > PANEL ? rows : columns, other = rows > PANEL ? columns : rows;
    if (!length || !other) return RUN;
    return RUN * most(ceil_div(ceil_div(BAND_SIZE, RUN), other), ceil_div(ceil_div(length, RUN), MAX_BANDS));
}

INLINE int64_t band_count(int64_t rows, int64_t columns)
{
    return columns ? ceil_div(rows > PANEL ? rows : columns, band_step(rows, columns)) : 0;
}

INLINE Span band_span(int64_t rows, int64_t columns, int64_t band)
{
    int64_t step = band_step(rows, columns), start = band * step;
    if (rows > PANEL) return (Span){start, least(start + step, rows), 0, columns};
    return (Span){0, rows, start, least(start + step, columns)};
}

/* A run's work hides only part of a cache miss, and what the hardware fetches by itself depends on the row pitch. */
INLINE void prefetch_runs(const byte *p, int64_t size)
{
    for (int64_t line = 0; line < TOGETHER * RUN * size; line += 64)
        __builtin_prefetch((const void *)((uintptr_t)p + AHEAD + (uintptr_t)line));
}

INLINE uint64_t load_bits(Kind kind, const byte *p)
{
    return kind == F64 ? *(const u64 *)p : kind == F32 ? *(const u32 *)p : *(const u16 *)p;
}

INLINE uint64_t exponent_mask(Kind kind)
{
    return kind == F64 ? 0x7ff0000000000000u : kind == F32 ? 0x7f800000u : kind == F16 ? 0x7c00u : 0x7f80u;
}

INLINE uint64_t sign_mask(Kind kind) { return (uint64_t)1 << (8 * item_size(kind) - 1); }

INLINE int is_finite(Kind kind, uint64_t bits) { return (bits & exponent_mask(kind)) != exponent_mask(kind); }

INLINE int is_nan(Kind kind, uint64_t bits) { return (bits & (sign_mask(kind) - 1)) > exponent_mask(kind); }

INLINE float float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

INLINE float half_to_float(uint32_t half)
{
    uint32_t sign = (half & 0x8000u) << 16, rest = half & 0x7fffu;
    if (rest >= 0x7c00u) return float_of_bits(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
    float magnitude = float_of_bits(rest << 13) * 0x1p112f; /* moves the exponent; subnormals come out normal */
    return sign ? -magnitude : magnitude;
}

INLINE double load_value(Kind kind, const byte *p)
{
    double value;
    switch (kind) {
    case F64: memcpy(&value, p, 8); return value;
    case F32: return float_of_bits(*(const u32 *)p);
    case F16: return half_to_float(*(const u16 *)p);
    default: return float_of_bits((uint32_t)*(const u16 *)p << 16);
    }
}

#endif
