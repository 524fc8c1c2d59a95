/* firstdrift.h 0.1.0: record what an engine computes, for `firstdrift diff`. One file, C99 or C++11, no dependencies.
 *
 *     #define FIRSTDRIFT_IMPLEMENTATION     in ONE source file; the others include it without this line
 *     #include "firstdrift.h"
 *
 *     static fd_trace trace;                                     about 3 KiB, yours; no heap is used
 *     fd_open(&trace, "run", NULL);                              makes the directory; NULL: default options
 *
 *     int64_t shape[] = {1, 16, 1000};
 *     fd_site site = fd_make_site(0, "fwd", "conv1");            step, phase, name; the rest has defaults
 *     site.sample = 3;
 *     fd_put(&trace, &site, values, FD_F32, shape, 3);           in C order, bit for bit
 *
 *     if (fd_close(&trace) != FD_OK)                             writes the end line
 *         fprintf(stderr, "%s\n", fd_error_text(&trace));
 *
 * Functions return FD_OK or an error code; nothing here prints, exits or aborts. Check each call, or fd_close alone:
 * the first error is kept. A refused put (a bad name, say) writes nothing and later puts go on; a failed write ends the
 * recording. After either, fd_close returns the error and leaves out the end line, so that a trace with a gap says so.
 * What was recorded stays readable, also when the process is killed: the bytes of a tensor reach the operating system
 * before the line that names them. A NULL trace records nothing, and that is no error.
 *
 * It does not notice a site that is put twice (readers do, and refuse the trace), does not take the lock that fd.Writer
 * takes, and does not serialise threads. Names are UTF-8. More: docs/c.md; the format: docs/trace-format.md.
 *
 * To be defined, if at all, alike in every file that includes it:
 *     FD_DISABLED           every call is gone, and its arguments are not evaluated
 *     FD_STATIC             functions are static; each file that uses them defines FIRSTDRIFT_IMPLEMENTATION
 *     FD_NO_STDIO           no stdio: options.io says how to write
 *     FD_PATH_BYTES         the longest path (1024); FD_BUFFER_BYTES, as much at least, what goes out at once (1024)
 *     FD_TEXT_BYTES         of an error text (768)
 *     FD_MAX_PROBES         of a manifest that is loaded (256); FD_MANIFEST_BYTES, its size (8192)
 *     FD_DATA_FILE_BYTES    a new data file once one is this long (1 GiB)
 *     FD_BIG_ENDIAN         1 or 0, instead of asking the processor
 *
 * Licence: Apache-2.0. */
#ifndef FIRSTDRIFT_H
#define FIRSTDRIFT_H

#include <stddef.h>
#include <stdint.h>

#ifndef FD_PATH_BYTES
#define FD_PATH_BYTES 1024
#endif
#ifndef FD_BUFFER_BYTES
#define FD_BUFFER_BYTES 1024
#endif
#ifndef FD_TEXT_BYTES
#define FD_TEXT_BYTES 768
#endif
#ifndef FD_MAX_PROBES
#define FD_MAX_PROBES 256
#endif
#ifndef FD_MANIFEST_BYTES
#define FD_MANIFEST_BYTES 8192
#endif
#ifndef FD_DATA_FILE_BYTES
#define FD_DATA_FILE_BYTES (INT64_C(1) << 30)
#endif
#if FD_BUFFER_BYTES < FD_PATH_BYTES
#error "FD_BUFFER_BYTES must be FD_PATH_BYTES at least: paths are put together there"
#endif

#if defined(FD_STATIC) && !defined(FD_DISABLED)
#define FD_DEF static inline
#elif defined(__cplusplus)
#define FD_DEF extern "C"
#else
#define FD_DEF extern
#endif

enum {
    FD_OK = 0,
    FD_ERROR_ARGUMENT, /* a null pointer, dtype, shape or option that cannot be meant */
    FD_ERROR_SITE,     /* a phase, name, port or number that no trace may hold */
    FD_ERROR_PATH,     /* a path longer than FD_PATH_BYTES; it is never cut */
    FD_ERROR_EXISTS,   /* something is there already and overwriting was not asked for */
    FD_ERROR_IO,       /* the disk, the permissions or the file system said no */
    FD_ERROR_CLOSED,   /* a put before fd_open or after fd_close */
    FD_ERROR_MANIFEST  /* a probe list that cannot be used */
};

typedef enum fd_dtype {
    FD_F64 = 1, FD_F32, FD_F16, FD_BF16, FD_F8E4M3FN, FD_F8E4M3FNUZ, FD_F8E5M2, FD_F8E5M2FNUZ, FD_C64, FD_C128,
    FD_I64, FD_I32, FD_I16, FD_I8, FD_U64, FD_U32, FD_U16, FD_U8, FD_BOOL
} fd_dtype;

/* Where and when a tensor was computed, and what is known of it. Begin with fd_make_site, not with zeros. */
typedef struct fd_site {
    int64_t step;
    const char *phase;       /* input weight fwd loss lossgrad agrad grad grad_scaled optim weight_after */
    const char *name;        /* the module's path; "" is the root */
    const char *port;        /* NULL: "weight" in phases of parameters, "out" in others; optim needs one */
    int64_t call;            /* 0 for the module's first call in the step */
    int64_t sample;          /* -1: of the whole batch */
    const char *op;          /* the class of the operation, "Conv1d"; or NULL */
    const char *attrs;       /* its settings, a JSON object such as {"eps":1e-05}; or NULL */
    int64_t layer;           /* the number of the layer; or -1 */
    int64_t order;           /* the position in the forward pass; or -1: as the lines stand */
    const char *const *from; /* names, in this phase, step and sample, of what it was computed from; NULL: not said */
    int from_count;
} fd_site;

/* How to write, in place of stdio. Functions return 0, or an error number that the error text will name. */
enum { FD_EXISTS, FD_REMOVE, FD_RENAME, FD_MAKE_DIR };
typedef struct fd_io {
    void *context;                                                          /* the first argument of each */
    int (*create)(void *context, const char *path, void **file);            /* a new or emptied file */
    int (*write)(void *context, void *file, const void *data, size_t size); /* all of it, before it returns */
    int (*close)(void *context, void *file);
    int (*manage)(void *context, int what, const char *path, const char *to); /* one of the four above, `to` is for
        FD_RENAME, which replaces. Or NULL: nothing exists, files are written where they stay, directories are there. */
} fd_io;

typedef struct fd_options { /* zeros, or a NULL pointer in place of it, are good defaults */
    const char *producer;   /* the engine and its version */
    const char *model;
    int64_t batch;          /* samples in a step; 0: not said */
    const char *reduction;  /* "mean" or "sum" over the batch: what gradients are gradients of; NULL: not said */
    const char *header;     /* more for trace.json, a JSON object such as {"seed":0,"optimizer":{"name":"SGD"}} */
    int rank, ranks;        /* this process, and how many the run has; 0 and 0 for the only one */
    int overwrite;          /* 1: replace an existing trace */
    const fd_io *io;        /* NULL: stdio */
} fd_options;

typedef struct fd__core { /* what traces, npy directories and manifests share; two underscores are private */
    fd_io io;
    void *file;                    /* where the buffer goes */
    const fd_site *site;           /* the one being put, for error texts */
    int open, error, failed, turn; /* failed: the error number of a failed write; nothing may follow it */
    size_t root, used;             /* length of the directory in path; bytes in buffer */
    char path[FD_PATH_BYTES], buffer[FD_BUFFER_BYTES], text[FD_TEXT_BYTES], digits[4][24];
} fd__core;

typedef struct fd_trace {
    fd__core core;
    void *index, *data;
    int64_t number, end, lines; /* of the data file, its length, and lines in the index */
} fd_trace;

