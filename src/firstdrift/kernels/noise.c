/* Native twin of noises.py: the same bits, in one pass that releases the GIL.
 *
 *   moved(out, values, key, unit, width, least, digits, normal, step, largest)     see noises.moved
 *   scattered(out, values, deviations, key)                                        see noises.scattered
 *
 * All buffers are contiguous, of as many doubles as `out` has; nothing is read or written beyond that. */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__GNUC__)
#define INLINE static inline __attribute__((always_inline))
#else
#define INLINE static inline
#endif

typedef struct { uint64_t key; double unit, width, least; } Rounding;
typedef struct { uint64_t digits; double normal, step, largest; } Format;

/* The random bits of one place: SplitMix64. */
INLINE uint64_t bits_at(uint64_t key, size_t at)
{
    uint64_t bits = key + ((uint64_t)at + 1) * UINT64_C(0x9E3779B97F4A7C15);
    bits = (bits ^ bits >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    bits = (bits ^ bits >> 27) * UINT64_C(0x94D049BB133111EB);
    return bits ^ bits >> 31;
}

/* Whether a format has a number: no digit too many, and below its normal numbers a whole number of steps. */
INLINE int holds(const Format *format, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    int is_whole = (fabs(value) >= format->normal) | ((value + format->step) - format->step == value);
    return ((bits & format->digits) == 0) & (fabs(value) <= format->largest) & is_whole;
}

/* The power of two at or below a magnitude. */
INLINE double binade(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    bits &= UINT64_C(0x7FF0000000000000);
    memcpy(&value, &bits, sizeof bits);
    return value;
}

INLINE void move(double *out, const double *values, size_t count, const Rounding *by, const Format *format)
{
    for (size_t i = 0; i < count; i++) {
        double value = values[i], size = binade(value) * by->unit, other;
        double drawn = (double)(int32_t)(bits_at(by->key, i) >> 32) * 0x1p-32;
        size = size < by->least && value != 0 ? by->least : size;
        other = value + drawn * by->width * size;
        int stays = (size == 0) | !(fabs(other) <= DBL_MAX);
        if (format) stays |= holds(format, value);
        out[i] = stays ? value : other;
    }
}

INLINE void scatter(double *out, const double *values, const double *deviations, size_t count, uint64_t key)
{
    const uint64_t even = UINT64_C(0x00FF00FF00FF00FF), ones = UINT64_C(0x0001000100010001);
    for (size_t i = 0; i < count; i++) {
        uint64_t bits = bits_at(key, i), sum = ((bits & even) + (bits >> 8 & even)) * ones >> 48;
        double drawn = (double)((int32_t)sum - 1020) * (1 / 209.02152999152983); /* the root of 8 * 65535 / 12 */
        double other = values[i] + drawn * deviations[i];
        out[i] = fabs(other) <= DBL_MAX ? other : values[i];
    }
}

/* The same loops for each set of instructions: the plain ones have no vectors to multiply the 64 bits of a hash. */
#define PASSES(name, target)                                                                            \
    target static void move_##name(double *out, const double *values, size_t count, const Rounding *by, \
                                   const Format *format)                                                \
    {                                                                                                   \
        if (format->digits) move(out, values, count, by, format);                                       \
        else move(out, values, count, by, NULL);                                                        \
    }                                                                                                   \
    target static void scatter_##name(double *out, const double *values, const double *deviations,      \
                                      size_t count, uint64_t key)                                       \
    {                                                                                                   \
        scatter(out, values, deviations, count, key);                                                   \
    }
PASSES(plain, )

typedef void Move(double *, const double *, size_t, const Rounding *, const Format *);
typedef void Scatter(double *, const double *, const double *, size_t, uint64_t);
static int level = 0; /* of instructions: 0 plain, 1 AVX2, 2 AVX-512 */

