/* The passes over one pair and over one tensor. Included once for each instruction set, with
 * PASS(name) giving its functions their names, TARGET their instructions, and AVX2 saying that those may be used.
 * Every path rounds the same way (the compiler must not fuse multiplications with additions by itself), so all of
 * them give the same bits. */

#define TEMPLATE static inline __attribute__((always_inline)) TARGET

TEMPLATE v4 PASS(load4)(Kind kind, const byte *p)
{
#if AVX2
    switch (kind) {
    case F64: return (v4)_mm256_loadu_pd((const double *)(const void *)p);
    case F32: return (v4)_mm256_cvtps_pd(_mm_loadu_ps((const float *)(const void *)p));
    case F16: return (v4)_mm256_cvtps_pd(_mm_cvtph_ps(_mm_loadl_epi64((const __m128i *)(const void *)p)));
    default: {
        __m128i wide = _mm_cvtepu16_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
        return (v4)_mm256_cvtps_pd(_mm_castsi128_ps(_mm_slli_epi32(wide, 16)));
    }
    }
#else
    int64_t size = item_size(kind);
    return (v4){load_value(kind, p), load_value(kind, p + size), load_value(kind, p + 2 * size),
                load_value(kind, p + 3 * size)};
#endif
}

/* sum + a * b with two roundings; of formats up to float32 the product is exact in double, so that one instruction
 * which rounds once gives the same. */
TEMPLATE v4 PASS(add_product)(Kind kind, v4 sum, v4 a, v4 b)
{
#if AVX2
    if (kind != F64) return (v4)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)sum);
#else
    (void)kind;
#endif
    return sum + a * b;
}

TEMPLATE v4 PASS(max4)(v4 a, v4 b)
{
#if AVX2
    return (v4)_mm256_max_pd((__m256d)a, (__m256d)b);
#else
    v4i greater = (v4i)(a > b);
    return (v4)((greater & (v4i)a) | (~greater & (v4i)b));
#endif
}

/* The sign bit is set wherever d / q, rounded, is above m, and seldom elsewhere: dividing would cost as much as all other
 * work. One rounding keeps the sign of m * q - d; float64, whose difference may vanish, is compared with the rounded
 * product. */
TEMPLATE v4i PASS(beyond)(Kind kind, v4 d, v4 m, v4 q)
{
#if AVX2
    if (kind != F64) return (v4i)_mm256_fmsub_pd((__m256d)m, (__m256d)q, (__m256d)d);
#else
    (void)kind;
#endif
    return (v4i)(d >= m * q);
}

TEMPLATE int PASS(any_sign)(v4i a)
{
#if AVX2
    return _mm256_movemask_pd((__m256d)a) != 0;
#else
    return (a[0] | a[1] | a[2] | a[3]) < 0;
#endif
}

TEMPLATE v4 PASS(min4)(v4 a, v4 b)
{
#if AVX2
    return (v4)_mm256_min_pd((__m256d)a, (__m256d)b);
#else
    v4i less = (v4i)(a < b);
    return (v4)((less & (v4i)a) | (~less & (v4i)b));
#endif
}

TEMPLATE v4 PASS(abs4)(v4 a) { return (v4)((v4i)a & INT64_MAX); }
TEMPLATE double PASS(sum4)(v4 a) { return (a[0] + a[1]) + (a[2] + a[3]); }

TEMPLATE void PASS(sum_four)(v4 a, v4 b, v4 c, v4 d, double sums[4])
{
#if AVX2
    __m256d ab = _mm256_hadd_pd((__m256d)a, (__m256d)b), cd = _mm256_hadd_pd((__m256d)c, (__m256d)d);
    __m256d low = _mm256_permute2f128_pd(ab, cd, 0x20), high = _mm256_permute2f128_pd(ab, cd, 0x31);
    _mm256_storeu_pd(sums, _mm256_add_pd(low, high));
#else
    sums[0] = PASS(sum4)(a);
    sums[1] = PASS(sum4)(b);
    sums[2] = PASS(sum4)(c);
    sums[3] = PASS(sum4)(d);
#endif
}

