/* The unit of two that only uses it. */
#include "firstdrift.h"

int other_unit(fd_trace *trace);

int other_unit(fd_trace *trace)
{
    const double value = 0.5;
    const fd_site site = fd_make_site(0, "loss", "loss");
    return fd_put(trace, &site, &value, FD_F64, NULL, 0);
}
