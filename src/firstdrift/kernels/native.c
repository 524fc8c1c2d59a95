/* Native twin of definition.py: the same numbers (of sums see there) in one fused pass that releases the GIL.
 *
 *   measure(reference, candidate, kind, rows, columns, full) -> the fields of results.Sums
 *   partials_size(rows, columns, full) -> (bands, bytes)           the same in parts, so that
 *   part(reference, candidate, kind, rows, columns, full,          threads can share the work:
 *        partials, first, stop)                                    bands first .. stop-1
 *   merge(partials, rows, columns, full) -> the fields of results.Sums
 *   stats(tensor, kind) -> (nan, inf, min, max, origin, shift, square_shift, square)
 *
 * Tensors are contiguous buffers of the kind's size; nothing is read or written beyond what a buffer says it has. */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include <stdlib.h>

#include "pair.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define HAVE_AVX2 1
#define AVX2 1
#define PASS(name) avx2_##name
#define TARGET __attribute__((target("avx2,fma,f16c,bmi2")))
#include "passes.h"
#undef AVX2
#undef PASS
#undef TARGET
#else
#define HAVE_AVX2 0
#endif

#define AVX2 0
#define PASS(name) plain_##name
#define TARGET
#include "passes.h"

static int use_avx2 = 0;

static void detect_cpu(void)
{
#if HAVE_AVX2
    __builtin_cpu_init();
    use_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2") &&
               __builtin_cpu_supports("f16c");
#endif
}

/* Partial results: for each band a Band, then its column sums and how many elements of each column were left out. */

typedef struct { int64_t bands, columns; size_t stride; } Plan;

static Plan plan_of(int64_t rows, int64_t columns, int full)
{
    Plan plan = {band_count(rows, columns), full && columns <= MAX_COLUMNS ? ceil_div(columns, RUN) * RUN : 0, 0};
    plan.stride = sizeof(Band) + (size_t)plan.columns * (sizeof(double) + sizeof(uint32_t));
    return plan;
}

static Band *band_at(byte *partials, Plan plan, int64_t band) { return (Band *)(partials + band * plan.stride); }
static double *columns_of(Band *band) { return (double *)(band + 1); }
static uint32_t *excluded_of(Band *band, Plan plan) { return (uint32_t *)(columns_of(band) + plan.columns); }

static int run_bands(Kind kind, const Pair *pair, Plan plan, byte *partials, int64_t first, int64_t stop)
{
    double *scratch = NULL;
    void *memory = NULL;
    if (plan.columns) {
        if (!(memory = calloc((size_t)plan.columns + 8, sizeof *scratch))) return -1;
        scratch = (double *)(((uintptr_t)memory + 63) / 64 * 64); /* no vector store crosses a cache line */
    }
    for (int64_t i = first; i < stop; i++) {
        Band *band = band_at(partials, plan, i);
        Span span = band_span(pair->rows, pair->columns, i);
        double *columns = plan.columns ? columns_of(band) : NULL;
        uint32_t *excluded = plan.columns ? excluded_of(band, plan) : NULL;
        memset(band, 0, plan.stride);
        band->mismatch_index = band->max_index = -1;
        band->row = band->block = (Worst){-1, -1, -1};
#if HAVE_AVX2
        if (use_avx2) avx2_pair(kind, pair, span, band, columns, excluded, scratch);
        else
#endif
            plain_pair(kind, pair, span, band, columns, excluded, scratch);
    }
    free(memory);
    return 0;
}

/* Merging, always in the order of the bands. */

static void merge_band(Band *total, const Band *band)
{
    total->excluded += band->excluded;
    total->differing += band->differing;
    total->nan_r += band->nan_r;
    total->nan_c += band->nan_c;
    total->inf_r += band->inf_r;
    total->inf_c += band->inf_c;
    total->mismatches += band->mismatches;
    total->flips += band->flips;
    if (band->mismatch_index >= 0 && (total->mismatch_index < 0 || band->mismatch_index < total->mismatch_index))
        total->mismatch_index = band->mismatch_index;
    if (band->max_abs > total->max_abs ||
        (band->max_abs == total->max_abs && band->max_index >= 0 && band->max_index < total->max_index)) {
        total->max_abs = band->max_abs;
        total->max_index = band->max_index;
    }
    if (band->max_rel > total->max_rel) total->max_rel = band->max_rel;
    if (band->max_ulp > total->max_ulp) total->max_ulp = band->max_ulp;
    if (band->row.mean > total->row.mean) total->row = band->row;
    if (band->block.mean > total->block.mean) total->block = band->block;
    for (int s = 0; s < SUMS; s++) total->sums[s] += band->sums[s];
    for (int i = 0; i < PANEL; i++) {
        total->row_squares[i] += band->row_squares[i];
        total->row_excluded[i] += band->row_excluded[i];
    }
}

