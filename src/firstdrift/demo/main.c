/* One controlled training step, or several over the same batch, and its trace.
 *
 *     kws --weights weights.bin --probes probes.txt --out run
 *
 * Samples run one by one and their gradients add up; the first --samples of them are recorded. Then the gradients are
 * divided by the batch and the optimizer steps. Without --out and --npy it trains and records nothing. What could not be
 * written ends it with 1, what is refused with 2. */
#include "kws.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *weights, *probes, *out, *npy, *save;
    int start, batch, samples, steps, seed, force;
} options;

enum { SAMPLES = 4 }; /* recorded, unless asked otherwise */

static const char USAGE[] =
    "usage: kws --weights FILE --probes FILE [options]\n"
    "  --weights FILE  what `python -m firstdrift.demo.twin --export FILE` wrote\n"
    "  --probes FILE   the names of the layers, one a line\n"
    "  --out DIR       record a trace; --force replaces the one that is there\n"
    "  --npy DIR       record npy step directories\n"
    "  --save FILE     write the weights after the last step\n"
    "  --start N       the first clip (0)\n"
    "  --batch N       clips in a step (32)\n"
    "  --samples N     how many of them have their activations recorded (4)\n"
    "  --steps N       steps, over the same batch (1)\n"
    "  --seed N        of the audio (0)\n"
    "  --bug NAME      make a mistake; --bug list names them\n";

enum { NOT_WRITTEN = 1, REFUSED = 2 }; /* how it exits */

static int fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("kws: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    return REFUSED;
}

static int not_written(const char *why) { return fail("%s", why), NOT_WRITTEN; }

static int not_opened(int code, const char *why) { return code == FD_ERROR_IO ? not_written(why) : fail("%s", why); }

static int read_number(const char *name, const char *text, int least, int *value)
{
    char *end;
    const long number = strtol(text, &end, 10);
    if (end == text || *end || number < least || number > 1000000000)
        return fail("%s %s: is no whole number from %d on; give one", name, text, least);
    *value = (int)number;
    return 0;
}

/* 0 to go on, 1 when all is done, 2 after an error. */
static int read_options(int argc, char **argv, options *o)
{
    const struct { const char *name, **text; int *number, least; } known[] = {
        {"--weights", &o->weights, NULL, 0}, {"--probes", &o->probes, NULL, 0}, {"--out", &o->out, NULL, 0},
        {"--npy", &o->npy, NULL, 0}, {"--save", &o->save, NULL, 0}, {"--start", NULL, &o->start, 0},
        {"--batch", NULL, &o->batch, 1}, {"--samples", NULL, &o->samples, 0}, {"--steps", NULL, &o->steps, 1},
        {"--seed", NULL, &o->seed, 0},
    };
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i];
        if (!strcmp(name, "--help"))
            return fputs(USAGE, stdout) == EOF ? REFUSED : 1;
        if (!strcmp(name, "--force")) {
            o->force = 1;
            continue;
        }
        const char *text = i + 1 < argc ? argv[++i] : NULL;
        size_t k = 0;
        while (k < sizeof known / sizeof *known && strcmp(known[k].name, name))
            k++;
        const int is_bug = !strcmp(name, "--bug");
        if (!is_bug && k == sizeof known / sizeof *known)
            return fail("there is no option %s; --help lists them", name);
        if (text == NULL)
            return fail("%s needs a value; --help says which", name);
        if (is_bug && !strcmp(text, "list"))
            return list_bugs(), 1;
        if (is_bug && choose_bug(text))
            return fail("there is no bug %s; --bug list names them", text);
        if (!is_bug && known[k].text)
            *known[k].text = text;
        else if (!is_bug && read_number(name, text, known[k].least, known[k].number))
            return 2;
    }
    if (o->weights == NULL || o->probes == NULL)
        return fail("--weights and --probes are needed; --help says what they are");
    if (o->start >= CLIPS)
        return fail("--start %d: there are %d clips; give a number from 0 to %d", o->start, CLIPS, CLIPS - 1);
    if (o->batch > CLIPS - o->start) {
        printf("note: %d clips are left from %d on, so the batch is %d, not %d\n", CLIPS - o->start, o->start,
               CLIPS - o->start, o->batch);
        o->batch = CLIPS - o->start;
    }
    if (o->samples < 0)
        o->samples = o->batch < SAMPLES ? o->batch : SAMPLES;
    if (o->samples > o->batch) {
        printf("note: the batch has %d clips, so %d are recorded, not %d\n", o->batch, o->batch, o->samples);
        o->samples = o->batch;
    }
    return 0;
}

/* ---- recording: the sink of the network, and what no layer computes ---- */

typedef struct {
    network *net;
    fd_trace trace;
    fd_npy npy;
    fd_sink sink;
    const char *names[LAYERS + 1]; /* of what the npy directories hold: the input, and the probes */
} recording;

static void record_input(recording *r, const float *samples)
{
    const int64_t shape[] = {1, 1, AUDIO};
    fd_site site = fd_make_site(r->sink.step, "input", "input");
    site.port = "audio";
    site.sample = r->sink.sample;
    fd_put(r->sink.trace, &site, samples, FD_F32, shape, 3);
    fd_npy_put(r->sink.npy, &site, samples, FD_F32, shape, 3);
}

/* That the softmax has no gradient is a fact, not a gap: the backward of the loss goes through it. */
static void record_softmax(recording *r)
{
    const fd_site site = fd_make_site(r->sink.step, "agrad", r->sink.probes[LAYERS - 1]);
    fd_put_absent(r->sink.trace, &site, "no gradient");
}

