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

/* Integer work on n elements of one width; plain loops that the compiler turns into vectors. */
#define INTEGER_PASSES(WIDTH, UNALIGNED)                                                                          \
    TEMPLATE int64_t PASS(differing##WIDTH)(const byte *r, const byte *c, int64_t n)                              \
    {                                                                                                             \
        const UNALIGNED *a = (const UNALIGNED *)r, *b = (const UNALIGNED *)c;                                     \
        uint##WIDTH##_t count = 0;                                                                                \
        for (int64_t i = 0; i < n; i++) count += a[i] != b[i];                                                    \
        return count;                                                                                             \
    }                                                                                                             \
    TEMPLATE void PASS(ulps##WIDTH)(Band *band, const byte *r, const byte *c, int64_t n, int64_t absent,          \
                                    int count)                                                                    \
    {                                                                                                             \
        const UNALIGNED *a = (const UNALIGNED *)r, *b = (const UNALIGNED *)c;                                     \
        uint##WIDTH##_t distance[RUN], largest = 0, flips = 0;                                                    \
        uint32_t buckets[RUN];                                                                                    \
        for (int64_t i = 0; i < n; i++) {                                                                         \
            int##WIDTH##_t x = (int##WIDTH##_t)a[i], y = (int##WIDTH##_t)b[i];                                    \
            int##WIDTH##_t u = x & INT##WIDTH##_MAX, v = y & INT##WIDTH##_MAX;                                    \
            u = x < 0 ? -u : u;                                                                                   \
            v = y < 0 ? -v : v;                                                                                   \
            int##WIDTH##_t high = u > v ? u : v, low = u > v ? v : u;                                             \
            uint##WIDTH##_t gap = (uint##WIDTH##_t)((uint##WIDTH##_t)high - (uint##WIDTH##_t)low);                \
            distance[i] = gap;                                                                                    \
            largest = gap > largest ? gap : largest;                                                              \
            flips += (low < 0) & (high > 0);                                                                      \
        }                                                                                                         \
        band->flips += flips;                                                                                     \
        if (largest > band->max_ulp) band->max_ulp = largest;                                                     \
        if (!count) return;                                                                                       \
        if (WIDTH < 64 && !((uint64_t)largest >> 31))                                                             \
            for (int64_t i = 0; i < n; i++) buckets[i] = PASS(bucket31)((uint32_t)distance[i]);                   \
        else                                                                                                      \
            for (int64_t i = 0; i < n; i++) buckets[i] = PASS(bucket64)(distance[i]);                             \
        PASS(count)(band, buckets, n);                                                                            \
        band->histogram[0][0] -= (uint32_t)absent;                                                                \
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

TEMPLATE void PASS(ulps)(Kind kind, Band *band, const byte *r, const byte *c, int64_t n, int64_t absent, int count)
{
    if (kind == F64) PASS(ulps64)(band, r, c, n, absent, count);
    else if (kind == F32) PASS(ulps32)(band, r, c, n, absent, count);
    else PASS(ulps16)(band, r, c, n, absent, count);
}

/* The five sums of a run, its largest difference and, for the columns, each difference squared. */
typedef struct { double sums[SUMS], largest; double squares[RUN] __attribute__((aligned(32))); } PASS(Run);

TEMPLATE void PASS(sum_run)(Kind kind, int full, const byte *r, const byte *c, int64_t n, PASS(Run) *run)
{
    const int64_t size = item_size(kind);
    v4 rr = {0}, cc = {0}, dd = {0}, rc = {0}, difference = {0}, largest = {0};
    for (int64_t i = 0; i < n; i += 4) {
        v4 a = PASS(load4)(kind, r + i * size), b = PASS(load4)(kind, c + i * size), d = b - a, square = d * d;
        rr = PASS(add_product)(kind, rr, a, a);
        cc = PASS(add_product)(kind, cc, b, b);
        rc = PASS(add_product)(kind, rc, a, b);
        dd += square;
        difference += d;
        largest = PASS(max4)(PASS(abs4)(d), largest);
        if (full) *(v4 *)(run->squares + i) = square;
    }
    PASS(sum_four)(rr, cc, dd, rc, run->sums);
    run->sums[DIFFERENCE] = PASS(sum4)(difference);
    run->largest = PASS(largest4)(largest);
}

/* A run whose two sides are bit-equal: nothing differs, three sums are one. */
TEMPLATE void PASS(sum_equal_run)(Kind kind, const byte *r, int64_t n, PASS(Run) *run)
{
    v4 square = {0}, check = {0};
    for (int64_t i = 0; i < n; i += 4) {
        v4 a = PASS(load4)(kind, r + i * item_size(kind));
        square = PASS(add_product)(kind, square, a, a);
        check += a - a;
    }
    run->sums[SQUARE_R] = run->sums[SQUARE_C] = run->sums[DOT] = PASS(sum4)(square);
    run->sums[SQUARE_D] = 0;
    run->sums[DIFFERENCE] = PASS(sum4)(check);
    run->largest = 0;
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

/* What accumulates over a panel: its rows, and the blocks and columns of the strip being worked on. */
typedef struct {
    double rows[PANEL][SUMS];
    uint64_t row_excluded[PANEL];
    double blocks[STRIP / RUN];
    int64_t block_excluded[STRIP / RUN];
    double *columns;           /* of the whole panel, or none */
    uint32_t *column_excluded; /* of the whole band, or none */
    int dirty;                 /* whether anything was added to the columns */
} PASS(Panel);

TEMPLATE void PASS(add_run)(Kind kind, int full, const Pair *pair, Band *band, PASS(Panel) *panel, int64_t row,
                            int64_t i, int64_t column, int64_t block, const byte *r, const byte *c, int64_t width,
                            const int64_t n)
{
    byte copies[2][RUN * 8];
    PASS(Run) run;
    const int64_t index = (row + i) * pair->columns + column;
    const int64_t differing = PASS(differing)(kind, r, c, n);
    int64_t excluded = 0;
    if (differing) PASS(sum_run)(kind, full, r, c, n, &run);
    else PASS(sum_equal_run)(kind, r, n, &run);
    band->differing += (uint64_t)differing;
    if (!isfinite(run.sums[DIFFERENCE])) {
        uint32_t *column_excluded = panel->column_excluded ? panel->column_excluded + column : NULL;
        excluded = PASS(clean_run)(kind, band, &r, &c, n, index, column_excluded, copies);
        PASS(sum_run)(kind, full, r, c, n, &run);
        panel->row_excluded[i] += (uint64_t)excluded;
    }
    for (int s = 0; s < SUMS; s++) panel->rows[i][s] += run.sums[s];
    PASS(keep_largest)(kind, band, run.largest, r, c, width, index);
    if (!full) return;
    const int counted = !pair->sampled || (row + i + column / RUN) % SAMPLE_STEP == 0;
    panel->blocks[block] += run.sums[SQUARE_D];
    panel->block_excluded[block] += excluded;
    if (!differing) {
        if (counted) band->histogram[0][0] += (uint32_t)(width - excluded);
        return;
    }
    if (panel->columns) {
        double *columns = panel->columns + column;
        panel->dirty = 1;
        for (int64_t k = 0; k < n; k++) columns[k] += run.squares[k];
    }
    PASS(ulps)(kind, band, r, c, n, n - width + excluded, counted);
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
        int64_t column = span.column, block = 0;
        for (; column + RUN <= span.stop_column; column += RUN, block++, r += RUN * size, c += RUN * size) {
            prefetch_run(r, size);
            prefetch_run(c, size);
            PASS(add_run)(kind, full, pair, band, panel, span.row, i, column, block, r, c, RUN, RUN);
        }
        const int64_t width = span.stop_column - column;
        if (!width) continue;
        const int64_t padded = ceil_div(width, 8) * 8;
        memcpy(tails[0], r, (size_t)(width * size));
        memcpy(tails[1], c, (size_t)(width * size));
        PASS(add_run)(kind, full, pair, band, panel, span.row, i, column, block, tails[0], tails[1], width, padded);
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

TEMPLATE void PASS(stats_chunk)(Kind kind, const byte *p, int64_t n, Totals *totals)
{
    double sums[3] = {0};
    int64_t done = 0;
    v4 zero = {0}, low = zero + totals->min, high = zero + totals->max;
    for (; done + RUN <= n; done += RUN, p += RUN * item_size(kind)) {
        const double origin = totals->origin;
        v4 shift = zero, square_shift = zero, square = zero, run_low = low, run_high = high;
        for (int64_t i = 0; i < RUN; i += 4) {
            v4 x = PASS(load4)(kind, p + i * item_size(kind)), shifted = x - origin;
            run_low = PASS(min4)(x, run_low);
            run_high = PASS(max4)(x, run_high);
            shift += shifted;
            square_shift += shifted * shifted;
            square = PASS(add_product)(kind, square, x, x);
        }
        double check = PASS(sum4)(shift);
        if (totals->found && isfinite(check)) {
            low = run_low;
            high = run_high;
            sums[0] += check;
            sums[1] += PASS(sum4)(square_shift);
            sums[2] += PASS(sum4)(square);
            continue;
        }
        const int begun = totals->found;
        PASS(stats_rest)(kind, p, RUN, totals, sums);
        if (!begun) low = zero + totals->min, high = zero + totals->max;
    }
    if (totals->found) {
        double least_seen = -PASS(largest4)(-low), most_seen = PASS(largest4)(high);
        totals->min = least_seen < totals->min ? least_seen : totals->min;
        totals->max = most_seen > totals->max ? most_seen : totals->max;
    }
    if (done < n) PASS(stats_rest)(kind, p, n - done, totals, sums);
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