TEMPLATE double PASS(largest4)(v4 a)
{
    double x = a[0] > a[1] ? a[0] : a[1], y = a[2] > a[3] ? a[2] : a[3];
    return x > y ? x : y;
}

/* Where distances fall in the histogram: the value itself below 8, else its octave and the three bits after the
 * leading one. Narrow distances get there through float, whose rounding cannot carry past a bit that is 0. */
TEMPLATE uint32_t PASS(bucket64)(uint64_t distance)
{
    uint32_t octave = 60 - (uint32_t)__builtin_clzll(distance | 8);
    return (octave << 3) + (uint32_t)(distance >> octave);
}

TEMPLATE uint32_t PASS(bucket31)(uint32_t distance)
{
    float leading = (float)(int32_t)(distance & ~(distance >> 4));
    uint32_t bits;
    memcpy(&bits, &leading, 4);
    uint32_t small = -(uint32_t)(distance < 8); /* a mask, since a branch would keep the loop from being vectorized */
    return (distance & small) | (((bits >> 20) - ((127 + 3) << 3) + 8) & ~small);
}

TEMPLATE void PASS(count)(Band *band, const uint32_t *buckets, int64_t n)
{
    for (int64_t i = 0; i < n; i += COPIES)
        for (int copy = 0; copy < COPIES; copy++) band->histogram[copy][buckets[i + copy]]++;
}

/* Integer work on n elements of one width; plain loops that the compiler turns into vectors. Distances are taken as if
 * all signs agreed, as they nearly always do, and again where they do not. */