FD_DEF fd_site fd_make_site(int64_t step, const char *phase, const char *name);
FD_DEF int fd_open(fd_trace *trace, const char *directory, const fd_options *options);
FD_DEF int fd_put(fd_trace *trace, const fd_site *site, const void *data, fd_dtype dtype, const int64_t *shape,
                  int ndim);
FD_DEF int fd_put_absent(fd_trace *trace, const fd_site *site, const char *reason); /* "no gradient": a fact, no gap */
FD_DEF int fd_close(fd_trace *trace);
FD_DEF int fd_abort(fd_trace *trace);                    /* closes without the end line: known to be unfinished */
FD_DEF const char *fd_error_text(const fd_trace *trace); /* one sentence: the place, what is wrong, the next step */

/* npy step directories: <root>/stepNNN/<probe>.<phase>[.<port>][.sNNN].npy, and <root>/probes.txt that lists the probes
 * in forward order; the array stays yours and must stay. Nothing is open between puts, so nothing needs closing. */
typedef struct fd_npy {
    fd__core core;
    const char *const *probes;
    int probe_count;
} fd_npy;

FD_DEF int fd_npy_open(fd_npy *npy, const char *root, const char *const *probes, int probe_count, const fd_io *io);
FD_DEF int fd_npy_put(fd_npy *npy, const fd_site *site, const void *data, fd_dtype dtype, const int64_t *shape,
                      int ndim);
FD_DEF int fd_npy_gradient_of(fd_npy *npy, const char *reduction, int64_t batch); /* "mean" or "sum", once: what the
    gradients are gradients of, which file names cannot say, in <root>/gradient_of.json */
FD_DEF const char *fd_npy_error_text(const fd_npy *npy);

/* The probe manifest that both sides share, layer index -> probe name: a text file with one name a line. */
typedef struct fd_manifest {
    fd__core core;
    const char *names[FD_MAX_PROBES];
    int count;
    char text[FD_MANIFEST_BYTES];
} fd_manifest;

FD_DEF int fd_manifest_parse(fd_manifest *manifest, const char *text, size_t size);
#ifndef FD_NO_STDIO
FD_DEF int fd_manifest_load(fd_manifest *manifest, const char *path);
#endif
FD_DEF const char *fd_manifest_error_text(const fd_manifest *manifest);

/* For engines that hand their tensors to a callback: give them fd_sink_put and an fd_sink, and set its step and sample
 * as the run goes on. The phase is that of a site, or one of w_before, grad_raw and w_after; a port may follow it, as
 * in "grad_raw.bias". Engines that pass the layer's type, too, have fd_sink_put_op. Errors wait in the trace until
 * fd_close. */
typedef struct fd_sink {
    fd_trace *trace; /* either may be NULL */
    fd_npy *npy;
    const char *const *probes; /* the name of each layer; any index past them is "loss" */
    int probe_count;
    int64_t step, sample; /* sample -1: of the whole batch; parameters have none, whatever it says */
    const char *op;       /* the layer's type, where it is not passed; or NULL */
} fd_sink;

typedef struct fd_tensor {
    const void *data;
    fd_dtype dtype;
    const int64_t *shape;
    int ndim;
} fd_tensor;

#ifndef FD_DISABLED
FD_DEF void fd_sink_put(void *sink, int layer, const char *phase, const fd_tensor *tensor);
FD_DEF void fd_sink_put_op(void *sink, int layer, const char *op, const char *phase, const fd_tensor *tensor);
#else /* sizeof checks the arguments, counts as a use of each variable, and evaluates nothing */
#ifdef __GNUC__
#define FD__GONE static inline __attribute__((always_inline)) /* gone without optimisation, too */
#else
#define FD__GONE static inline
#endif
FD__GONE int fd__no_error(size_t size) { return (int)(size * 0); }
FD__GONE const char *fd__no_text(size_t size) { return &""[size * 0]; }
FD__GONE fd_site fd__no_site(size_t size)
{
    fd_site none = {(int64_t)(size * 0), "", "", NULL, 0, -1, NULL, NULL, -1, -1, NULL, 0};
    return none;
}
static inline void fd_sink_put(void *sink, int layer, const char *phase, const fd_tensor *tensor) /* for its address */
{
    (void)sink, (void)layer, (void)phase, (void)tensor;
}
static inline void fd_sink_put_op(void *sink, int layer, const char *op, const char *phase, const fd_tensor *tensor)
{
    (void)sink, (void)layer, (void)op, (void)phase, (void)tensor;
}
#define fd_make_site(...) fd__no_site(sizeof(fd_make_site(__VA_ARGS__)))
#define fd_open(...) fd__no_error(sizeof(fd_open(__VA_ARGS__)))
#define fd_put(...) fd__no_error(sizeof(fd_put(__VA_ARGS__)))
#define fd_put_absent(...) fd__no_error(sizeof(fd_put_absent(__VA_ARGS__)))
#define fd_close(...) fd__no_error(sizeof(fd_close(__VA_ARGS__)))
#define fd_abort(...) fd__no_error(sizeof(fd_abort(__VA_ARGS__)))
#define fd_error_text(...) fd__no_text(sizeof(fd_error_text(__VA_ARGS__)))
#define fd_npy_open(...) fd__no_error(sizeof(fd_npy_open(__VA_ARGS__)))
#define fd_npy_put(...) fd__no_error(sizeof(fd_npy_put(__VA_ARGS__)))
#define fd_npy_gradient_of(...) fd__no_error(sizeof(fd_npy_gradient_of(__VA_ARGS__)))
#define fd_npy_error_text(...) fd__no_text(sizeof(fd_npy_error_text(__VA_ARGS__)))
#define fd_manifest_parse(...) fd__no_error(sizeof(fd_manifest_parse(__VA_ARGS__)))
#define fd_manifest_load(...) fd__no_error(sizeof(fd_manifest_load(__VA_ARGS__)))
#define fd_manifest_error_text(...) fd__no_text(sizeof(fd_manifest_error_text(__VA_ARGS__)))
#define fd_sink_put(...) ((void)sizeof((fd_sink_put(__VA_ARGS__), 0)))
#define fd_sink_put_op(...) ((void)sizeof((fd_sink_put_op(__VA_ARGS__), 0)))
#endif
#endif /* FIRSTDRIFT_H */


#if defined(FIRSTDRIFT_IMPLEMENTATION) && !defined(FD_DISABLED) && !defined(FIRSTDRIFT_IMPLEMENTED)
#define FIRSTDRIFT_IMPLEMENTED

#include <stdarg.h>
#include <string.h>
#ifndef FD_NO_STDIO
#include <errno.h>
#include <stdio.h>
#ifdef _WIN32
#include <direct.h>
#elif defined(__unix__) || defined(__APPLE__)
#include <sys/stat.h>
#endif
#endif

/* Readers take 4,096 characters of a name, 64 dimensions, and lines of 16 MiB, which the other limits keep far away. */
enum { FD__NAME = 4096, FD__DIMS = 64, FD__ATTRS = 4096, FD__HEADER = 65536, FD__FROM = 256, FD__NESTED = 32 };
#define fd__fail(...) fd__fail_with(__VA_ARGS__, (const char *)0)
#define fd__path(...) fd__path_of(__VA_ARGS__, (const char *)0)

