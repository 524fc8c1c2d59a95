/* What a verified load asks of every byte, as fast as memory gives them:
 *
 *   crc32(buffer, start=0) -> int          the CRC-32 of zlib, of `start` continued
 *   scan(buffer, width) -> (int, int)      that, and the largest element of so many bytes as an unsigned number, its
 *                                          highest bit left out: of floats the largest magnitude, NaN above infinity
 *
 * Both release the GIL. The carry-less multiplication folds a block of data onto the next one: what is folded has
 * the same remainder as what it stands for, so that a table finishes the last few bytes. */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include <stdint.h>
#include <string.h>

typedef unsigned char byte;

#define POLYNOMIAL 0xEDB88320u
#define CHUNK ((size_t)1 << 15) /* bytes that are read twice while they are in the nearest cache */

static uint32_t table[8][256];

static void fill_table(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ (crc & 1 ? POLYNOMIAL : 0);
        table[0][i] = crc;
    }
    for (int n = 1; n < 8; n++)
        for (uint32_t i = 0; i < 256; i++) table[n][i] = (table[n - 1][i] >> 8) ^ table[0][table[n - 1][i] & 255];
}

/* The remainder without the complements before and after. */
static uint32_t plain_crc(uint32_t crc, const byte *data, size_t size)
{
    for (; size >= 8; data += 8, size -= 8) {
        uint32_t low = crc ^ ((uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 |
                              (uint32_t)data[3] << 24);
        crc = table[7][low & 255] ^ table[6][low >> 8 & 255] ^ table[5][low >> 16 & 255] ^ table[4][low >> 24] ^
              table[3][data[4]] ^ table[2][data[5]] ^ table[1][data[6]] ^ table[0][data[7]];
    }
    for (; size; data++, size--) crc = (crc >> 8) ^ table[0][(crc ^ *data) & 255];
    return crc;
}

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define HAVE_FOLDING 1
#define NARROW __attribute__((target("pclmul,sse4.1")))
#define WIDE __attribute__((target("avx512f,avx512bw,vpclmulqdq,pclmul,sse4.1")))

enum { PLAIN, FOLD_128, FOLD_512 };
static int folding = PLAIN;

/* Two factors for each distance in bits, which move the halves of 128 bits so far on. */
static uint64_t move_128[2], move_512[2], move_2048[2];

static uint64_t power(int exponent)
{
    uint32_t value = 0x80000000u;
    while (exponent--) value = (value >> 1) ^ (value & 1 ? POLYNOMIAL : 0);
    return (uint64_t)value << 1;
}

static void fill_moves(void)
{
    uint64_t *moves[] = {move_128, move_512, move_2048};
    int distances[] = {128, 512, 2048};
    for (int i = 0; i < 3; i++) {
        moves[i][0] = power(distances[i] + 32);
        moves[i][1] = power(distances[i] - 32);
    }
}

NARROW static __m128i moved_128(__m128i from, __m128i by, __m128i onto)
{
    __m128i low = _mm_clmulepi64_si128(from, by, 0x00), high = _mm_clmulepi64_si128(from, by, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), onto);
}

/* Four blocks that follow each other, and what comes after them, down to a remainder. */
NARROW static uint32_t finish(__m128i *parts, const byte *data, size_t size)
{
    byte rest[16];
    __m128i by = _mm_loadu_si128((const __m128i *)move_128);
    for (int i = 1; i < 4; i++) parts[i] = moved_128(parts[i - 1], by, parts[i]);
    for (; size >= 16; data += 16, size -= 16)
        parts[3] = moved_128(parts[3], by, _mm_loadu_si128((const __m128i *)data));
    _mm_storeu_si128((__m128i *)rest, parts[3]);
    return plain_crc(plain_crc(0, rest, 16), data, size);
}

NARROW static uint32_t crc_128(uint32_t crc, const byte *data, size_t size)
{
    __m128i parts[4], by = _mm_loadu_si128((const __m128i *)move_512);
    for (int i = 0; i < 4; i++) parts[i] = _mm_loadu_si128((const __m128i *)data + i);
    parts[0] = _mm_xor_si128(parts[0], _mm_cvtsi32_si128((int)crc));
    for (data += 64, size -= 64; size >= 64; data += 64, size -= 64)
        for (int i = 0; i < 4; i++) parts[i] = moved_128(parts[i], by, _mm_loadu_si128((const __m128i *)data + i));
    return finish(parts, data, size);
}