#define INTEGER_PASSES(WIDTH, UNALIGNED)                                                                          \
    TEMPLATE int64_t PASS(differing##WIDTH)(const byte *r, const byte *c, int64_t n)                              \
    {                                                                                                             \
        const UNALIGNED *a = (const UNALIGNED *)r, *b = (const UNALIGNED *)c;                                     \
        uint##WIDTH##_t count = 0;                                                                                \
        for (int64_t i = 0; i < n; i++) count += a[i] != b[i];                                                    \
        return count;                                                                                             \
    }                                                                                                             \
    TEMPLATE uint##WIDTH##_t PASS(gap##WIDTH)(int##WIDTH##_t u, int##WIDTH##_t v)                                 \
    {                                                                                                             \
        int##WIDTH##_t high = u > v ? u : v, low = u > v ? v : u;                                                 \
        return (uint##WIDTH##_t)((uint##WIDTH##_t)high - (uint##WIDTH##_t)low);                                   \
    }                                                                                                             \
    TEMPLATE uint##WIDTH##_t PASS(across_zero##WIDTH)(Band *band, const UNALIGNED *a, const UNALIGNED *b, int64_t n,\
                                                      uint##WIDTH##_t *distance)                                  \
    {                                                                                                             \
        uint##WIDTH##_t largest = 0, flips = 0;                                                                   \
        for (int64_t i = 0; i < n; i++) {                                                                         \
            int##WIDTH##_t x = (int##WIDTH##_t)a[i], y = (int##WIDTH##_t)b[i];                                    \
            int##WIDTH##_t u = x & INT##WIDTH##_MAX, v = y & INT##WIDTH##_MAX;                                    \
            u = x < 0 ? -u : u;                                                                                   \
            v = y < 0 ? -v : v;                                                                                   \
            distance[i] = PASS(gap##WIDTH)(u, v);                                                                 \
            largest = distance[i] > largest ? distance[i] : largest;                                              \
            flips += ((u < 0) & (v > 0)) | ((v < 0) & (u > 0));                                                   \
        }                                                                                                         \
        band->flips += flips;                                                                                     \
        return largest;                                                                                           \
    }                                                                                                             \
    TEMPLATE void PASS(ulps##WIDTH)(Band *band, const byte *r, const byte *c, int64_t n, const int count,         \
                                    const int *counted)                                                           \
    {                                                                                                             \
        const UNALIGNED *a = (const UNALIGNED *)r, *b = (const UNALIGNED *)c;                                     \
        uint##WIDTH##_t distance[TOGETHER * RUN], largest = 0, opposite = 0;                                      \
        uint32_t buckets[RUN];                                                                                    \
        for (int64_t i = 0; i < n * count; i++) {                                                                 \
            distance[i] = PASS(gap##WIDTH)((int##WIDTH##_t)a[i], (int##WIDTH##_t)b[i]);                           \
            largest = (int##WIDTH##_t)distance[i] > (int##WIDTH##_t)largest ? distance[i] : largest;              \
            opposite |= a[i] ^ b[i];                                                                              \
        }                                                                                                         \
        if (opposite >> (WIDTH - 1)) largest = PASS(across_zero##WIDTH)(band, a, b, n * count, distance);         \
        if (largest > band->max_ulp) band->max_ulp = largest;                                                     \
        for (int k = 0; k < count; k++) {                                                                         \
            const uint##WIDTH##_t *run = distance + k * RUN;                                                      \
            if (!counted[k]) continue;                                                                            \
            if (WIDTH < 64 && !((uint64_t)largest >> 31))                                                         \
                for (int64_t i = 0; i < n; i++) buckets[i] = PASS(bucket31)((uint32_t)run[i]);                    \
            else                                                                                                  \
                for (int64_t i = 0; i < n; i++) buckets[i] = PASS(bucket64)(run[i]);                              \
            PASS(count)(band, buckets, n);                                                                        \
        }                                                                                                         \
    }

INTEGER_PASSES(16, u16)
INTEGER_PASSES(32, u32)
INTEGER_PASSES(64, u64)

TEMPLATE int64_t PASS(differing)(Kind kind, const byte *r, const byte *c, int64_t n)
{
    return kind == F64   ? PASS(differing64)(r, c, n)
           : kind == F32 ? PASS(differing32)(r, c, n)
                         : PASS(differing16)(r, c, n);
}

/* ULP distances of `count` runs of n elements; the histogram takes those that are `counted`. */
TEMPLATE void PASS(ulps)(Kind kind, Band *band, const byte *r, const byte *c, int64_t n, const int count,
                         const int *counted)
{
    if (kind == F64) PASS(ulps64)(band, r, c, n, count, counted);
    else if (kind == F32) PASS(ulps32)(band, r, c, n, count, counted);
    else PASS(ulps16)(band, r, c, n, count, counted);
}

/* The sums of a run and, for the columns, each difference squared. */
typedef struct { double sums[SUMS]; double squares[RUN] __attribute__((aligned(32))); } PASS(Run);

/* The largest difference in some runs, and whether one may be relatively larger than any before. */
typedef struct { double absolute; int relative; } PASS(Largest);

/* Sums of up to TOGETHER runs that lie one after the other; the largest differences in them. Each sum is a chain of
 * additions that wait for each other: only several runs at a time keep the processor busy. */
TEMPLATE PASS(Largest) PASS(sum_runs)(Kind kind, int full, const byte *r, const byte *c, int64_t n, const int count,
                                      double max_rel, PASS(Run) *runs)
{
    const int64_t size = item_size(kind);
    v4 rr[TOGETHER] = {0}, cc[TOGETHER] = {0}, dd[TOGETHER] = {0}, rc[TOGETHER] = {0}, difference[TOGETHER] = {0};
    v4 sum[TOGETHER] = {0}, largest = {0};
    const v4 limit = largest + max_rel;
    v4i beyond = {0};
    for (int64_t i = 0; i < n; i += 4)
        for (int k = 0; k < count; k++) {
            const int64_t at = (k * RUN + i) * size;
            v4 a = PASS(load4)(kind, r + at), b = PASS(load4)(kind, c + at), d = b - a, square = d * d;
            rr[k] = PASS(add_product)(kind, rr[k], a, a);
            cc[k] = PASS(add_product)(kind, cc[k], b, b);
            rc[k] = PASS(add_product)(kind, rc[k], a, b);
            dd[k] += square;
            difference[k] += d;
            d = PASS(abs4)(d);
            largest = PASS(max4)(d, largest);
            if (!full) continue;
            sum[k] += a;
            beyond |= PASS(beyond)(kind, d, limit, PASS(abs4)(a));
            *(v4 *)(runs[k].squares + i) = square;
        }
    for (int k = 0; k < count; k++) {
        PASS(sum_four)(rr[k], cc[k], dd[k], rc[k], runs[k].sums);
        runs[k].sums[DIFFERENCE] = PASS(sum4)(difference[k]);
        runs[k].sums[SUM_R] = PASS(sum4)(sum[k]);
    }
    const double absolute = PASS(largest4)(largest);
    return (PASS(Largest)){absolute, absolute >= max_rel * LEAST_REFERENCE && PASS(any_sign)(beyond)};
}

/* Runs whose two sides are bit-equal: nothing differs, three sums are one. */
TEMPLATE void PASS(sum_equal_runs)(Kind kind, const byte *r, int64_t n, const int count, PASS(Run) *runs)
{
    v4 square[TOGETHER] = {0}, sum[TOGETHER] = {0};
    for (int64_t i = 0; i < n; i += 4)
        for (int k = 0; k < count; k++) {
            v4 a = PASS(load4)(kind, r + (k * RUN + i) * item_size(kind));
            square[k] = PASS(add_product)(kind, square[k], a, a);
            sum[k] += a;
        }
    for (int k = 0; k < count; k++) {
        double *sums = runs[k].sums;
        sums[SQUARE_R] = sums[SQUARE_C] = sums[DOT] = PASS(sum4)(square[k]);
        sums[SQUARE_D] = 0;
        sums[SUM_R] = PASS(sum4)(sum[k]);
        sums[DIFFERENCE] = sums[SUM_R] - sums[SUM_R]; /* 0, or NaN where something is not finite */
    }
}

/* Count what is not finite in a run and copy it with those positions zero on both sides; how many they are. */
TEMPLATE int64_t PASS(clean_run)(Kind kind, Band *band, const byte **r, const byte **c, int64_t n, int64_t index,
                                 uint32_t *column_excluded, byte copies[2][RUN * 8])
{
    const int64_t size = item_size(kind);
    int64_t excluded = 0;
    memcpy(copies[0], *r, (size_t)(n * size));
    memcpy(copies[1], *c, (size_t)(n * size));
    for (int64_t i = 0; i < n; i++) {
        uint64_t a = load_bits(kind, *r + i * size), b = load_bits(kind, *c + i * size);
        if (is_finite(kind, a) && is_finite(kind, b)) continue;
        int nan_a = is_nan(kind, a), nan_b = is_nan(kind, b);
        int inf_a = !is_finite(kind, a) && !nan_a, inf_b = !is_finite(kind, b) && !nan_b;
        band->nan_r += (uint64_t)nan_a;
        band->nan_c += (uint64_t)nan_b;
        band->inf_r += (uint64_t)inf_a;
        band->inf_c += (uint64_t)inf_b;
        if (nan_a != nan_b || inf_a != inf_b || (inf_a && inf_b && a != b)) {
            band->mismatches++;
            if (band->mismatch_index < 0 || index + i < band->mismatch_index) band->mismatch_index = index + i;
        }
        memset(copies[0] + i * size, 0, (size_t)size);
        memset(copies[1] + i * size, 0, (size_t)size);
        if (column_excluded) column_excluded[i]++;
        excluded++;
    }
    band->excluded += (uint64_t)excluded;
    *r = copies[0];
    *c = copies[1];
    return excluded;
}

/* Remember the first position of the largest difference; only a run that reaches the largest so far is searched. */
TEMPLATE void PASS(keep_largest)(Kind kind, Band *band, double largest, const byte *r, const byte *c, int64_t n,
                                 int64_t index)
{
    const int64_t size = item_size(kind);
    if (!(largest > 0) || largest < band->max_abs) return;
    if (largest == band->max_abs && index > band->max_index) return;
    int64_t i = 0;
    while (i + 1 < n && fabs(load_value(kind, c + i * size) - load_value(kind, r + i * size)) != largest) i++;
    band->max_abs = largest;
    band->max_index = index + i;
}

/* Divide in runs that may hold a relatively larger difference than any before; seldom more than a few do. */
TEMPLATE void PASS(keep_relative)(Kind kind, Band *band, const byte *r, const byte *c, int64_t n)
{
    const v4 zero = {0}, least_reference = zero + LEAST_REFERENCE;
    const int64_t size = item_size(kind);
    v4 largest = zero + band->max_rel;
    for (int64_t i = 0; i < n; i += 4) {
        v4 a = PASS(load4)(kind, r + i * size), d = PASS(abs4)(PASS(load4)(kind, c + i * size) - a);
        largest = PASS(max4)(d / PASS(max4)(PASS(abs4)(a), least_reference), largest);
    }
    band->max_rel = PASS(largest4)(largest);
}

/* What accumulates over a panel: its rows, and the blocks and columns of the strip being worked on. */
typedef struct {
    int64_t row; /* its first */
    double rows[PANEL][SUMS];
    uint64_t row_excluded[PANEL];
    double blocks[STRIP / RUN];
    int64_t block_excluded[STRIP / RUN];
    double *columns;           /* of the whole panel, or none */
    uint32_t *column_excluded; /* of the whole band, or none */
    int dirty;                 /* whether anything was added to the columns */
} PASS(Panel);

/* Some runs of a panel: their row, the column, block and flat index of the first; n elements in each, of which `width`
 * are the tensor's and the rest padding. */
typedef struct { int64_t row, column, block, index, width, n; } PASS(Place);

/* Add runs whose sums are known to their row and, in full, to whatever else they belong to. */
TEMPLATE void PASS(keep_runs)(Kind kind, int full, const Pair *pair, Band *band, PASS(Panel) *panel, PASS(Place) at,
                              const int count, const PASS(Run) *runs, const byte *r, const byte *c, int64_t differing,
                              int64_t excluded)
{
    int counted[TOGETHER];
    for (int k = 0; k < count; k++)
        for (int s = 0; s < SUMS; s++) panel->rows[at.row][s] += runs[k].sums[s];
    if (!full) return;
    panel->block_excluded[at.block] += excluded;
    for (int k = 0; k < count; k++) {
        panel->blocks[at.block + k] += runs[k].sums[SQUARE_D];
        counted[k] = !pair->sampled || (panel->row + at.row + at.column / RUN + k) % SAMPLE_STEP == 0;
        if (!counted[k]) continue;
        /* What was left out and padding will be counted as equal; of equal runs the rest is. */
        band->histogram[0][0] += (uint32_t)(differing ? at.width - at.n - excluded : at.width - excluded);
    }
    if (!differing) return;
    for (int k = 0; panel->columns && k < count; k++) {
        double *columns = panel->columns + at.column + k * RUN;
        panel->dirty = 1;
        for (int64_t i = 0; i < at.n; i++) columns[i] += runs[k].squares[i];
    }
    PASS(ulps)(kind, band, r, c, at.n, count, counted);
}

/* A run in which something may not be finite. */
TEMPLATE void PASS(add_masked_run)(Kind kind, int full, const Pair *pair, Band *band, PASS(Panel) *panel,
                                   PASS(Place) at, const byte *r, const byte *c)
{
    byte copies[2][RUN * 8];
    PASS(Run) run;
    uint32_t *column_excluded = panel->column_excluded ? panel->column_excluded + at.column : NULL;
    int64_t excluded = PASS(clean_run)(kind, band, &r, &c, at.n, at.index, column_excluded, copies);
    PASS(Largest) largest = PASS(sum_runs)(kind, full, r, c, at.n, 1, band->max_rel, &run);
    panel->row_excluded[at.row] += (uint64_t)excluded;
    PASS(keep_largest)(kind, band, largest.absolute, r, c, at.width, at.index);
    if (largest.relative) PASS(keep_relative)(kind, band, r, c, at.n);
    PASS(keep_runs)(kind, full, pair, band, panel, at, 1, &run, r, c, 1, excluded);
}

/* `count` runs that lie one after the other; several of them only if they are whole. */
TEMPLATE void PASS(add_runs)(Kind kind, int full, const Pair *pair, Band *band, PASS(Panel) *panel, PASS(Place) at,
                             const int count, const byte *r, const byte *c)
{
    const int64_t step = RUN * item_size(kind), differing = PASS(differing)(kind, r, c, at.n * count);
    PASS(Run) runs[TOGETHER];
    PASS(Largest) largest = {0, 0};
    double check = 0;
    if (differing) largest = PASS(sum_runs)(kind, full, r, c, at.n, count, band->max_rel, runs);
    else PASS(sum_equal_runs)(kind, r, at.n, count, runs);
    band->differing += (uint64_t)differing;
    for (int k = 0; k < count; k++) check += runs[k].sums[DIFFERENCE] - runs[k].sums[DIFFERENCE];
    if (check == 0) {
        PASS(keep_largest)(kind, band, largest.absolute, r, c, at.width + (count - 1) * RUN, at.index);
        if (largest.relative) PASS(keep_relative)(kind, band, r, c, at.n * count);
        PASS(keep_runs)(kind, full, pair, band, panel, at, count, runs, r, c, differing, 0);
        return;
    }
    for (int k = 0; k < count; k++, r += step, c += step, at.column += RUN, at.index += RUN, at.block++)
        PASS(add_masked_run)(kind, full, pair, band, panel, at, r, c);
}

TEMPLATE void PASS(add_strip)(Kind kind, int full, const Pair *pair, Band *band, PASS(Panel) *panel, Span span)
{
    const int64_t size = item_size(kind), blocks = ceil_div(span.stop_column - span.column, RUN);
    byte tails[2][RUN * 8] = {{0}}; /* the last run of a row with zeros after it */
    memset(panel->blocks, 0, (size_t)blocks * sizeof *panel->blocks);
    memset(panel->block_excluded, 0, (size_t)blocks * sizeof *panel->block_excluded);
    for (int64_t i = 0; i < span.stop_row - span.row; i++) {
        const byte *r = pair->reference + ((span.row + i) * pair->columns + span.column) * size;
        const byte *c = pair->candidate + ((span.row + i) * pair->columns + span.column) * size;
        PASS(Place) at = {i, span.column, 0, (span.row + i) * pair->columns + span.column, RUN, RUN};
        for (; at.column + TOGETHER * RUN <= span.stop_column; r += TOGETHER * RUN * size, c += TOGETHER * RUN * size) {
            prefetch_runs(r, size);
            prefetch_runs(c, size);
            PASS(add_runs)(kind, full, pair, band, panel, at, TOGETHER, r, c);
            at.column += TOGETHER * RUN, at.index += TOGETHER * RUN, at.block += TOGETHER;
        }
        for (; at.column + RUN <= span.stop_column; r += RUN * size, c += RUN * size) {
            PASS(add_runs)(kind, full, pair, band, panel, at, 1, r, c);
            at.column += RUN, at.index += RUN, at.block++;
        }
        at.width = span.stop_column - at.column;
        if (!at.width) continue;
        at.n = ceil_div(at.width, 8) * 8;
        memcpy(tails[0], r, (size_t)(at.width * size));
        memcpy(tails[1], c, (size_t)(at.width * size));
        PASS(add_runs)(kind, full, pair, band, panel, at, 1, tails[0], tails[1]);
    }
    if (!full) return;
    for (int64_t block = 0; block < blocks; block++) {
        int64_t width = least(RUN, span.stop_column - span.column - block * RUN);
        int64_t count = (span.stop_row - span.row) * width - panel->block_excluded[block];
        if (count && panel->blocks[block] / (double)count > band->block.mean)
            band->block = (Worst){panel->blocks[block] / (double)count, span.row, span.column + block * RUN};
    }
}

TEMPLATE void PASS(add_panel)(Kind kind, int full, const Pair *pair, Band *band, PASS(Panel) *panel, Span span)
{
    const int64_t rows = span.stop_row - span.row;
    double sums[SUMS] = {0};
    panel->row = span.row;
    memset(panel->rows, 0, sizeof panel->rows);
    memset(panel->row_excluded, 0, sizeof panel->row_excluded);
    for (int64_t column = span.column; column < span.stop_column; column += STRIP) {
        Span strip = {span.row, span.stop_row, column, least(column + STRIP, span.stop_column)};
        PASS(add_strip)(kind, full, pair, band, panel, strip);
    }
    for (int64_t i = 0; i < rows; i++) {
        double square = panel->rows[i][SQUARE_D];
        for (int s = 0; s < SUMS; s++) sums[s] += panel->rows[i][s];
        if (pair->rows <= PANEL) { /* other bands hold other columns of these rows */
            band->row_squares[i] = square;
            band->row_excluded[i] = panel->row_excluded[i];
            continue;
        }
        int64_t count = pair->columns - (int64_t)panel->row_excluded[i];
        if (count && square / (double)count > band->row.mean)
            band->row = (Worst){square / (double)count, span.row + i, 0};
    }
    for (int s = 0; s < SUMS; s++) band->sums[s] += sums[s];
}

TEMPLATE void PASS(band_of)(Kind kind, int full, const Pair *pair, Span span, Band *band, double *band_columns,
                            uint32_t *column_excluded, double *scratch)
{
    PASS(Panel) panel = {.columns = scratch, .column_excluded = column_excluded};
    for (int64_t row = span.row; row < span.stop_row; row += PANEL) {
        Span rows = {row, least(row + PANEL, span.stop_row), span.column, span.stop_column};
        PASS(add_panel)(kind, full, pair, band, &panel, rows);
        if (!panel.dirty) continue;
        for (int64_t column = span.column; column < span.stop_column; column++) {
            band_columns[column] += scratch[column];
            scratch[column] = 0;
        }
        panel.dirty = 0;
    }
}

#define PAIR_PASS(KIND)                                                                                           \
    static TARGET void PASS(pair_##KIND)(const Pair *pair, Span span, Band *band, double *columns,                \
                                         uint32_t *excluded, double *scratch)                                     \
    {                                                                                                             \
        if (pair->full) PASS(band_of)(KIND, 1, pair, span, band, columns, excluded, scratch);                     \
        else PASS(band_of)(KIND, 0, pair, span, band, columns, excluded, scratch);                                \
    }

PAIR_PASS(F64)
PAIR_PASS(F32)
PAIR_PASS(F16)
PAIR_PASS(BF16)

static TARGET void PASS(pair)(Kind kind, const Pair *pair, Span span, Band *band, double *columns,
                              uint32_t *excluded, double *scratch)
{
    switch (kind) {
    case F64: PASS(pair_F64)(pair, span, band, columns, excluded, scratch); return;
    case F32: PASS(pair_F32)(pair, span, band, columns, excluded, scratch); return;
    case F16: PASS(pair_F16)(pair, span, band, columns, excluded, scratch); return;
    default: PASS(pair_BF16)(pair, span, band, columns, excluded, scratch); return;
    }
}

/* Statistics: one element at a time where some are not finite or a run is not whole. */
TEMPLATE void PASS(stats_rest)(Kind kind, const byte *p, int64_t n, Totals *totals, double sums[3])
{
    double lanes[3][4] = {{0}};
    for (int64_t i = 0; i < n; i++, p += item_size(kind)) {
        uint64_t bits = load_bits(kind, p);
        if (!is_finite(kind, bits)) {
            if (is_nan(kind, bits)) totals->nan++;
            else totals->inf++;
            continue;
        }
        double x = load_value(kind, p);
        if (!totals->found) totals->min = totals->max = totals->origin = x;
        totals->found = 1;
        totals->min = x < totals->min ? x : totals->min;
        totals->max = x > totals->max ? x : totals->max;
        double shifted = x - totals->origin;
        lanes[0][i % 4] += shifted;
        lanes[1][i % 4] += shifted * shifted;
        lanes[2][i % 4] += x * x;
    }
    for (int s = 0; s < 3; s++) sums[s] += (lanes[s][0] + lanes[s][1]) + (lanes[s][2] + lanes[s][3]);
}

/* `count` whole runs, as in sum_runs; whether all of it is finite, and only then added. */
TEMPLATE int PASS(stats_runs)(Kind kind, const byte *p, const int count, double origin, v4 *low, v4 *high,
                              double sums[3])
{
    v4 shift[TOGETHER] = {0}, square_shift[TOGETHER] = {0}, square[TOGETHER] = {0}, run_low = *low, run_high = *high;
    double check = 0;
    for (int64_t i = 0; i < RUN; i += 4)
        for (int k = 0; k < count; k++) {
            v4 x = PASS(load4)(kind, p + (k * RUN + i) * item_size(kind)), shifted = x - origin;
            run_low = PASS(min4)(x, run_low);
            run_high = PASS(max4)(x, run_high);
            shift[k] += shifted;
            square_shift[k] += shifted * shifted;
            square[k] = PASS(add_product)(kind, square[k], x, x);
        }
    for (int k = 0; k < count; k++) check += PASS(sum4)(shift[k] - shift[k]);
    if (check != 0) return 0;
    *low = run_low;
    *high = run_high;
    for (int k = 0; k < count; k++) {
        sums[0] += PASS(sum4)(shift[k]);
        sums[1] += PASS(sum4)(square_shift[k]);
        sums[2] += PASS(sum4)(square[k]);
    }
    return 1;
}

TEMPLATE void PASS(stats_chunk)(Kind kind, const byte *p, int64_t n, Totals *totals)
{
    const int64_t step = RUN * item_size(kind);
    const byte *stop = p + n / RUN * step;
    double sums[3] = {0};
    v4 zero = {0}, low = zero + totals->min, high = zero + totals->max;
    while (p < stop) {
        const double origin = totals->origin;
        if (totals->found) {
            while (stop - p >= TOGETHER * step && PASS(stats_runs)(kind, p, TOGETHER, origin, &low, &high, sums))
                p += TOGETHER * step;
            while (p < stop && PASS(stats_runs)(kind, p, 1, origin, &low, &high, sums)) p += step;
            if (p == stop) break;
        }
        const int begun = totals->found;
        PASS(stats_rest)(kind, p, RUN, totals, sums);
        if (!begun) low = zero + totals->min, high = zero + totals->max;
        p += step;
    }
    if (totals->found) {
        double least_seen = -PASS(largest4)(-low), most_seen = PASS(largest4)(high);
        totals->min = least_seen < totals->min ? least_seen : totals->min;
        totals->max = most_seen > totals->max ? most_seen : totals->max;
    }
    if (n % RUN) PASS(stats_rest)(kind, p, n % RUN, totals, sums);
    for (int s = 0; s < 3; s++) totals->sums[s] += sums[s];
}

#define STATS_PASS(KIND)                                                                                          \
    static TARGET void PASS(stats_##KIND)(const byte *p, int64_t count, Totals *totals)                           \
    {                                                                                                             \
        for (int64_t start = 0; start < count; start += STATS_CHUNK)                                              \
            PASS(stats_chunk)(KIND, p + start * item_size(KIND), least(STATS_CHUNK, count - start), totals);      \
    }

STATS_PASS(F64)
STATS_PASS(F32)
STATS_PASS(F16)
STATS_PASS(BF16)

static TARGET void PASS(stats)(Kind kind, const byte *p, int64_t count, Totals *totals)
{
    switch (kind) {
    case F64: PASS(stats_F64)(p, count, totals); return;
    case F32: PASS(stats_F32)(p, count, totals); return;
    case F16: PASS(stats_F16)(p, count, totals); return;
    default: PASS(stats_BF16)(p, count, totals); return;
    }
}

#undef TEMPLATE
#undef INTEGER_PASSES
#undef PAIR_PASS
#undef STATS_PASS