static const struct { const char *name, *npy; int size, part; } fd__dtypes[] = { /* part: what has a byte order */
    {"f64", "<f8", 8, 8}, {"f32", "<f4", 4, 4}, {"f16", "<f2", 2, 2}, {"bf16", NULL, 2, 2}, {"f8e4m3fn", NULL, 1, 1},
    {"f8e4m3fnuz", NULL, 1, 1}, {"f8e5m2", NULL, 1, 1}, {"f8e5m2fnuz", NULL, 1, 1}, {"c64", "<c8", 8, 4},
    {"c128", "<c16", 16, 8}, {"i64", "<i8", 8, 8}, {"i32", "<i4", 4, 4}, {"i16", "<i2", 2, 2}, {"i8", "|i1", 1, 1},
    {"u64", "<u8", 8, 8}, {"u32", "<u4", 4, 4}, {"u16", "<u2", 2, 2}, {"u8", "|u1", 1, 1}, {"bool", "|b1", 1, 1},
};
static const struct { const char *name, *tag, *port; } fd__phases[] = { /* tag: in npy names; port: the default one */
    {"input", "input", "out"}, {"weight", "w_before", "weight"}, {"fwd", "fwd", "out"}, {"loss", "loss", "out"},
    {"lossgrad", "lossgrad", "out"}, {"agrad", "agrad", "out"}, {"grad", "grad_raw", "weight"},
    {"grad_scaled", "grad_scaled", "weight"}, {"optim", "optim", NULL}, {"weight_after", "w_after", "weight"},
};

/* The phase of this name, or with this tag; -1 if there is none. */
static int fd__phase(const char *text, size_t length, int or_tag)
{
    for (int i = 0; i < (int)(sizeof fd__phases / sizeof *fd__phases); i++)
        if ((strlen(fd__phases[i].name) == length && !memcmp(fd__phases[i].name, text, length)) ||
            (or_tag && strlen(fd__phases[i].tag) == length && !memcmp(fd__phases[i].tag, text, length)))
            return i;
    return -1;
}

static const char *fd__port(const fd_site *site)
{
    const int phase = fd__phase(site->phase, strlen(site->phase), 0);
    return site->port || phase < 0 ? site->port : fd__phases[phase].port;
}

/* ---- error texts ---- */

/* A number, with zeros up to a width; it stays until three more were asked for. */
static const char *fd__decimal(fd__core *core, int64_t value, int width)
{
    char *at = core->digits[core->turn = (core->turn + 1) % 4] + sizeof core->digits[0] - 1;
    uint64_t rest = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    for (*at = 0; rest || width > 0; rest /= 10, width--)
        *--at = (char)('0' + rest % 10);
    if (value < 0)
        *--at = '-';
    return at;
}

/* Appends to the error text what fits, less what a terminal would act on. */
static void fd__say(fd__core *core, const char *piece, int most)
{
    size_t at = strlen(core->text);
    for (; piece && *piece && most-- && at + 1 < sizeof core->text; piece++)
        core->text[at++] = (unsigned char)*piece < ' ' || *piece == 127 ? '?' : *piece;
    core->text[at] = 0;
}

/* Keeps the first error, or the failed write that ended it all: the place, then the pieces. */
static int fd__fail_with(fd__core *core, int code, ...)
{
    if (core->error && code != FD_ERROR_IO)
        return code;
    core->error = code;
    core->text[0] = 0;
    fd__say(core, core->path, 160);
    fd__say(core, *core->path ? ": " : "", 2);
    if (core->site) {
        fd__say(core, core->site->phase, 16);
        fd__say(core, " ", 1);
        fd__say(core, *core->site->name ? core->site->name : "(root)", 60);
        fd__say(core, ":", 1);
        fd__say(core, fd__port(core->site), 30);
        fd__say(core, " step ", 6);
        fd__say(core, fd__decimal(core, core->site->step, 1), 24);
        fd__say(core, ": ", 2);
    }
    va_list pieces;
    va_start(pieces, code);
    for (const char *piece; (piece = va_arg(pieces, const char *)) != NULL;)
        fd__say(core, piece, 200);
    va_end(pieces);
    return code;
}

/* FD_OK, or the error when a write has failed. */
static int fd__wrote(fd__core *core)
{
    const char *word = "error ", *reason = fd__decimal(core, core->failed, 1);
#ifndef FD_NO_STDIO
    if (core->failed > 0)
        word = "", reason = strerror(core->failed);
#endif
    return !core->failed ? FD_OK : fd__fail(core, FD_ERROR_IO, "cannot write it (", word, reason, "); free some space, "
        "or choose a directory that you may write; what was recorded before stays readable");
}

/* ---- output: through one buffer, so that a tensor is one write and its line is another ---- */

static void fd__write(fd__core *core, const void *data, size_t size)
{
    if (size && !core->failed)
        core->failed = core->io.write(core->io.context, core->file, data, size);
}

static void fd__flush(fd__core *core)
{
    fd__write(core, core->buffer, core->used);
    core->used = 0;
}

static void fd__bytes(fd__core *core, const void *data, size_t size)
{
    if (size > sizeof core->buffer - core->used)
        fd__flush(core);
    if (size > sizeof core->buffer) {
        fd__write(core, data, size);
    } else if (size) {
        memcpy(core->buffer + core->used, data, size);
        core->used += size;
    }
}

static void fd__text(fd__core *core, const char *text) { fd__bytes(core, text, strlen(text)); }

static void fd__number(fd__core *core, const char *before, int64_t value)
{
    fd__text(core, before);
    fd__text(core, fd__decimal(core, value, 1));
}

/* The values of a tensor, little-endian whatever the processor is. */
static void fd__values(fd__core *core, const fd_tensor *tensor, size_t size)
{
#ifdef FD_BIG_ENDIAN
    const int swap = FD_BIG_ENDIAN;
#else
    const uint16_t one = 1;
    const int swap = *(const unsigned char *)&one == 0;
#endif
    const size_t part = (size_t)fd__dtypes[tensor->dtype - 1].part;
    if (!swap)
        fd__bytes(core, tensor->data, size);
    for (size_t at = 0; swap && at < size; at += part)
        for (size_t i = part; i--;)
            fd__bytes(core, (const char *)tensor->data + at + i, 1);
}

/* ---- text: UTF-8 in, ASCII JSON out ---- */

/* The next character of a text, which moves on; -1 where it is not UTF-8 (overlong forms and surrogates are not). */
static int32_t fd__next(const char **text)
{
    const unsigned char *s = (const unsigned char *)*text;
    int32_t c = s[0];
    const int more = c < 0x80 ? 0 : c < 0xC2 ? -1 : c < 0xE0 ? 1 : c < 0xF0 ? 2 : c < 0xF5 ? 3 : -1;
    c = more > 0 ? c & 0x3F >> more : c;
    for (int i = 1; i <= more; i++) {
        if ((s[i] & 0xC0) != 0x80) /* a NUL, too */
            return -1;
        c = c << 6 | (s[i] & 0x3F);
    }
    if (more < 0 || (more == 2 && c < 0x800) || (more == 3 && (c < 0x10000 || c > 0x10FFFF)) ||
        (c >= 0xD800 && c < 0xE000))
        return -1;
    *text += more + 1;
    return c;
}

static void fd__escape(fd__core *core, int32_t unit)
{
    char out[6] = {'\\', 'u', 0, 0, 0, 0};
    for (int i = 5; i > 1; i--, unit >>= 4)
        out[i] = "0123456789abcdef"[unit & 15];
    fd__bytes(core, out, 6);
}