#if defined(__x86_64__) && defined(__GNUC__)
PASSES(avx2, __attribute__((target("avx2"))))
PASSES(avx512, __attribute__((target("avx2,avx512f,avx512dq,avx512vl"))))
static Move *const moves[] = {move_plain, move_avx2, move_avx512};
static Scatter *const scatters[] = {scatter_plain, scatter_avx2, scatter_avx512};

static void detect_cpu(void)
{
    __builtin_cpu_init();
    level = !__builtin_cpu_supports("avx2") ? 0
            : __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                    __builtin_cpu_supports("avx512vl")
                ? 2
                : 1;
}
#else
static Move *const moves[] = {move_plain};
static Scatter *const scatters[] = {scatter_plain};
static void detect_cpu(void) {}
#endif

/* A buffer of each object: the first is written to, and the others are as long. */
static int get(PyObject **objects, Py_buffer *buffers, int count)
{
    for (int i = 0; i < count; i++) {
        if (PyObject_GetBuffer(objects[i], &buffers[i], i ? PyBUF_SIMPLE : PyBUF_WRITABLE)) {
            while (i--) PyBuffer_Release(&buffers[i]);
            return -1;
        }
    }
    int fits = 1;
    for (int i = 0; i < count; i++)
        fits &= buffers[i].len == buffers[0].len && buffers[i].len % (Py_ssize_t)sizeof(double) == 0 &&
                (uintptr_t)buffers[i].buf % sizeof(double) == 0;
    if (fits) return 0;
    for (int i = 0; i < count; i++) PyBuffer_Release(&buffers[i]);
    PyErr_SetString(PyExc_ValueError, "buffers hold equally many aligned doubles");
    return -1;
}

static PyObject *noise_moved(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *objects[2];
    Py_buffer buffers[2];
    Rounding by;
    Format format;
    unsigned long long key, digits;
    if (!PyArg_ParseTuple(args, "OOKdddKddd", &objects[0], &objects[1], &key, &by.unit, &by.width, &by.least, &digits,
                          &format.normal, &format.step, &format.largest) ||
        get(objects, buffers, 2))
        return NULL;
    size_t count = (size_t)buffers[0].len / sizeof(double);
    by.key = key;
    format.digits = digits;
    Py_BEGIN_ALLOW_THREADS
    moves[level](buffers[0].buf, buffers[1].buf, count, &by, &format);
    Py_END_ALLOW_THREADS
    for (int i = 0; i < 2; i++) PyBuffer_Release(&buffers[i]);
    Py_RETURN_NONE;
}

static PyObject *noise_scattered(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *objects[3];
    Py_buffer buffers[3];
    unsigned long long key;
    if (!PyArg_ParseTuple(args, "OOOK", &objects[0], &objects[1], &objects[2], &key) || get(objects, buffers, 3))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    scatters[level](buffers[0].buf, buffers[1].buf, buffers[2].buf,
                    (size_t)buffers[0].len / sizeof(double), key);
    Py_END_ALLOW_THREADS
    for (int i = 0; i < 3; i++) PyBuffer_Release(&buffers[i]);
    Py_RETURN_NONE;
}

/* Tests compare the instructions with each other through this; it says which are in use. */
static PyObject *noise_instructions(PyObject *Py_UNUSED(module), PyObject *args)
{
    int most = -1;
    if (!PyArg_ParseTuple(args, "|i", &most)) return NULL;
    if (most >= 0) {
        detect_cpu();
        level = most < level ? most : level;
    }
    return PyLong_FromLong(level);
}

static PyMethodDef methods[] = {
    {"moved", noise_moved, METH_VARARGS, "moved(out, values, key, unit, width, least, digits, normal, step, largest)"},
    {"scattered", noise_scattered, METH_VARARGS, "scattered(out, values, deviations, key)"},
    {"instructions", noise_instructions, METH_VARARGS, "instructions([most]) -> 0 plain, 1 AVX2, 2 AVX-512"},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "noise", "Numbers moved at random, by what a key decides.", 0, methods, slots,
    NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit_noise(void)
{
    detect_cpu();
    return PyModuleDef_Init(&module);
}