static Worst worst_column(byte *partials, Plan plan, int64_t rows, int64_t columns)
{
    Worst worst = {-1, -1, -1};
    for (int64_t column = 0; plan.columns && column < columns; column++) {
        double square = 0;
        int64_t count = rows;
        for (int64_t i = 0; i < plan.bands; i++) {
            Band *band = band_at(partials, plan, i);
            square += columns_of(band)[column];
            count -= excluded_of(band, plan)[column];
        }
        if (count > 0 && square / (double)count > worst.mean) worst = (Worst){square / (double)count, 0, column};
    }
    return worst;
}

static void count_distances(byte *partials, Plan plan, uint64_t counts[BUCKETS])
{
    for (int64_t i = 0; i < plan.bands; i++)
        for (int bucket = 0; bucket < BUCKETS; bucket++) {
            uint32_t sum = 0; /* a copy may have wrapped below zero; the sum of the copies has not */
            for (int copy = 0; copy < COPIES; copy++) sum += band_at(partials, plan, i)->histogram[copy][bucket];
            counts[bucket] += sum;
        }
}

static uint64_t percentile_999(const uint64_t counts[BUCKETS], uint64_t largest)
{
    uint64_t total = 0, seen = 0, ceiling;
    int bucket = 0;
    for (int i = 0; i < BUCKETS; i++) total += counts[i];
    while (bucket < BUCKETS - 1 && (seen += counts[bucket]) < total - total / 1000) bucket++;
    ceiling = bucket < 16 ? (uint64_t)bucket : (((uint64_t)(bucket & 7) + 9) << ((bucket >> 3) - 1)) - 1;
    return ceiling < largest ? ceiling : largest;
}

static PyObject *octaves(const uint64_t counts[BUCKETS])
{
    uint64_t sums[66] = {0};
    Py_ssize_t used = 0;
    for (int bucket = 0; bucket < BUCKETS; bucket++) {
        int octave = bucket == 0 ? 0 : bucket == 1 ? 1 : bucket < 4 ? 2 : bucket < 8 ? 3 : 3 + (bucket >> 3);
        sums[octave] += counts[bucket];
        if (counts[bucket]) used = octave + 1;
    }
    PyObject *result = PyTuple_New(used);
    for (Py_ssize_t i = 0; result && i < used; i++) {
        PyObject *count = PyLong_FromUnsignedLongLong(sums[i]);
        if (!count || PyTuple_SetItem(result, i, count)) Py_CLEAR(result);
    }
    return result;
}

static PyObject *merged(byte *partials, Plan plan, int64_t rows, int64_t columns, int full)
{
    Band *total = calloc(1, sizeof *total);
    uint64_t counts[BUCKETS] = {0};
    if (!total) return PyErr_NoMemory();
    total->mismatch_index = total->max_index = -1;
    total->row = total->block = (Worst){-1, -1, -1};
    for (int64_t i = 0; i < plan.bands; i++) merge_band(total, band_at(partials, plan, i));
    for (int64_t i = 0; full && rows <= PANEL && i < rows; i++) {
        int64_t count = (int64_t)((uint64_t)columns - total->row_excluded[i]);
        if (count > 0 && total->row_squares[i] / (double)count > total->row.mean)
            total->row = (Worst){total->row_squares[i] / (double)count, i, 0};
    }
    if (full) count_distances(partials, plan, counts);
    else total->row = (Worst){-1, -1, -1};
    Worst column = worst_column(partials, plan, rows, columns), row = total->row, block = total->block;
    PyObject *by_octave = octaves(counts);
    PyObject *result =
        by_octave ? Py_BuildValue(
                        "LLLLLLLLdLdddddddLKKN(dLL)(dLL)(dLL)", (long long)((uint64_t)(rows * columns) - total->excluded),
                        (long long)total->differing, (long long)total->nan_r, (long long)total->nan_c,
                        (long long)total->inf_r, (long long)total->inf_c, (long long)total->mismatches,
                        (long long)total->mismatch_index, total->max_abs, (long long)total->max_index,
                        total->max_rel, total->sums[SQUARE_R], total->sums[SQUARE_C], total->sums[SQUARE_D],
                        total->sums[DOT], total->sums[DIFFERENCE], total->sums[SUM_R], (long long)total->flips,
                        (unsigned long long)total->max_ulp, (unsigned long long)percentile_999(counts, total->max_ulp), by_octave, row.mean,
                        (long long)row.row, (long long)row.column, column.mean, (long long)column.row,
                        (long long)column.column, block.mean, (long long)block.row, (long long)block.column)
                  : NULL;
    free(total);
    return result;
}