/* A text that was checked before, as JSON: the bytes that Python's json would write. */
static void fd__quoted(fd__core *core, const char *before, const char *text)
{
    static const char special[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
    fd__text(core, before);
    fd__text(core, "\"");
    while (*text) {
        const int32_t c = fd__next(&text);
        const char *found = c < 0x80 ? strchr(special, (int)c) : NULL;
        const char plain = (char)c;
        if (found) {
            fd__text(core, "\\");
            fd__bytes(core, letters + (found - special), 1);
        } else if (c >= ' ' && c < 0x7F) {
            fd__bytes(core, &plain, 1);
        } else if (c < 0x10000) {
            fd__escape(core, c);
        } else { /* more than 16 bits are a surrogate pair */
            fd__escape(core, 0xD800 + ((c - 0x10000) >> 10));
            fd__escape(core, 0xDC00 + ((c - 0x10000) & 0x3FF));
        }
    }
    fd__text(core, "\"");
}

/* ---- JSON of the caller's: checked, because one line that is not JSON would make the trace unreadable ---- */

static const char *fd__blank(const char *s) { return s + strspn(s, " \t"); } /* no line feed: a line is a line */

static const char *fd__json_digits(const char *s)
{
    const size_t length = strspn(s, "0123456789");
    return length ? s + length : NULL;
}

static const char *fd__json_string(const char *s)
{
    if (*s++ != '"')
        return NULL;
    while (*s != '"') {
        if (*s != '\\') {
            if (fd__next(&s) < ' ')
                return NULL;
        } else if (s[1] == 'u') {
            if (strspn(s + 2, "0123456789abcdefABCDEF") < 4)
                return NULL;
            s += 6;
        } else if (!s[1] || !strchr("\"\\/bfnrt", s[1])) {
            return NULL;
        } else
            s += 2;
    }
    return s + 1;
}

static int32_t fd__hexadecimal(const char *s)
{
    int32_t unit = 0;
    for (int i = 0; i < 4; i++)
        unit = unit << 4 | (s[i] <= '9' ? s[i] - '0' : (s[i] & 7) + 9);
    return unit;
}

/* The next character of a JSON string that was checked, its escape undone. */
static int32_t fd__json_char(const char **text)
{
    static const char letters[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
    const char *s = *text;
    if (*s != '\\')
        return fd__next(text);
    *text += s[1] == 'u' ? 6 : 2;
    if (s[1] != 'u')
        return meant[strchr(letters, s[1]) - letters];
    const int32_t unit = fd__hexadecimal(s + 2), low = s[6] == '\\' && s[7] == 'u' ? fd__hexadecimal(s + 8) : 0;
    if (unit < 0xD800 || unit >= 0xDC00 || low < 0xDC00 || low >= 0xE000)
        return unit;
    *text += 6;
    return 0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00);
}

/* Whether two JSON strings say the same: a key may be spelled with escapes. */
static int fd__json_same(const char *one, const char *other)
{
    for (one++, other++; *one != '"' && *other != '"';)
        if (fd__json_char(&one) != fd__json_char(&other))
            return 0;
    return *one == *other;
}

/* The key that follows another in an object that was checked up to `end`; NULL where there is none. */
static const char *fd__json_next_key(const char *s, const char *end)
{
    for (int depth = 0, value = 0; s < end; s++) {
        if (*s == '"') {
            if (value && depth == 0)
                return s;
            s = fd__json_string(s) - 1;
        }
        value = depth == 0 && *s == ',' ? 1 : *s == ' ' || *s == '\t' ? value : 0;
        depth += (*s == '{' || *s == '[') - (*s == '}' || *s == ']');
    }
    return NULL;
}

/* Whether a key stands between the first one of an object and `end`. */
static int fd__json_has(const char *first, const char *end, const char *key)
{
    for (; first && first < end; first = fd__json_next_key(first, end))
        if (fd__json_same(first, key))
            return 1;
    return 0;
}

/* Whether a number that was checked is one of float64: readers refuse 1e999. */
static int fd__json_is_finite(const char *s, const char *end)
{
    static const char most[] = "179769313486231580793"; /* with 308 digits behind it, this is infinite */
    char digits[sizeof most] = "000000000000000000000";
    int64_t exponent = -1, said = 0;
    size_t count = 0;
    int point = 0, negative;
    for (s += *s == '-'; s < end && *s != 'e' && *s != 'E'; s++)
        if (*s == '.')
            point = 1;
        else if (count || *s != '0') {
            exponent += !point;
            if (count < sizeof most - 1)
                digits[count++] = *s;
        } else
            exponent -= point;
    s += s < end;
    negative = s < end && *s == '-';
    for (s += s < end && (*s == '-' || *s == '+'); s < end; s++)
        said = said < 1000000 ? 10 * said + (*s - '0') : said;
    exponent += negative ? -said : said;
    return !count || exponent < 308 || (exponent == 308 && strcmp(digits, most) < 0);
}

static const char *fd__json_number(const char *start)
{
    const char *s = start + (*start == '-');
    s = *s == '0' ? s + 1 : fd__json_digits(s);
    if (s && *s == '.')
        s = fd__json_digits(s + 1);
    s = s && (*s == 'e' || *s == 'E') ? fd__json_digits(s + 1 + (s[1] == '+' || s[1] == '-')) : s;
    return s && fd__json_is_finite(start, s) ? s : NULL;
}

/* Where a JSON value ends; NULL where it is none, or has a key twice, which readers refuse. */
static const char *fd__json(const char *s, int depth)
{
    const char close = *s == '{' ? '}' : ']';
    if (*s == '"')
        return fd__json_string(s);
    if (!strncmp(s, "true", 4) || !strncmp(s, "null", 4) || !strncmp(s, "false", 5))
        return s + (*s == 'f' ? 5 : 4);
    if (*s != '{' && *s != '[')
        return fd__json_number(s);
    if (*(s = fd__blank(s + 1)) == close)
        return s + 1;
    for (const char *first = s; depth; s = fd__blank(s + 1)) {
        if (close == '}') {
            const char *key = s;
            if ((s = fd__json_string(s)) == NULL || fd__json_has(first, key, key) || *(s = fd__blank(s)) != ':')
                return NULL;
            s = fd__blank(s + 1);
        }
        if ((s = fd__json(s, depth - 1)) == NULL)
            return NULL;
        if (*(s = fd__blank(s)) != ',')
            return *s == close ? s + 1 : NULL;
    }
    return NULL;
}

static int fd__is_object(const char *s, size_t most)
{
    const char *end = *s == '{' && strlen(s) <= most ? fd__json(s, FD__NESTED) : NULL;
    return end && !*end;
}

/* ---- sites and tensors, refused before anything is written ---- */

/* UTF-8 of up to 4,096 characters; and a name must not leave the directory where it is used as a path. */
static int fd__check_text(fd__core *core, const char *what, const char *text, int is_name)
{
    const char *wrong = text ? NULL : "' is NULL; give one";
    int count = 0;
    for (const char *at = text; !wrong && *at;) {
        if (is_name && (at == text || at[-1] == '/' || at[-1] == '\\') && at[0] == '.' && at[1] == '.' &&
            (!at[2] || at[2] == '/' || at[2] == '\\' || (at[2] == '\n' && !at[3])))
            wrong = "' has a '..' component, which would leave the directory; rename it";
        else if (fd__next(&at) < 0)
            wrong = "' is not UTF-8; encode it";
        else if (++count > FD__NAME)
            wrong = "...' has more than 4096 characters; shorten it";
    }
    return wrong ? fd__fail(core, FD_ERROR_SITE, what, " '", text ? text : "", wrong) : FD_OK;
}

static int fd__check_site(fd__core *core, const fd_site *site)
{
    core->site = NULL;
    if (core->failed)
        return FD_ERROR_IO;
    if (!core->open)
        return fd__fail(core, FD_ERROR_CLOSED, "a put before opening or after closing; put it between the two");
    if (site == NULL || site->phase == NULL || site->name == NULL)
        return fd__fail(core, FD_ERROR_SITE, "a site, its phase or its name is NULL; give all three");
    core->site = site;
    if (fd__phase(site->phase, strlen(site->phase), 0) < 0)
        return fd__fail(core, FD_ERROR_SITE, "phase '", site->phase, "' is not one of input, weight, fwd, loss, "
                        "lossgrad, agrad, grad, grad_scaled, optim, weight_after; use one of these");
    if (fd__port(site) == NULL)
        return fd__fail(core, FD_ERROR_SITE, "optimizer state needs a port, such as 'weight.exp_avg'; give one");
    if (fd__check_text(core, "name", site->name, 1) || fd__check_text(core, "port", fd__port(site), 1) ||
        (site->op && fd__check_text(core, "op", site->op, 0)))
        return FD_ERROR_SITE;
    if (site->step < 0 || site->call < 0 || site->sample < -1 || site->layer < -1 || site->order < -1)
        return fd__fail(core, FD_ERROR_SITE, "its step, call, sample, layer or order is negative; count from 0, and "
                        "say -1 where there is no sample, layer or order");
    if (site->attrs && !fd__is_object(site->attrs, FD__ATTRS))
        return fd__fail(core, FD_ERROR_SITE, "attrs '", site->attrs, "' is not a JSON object on one line of up to 4096 "
                        "bytes, with each key once and numbers that float64 has; write one");
    if (site->from_count < 0 || site->from_count > FD__FROM || (site->from_count && !site->from))
        return fd__fail(core, FD_ERROR_SITE, "from_count does not count the names in from, 256 at most; correct it");
    if (site->from_count && !strcmp(site->phase, "optim"))
        return fd__fail(core, FD_ERROR_SITE, "a name alone does not say which optimizer state; leave out from");
    for (int i = 0; i < site->from_count; i++)
        if (fd__check_text(core, "producer", site->from[i], 1))
            return FD_ERROR_SITE;
    return FD_OK;
}

/* The bytes of a tensor. A shape that could not be addressed is refused even where a zero makes it empty. */
static int fd__check_tensor(fd__core *core, const fd_tensor *tensor, size_t *bytes)
{
    if ((int)tensor->dtype < FD_F64 || (int)tensor->dtype > FD_BOOL)
        return fd__fail(core, FD_ERROR_ARGUMENT, "dtype ", fd__decimal(core, (int64_t)tensor->dtype, 1),
                        " is none; use FD_F32 or another FD_ name");
    if (tensor->ndim < 0 || tensor->ndim > FD__DIMS || (tensor->ndim && !tensor->shape))
        return fd__fail(core, FD_ERROR_ARGUMENT, fd__decimal(core, tensor->ndim, 1),
                        " dimensions, or a shape that is NULL; give 0 to 64 dimensions");
    *bytes = (size_t)fd__dtypes[tensor->dtype - 1].size;
    uint64_t most = (uint64_t)PTRDIFF_MAX / *bytes;
    for (int i = 0; i < tensor->ndim; i++) {
        const int64_t dim = tensor->shape[i];
        if (dim < 0 || (uint64_t)dim > most)
            return fd__fail(core, FD_ERROR_ARGUMENT, "dimension ", fd__decimal(core, dim, 1),
                            " is negative, or more than memory could hold; correct the shape");
        most /= dim ? (uint64_t)dim : 1;
        *bytes *= (size_t)dim;
    }
    if (*bytes && !tensor->data)
        return fd__fail(core, FD_ERROR_ARGUMENT, "its data is NULL; give its values, or call fd_put_absent");
    return FD_OK;
}

/* ---- files ---- */

/* The path of something in the directory, put together from pieces. One that is too long is refused, never cut. */
static int fd__path_of(fd__core *core, ...)
{
    size_t length = core->root;
    const char *too_much = NULL;
    va_list pieces;
    va_start(pieces, core);
    for (const char *piece; (piece = va_arg(pieces, const char *)) != NULL; length += strlen(piece))
        if (!too_much && length + strlen(piece) + sizeof ".partial" <= sizeof core->path) /* which may have to follow */
            memcpy(core->path + length, piece, strlen(piece));
        else if (!too_much)
            too_much = piece;
    va_end(pieces);
    core->path[too_much ? core->root : length] = 0;
    return !too_much ? FD_OK : fd__fail(core, FD_ERROR_PATH, "'", too_much, "' makes a path of ",
        fd__decimal(core, (int64_t)length, 1), " bytes, which does not fit; choose a shorter one, or define a larger "
        "FD_PATH_BYTES");
}

static int fd__manage(fd__core *core, int what, const char *path, const char *to)
{
    return core->io.manage ? core->io.manage(core->io.context, what, path, to) : -1;
}

static void fd__create(fd__core *core, const char *path, void **file)
{
    if (!core->failed && (core->failed = core->io.create(core->io.context, path, file)) != 0)
        *file = NULL; /* whatever it left there is not to be closed */
}

static void fd__shut(fd__core *core, void **file)
{
    const int code = *file ? core->io.close(core->io.context, *file) : 0;
    *file = NULL;
    core->failed = core->failed ? core->failed : code;
}

/* A file that appears whole or not at all is written beside its path and then renamed. The name is made in the buffer,
 * which is empty when a file begins and when it ends. */
static const char *fd__partial(fd__core *core)
{
    return core->io.manage ? strcat(strcpy(core->buffer, core->path), ".partial") : core->path;
}

static void fd__begin_file(fd__core *core) { fd__create(core, fd__partial(core), &core->file); }

static int fd__end_file(fd__core *core)
{
    fd__flush(core);
    fd__shut(core, &core->file);
    if (core->io.manage && !core->failed)
        core->failed = fd__manage(core, FD_RENAME, fd__partial(core), core->path);
    if (core->failed)
        (void)fd__manage(core, FD_REMOVE, fd__partial(core), NULL); /* the failure before it is told */
    return fd__wrote(core);
}

/* Makes the directory and those above it. What cannot be made is there, or creating a file in it will say why not. */
static void fd__make_dirs(fd__core *core)
{
    for (char *at = core->path + 1; at[-1]; at++)
        if (*at == '/' || !*at) {
            const char end = *at;
            *at = 0;
            (void)fd__manage(core, FD_MAKE_DIR, core->path, NULL);
            *at = end;
        }
}

#ifndef FD_NO_STDIO
static int fd__reason(int failed) { return !failed ? 0 : errno ? errno : -1; }

static int fd__stdio_create(void *context, const char *path, void **file)
{
    (void)context, errno = 0;
    FILE *stream = fopen(path, "wb");
    if (stream && setvbuf(stream, NULL, _IONBF, 0)) /* unbuffered: a write is one call of the system, and no heap */
        (void)fclose(stream), stream = NULL;
    *file = stream;
    return fd__reason(stream == NULL);
}

static int fd__stdio_write(void *context, void *file, const void *data, size_t size)
{
    (void)context, errno = 0;
    return fd__reason(fwrite(data, 1, size, (FILE *)file) != size || fflush((FILE *)file));
}

static int fd__stdio_close(void *context, void *file)
{
    (void)context, errno = 0;
    return fd__reason(fclose((FILE *)file));
}

static int fd__stdio_manage(void *context, int what, const char *path, const char *to)
{
    (void)context, errno = 0;
    if (what == FD_EXISTS) {
        FILE *stream = fopen(path, "rb");
        return fd__reason(stream == NULL || fclose(stream));
    }
#ifdef _WIN32
    if (what == FD_MAKE_DIR)
        return fd__reason(_mkdir(path));
    if (what == FD_RENAME)
        (void)remove(to); /* renaming does not replace there */
#elif defined(__unix__) || defined(__APPLE__)
    if (what == FD_MAKE_DIR)
        return fd__reason(mkdir(path, 0777));
#endif /* elsewhere directories have to be there: C99 knows none */
    return fd__reason(what == FD_REMOVE ? remove(path) : what == FD_RENAME ? rename(path, to) : -1);
}
#endif

static int fd__begin(fd__core *core, const char *directory, const fd_io *io)
{
#ifndef FD_NO_STDIO
    static const fd_io stdio = {NULL, fd__stdio_create, fd__stdio_write, fd__stdio_close, fd__stdio_manage};
    io = io ? io : &stdio;
#endif
    memset(core, 0, sizeof *core);
    if (directory == NULL || !*directory)
        return fd__fail(core, FD_ERROR_PATH, "the name of the directory is empty; give one");
    if (fd__path(core, directory))
        return FD_ERROR_PATH;
    core->root = strlen(core->path);
    if (io == NULL || !io->create || !io->write || !io->close)
        return fd__fail(core, FD_ERROR_ARGUMENT, "io lacks create, write or close; give all three");
    core->io = *io;
    return FD_OK;
}

/* ---- traces ---- */

FD_DEF fd_site fd_make_site(int64_t step, const char *phase, const char *name)
{
    const fd_site site = {step, phase, name, NULL, 0, -1, NULL, NULL, -1, -1, NULL, 0};
    return site;
}

static int fd__in_header(const fd_options *options, const char *quoted)
{
    const char *first = options->header ? fd__blank(options->header + 1) : "}";
    return *first == '"' && fd__json_has(first, first + strlen(first), quoted);
}

/* A key of the caller's header that would stand there twice; NULL if there is none. */
static const char *fd__taken(const fd_options *options)
{
    const struct { const char *key; int written; } own[] = {
        {"\"format\"", 1}, {"\"version\"", 1}, {"\"rank\"", 1}, {"\"ranks\"", 1},
        {"\"producer\"", options->producer != NULL}, {"\"model\"", options->model != NULL},
        {"\"batch\"", options->batch != 0}, {"\"gradient_of\"", options->reduction != NULL},
    };
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (own[i].written && fd__in_header(options, own[i].key))
            return own[i].key;
    return NULL;
}

static int fd__check_options(fd__core *core, const fd_options *options)
{
    if (options->ranks < 1 || options->ranks > 10000 || options->rank < 0 || options->rank >= options->ranks)
        return fd__fail(core, FD_ERROR_ARGUMENT, "rank ", fd__decimal(core, options->rank, 1), " of ",
                        fd__decimal(core, options->ranks, 1), " is impossible; count from 0, up to 10000 ranks");
    if (options->batch < 0)
        return fd__fail(core, FD_ERROR_ARGUMENT, "batch ", fd__decimal(core, options->batch, 1),
                        " is negative; count the samples of a step");
    if (options->reduction && strcmp(options->reduction, "mean") && strcmp(options->reduction, "sum"))
        return fd__fail(core, FD_ERROR_ARGUMENT, "reduction '", options->reduction, "' is not mean or sum; use one");
    if (options->header && !fd__is_object(options->header, FD__HEADER))
        return fd__fail(core, FD_ERROR_ARGUMENT, "header '", options->header, "' is not a JSON object on one line of "
                        "up to 65536 bytes, with each key once and numbers that float64 has; write one");
    const char *taken = fd__taken(options);
    if (taken)
        return fd__fail(core, FD_ERROR_ARGUMENT, "header has the key ", taken, ", which fd_open writes itself; leave it "
                        "out, and set the option of this name, if there is one");
    if ((options->producer && fd__check_text(core, "producer", options->producer, 0)) ||
        (options->model && fd__check_text(core, "model", options->model, 0)))
        return core->error = FD_ERROR_ARGUMENT;
    return FD_OK;
}

static void fd__header(fd__core *core, const fd_options *options)
{
    const char *more = options->header ? fd__blank(options->header + 1) : "}";
    fd__text(core, "{");
    if (*more != '}') {
        fd__bytes(core, more, strlen(more) - 1);
        fd__text(core, ",");
    }
    fd__text(core, "\"format\":\"firstdrift-trace\",\"version\":1");
    if (!fd__in_header(options, "\"producer\""))
        fd__quoted(core, ",\"producer\":", options->producer ? options->producer : "firstdrift.h 0.1.0");
#ifdef __VERSION__ /* rounding may depend on it */
    if (!fd__in_header(options, "\"environment\"")) {
        fd__quoted(core, ",\"environment\":{\"compiler\":", __VERSION__);
        fd__text(core, "}");
    }
#endif
    fd__number(core, ",\"rank\":", options->rank);
    fd__number(core, ",\"ranks\":", options->ranks);
    if (options->model)
        fd__quoted(core, ",\"model\":", options->model);
    if (options->batch)
        fd__number(core, ",\"batch\":", options->batch);
    if (options->reduction) {
        fd__quoted(core, ",\"gradient_of\":{\"reduction\":", options->reduction);
        if (options->batch)
            fd__number(core, ",\"batch\":", options->batch);
        fd__text(core, "}");
    }
    fd__text(core, "}\n");
}

static int fd__data_path(fd__core *core, int64_t number)
{
    return fd__path(core, "/data-", fd__decimal(core, number, 5), ".bin");
}

static int fd__exists(fd__core *core) { return fd__manage(core, FD_EXISTS, core->path, NULL) == 0; }

/* Writes what a trace begins with. An old index is emptied before anything, so that no line points into new data. */
static int fd__start(fd_trace *trace, const fd_options *options, int was_there)
{
    fd__core *core = &trace->core;
    fd__make_dirs(core);
    (void)fd__path(core, "/index.jsonl");
    fd__create(core, core->path, &trace->index);
    if (fd__wrote(core))
        return core->error;
    for (int64_t number = 0; number < 100000 && fd__data_path(core, number) == FD_OK && fd__exists(core); number++)
        if (fd__manage(core, FD_REMOVE, core->path, NULL)) /* then it is emptied when its turn comes */
            break;
    (void)fd__path(core, "/trace.json");
    fd__begin_file(core);
    fd__header(core, options);
    core->open = fd__end_file(core) == FD_OK;
    if (!core->open) {
        fd__shut(core, &trace->index);
        (void)fd__path(core, "/index.jsonl");
        if (!was_there)
            (void)fd__manage(core, FD_REMOVE, core->path, NULL); /* a refusal leaves nothing behind */
    }
    (void)fd__path(core);
    return core->error;
}

FD_DEF int fd_open(fd_trace *trace, const char *directory, const fd_options *options)
{
    fd_options defaults = {NULL, NULL, 0, NULL, NULL, 0, 0, 0, NULL};
    if (trace == NULL)
        return FD_OK;
    defaults = options ? *options : defaults;
    defaults.ranks += defaults.ranks == 0;
    memset(trace, 0, sizeof *trace);
    trace->number = -1;
    fd__core *core = &trace->core;
    if (fd__begin(core, directory, defaults.io) || fd__check_options(core, &defaults))
        return core->error;
    if (defaults.rank && fd__path(core, "/rank-", fd__decimal(core, defaults.rank, 4)))
        return core->error;
    core->root = strlen(core->path);
    const int header_was_there = fd__path(core, "/trace.json") == FD_OK && fd__exists(core);
    const int was_there = (fd__path(core, "/index.jsonl") == FD_OK && fd__exists(core)) || header_was_there;
    if (fd__data_path(core, 0) || fd__path(core)) /* the longest of them */
        return core->error;
    if (was_there && !defaults.overwrite)
        return fd__fail(core, FD_ERROR_EXISTS, "holds a trace already; choose another path, or set overwrite");
    return fd__start(trace, &defaults, was_there);
}

/* One line of the index, key by key as fd.Writer has them. A tensor that is absent has a reason instead of a place. */
static int fd__line(fd_trace *trace, const fd_tensor *tensor, int64_t start, size_t bytes, const char *absent)
{
    fd__core *core = &trace->core;
    const fd_site *site = core->site;
    core->file = trace->index;
    fd__number(core, "{\"step\":", site->step);
    fd__quoted(core, ",\"phase\":", site->phase);
    fd__quoted(core, ",\"name\":", site->name);
    fd__quoted(core, ",\"port\":", fd__port(site));
    fd__number(core, ",\"call\":", site->call);
    fd__text(core, ",\"sample\":");
    fd__text(core, site->sample < 0 ? "null" : fd__decimal(core, site->sample, 1));
    if (absent)
        fd__text(core, ",\"dtype\":null,\"shape\":null,\"at\":null");
    else {
        fd__quoted(core, ",\"dtype\":", fd__dtypes[tensor->dtype - 1].name);
        fd__text(core, ",\"shape\":[");
        for (int i = 0; i < tensor->ndim; i++)
            fd__number(core, i ? "," : "", tensor->shape[i]);
        fd__number(core, "],\"at\":[", trace->number);
        fd__number(core, ",", start);
        fd__number(core, ",", (int64_t)bytes);
        fd__text(core, "]");
    }
    if (site->op)
        fd__quoted(core, ",\"op\":", site->op);
    if (site->attrs) {
        fd__text(core, ",\"attrs\":");
        fd__text(core, site->attrs);
    }
    if (site->layer >= 0)
        fd__number(core, ",\"layer\":", site->layer);
    if (site->order >= 0)
        fd__number(core, ",\"order\":", site->order);
    if (site->from) {
        for (int i = 0; i < site->from_count; i++)
            fd__quoted(core, i ? "},{\"name\":" : ",\"from\":[{\"name\":", site->from[i]);
        fd__text(core, site->from_count ? "}]" : ",\"from\":[]");
    }
    if (absent)
        fd__quoted(core, ",\"absent\":", absent);
    fd__text(core, "}\n");
    fd__flush(core);
    trace->lines++;
    return fd__wrote(core);
}

FD_DEF int fd_put(fd_trace *trace, const fd_site *site, const void *data, fd_dtype dtype, const int64_t *shape,
                  int ndim)
{
    static const char zeros[64] = {0};
    const fd_tensor tensor = {data, dtype, shape, ndim};
    size_t bytes;
    int code;
    if (trace == NULL)
        return FD_OK;
    fd__core *core = &trace->core;
    if ((code = fd__check_site(core, site)) != FD_OK || (code = fd__check_tensor(core, &tensor, &bytes)) != FD_OK)
        return code;
    if (trace->data == NULL || trace->end >= FD_DATA_FILE_BYTES) {
        fd__shut(core, &trace->data);
        if ((code = fd__data_path(core, ++trace->number)) != FD_OK)
            return code;
        fd__create(core, core->path, &trace->data);
        trace->end = 0;
        if (!core->failed)
            (void)fd__path(core);
    }
    const int64_t start = (trace->end + 63) / 64 * 64;
    if (bytes) {
        core->file = trace->data;
        fd__bytes(core, zeros, (size_t)(start - trace->end));
        fd__values(core, &tensor, bytes);
        fd__flush(core);
        trace->end = start + (int64_t)bytes;
    }
    return fd__line(trace, &tensor, start, bytes, NULL); /* which writes nothing when the bytes were not written */
}

FD_DEF int fd_put_absent(fd_trace *trace, const fd_site *site, const char *reason)
{
    int code;
    if (trace == NULL)
        return FD_OK;
    if ((code = fd__check_site(&trace->core, site)) != FD_OK ||
        (code = fd__check_text(&trace->core, "reason", reason, 0)) != FD_OK)
        return code;
    return fd__line(trace, NULL, 0, 0, reason);
}

static int fd__finish(fd_trace *trace, int whole)
{
    fd__core *core = &trace->core;
    if (!core->open)
        return core->error;
    core->open = 0;
    core->site = NULL;
    fd__shut(core, &trace->data);
    core->file = trace->index;
    if (whole && !core->error) {
        fd__number(core, "{\"end\":", trace->lines);
        fd__text(core, "}\n");
        fd__flush(core);
    }
    fd__shut(core, &trace->index);
    if (core->error != FD_ERROR_IO)
        (void)fd__wrote(core);
    return core->error;
}

FD_DEF int fd_close(fd_trace *trace) { return trace ? fd__finish(trace, 1) : FD_OK; }
FD_DEF int fd_abort(fd_trace *trace) { return trace ? fd__finish(trace, 0) : FD_OK; }
FD_DEF const char *fd_error_text(const fd_trace *trace) { return trace ? trace->core.text : ""; }

/* ---- npy step directories, manifests and sinks ---- */

/* Whether a name can be a part of a file name and a line of probes.txt, and reads alike everywhere: printable ASCII. */
static int fd__is_probe(const char *s)
{
    const size_t length = s ? strlen(s) : 0;
    for (size_t i = 0; i < length; i++)
        if (s[i] < ' ' || s[i] > '~' || s[i] == '.' || s[i] == '/' || s[i] == '\\')
            return 0;
    return length && s[0] != ' ' && s[length - 1] != ' ';
}

static int fd__has_probe(const char *const *probes, int count, const char *name)
{
    while (count-- > 0)
        if (!strcmp(probes[count], name))
            return 1;
    return 0;
}

static int fd__check_probes(fd__core *core, const char *const *probes, int count)
{
    if (count < 0 || (count && !probes))
        return fd__fail(core, FD_ERROR_MANIFEST, "probe_count does not count the probes; correct it");
    for (int i = 0; i < count; i++)
        if (!fd__is_probe(probes[i]) || fd__has_probe(probes, i, probes[i]))
            return fd__fail(core, FD_ERROR_MANIFEST, "probe '", probes[i] ? probes[i] : "", "' is empty or there "
                            "twice, or has a dot, slash, outer space or what is not printable ASCII; rename it");
    return FD_OK;
}

/* Whether a port can stand in a file name: no part of it may read as a phase or a sample. */
static int fd__is_npy_port(const char *port)
{
    for (;; port++) {
        const size_t length = strcspn(port, ".");
        if (length == 0 || (fd__phase(port, length, 1) >= 0 && strncmp(port, "weight", length)) ||
            (*port == 's' && length > 1 && strspn(port + 1, "0123456789") == length - 1))
            return 0;
        for (size_t i = 0; i < length; i++)
            if (port[i] <= ' ' || port[i] > '~' || port[i] == '/' || port[i] == '\\')
                return 0;
        port += length;
        if (!*port)
            return 1;
    }
}

FD_DEF int fd_npy_open(fd_npy *npy, const char *root, const char *const *probes, int probe_count, const fd_io *io)
{
    if (npy == NULL)
        return FD_OK;
    fd__core *core = &npy->core;
    npy->probes = probes, npy->probe_count = probe_count;
    if (fd__begin(core, root, io) || fd__check_probes(core, probes, probe_count))
        return core->error;
    fd__make_dirs(core);
    if (fd__path(core, "/probes.txt"))
        return core->error;
    if (fd__exists(core))
        return fd__fail(core, FD_ERROR_EXISTS, "is there already; remove the directory, so that no file of an earlier "
                        "run is taken for one of this run");
    fd__begin_file(core); /* first, so that a run that is stopped has promised what is missing */
    for (int i = 0; i < probe_count; i++) {
        fd__text(core, probes[i]);
        fd__text(core, "\n");
    }
    core->open = fd__end_file(core) == FD_OK;
    return core->error;
}

static void fd__npy_header(fd__core *core, const fd_tensor *tensor)
{
    char text[512] = "\x93NUMPY\x01"; /* the second number of version 1.0 is the NUL behind it; 64 dimensions fit */
    size_t size = 10;
    const char *pieces[] = {"{'descr': '", fd__dtypes[tensor->dtype - 1].npy, "', 'fortran_order': False, 'shape': ("};
    for (int i = 0; i < 3; i++, size += strlen(text + size))
        strcpy(text + size, pieces[i]);
    for (int i = 0; i < tensor->ndim; i++, size += strlen(text + size))
        strcat(strcpy(text + size, fd__decimal(core, tensor->shape[i], 1)), i + 1 < tensor->ndim ? ", " : i ? "" : ",");
    size += strlen(strcpy(text + size, "), }"));
    while (size % 64 != 63)
        text[size++] = ' ';
    text[size++] = '\n';
    text[8] = (char)((size - 10) & 255), text[9] = (char)((size - 10) >> 8);
    fd__bytes(core, text, size);
}

FD_DEF int fd_npy_put(fd_npy *npy, const fd_site *site, const void *data, fd_dtype dtype, const int64_t *shape,
                      int ndim)
{
    const fd_tensor tensor = {data, dtype, shape, ndim};
    const int64_t most = INT64_C(999999999999999999); /* readers take 18 digits */
    size_t bytes;
    int code;
    if (npy == NULL)
        return FD_OK;
    fd__core *core = &npy->core;
    (void)fd__path(core);
    if ((code = fd__check_site(core, site)) != FD_OK || (code = fd__check_tensor(core, &tensor, &bytes)) != FD_OK)
        return code;
    if (!fd__dtypes[dtype - 1].npy)
        return fd__fail(core, FD_ERROR_ARGUMENT, "npy has no ", fd__dtypes[dtype - 1].name, "; widen it to FD_F32, or "
                        "write a trace with fd_put");
    if (strcmp(site->name, "loss") && !fd__has_probe(npy->probes, npy->probe_count, site->name))
        return fd__fail(core, FD_ERROR_SITE, "probe '", site->name, "' is not in the list; add it to the probes");
    if (site->call || !fd__is_npy_port(fd__port(site)) || site->step > most || site->sample > most)
        return fd__fail(core, FD_ERROR_SITE, "file names cannot say its call, its port, or numbers of more than 18 "
                        "digits; write a trace with fd_put");
    const int phase = fd__phase(site->phase, strlen(site->phase), 0);
    const char *usual = fd__phases[phase].port; /* that of a parameter is spelled out all the same */
    const int is_output = usual && !strcmp(usual, "out") && !strcmp(fd__port(site), "out");
    if ((code = fd__path(core, "/step", fd__decimal(core, site->step, 3))) != FD_OK)
        return code;
    (void)fd__manage(core, FD_MAKE_DIR, core->path, NULL); /* may be there; if not, creating the file says why */
    if ((code = fd__path(core, "/step", fd__decimal(core, site->step, 3), "/", site->name, ".", fd__phases[phase].tag,
                         is_output ? "" : ".", is_output ? "" : fd__port(site), site->sample < 0 ? "" : ".s",
                         site->sample < 0 ? "" : fd__decimal(core, site->sample, 3), ".npy")) != FD_OK)
        return code;
    if (fd__exists(core))
        return fd__fail(core, FD_ERROR_EXISTS, "is there already; put each site once, into a new directory");
    fd__begin_file(core);
    fd__npy_header(core, &tensor);
    fd__values(core, &tensor, bytes);
    return fd__end_file(core);
}

FD_DEF int fd_npy_gradient_of(fd_npy *npy, const char *reduction, int64_t batch)
{
    if (npy == NULL)
        return FD_OK;
    fd__core *core = &npy->core;
    core->site = NULL;
    if (core->failed)
        return FD_ERROR_IO;
    if (!core->open)
        return fd__fail(core, FD_ERROR_CLOSED, "what gradients are of is said after opening; call fd_npy_open first");
    (void)fd__path(core);
    if (reduction == NULL || (strcmp(reduction, "mean") && strcmp(reduction, "sum")) || batch < 1)
        return fd__fail(core, FD_ERROR_ARGUMENT, "reduction '", reduction ? reduction : "NULL", "' over a batch of ",
                        fd__decimal(core, batch, 1), " cannot be meant; give mean or sum, and a batch of 1 or more");
    const int code = fd__path(core, "/gradient_of.json");
    if (code != FD_OK)
        return code;
    fd__begin_file(core);
    fd__quoted(core, "{\"reduction\":", reduction);
    fd__number(core, ",\"batch\":", batch);
    fd__text(core, "}\n");
    return fd__end_file(core);
}

FD_DEF const char *fd_npy_error_text(const fd_npy *npy) { return npy ? npy->core.text : ""; }

/* Cuts the text into names, as firstdrift reads a probes.txt: blank lines and outer space do not count. */
static int fd__split(fd_manifest *manifest, size_t size)
{
    char *at = manifest->text;
    if (size >= sizeof manifest->text)
        return fd__fail(&manifest->core, FD_ERROR_MANIFEST, "is too long; define a larger FD_MANIFEST_BYTES");
    if (memchr(at, 0, size))
        return fd__fail(&manifest->core, FD_ERROR_MANIFEST, "has a NUL byte; write one probe name a line");
    at[size] = 0;
    at += strncmp(at, "\xEF\xBB\xBF", 3) ? 0 : 3; /* the mark that some editors put in front */
    for (at += strspn(at, " \t\r\n"); *at; at += strspn(at, " \t\r\n")) {
        char *end = at + strcspn(at, "\r\n"), *next = end + (*end != 0);
        if (manifest->count == FD_MAX_PROBES)
            return fd__fail(&manifest->core, FD_ERROR_MANIFEST, "lists too many; define a larger FD_MAX_PROBES");
        manifest->names[manifest->count++] = at;
        while (end[-1] == ' ' || end[-1] == '\t')
            end--;
        *end = 0;
        at = next;
    }
    return fd__check_probes(&manifest->core, manifest->names, manifest->count);
}

FD_DEF int fd_manifest_parse(fd_manifest *manifest, const char *text, size_t size)
{
    if (manifest == NULL)
        return FD_ERROR_ARGUMENT;
    memset(manifest, 0, sizeof *manifest);
    strcpy(manifest->core.path, "the probe manifest");
    if (size && text == NULL)
        return fd__fail(&manifest->core, FD_ERROR_ARGUMENT, "its text is NULL; give one probe name a line");
    if (size && size < sizeof manifest->text)
        memcpy(manifest->text, text, size);
    return fd__split(manifest, size);
}

#ifndef FD_NO_STDIO
FD_DEF int fd_manifest_load(fd_manifest *manifest, const char *path)
{
    if (manifest == NULL)
        return FD_ERROR_ARGUMENT;
    memset(manifest, 0, sizeof *manifest);
    fd__core *core = &manifest->core;
    if (path == NULL)
        return fd__fail(core, FD_ERROR_ARGUMENT, "the path of the probe manifest is NULL; give one");
    if (fd__path(core, path))
        return core->error;
    errno = 0;
    FILE *file = fopen(core->path, "rb");
    const size_t size = file ? fread(manifest->text, 1, sizeof manifest->text, file) : 0;
    const int wrong = file == NULL || ferror(file);
    if ((file && fclose(file)) || wrong)
        return fd__fail(core, FD_ERROR_IO, "cannot read the probe manifest (", strerror(errno), "); check that it is "
                        "there, one probe name a line");
    return fd__split(manifest, size);
}
#endif

FD_DEF const char *fd_manifest_error_text(const fd_manifest *manifest) { return manifest ? manifest->core.text : ""; }

FD_DEF void fd_sink_put_op(void *sink, int layer, const char *op, const char *phase, const fd_tensor *tensor)
{
    const fd_sink *to = (const fd_sink *)sink;
    const fd_tensor none = {NULL, (fd_dtype)0, NULL, 0};
    if (to == NULL)
        return;
    phase = phase ? phase : "", tensor = tensor ? tensor : &none; /* which are refused */
    const size_t length = strcspn(phase, ".");
    const int known = fd__phase(phase, length, 1);
    fd_site site = fd_make_site(to->step, known < 0 ? phase : fd__phases[known].name, "loss");
    if (layer < to->probe_count)
        site.name = layer < 0 || !to->probes ? NULL : to->probes[layer];
    site.port = phase[length] ? phase + length + 1 : NULL;
    site.sample = known < 0 || !fd__phases[known].port || strcmp(fd__phases[known].port, "out") ? -1 : to->sample;
    site.op = op;
    site.order = layer;
    (void)fd_put(to->trace, &site, tensor->data, tensor->dtype, tensor->shape, tensor->ndim); /* fd_close tells */
    (void)fd_npy_put(to->npy, &site, tensor->data, tensor->dtype, tensor->shape, tensor->ndim);
}

FD_DEF void fd_sink_put(void *sink, int layer, const char *phase, const fd_tensor *tensor)
{
    fd_sink_put_op(sink, layer, sink ? ((const fd_sink *)sink)->op : NULL, phase, tensor);
}

#endif /* FIRSTDRIFT_IMPLEMENTATION */
