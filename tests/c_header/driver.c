/* Does what a script on standard input says, and prints the code and the error text of every call.
 *
 * A script is a sequence of commands, each a letter and its fields: numbers are 8 bytes, little-endian; texts are a
 * number (-1 for NULL) and that many bytes. Everything is handed to the header in blocks of exactly its size, so that
 * AddressSanitizer sees a read beyond it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIRSTDRIFT_IMPLEMENTATION
#include "firstdrift.h"

static fd_trace trace;
static fd_npy npy;
static fd_manifest manifest;
static void *blocks[65536];
static size_t block_count;

static void *block(size_t size)
{
    void *made = malloc(size ? size : 1);
    if (made == NULL || block_count == sizeof blocks / sizeof *blocks)
        exit(3);
    blocks[block_count++] = made;
    return made;
}

static void *take(size_t size)
{
    void *data = block(size);
    if (fread(data, 1, size, stdin) != size)
        exit(3);
    return data;
}

static int64_t number(void)
{
    const unsigned char *bytes = (const unsigned char *)take(8);
    uint64_t value = 0;
    for (int i = 8; i--;)
        value = value << 8 | bytes[i];
    return (int64_t)value;
}

static const char *text(void)
{
    const int64_t size = number();
    if (size < 0)
        return NULL;
    char *made = (char *)block((size_t)size + 1);
    if (fread(made, 1, (size_t)size, stdin) != (size_t)size)
        exit(3);
    made[size] = 0;
    return made;
}

static const char **texts(int *count)
{
    *count = (int)number();
    const char **made = *count < 0 ? NULL : (const char **)block((size_t)*count * sizeof *made);
    for (int i = 0; i < *count; i++)
        made[i] = text();
    *count = *count < 0 ? 0 : *count;
    return made;
}

static fd_site site(void)
{
    fd_site made = fd_make_site(0, NULL, NULL);
    made.step = number();
    made.phase = text();
    made.name = text();
    made.port = text();
    made.call = number();
    made.sample = number();
    made.op = text();
    made.attrs = text();
    made.layer = number();
    made.order = number();
    made.from = texts(&made.from_count);
    return made;
}

static fd_tensor tensor(void)
{
    fd_tensor made;
    made.dtype = (fd_dtype)number();
    made.ndim = (int)number();
    int64_t *shape = made.ndim < 0 ? NULL : (int64_t *)block((size_t)made.ndim * sizeof *shape);
    for (int i = 0; i < made.ndim; i++)
        shape[i] = number();
    made.shape = shape;
    const int64_t size = number();
    made.data = size < 0 ? NULL : take((size_t)size);
    return made;
}

static void say(int code, const char *error)
{
    printf("%d %s\n", code, error);
    fflush(stdout);
}

int main(void)
{
    for (int command; (command = getchar()) != EOF;) {
        if (command == 'O') {
            const char *directory = text();
            fd_options options;
            memset(&options, 0, sizeof options);
            options.producer = text();
            options.model = text();
            options.batch = number();
            options.reduction = text();
            options.header = text();
            options.rank = (int)number();
            options.ranks = (int)number();
            options.overwrite = (int)number();
            say(fd_open(&trace, directory, &options), fd_error_text(&trace));
        } else if (command == 'P' || command == 'N') {
            const fd_site at = site();
            const fd_tensor t = tensor();
            if (command == 'P')
                say(fd_put(&trace, &at, t.data, t.dtype, t.shape, t.ndim), fd_error_text(&trace));
            else
                say(fd_npy_put(&npy, &at, t.data, t.dtype, t.shape, t.ndim), fd_npy_error_text(&npy));
        } else if (command == 'A') {
            const fd_site at = site();
            const char *reason = text();
            say(fd_put_absent(&trace, &at, reason), fd_error_text(&trace));
        } else if (command == 'C') {
            say(fd_close(&trace), fd_error_text(&trace));
        } else if (command == 'X') {
            say(fd_abort(&trace), fd_error_text(&trace));
        } else if (command == 'D') { /* npy step directories */
            const char *root = text();
            int count;
            const char **probes = texts(&count);
            say(fd_npy_open(&npy, root, probes, count, NULL), fd_npy_error_text(&npy));
        } else if (command == 'M') {
            const int64_t size = number();
            say(fd_manifest_parse(&manifest, (const char *)take((size_t)size), (size_t)size),
                fd_manifest_error_text(&manifest));
        } else if (command == 'L') {
            say(fd_manifest_load(&manifest, text()), fd_manifest_error_text(&manifest));
        } else if (command == 'm') { /* what the manifest holds */
            for (int i = 0; i < manifest.count; i++)
                printf("%s|", manifest.names[i]);
            say(manifest.count, "");
        } else if (command == 'G') {
            const char *reduction = text();
            const int64_t batch = number();
            say(fd_npy_gradient_of(&npy, reduction, batch), fd_npy_error_text(&npy));
        } else if (command == 'S' || command == 'T') { /* T passes the layer's type; into the trace, the npy directories, or both */
            fd_sink sink = {NULL, NULL, manifest.names, manifest.count, 0, -1, NULL};
            const int64_t where = number();
            sink.trace = where & 1 ? &trace : NULL;
            sink.npy = where & 2 ? &npy : NULL;
            sink.step = number();
            sink.sample = number();
            const char *op = text();
            sink.op = command == 'S' ? op : "not this";
            const int layer = (int)number();
            const char *phase = text();
            const fd_tensor t = tensor();
            if (command == 'S')
                fd_sink_put(&sink, layer, phase, &t);
            else
                fd_sink_put_op(&sink, layer, op, phase, &t);
            say(trace.core.error, fd_error_text(&trace));
        } else
            return 3;
    }
    while (block_count)
        free(blocks[--block_count]);
    return 0;
}
