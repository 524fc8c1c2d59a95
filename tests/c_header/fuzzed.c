/* Reads inputs from standard input, each a length of four bytes and as many bytes, in memory of exactly that size, so
 * that a sanitizer sees every byte too many. Each is parsed as a manifest; then its lines are the texts of a site, put
 * into one trace under the number of the input. Prints both codes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIRSTDRIFT_IMPLEMENTATION
#include "firstdrift.h"

enum { PHASE, NAME, PORT, OP, ATTRS, FROM, FIELDS };

static fd_trace trace;
static fd_manifest manifest;

static int put(int64_t number, char *text)
{
    static const float values[2] = {1, 2};
    const int64_t shape[1] = {2};
    char *fields[FIELDS] = {NULL};
    for (int i = 0; i < FIELDS && text; i++) {
        char *end = strchr(text, '\n');
        fields[i] = text;
        text = end ? end + 1 : NULL;
        if (end)
            *end = 0;
    }
    fd_site site = fd_make_site(number, fields[PHASE], fields[NAME]);
    const char *const from[1] = {fields[FROM]};
    site.port = fields[PORT], site.op = fields[OP], site.attrs = fields[ATTRS];
    site.from = from, site.from_count = fields[FROM] != NULL;
    return fd_put(&trace, &site, values, FD_F32, shape, 1);
}

int main(int argc, char **argv)
{
    unsigned char head[4];
    if (argc != 2 || fd_open(&trace, argv[1], NULL))
        return 1;
    for (int64_t number = 0; fread(head, 1, 4, stdin) == 4; number++) {
        const size_t size = head[0] | (size_t)head[1] << 8 | (size_t)head[2] << 16;
        char *exact = (char *)malloc(size ? size : 1), *text = (char *)malloc(size + 1);
        if (!exact || !text || fread(exact, 1, size, stdin) != size)
            return 2;
        memcpy(text, exact, size);
        text[size] = 0;
        const int parsed = fd_manifest_parse(&manifest, exact, size);
        for (int i = 0; i < manifest.count; i++)
            if (!parsed && !*manifest.names[i])
                return 3;
        printf("%d %d\n", parsed, put(number, text));
        free(exact);
        free(text);
    }
    (void)fd_close(&trace); /* which tells the first refusal again */
    return 0;
}
