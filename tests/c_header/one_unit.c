/* The unit of two that holds the implementation. */
#define FIRSTDRIFT_IMPLEMENTATION
#include "firstdrift.h"
#include "firstdrift.h" /* twice does no harm */

int other_unit(fd_trace *trace);

int main(int argc, char **argv)
{
    static fd_trace trace;
    if (argc != 2 || fd_open(&trace, argv[1], NULL) != FD_OK || other_unit(&trace) != FD_OK)
        return 1;
    return fd_close(&trace) != FD_OK;
}
