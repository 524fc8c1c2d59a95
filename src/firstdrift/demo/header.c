/* The one file that has firstdrift.h's functions in it. */
#define FIRSTDRIFT_IMPLEMENTATION
#include "firstdrift.h"