/* Arguments. */

static int check_shape(long long rows, long long columns)
{
    const long long limit = PY_SSIZE_T_MAX / 16;
    int each = rows >= 0 && columns >= 0 && rows <= limit && columns <= limit;
    if (each && (!columns || rows <= limit / columns)) return 0;
    PyErr_SetString(PyExc_ValueError, "rows and columns out of range");
    return -1;
}

static int check_kind(int kind)
{
    if (kind >= 0 && kind < KINDS) return 0;
    PyErr_SetString(PyExc_ValueError, "unknown kind of element");
    return -1;
}

typedef struct {
    Py_buffer reference, candidate;
    Pair pair;
    Plan plan;
    Kind kind;
} Work;

static void release(Work *work)
{
    PyBuffer_Release(&work->reference);
    PyBuffer_Release(&work->candidate);
}

static int acquire(Work *work, PyObject *reference, PyObject *candidate, int kind, long long rows, long long columns,
                   int full)
{
    if (check_kind(kind) || check_shape(rows, columns)) return -1;
    if (PyObject_GetBuffer(reference, &work->reference, PyBUF_SIMPLE)) return -1;
    if (PyObject_GetBuffer(candidate, &work->candidate, PyBUF_SIMPLE)) {
        PyBuffer_Release(&work->reference);
        return -1;
    }
    Py_ssize_t size = (Py_ssize_t)(rows * columns * item_size((Kind)kind));
    if (work->reference.len != size || work->candidate.len != size) {
        release(work);
        PyErr_SetString(PyExc_ValueError, "a buffer does not hold rows * columns elements");
        return -1;
    }
    work->kind = (Kind)kind;
    work->plan = plan_of(rows, columns, full);
    work->pair = (Pair){work->reference.buf, work->candidate.buf, rows, columns, full, rows * columns >= SAMPLED_SIZE};
    return 0;
}

static int acquire_partials(Py_buffer *partials, PyObject *object, Plan plan)
{
    if (PyObject_GetBuffer(object, partials, PyBUF_WRITABLE)) return -1;
    if ((size_t)partials->len >= (size_t)plan.bands * plan.stride && (uintptr_t)partials->buf % 8 == 0) return 0;
    PyBuffer_Release(partials);
    PyErr_SetString(PyExc_ValueError, "partials are too small or not aligned");
    return -1;
}

/* Functions. */

static PyObject *native_measure(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *reference, *candidate, *result = NULL;
    int kind, full, failed;
    long long rows, columns;
    Work work;
    if (!PyArg_ParseTuple(args, "OOiLLp", &reference, &candidate, &kind, &rows, &columns, &full)) return NULL;
    if (acquire(&work, reference, candidate, kind, rows, columns, full)) return NULL;
    byte *partials = malloc((size_t)work.plan.bands * work.plan.stride + 1);
    if (!partials) {
        release(&work);
        return PyErr_NoMemory();
    }
    Py_BEGIN_ALLOW_THREADS
    failed = run_bands(work.kind, &work.pair, work.plan, partials, 0, work.plan.bands);
    Py_END_ALLOW_THREADS
    result = failed ? PyErr_NoMemory() : merged(partials, work.plan, rows, columns, full);
    free(partials);
    release(&work);
    return result;
}

