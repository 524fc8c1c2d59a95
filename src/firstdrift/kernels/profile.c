/* Native twin of profiles.py: the same ratios in one pass that releases the GIL; sums differ in their last bits.
 *
 *   weighed(rows, columns, ours, theirs, of_rows, of_columns, single) -> (largest ratio, its index)
 *
 * `rows` and `columns` are written, and hold as many doubles as `of_rows` and `of_columns`; `ours` and `theirs` hold
 * one number for each pair of these, floats if `single`, else doubles. Nothing is read or written beyond that. */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include <float.h>
#include <math.h>
#include <stdint.h>

#define LANES 8
#define PIECE 512 /* numbers of a row at a time */

typedef struct { double largest; Py_ssize_t at; } Worst;

/* One row or a piece of it: every squared error over the scale of its number. */
#define RATIOS(name, type)                                                                                   \
    static void name(double *out, const type *ours, const type *theirs, double row, const double *columns,   \
                     size_t count)                                                                           \
    {                                                                                                        \
        for (size_t j = 0; j < count; j++) {                                                                 \
            double a = ours[j], b = theirs[j], off = b - a, of_both = row * columns[j];                      \
            int finite = (fabs(a) <= DBL_MAX) & (fabs(b) <= DBL_MAX);                                        \
            double error = finite ? off * off : 0, square = finite ? a * a : 0;                              \
            double ratio = error / (square > of_both ? square : of_both);                                    \
            ratio = ratio != ratio ? HUGE_VAL : ratio;                                                       \
            out[j] = error > 0 ? ratio : 0;                                                                  \
        }                                                                                                    \
    }
RATIOS(ratios_single, float)
RATIOS(ratios_double, double)

static double summed(const double *ratios, size_t count, double *columns, double *most)
{
    double lanes[LANES] = {0}, largest[LANES] = {0}, sum = 0;
    size_t j = 0;
    for (; j + LANES <= count; j += LANES)
        for (size_t lane = 0; lane < LANES; lane++) {
            double ratio = ratios[j + lane];
            lanes[lane] += ratio;
            columns[j + lane] += ratio;
            largest[lane] = ratio > largest[lane] ? ratio : largest[lane];
        }
    for (; j < count; j++) {
        lanes[0] += ratios[j];
        columns[j] += ratios[j];
        largest[0] = ratios[j] > largest[0] ? ratios[j] : largest[0];
    }
    for (size_t lane = 0; lane < LANES; lane++) {
        sum += lanes[lane];
        *most = largest[lane] > *most ? largest[lane] : *most;
    }
    return sum;
}

static Worst weigh(Py_buffer *buffers, size_t height, size_t width, int single)
{
    double *rows = buffers[0].buf, *columns = buffers[1].buf, piece[PIECE];
    const double *of_rows = buffers[4].buf, *of_columns = buffers[5].buf;
    Worst worst = {0, 0};
    for (size_t j = 0; j < width; j++) columns[j] = 0;
    for (size_t i = 0; i < height; i++) {
        double sum = 0;
        for (size_t start = 0; start < width; start += PIECE) {
            size_t count = width - start < PIECE ? width - start : PIECE, at = i * width + start;
            double most = 0;
            if (single)
                ratios_single(piece, (const float *)buffers[2].buf + at, (const float *)buffers[3].buf + at, of_rows[i],
                              of_columns + start, count);
            else
                ratios_double(piece, (const double *)buffers[2].buf + at, (const double *)buffers[3].buf + at,
                              of_rows[i], of_columns + start, count);
            sum += summed(piece, count, columns + start, &most);
            if (most > worst.largest) {
                size_t j = 0;
                while (piece[j] != most) j++;
                worst.largest = most;
                worst.at = (Py_ssize_t)(at + j);
            }
        }
        rows[i] = sum / (double)width;
    }
    for (size_t j = 0; j < width; j++) columns[j] /= (double)height;
    return worst;
}

static PyObject *profile_weighed(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *objects[6];
    Py_buffer buffers[6];
    int single, count = 0;
    if (!PyArg_ParseTuple(args, "OOOOOOp", &objects[0], &objects[1], &objects[2], &objects[3], &objects[4], &objects[5],
                          &single))
        return NULL;
    for (; count < 6; count++)
        if (PyObject_GetBuffer(objects[count], &buffers[count], count < 2 ? PyBUF_WRITABLE : PyBUF_SIMPLE)) break;
    PyObject *found = NULL;
    if (count == 6) {
        size_t height = (size_t)buffers[0].len / sizeof(double), width = (size_t)buffers[1].len / sizeof(double);
        size_t size = single ? sizeof(float) : sizeof(double), wanted = height * width * size;
        int fits = buffers[0].len == buffers[4].len && buffers[1].len == buffers[5].len &&
                   (size_t)buffers[2].len == wanted && (size_t)buffers[3].len == wanted && height && width;
        for (int i = 0; i < 6; i++)
            fits &= (uintptr_t)buffers[i].buf % (i == 2 || i == 3 ? size : sizeof(double)) == 0;
        if (fits) {
            Worst worst;
            Py_BEGIN_ALLOW_THREADS
            worst = weigh(buffers, height, width, single);
            Py_END_ALLOW_THREADS
            found = Py_BuildValue("dn", worst.largest, worst.at);
        } else {
            PyErr_SetString(PyExc_ValueError, "buffers hold aligned numbers, one for each pair of a row and a column");
        }
    }
    while (count--) PyBuffer_Release(&buffers[count]);
    return found;
}

static PyMethodDef methods[] = {
    {"weighed", profile_weighed, METH_VARARGS, "weighed(rows, columns, ours, theirs, of_rows, of_columns, single)"},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "profile", "Squared errors for the scales of their rows and columns.", 0, methods, slots,
    NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit_profile(void) { return PyModuleDef_Init(&module); }
