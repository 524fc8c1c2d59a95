/* The weights file: a first line of text, then for each parameter a line with its name and shape and right after it
 * the values, little-endian float32. Names, shapes and sizes must be the network's own, in its order.
 *
 *     firstdrift-kws 1
 *     conv1.weight 16 1 9
 *     <576 bytes>conv1.bias 16
 *     <64 bytes>ln1.weight 16 1000
 *     ... */
#include "kws.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static const char FIRST_LINE[] = "firstdrift-kws 1\n";
enum { LINE = 256 };

static void describe(const char *probe, const parameter *p, char line[LINE])
{
    int used = snprintf(line, LINE, "%.150s.%s", probe, p->port);
    for (int i = 0; i < p->ndim; i++)
        used += snprintf(line + used, (size_t)(LINE - used), " %d", (int)p->shape[i]);
}

static int read_values(FILE *file, parameter *p)
{
    unsigned char bytes[4];
    for (int i = 0; i < p->count; i++) {
        if (fread(bytes, 1, sizeof bytes, file) != sizeof bytes)
            return -1;
        const uint32_t bits = bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
        int to = i;
        if (bug == WEIGHT_LAYOUT && p->ndim == 3) { /* the file's i-th value is taken for that of [in, out, kernel] */
            const int kernel = (int)p->shape[2], outs = (int)p->shape[0], ins = (int)p->shape[1];
            to = (i / kernel % outs * ins + i / kernel / outs) * kernel + i % kernel;
        }
        memcpy(&p->value[to], &bits, sizeof bits);
    }
    return 0;
}

static int read_all(FILE *file, network *net, const char *const *probes, const char *path, char *error, size_t size)
{
    char line[LINE], expected[LINE];
    parameter *p;
    if (fgets(line, sizeof line, file) == NULL || strcmp(line, FIRST_LINE)) {
        snprintf(error, size, "%s: is no weights file, for it does not begin with \"%.16s\"; export one with "
                 "`python -m firstdrift.demo.twin --export`", path, FIRST_LINE);
        return -1;
    }
    for (int n = 0, at; (p = network_parameter(net, n, &at)) != NULL; n++) {
        describe(probes[at], p, expected);
        if (fgets(line, sizeof line, file) == NULL)
            strcpy(line, "its end");
        line[strcspn(line, "\n")] = 0;
        if (strcmp(line, expected)) {
            snprintf(error, size, "%s: has \"%.80s\" where \"%s\" belongs; export the weights of this network", path,
                     line, expected);
            return -1;
        }
        if (read_values(file, p)) {
            snprintf(error, size, "%s: ends within %s; export the weights again", path, expected);
            return -1;
        }
    }
    if (fgetc(file) != EOF) {
        snprintf(error, size, "%s: goes on after the last parameter; export the weights of this network", path);
        return -1;
    }
    return 0;
}

int weights_load(network *net, const char *const *probes, const char *path, char *error, size_t size)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        snprintf(error, size, "%s: cannot read the weights (%s); export them with `python -m firstdrift.demo.twin "
                 "--export`", path, strerror(errno));
        return -1;
    }
    const int failed = read_all(file, net, probes, path, error, size);
    fclose(file);
    return failed;
}

int weights_save(network *net, const char *const *probes, const char *path, char *error, size_t size)
{
    char line[LINE];
    parameter *p;
    FILE *file = fopen(path, "wb");
    int failed = file == NULL || fputs(FIRST_LINE, file) == EOF;
    for (int n = 0, at; !failed && (p = network_parameter(net, n, &at)) != NULL; n++) {
        describe(probes[at], p, line);
        failed = fprintf(file, "%s\n", line) < 0;
        for (int i = 0; !failed && i < p->count; i++) {
            uint32_t bits;
            memcpy(&bits, &p->value[i], sizeof bits);
            for (int b = 0; b < 4; b++)
                failed |= fputc((int)(bits >> (8 * b) & 255), file) == EOF;
        }
    }
    if (file && fclose(file))
        failed = 1;
    if (failed)
        snprintf(error, size, "%s: cannot write the weights (%s); choose a path that you may write", path,
                 strerror(errno));
    return failed ? -1 : 0;
}
