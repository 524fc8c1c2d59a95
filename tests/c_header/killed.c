/* Puts tensors until it is killed, and says one dot for each that was put. */
#include <stdlib.h>
#include <unistd.h>

#define FIRSTDRIFT_IMPLEMENTATION
#include "firstdrift.h"

static float values[300000];

int main(int argc, char **argv)
{
    static const struct { const char *name; int64_t size; } tensors[] = {
        {"small", 10}, {"middle", 5000}, {"large", 300000}};
    static fd_trace trace;
    if (argc != 2 || fd_open(&trace, argv[1], NULL) != FD_OK)
        return 1;
    for (int64_t step = 0;; step++)
        for (int i = 0; i < 3; i++) {
            const fd_site site = fd_make_site(step, "fwd", tensors[i].name);
            for (int64_t k = 0; k < tensors[i].size; k++)
                values[k] = (float)step;
            if (fd_put(&trace, &site, values, FD_F32, &tensors[i].size, 1) != FD_OK || write(1, ".", 1) != 1)
                return 1;
        }
}