WIDE static inline __m512i moved_512(__m512i from, __m512i by, __m512i onto)
{
    __m512i low = _mm512_clmulepi64_epi128(from, by, 0x00), high = _mm512_clmulepi64_epi128(from, by, 0x11);
    return _mm512_ternarylogic_epi64(low, high, onto, 0x96);
}

/* The larger of two vectors, element by element of so many bytes, the second without its highest bits. */
WIDE static inline __m512i larger(__m512i most, __m512i data, int width)
{
    return width == 1   ? _mm512_max_epu8(most, _mm512_add_epi8(data, data))
           : width == 2 ? _mm512_max_epu16(most, _mm512_slli_epi16(data, 1))
           : width == 4 ? _mm512_max_epu32(most, _mm512_slli_epi32(data, 1))
           : width == 8 ? _mm512_max_epu64(most, _mm512_slli_epi64(data, 1))
                        : most;
}

/* `most` takes up the largest of what is folded, where a width is given; `*rest` is where that ends. */
WIDE static inline __attribute__((always_inline)) uint32_t
fold_512(uint32_t crc, const byte *data, size_t size, int width, byte *most, const byte **rest)
{
    __m512i wide[4], seen[4], by = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)move_2048));
    __m128i parts[4];
    for (int i = 0; i < 4; i++) {
        wide[i] = _mm512_loadu_si512((const __m512i *)data + i);
        seen[i] = larger(_mm512_setzero_si512(), wide[i], width);
    }
    wide[0] = _mm512_xor_si512(wide[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)crc)));
    for (data += 256, size -= 256; size >= 256; data += 256, size -= 256)
        for (int i = 0; i < 4; i++) {
            __m512i next = _mm512_loadu_si512((const __m512i *)data + i);
            wide[i] = moved_512(wide[i], by, next);
            seen[i] = larger(seen[i], next, width);
        }
    for (int i = 0; width && i < 4; i++) _mm512_storeu_si512(most + 64 * i, seen[i]);
    *rest = data;
    by = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)move_512));
    for (int i = 1; i < 4; i++) wide[i] = moved_512(wide[i - 1], by, wide[i]);
    for (; size >= 64; data += 64, size -= 64) wide[3] = moved_512(wide[3], by, _mm512_loadu_si512(data));
    _mm512_storeu_si512(parts, wide[3]);
    return finish(parts, data, size);
}

WIDE static uint32_t crc_512(uint32_t crc, const byte *data, size_t size, int width, byte *most, const byte **rest)
{
    return width == 1   ? fold_512(crc, data, size, 1, most, rest)
           : width == 2 ? fold_512(crc, data, size, 2, most, rest)
           : width == 4 ? fold_512(crc, data, size, 4, most, rest)
           : width == 8 ? fold_512(crc, data, size, 8, most, rest)
                        : fold_512(crc, data, size, 0, most, rest);
}

static void detect_cpu(void)
{
    __builtin_cpu_init();
    folding = !__builtin_cpu_supports("pclmul") || !__builtin_cpu_supports("sse4.1") ? PLAIN
              : __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("vpclmulqdq")
                  ? FOLD_512
                  : FOLD_128;
    fill_moves();
}

static uint32_t crc_of(uint32_t crc, const byte *data, size_t size)
{
    const byte *rest;
    if (folding == FOLD_512 && size >= 256) return crc_512(crc, data, size, 0, NULL, &rest);
    if (folding != PLAIN && size >= 64) return crc_128(crc, data, size);
    return plain_crc(crc, data, size);
}
#else
#define HAVE_FOLDING 0
static int folding = 0;
static void detect_cpu(void) {}
static uint32_t crc_of(uint32_t crc, const byte *data, size_t size) { return plain_crc(crc, data, size); }
#endif

