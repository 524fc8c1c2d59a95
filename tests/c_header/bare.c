/* A board without files: what is written goes to a log that a host reads, here standard output, one event a line. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define FIRSTDRIFT_IMPLEMENTATION
#define FD_NO_STDIO
#include "firstdrift.h"

static char names[8][64];
static int opened;

static int create(void *context, const char *path, void **file)
{
    (void)context;
    *file = strcpy(names[opened++], path);
    printf("create %s\n", path);
    return 0;
}

static int write_log(void *context, void *file, const void *data, size_t size)
{
    const unsigned char *bytes = (const unsigned char *)data;
    printf("%s %s ", *(const char *)context ? "FAIL" : "write", (const char *)file);
    for (size_t i = 0; i < size; i++)
        printf("%02x", bytes[i]);
    printf("\n");
    return *(const char *)context ? 42 : 0;
}

static int close_log(void *context, void *file)
{
    (void)context;
    printf("close %s\n", (const char *)file);
    return 0;
}

int main(void)
{
    static fd_trace trace;
    char failing = 0;
    const fd_io io = {&failing, create, write_log, close_log, NULL};
    const float values[16] = {1.0f, -2.0f};
    const int64_t shape[] = {2, 8};
    fd_options options;
    memset(&options, 0, sizeof options);
    printf("%d %s\n", fd_open(&trace, "run", &options), fd_error_text(&trace));
    options.io = &io;
    options.producer = "a board";
    if (fd_open(&trace, "run", &options) != FD_OK)
        return 1;
    fd_site site = fd_make_site(0, "fwd", "conv1");
    if (fd_put(&trace, &site, values, FD_F32, shape, 2) != FD_OK)
        return 1;
    site.step = 1;
    if (fd_put(&trace, &site, values, FD_F32, shape + 1, 1) != FD_OK || fd_close(&trace) != FD_OK)
        return 1;
    opened = 0;
    if (fd_open(&trace, "run", &options) != FD_OK)
        return 1;
    failing = 1;
    printf("%d %s\n", fd_put(&trace, &site, values, FD_F32, shape, 2), fd_error_text(&trace));
    printf("%d %s\n", fd_close(&trace), fd_error_text(&trace));
    return 0;
}
