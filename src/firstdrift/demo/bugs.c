/* Mistakes that ports make. Each one is a line or two where it belongs, behind `bug == ITS_NAME`. */
#include "kws.h"

#include <stdio.h>
#include <string.h>

#define X(id, name, steps, what) {name, steps, what},
static const struct {
    const char *name;
    int steps; /* from which it shows */
    const char *what;
} rows[] = {
#include "bugs.def"
};

bug_id bug = NO_BUG;

int choose_bug(const char *name)
{
    for (int i = 0; i < BUG_COUNT; i++)
        if (!strcmp(rows[i].name, name)) {
            bug = (bug_id)i;
            return 0;
        }
    return -1;
}

void list_bugs(void)
{
    for (int i = 0; i < BUG_COUNT; i++)
        printf("%-20s %d  %s\n", rows[i].name, rows[i].steps, rows[i].what);
}
