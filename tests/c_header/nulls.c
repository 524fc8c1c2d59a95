/* Calls every function of the header with NULL in place of every pointer, alone and together: each bit of a mask is one
 * pointer. Prints a line for each call: the function, the mask, the code, the error text. */
#include <stdio.h>
#include <string.h>

#define FIRSTDRIFT_IMPLEMENTATION
#include "firstdrift.h"

static fd_trace trace;
static fd_npy npy;
static fd_manifest manifest;
static const float values[2] = {1, 2};
static const int64_t shape[1] = {2};
static const char *const probes[] = {"conv1", "fc"}, *const holes[] = {"conv1", NULL};

#define OR_NULL(bit, pointer) (mask & (1 << (bit)) ? NULL : (pointer))

static void say(const char *function, int mask, int code, const char *text)
{
    printf("%s %d %d %s\n", function, mask, code, text);
}

static fd_site site_of(int mask)
{
    fd_site site = fd_make_site(0, OR_NULL(1, "fwd"), OR_NULL(2, "conv1"));
    site.port = OR_NULL(3, "out");
    site.op = OR_NULL(4, "Conv1d");
    site.attrs = OR_NULL(5, "{}");
    site.from = OR_NULL(6, probes);
    site.from_count = 2;
    return site;
}

static void puts_of(const char *root)
{
    for (int mask = 0; mask < 512; mask++) {
        const fd_site site = site_of(mask), *at = OR_NULL(0, &site);
        char where[512];
        sprintf(where, "%s/put-%d", root, mask);
        fd_open(&trace, where, NULL);
        say("fd_put", mask, fd_put(&trace, at, OR_NULL(7, values), FD_F32, OR_NULL(8, shape), 1), fd_error_text(&trace));
        fd_abort(&trace);
        sprintf(where, "%s/npy-%d", root, mask);
        fd_npy_open(&npy, where, probes, 2, NULL);
        say("fd_npy_put", mask, fd_npy_put(&npy, at, OR_NULL(7, values), FD_F32, OR_NULL(8, shape), 1),
            fd_npy_error_text(&npy));
        if (mask < 256) {
            sprintf(where, "%s/absent-%d", root, mask);
            fd_open(&trace, where, NULL);
            say("fd_put_absent", mask, fd_put_absent(&trace, at, OR_NULL(7, "none")), fd_error_text(&trace));
            fd_abort(&trace);
        }
    }
}

static void opens_of(const char *root)
{
    for (int mask = 0; mask < 64; mask++) {
        char where[512];
        const fd_io none = {NULL, NULL, NULL, NULL, NULL};
        fd_options options = {OR_NULL(2, "p"), OR_NULL(3, "m"), 1, OR_NULL(4, "sum"), OR_NULL(5, "{}"), 0, 0, 0, NULL};
        sprintf(where, "%s/open-%d", root, mask);
        say("fd_open", mask, fd_open(&trace, OR_NULL(0, where), OR_NULL(1, &options)), fd_error_text(&trace));
        fd_close(&trace);
        options.io = &none;
        say("fd_open(io)", mask, fd_open(&trace, OR_NULL(0, where), &options), fd_error_text(&trace));
        sprintf(where, "%s/steps-%d", root, mask);
        say("fd_npy_open", mask & 7, fd_npy_open(&npy, OR_NULL(0, where), OR_NULL(1, mask & 4 ? holes : probes), 2, NULL),
            fd_npy_error_text(&npy));
    }
}

static void sinks_of(const char *root)
{
    const fd_tensor tensor = {values, FD_F32, shape, 1}, empty = {NULL, FD_F32, NULL, 1};
    for (int mask = 0; mask < 128; mask++) {
        char where[512];
        sprintf(where, "%s/sink-%d", root, mask);
        fd_open(&trace, where, NULL);
        fd_sink sink = {OR_NULL(0, &trace), OR_NULL(1, &npy), OR_NULL(2, mask & 64 ? holes : probes), 2, 0, -1, NULL};
        fd_sink_put(OR_NULL(3, &sink), 1, OR_NULL(4, "fwd"), OR_NULL(5, mask & 64 ? &empty : &tensor));
        say("fd_sink_put", mask, fd_close(&trace), fd_error_text(&trace));
    }
}

int main(int argc, char **argv)
{
    const char *const root = argc > 1 ? argv[1] : ".";
    puts_of(root);
    opens_of(root);
    sinks_of(root);
    say("fd_manifest_parse", 0, fd_manifest_parse(&manifest, "conv1\n", 6), fd_manifest_error_text(&manifest));
    say("fd_manifest_parse", 1, fd_manifest_parse(&manifest, NULL, 6), fd_manifest_error_text(&manifest));
    say("fd_manifest_parse", 2, fd_manifest_parse(NULL, "conv1\n", 6), fd_manifest_error_text(NULL));
    say("fd_manifest_parse", 3, fd_manifest_parse(NULL, NULL, 0), fd_manifest_error_text(NULL));
    say("fd_manifest_parse", 4, fd_manifest_parse(&manifest, NULL, 0), fd_manifest_error_text(&manifest));
    say("fd_manifest_parse", 5, fd_manifest_parse(&manifest, NULL, (size_t)-1), fd_manifest_error_text(&manifest));
    say("fd_manifest_load", 1, fd_manifest_load(&manifest, NULL), fd_manifest_error_text(&manifest));
    say("fd_manifest_load", 2, fd_manifest_load(NULL, "probes.txt"), fd_manifest_error_text(NULL));
    say("fd_manifest_load", 3, fd_manifest_load(NULL, NULL), fd_manifest_error_text(NULL));
    char where[512];
    sprintf(where, "%s/gradients", root);
    fd_npy_open(&npy, where, probes, 2, NULL);
    say("fd_npy_gradient_of", 0, fd_npy_gradient_of(&npy, "sum", 4), fd_npy_error_text(&npy));
    say("fd_npy_gradient_of", 1, fd_npy_gradient_of(&npy, NULL, 4), fd_npy_error_text(&npy));
    say("no trace", 3, fd_npy_gradient_of(NULL, NULL, 0), fd_npy_error_text(NULL));
    say("no trace", 0, fd_open(NULL, NULL, NULL) | fd_put(NULL, NULL, NULL, FD_F32, NULL, 1), fd_error_text(NULL));
    say("no trace", 1, fd_put_absent(NULL, NULL, NULL) | fd_close(NULL) | fd_abort(NULL), fd_error_text(NULL));
    say("no trace", 2, fd_npy_open(NULL, NULL, NULL, 2, NULL) | fd_npy_put(NULL, NULL, NULL, FD_F32, NULL, 1),
        fd_npy_error_text(NULL));
    fd_sink_put(NULL, 0, NULL, NULL);
    fd_sink_put_op(NULL, 0, NULL, NULL, NULL);
    return 0;
}