static PyObject *native_partials_size(PyObject *Py_UNUSED(module), PyObject *args)
{
    long long rows, columns;
    int full;
    if (!PyArg_ParseTuple(args, "LLp", &rows, &columns, &full) || check_shape(rows, columns)) return NULL;
    Plan plan = plan_of(rows, columns, full);
    return Py_BuildValue("Ln", (long long)plan.bands, (Py_ssize_t)((size_t)plan.bands * plan.stride));
}

static PyObject *native_part(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *reference, *candidate, *object;
    int kind, full, failed;
    long long rows, columns, first, stop;
    Work work;
    Py_buffer partials;
    if (!PyArg_ParseTuple(args, "OOiLLpOLL", &reference, &candidate, &kind, &rows, &columns, &full, &object, &first,
                          &stop))
        return NULL;
    if (acquire(&work, reference, candidate, kind, rows, columns, full)) return NULL;
    if (first < 0 || stop < first || stop > work.plan.bands) {
        release(&work);
        PyErr_SetString(PyExc_ValueError, "no such bands");
        return NULL;
    }
    if (acquire_partials(&partials, object, work.plan)) {
        release(&work);
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    failed = run_bands(work.kind, &work.pair, work.plan, partials.buf, first, stop);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&partials);
    release(&work);
    if (failed) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

static PyObject *native_merge(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *object;
    long long rows, columns;
    int full;
    Py_buffer partials;
    if (!PyArg_ParseTuple(args, "OLLp", &object, &rows, &columns, &full) || check_shape(rows, columns)) return NULL;
    Plan plan = plan_of(rows, columns, full);
    if (acquire_partials(&partials, object, plan)) return NULL;
    PyObject *result = merged(partials.buf, plan, rows, columns, full);
    PyBuffer_Release(&partials);
    return result;
}

static PyObject *native_stats(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *object;
    int kind;
    Py_buffer tensor;
    Totals totals = {0};
    if (!PyArg_ParseTuple(args, "Oi", &object, &kind) || check_kind(kind)) return NULL;
    if (PyObject_GetBuffer(object, &tensor, PyBUF_SIMPLE)) return NULL;
    if (tensor.len % item_size((Kind)kind)) {
        PyBuffer_Release(&tensor);
        PyErr_SetString(PyExc_ValueError, "a buffer does not hold whole elements");
        return NULL;
    }
    int64_t count = tensor.len / item_size((Kind)kind);
    Py_BEGIN_ALLOW_THREADS
#if HAVE_AVX2
    if (use_avx2) avx2_stats((Kind)kind, tensor.buf, count, &totals);
    else
#endif
        plain_stats((Kind)kind, tensor.buf, count, &totals);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&tensor);
    return Py_BuildValue("LLdddddd", (long long)totals.nan, (long long)totals.inf, totals.min, totals.max,
                         totals.origin, totals.sums[0], totals.sums[1], totals.sums[2]);
}

/* Tests compare the instruction sets with each other through this; it says which one is in use. */
static PyObject *native_use_avx2(PyObject *Py_UNUSED(module), PyObject *args)
{
    int wanted = -1;
    if (!PyArg_ParseTuple(args, "|p", &wanted)) return NULL;
    if (wanted == 0) use_avx2 = 0;
    else if (wanted == 1) detect_cpu();
    return PyBool_FromLong(use_avx2);
}

static PyMethodDef methods[] = {
    {"measure", native_measure, METH_VARARGS, "measure(reference, candidate, kind, rows, columns, full)"},
    {"partials_size", native_partials_size, METH_VARARGS, "partials_size(rows, columns, full)"},
    {"part", native_part, METH_VARARGS,
     "part(reference, candidate, kind, rows, columns, full, partials, first, stop)"},
    {"merge", native_merge, METH_VARARGS, "merge(partials, rows, columns, full)"},
    {"stats", native_stats, METH_VARARGS, "stats(tensor, kind)"},
    {"use_avx2", native_use_avx2, METH_VARARGS, "use_avx2([wanted]) -> whether AVX2 is in use"},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "native", "Native twin of firstdrift.kernels.definition.", 0, methods, slots,
    NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit_native(void)
{
    detect_cpu();
    return PyModuleDef_Init(&module);
}
