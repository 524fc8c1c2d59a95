/* Records one layer of an engine with firstdrift.h. C99.
 *
 *     firstdrift c-header > firstdrift.h
 *     gcc -std=c99 -Wall -Wextra -Wpedantic -Werror -o record record.c
 *     ./record run && firstdrift show run
 */
#include <stdio.h>

#define FIRSTDRIFT_IMPLEMENTATION /* in one file of the engine */
#include "firstdrift.h"

int main(int argc, char **argv)
{
    static fd_trace trace; /* about 3 KiB; no heap is used */
    const fd_options options = {.producer = "engine 1.0", .batch = 1};
    const float x[2] = {1, 1}, weight[4] = {0.1f, 0.2f, 0.3f, 0.4f};
    const int64_t matrix[] = {2, 2}, row[] = {1, 2};
    float y[2];

    fd_open(&trace, argc > 1 ? argv[1] : "run", &options);
    fd_site site = fd_make_site(0, "input", "input"); /* step, phase, name; everything else has a default */
    fd_put(&trace, &site, x, FD_F32, row, 2);
    site = fd_make_site(0, "weight", "fc");
    fd_put(&trace, &site, weight, FD_F32, matrix, 2);

    for (int i = 0; i < 2; i++)
        y[i] = weight[2 * i] * x[0] + weight[2 * i + 1] * x[1];

    site = fd_make_site(0, "fwd", "fc");
    site.op = "Linear";
    fd_put(&trace, &site, y, FD_F32, row, 2);

    if (fd_close(&trace) != FD_OK) { /* the first error since fd_open */
        fprintf(stderr, "%s\n", fd_error_text(&trace));
        return 1;
    }
    return 0;
}