/* A plain loop that a compiler turns into vectors. */
#define LARGEST(type)                                                \
    static uint64_t largest_##type(const byte *data, size_t size)    \
    {                                                                \
        type largest = 0;                                            \
        for (size_t i = 0; i < size; i += sizeof largest) {          \
            type value;                                              \
            memcpy(&value, data + i, sizeof value);                  \
            value = (type)(value << 1);                              \
            largest = value > largest ? value : largest;             \
        }                                                            \
        return largest;                                              \
    }
LARGEST(uint8_t)
LARGEST(uint16_t)
LARGEST(uint32_t)
LARGEST(uint64_t)

/* The largest element without its highest bit, twice. */
static uint64_t largest_of(const byte *data, size_t size, int width)
{
    return width == 1   ? largest_uint8_t(data, size)
           : width == 2 ? largest_uint16_t(data, size)
           : width == 4 ? largest_uint32_t(data, size)
                        : largest_uint64_t(data, size);
}

static uint64_t greater(uint64_t a, uint64_t b) { return a > b ? a : b; }

static uint32_t scan(const byte *data, size_t size, int width, uint64_t *largest)
{
    uint32_t crc = ~(uint32_t)0;
    uint64_t twice = 0;
#if HAVE_FOLDING
    if (folding == FOLD_512 && size >= 256) {
        byte most[256];
        const byte *rest;
        crc = crc_512(crc, data, size, width, most, &rest);
        for (int i = 0; i < 256; i += width) { /* these are shifted already */
            uint64_t value = 0;
            memcpy(&value, most + i, (size_t)width);
            twice = greater(twice, value);
        }
        *largest = greater(twice, largest_of(rest, size - (size_t)(rest - data), width)) >> 1;
        return ~crc;
    }
#endif
    for (size_t at = 0; at < size; at += CHUNK) {
        size_t count = size - at < CHUNK ? size - at : CHUNK;
        crc = crc_of(crc, data + at, count);
        twice = greater(twice, largest_of(data + at, count, width));
    }
    *largest = twice >> 1;
    return ~crc;
}

static PyObject *checksum_crc32(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *object;
    unsigned int start = 0;
    Py_buffer buffer;
    if (!PyArg_ParseTuple(args, "O|I", &object, &start) || PyObject_GetBuffer(object, &buffer, PyBUF_SIMPLE))
        return NULL;
    uint32_t crc;
    Py_BEGIN_ALLOW_THREADS
    crc = ~crc_of(~(uint32_t)start, buffer.buf, (size_t)buffer.len);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&buffer);
    return PyLong_FromUnsignedLong(crc);
}

static PyObject *checksum_scan(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *object;
    int width;
    Py_buffer buffer;
    if (!PyArg_ParseTuple(args, "Oi", &object, &width) || PyObject_GetBuffer(object, &buffer, PyBUF_SIMPLE))
        return NULL;
    if ((width != 1 && width != 2 && width != 4 && width != 8) || buffer.len % width) {
        PyBuffer_Release(&buffer);
        PyErr_SetString(PyExc_ValueError, "the width is 1, 2, 4 or 8, and a buffer holds whole elements");
        return NULL;
    }
    uint32_t crc;
    uint64_t largest;
    Py_BEGIN_ALLOW_THREADS
    crc = scan(buffer.buf, (size_t)buffer.len, width, &largest);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&buffer);
    return Py_BuildValue("IK", (unsigned int)crc, (unsigned long long)largest);
}

/* Tests compare the ways of folding with each other through this; it says which one is in use. */
static PyObject *checksum_folding(PyObject *Py_UNUSED(module), PyObject *args)
{
    int most = -1;
    if (!PyArg_ParseTuple(args, "|i", &most)) return NULL;
    if (most >= 0) {
        detect_cpu();
        folding = most < folding ? most : folding;
    }
    return PyLong_FromLong(folding);
}

static PyMethodDef methods[] = {
    {"crc32", checksum_crc32, METH_VARARGS, "crc32(buffer, start=0)"},
    {"scan", checksum_scan, METH_VARARGS, "scan(buffer, width)"},
    {"folding", checksum_folding, METH_VARARGS, "folding([most]) -> 0 table, 1 in 128 bits, 2 in 512 bits"},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "checksum", "Checksums and largest magnitudes of bytes.", 0, methods, slots,
    NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit_checksum(void)
{
    fill_table();
    detect_cpu();
    return PyModuleDef_Init(&module);
}
