/* Uses every function. With FD_DISABLED none of them is left, and no argument is evaluated. */
#include <stdio.h>

#define FIRSTDRIFT_IMPLEMENTATION
#include "firstdrift.h"

static int evaluated;

static const char *touch(const char *text)
{
    evaluated++;
    return text;
}

typedef void (*engine_sink)(void *context, int layer, const char *phase, const fd_tensor *tensor);
typedef void (*typed_sink)(void *context, int layer, const char *op, const char *phase, const fd_tensor *tensor);

static void run(engine_sink sink, typed_sink typed, void *context)
{
#ifdef CALL_BACK
    const fd_tensor nothing = {NULL, FD_F32, NULL, 0};
    if (sink)
        sink(context, 0, "fwd", &nothing);
    if (typed)
        typed(context, 0, "Conv1d", "fwd", &nothing);
#else
    (void)sink, (void)typed, (void)context;
#endif
}

int main(void)
{
    static fd_trace trace;
    static fd_npy npy;
    static fd_manifest manifest;
    static const char *const probes[] = {"conv1"};
    const float value = 1;
    const fd_tensor tensor = {&value, FD_F32, NULL, 0};
    fd_sink sink = {&trace, &npy, probes, 1, 0, -1, NULL};
    fd_site site = fd_make_site(evaluated++, touch("fwd"), "conv1");
    int errors = fd_open(&trace, touch("disabled-run"), NULL);
    errors += fd_npy_open(&npy, touch("disabled-npy"), probes, 1, NULL);
    fd_put(&trace, &site, (touch(""), &value), FD_F32, NULL, 0);
    fd_put_absent(&trace, (site.call = 1, &site), touch("no gradient"));
    errors += fd_npy_put(&npy, &site, (touch(""), &value), FD_F32, NULL, 0);
    errors += fd_npy_gradient_of(&npy, touch("sum"), 1);
    errors += fd_manifest_parse(&manifest, touch("a"), 1) + fd_manifest_load(&manifest, touch("probes.txt"));
    fd_sink_put((evaluated++, &sink), 0, touch("agrad"), &tensor);
    fd_sink_put_op((evaluated++, &sink), 0, touch("Conv1d"), touch("fwd"), &tensor);
#ifdef CALL_BACK
    run(fd_sink_put, fd_sink_put_op, &sink);
#else
    run(NULL, NULL, &sink);
#endif
    fd_abort((evaluated++, &trace));
    errors += fd_close((evaluated++, &trace));
    const char *texts[] = {fd_error_text((touch(""), &trace)), fd_npy_error_text((touch(""), &npy)),
                           fd_manifest_error_text((touch(""), &manifest))};
    printf("%d %d %d [%s%s%s]\n", evaluated, errors, (int)site.call, texts[0], texts[1], texts[2]);
    return 0;
}