/* `tag`.weight and `tag`.bias of every layer: their gradients, or their values. */
static void record_parameters(recording *r, const char *tag, int gradients)
{
    parameter *p;
    char phase[64];
    for (int n = 0, at; (p = network_parameter(r->net, n, &at)) != NULL; n++) {
        const fd_tensor tensor = {gradients ? p->gradient : p->value, FD_F32, p->shape, p->ndim};
        snprintf(phase, sizeof phase, "%s.%s", tag, p->port);
        fd_sink_put_op(&r->sink, at, r->net->layers[at].op, phase, &tensor);
    }
}

static int open_recording(recording *r, const options *o, const fd_manifest *manifest)
{
    char header[256];
    snprintf(header, sizeof header,
             "{\"seed\":%d,\"start\":%d,\"optimizer\":{\"name\":\"SGD\",\"lr\":0.005,\"momentum\":0.9}}", o->seed,
             o->start);
    const fd_options said = {.producer = "kws, a port to C", .model = "KeywordSpotter", .batch = o->batch,
                             .reduction = "sum", .header = header, .overwrite = o->force};
    int code = o->out ? fd_open(&r->trace, o->out, &said) : FD_OK;
    if (code)
        return not_opened(code, fd_error_text(&r->trace));
    r->names[0] = "input";
    memcpy(r->names + 1, manifest->names, sizeof *r->names * LAYERS);
    code = o->npy ? fd_npy_open(&r->npy, o->npy, r->names, LAYERS + 1, NULL) : FD_OK;
    if (o->npy && !code)
        code = fd_npy_gradient_of(&r->npy, "sum", o->batch);
    if (code)
        return not_opened(code, fd_npy_error_text(&r->npy));
    r->sink.trace = o->out ? &r->trace : NULL;
    r->sink.npy = o->npy ? &r->npy : NULL;
    r->sink.probes = manifest->names;
    r->sink.probe_count = manifest->count;
    return 0;
}

/* Whether a tensor could not be written; then nothing more is recorded, and there is no use in going on. */
static int is_broken(const recording *r)
{
    return (r->sink.trace && *fd_error_text(&r->trace)) || (r->sink.npy && *fd_npy_error_text(&r->npy));
}

static int close_recording(recording *r)
{
    if (r->sink.trace && fd_close(&r->trace))
        return not_written(fd_error_text(&r->trace));
    return r->sink.npy && *fd_npy_error_text(&r->npy) ? not_written(fd_npy_error_text(&r->npy)) : 0;
}

/* ---- the step ---- */

static float train(network *net, const options *o, recording *r)
{
    static float samples[AUDIO];
    float loss = 0;
    for (int s = 0; s < o->batch; s++) {
        const int clip = o->start + s + (bug == CLIP_OFF_BY_ONE), recorded = r && s < o->samples;
        make_clip((uint32_t)o->seed, clip, samples);
        if (recorded) {
            r->sink.sample = s;
            record_input(r, samples);
        }
        loss += network_sample(net, samples, clip_label((uint32_t)o->seed, o->start + s),
                               recorded ? fd_sink_put_op : NULL, r ? &r->sink : NULL);
    }
    return loss / (float)o->batch;
}

static void step(network *net, const options *o, recording *r)
{
    if (r)
        record_parameters(r, "w_before", 0);
    const float loss = train(net, o, r);
    if (r) {
        const fd_tensor tensor = {&loss, FD_F32, NULL, 0};
        r->sink.sample = -1;
        fd_sink_put_op(&r->sink, LAYERS, NULL, "loss", &tensor);
        if (o->samples)
            record_softmax(r);
        record_parameters(r, "grad_raw", 1);
    }
    network_scale_gradients(net, 1.0f / (float)o->batch);
    if (r)
        record_parameters(r, "grad_scaled", 1);
    network_update(net);
    if (r)
        record_parameters(r, "w_after", 0);
    network_zero_gradients(net);
    printf("mean_loss=%.6f\n", (double)loss);
}

static int run(network *net, const options *o, const fd_manifest *manifest, recording *r)
{
    char error[1024];
    if (weights_load(net, manifest->names, o->weights, error, sizeof error))
        return fail("%s", error);
    int failed = r ? open_recording(r, o, manifest) : 0;
    if (failed)
        return failed;
    for (int i = 0; i < o->steps && !(r && is_broken(r)); i++) {
        if (r)
            r->sink.step = i;
        step(net, o, r);
    }
    failed = r ? close_recording(r) : 0;
    if (!failed && o->save && weights_save(net, manifest->names, o->save, error, sizeof error))
        failed = not_written(error);
    return failed;
}

int main(int argc, char **argv)
{
    static network net;
    static recording recorded;
    static fd_manifest manifest;
    options o = {.batch = 32, .samples = -1, .steps = 1};
    const int done = read_options(argc, argv, &o);
    if (done)
        return done == 1 ? 0 : done;
    if (fd_manifest_load(&manifest, o.probes))
        return fail("%s", fd_manifest_error_text(&manifest));
    if (manifest.count != LAYERS)
        return fail("%s: lists %d probes, and the network has %d layers; name each of them", o.probes, manifest.count,
                    LAYERS);
    if (network_create(&net))
        return fail("there is no memory for the network; close something");
    recorded.net = &net;
    const int failed = run(&net, &o, &manifest, o.out || o.npy ? &recorded : NULL);
    network_free(&net);
    return failed;
}
