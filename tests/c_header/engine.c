/* A small engine that hands its tensors to a callback, and how firstdrift.h is added to it: the lines marked with <--.
 *
 *     firstdrift c-header > firstdrift.h
 *     gcc -std=c99 -Wall -Wextra -Wpedantic -Werror -o engine engine.c -lm
 *     ./engine run && firstdrift show run
 */
#include <math.h>
#include <stdio.h>

#define FIRSTDRIFT_IMPLEMENTATION /* <-- in one file of the engine */
#include "firstdrift.h"           /* <-- */

typedef struct { const float *values; int rows, columns; } tensor;
typedef void (*sink_function)(void *context, int layer, const char *phase, tensor t);

/* One step of Linear(2, 2), softmax and cross-entropy, for the class 0. Without a sink it does the same. */
static float step(const float x[2], const float weight[4], float weight_gradient[4], sink_function sink, void *context)
{
    float logits[2], p[2], gradient[2];
    for (int i = 0; i < 2; i++)
        logits[i] = weight[2 * i] * x[0] + weight[2 * i + 1] * x[1];
    if (sink)
        sink(context, 0, "fwd", (tensor){logits, 1, 2});

    const float sum = expf(logits[0]) + expf(logits[1]);
    for (int i = 0; i < 2; i++)
        p[i] = expf(logits[i]) / sum;
    if (sink)
        sink(context, 1, "fwd", (tensor){p, 1, 2});

    for (int i = 0; i < 2; i++)
        gradient[i] = p[i] - (i == 0);
    if (sink) {
        sink(context, 2, "lossgrad", (tensor){gradient, 1, 2});
        sink(context, 0, "agrad", (tensor){gradient, 1, 2}); /* by the *output* of layer 0, before its backward */
    }
    for (int i = 0; i < 4; i++)
        weight_gradient[i] = gradient[i / 2] * x[i % 2];
    return -logf(p[0]);
}

/* <-- from the engine's tensor to firstdrift's: borrowed during the call, not changed, not kept */
static void record(void *context, int layer, const char *phase, tensor t)
{
    const int64_t shape[] = {t.rows, t.columns};
    const fd_tensor same = {t.values, FD_F32, shape, 2};
    fd_sink_put(context, layer, phase, &same);
}

int main(int argc, char **argv)
{
    static fd_trace trace;       /* <-- */
    static fd_manifest manifest; /* <-- the names of the layers, from the file that both sides share */
    const float x[2] = {1, 1}, weight[4] = {0.1f, 0.2f, 0.3f, 0.4f};
    float gradient[4];

    const fd_options options = {.producer = "engine 1.0", .batch = 1, .reduction = "sum"}; /* <-- */
    if (argc != 2 || fd_manifest_load(&manifest, "probes.txt") != FD_OK) {                 /* <-- */
        fprintf(stderr, "usage: engine RUN, beside probes.txt: %s\n", fd_manifest_error_text(&manifest));
        return 2;
    }
    fd_open(&trace, argv[1], &options);                                                                      /* <-- */
    fd_sink sink = {.trace = &trace, .probes = manifest.names, .probe_count = manifest.count, .sample = -1}; /* <-- */

    record(&sink, 0, "w_before.weight", (tensor){weight, 2, 2});
    const float loss = step(x, weight, gradient, record, &sink);
    record(&sink, 0, "grad_raw.weight", (tensor){gradient, 2, 2});
    printf("loss=%.5f\n", loss);

    if (fd_close(&trace) != FD_OK) {                     /* <-- whatever went wrong since fd_open is told here */
        fprintf(stderr, "%s\n", fd_error_text(&trace));
        return 1;
    }
    return 0;
}
