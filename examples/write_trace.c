/* Writes a firstdrift trace of two float32 tensors into an existing directory. Plain C99, no library.
 *
 *     gcc -std=c99 -Wall -Wextra -Wpedantic -Werror -o write_trace write_trace.c
 *     mkdir run && ./write_trace run && firstdrift show run
 */
#include <stdio.h>
#include <stdlib.h>

static FILE *index_file, *data_file;
static unsigned long long end_of_data, lines;

static void check(int ok, const char *what)
{
    if (!ok) {
        perror(what);
        exit(EXIT_FAILURE);
    }
}

static FILE *create(const char *directory, const char *name)
{
    char path[4096];
    int length = snprintf(path, sizeof path, "%s/%s", directory, name);
    check(length > 0 && (size_t)length < sizeof path, name);
    FILE *file = fopen(path, "wb");
    check(file != NULL, path);
    return file;
}

/* The bytes first, flushed; then the line that says where they are. Names here need no JSON escapes. */
static void put(const char *phase, const char *name, const char *port, const float *values, size_t rows, size_t columns)
{
    static const char zeros[64];
    size_t padding = (size_t)((64 - end_of_data % 64) % 64), count = rows * columns;
    unsigned long long start = end_of_data + padding, bytes = count * sizeof *values;

    check(fwrite(zeros, 1, padding, data_file) == padding, "data-00000.bin");
    check(fwrite(values, sizeof *values, count, data_file) == count && fflush(data_file) == 0, "data-00000.bin");
    end_of_data = start + bytes; /* beyond 1 GiB: open data-00001.bin, and say 1 as the first number of "at" */
    check(fprintf(index_file,
                  "{\"phase\":\"%s\",\"name\":\"%s\",\"port\":\"%s\",\"dtype\":\"f32\",\"shape\":[%zu,%zu],"
                  "\"at\":[0,%llu,%llu]}\n",
                  phase, name, port, rows, columns, start, bytes) > 0 && fflush(index_file) == 0, "index.jsonl");
    lines++;
}

int main(int argc, char **argv)
{
    const float x[6] = {-1.0f, 2.0f, -0.5f, 0.25f, 3.0f, -4.0f}; /* written as they are: little-endian machines only */
    float y[6];
    if (argc != 2) {
        fputs("usage: write_trace DIRECTORY\n", stderr);
        return EXIT_FAILURE;
    }
    index_file = create(argv[1], "index.jsonl"); /* first, so that no old line points into new data */
    data_file = create(argv[1], "data-00000.bin");
    FILE *header = create(argv[1], "trace.json");
    check(fputs("{\"format\":\"firstdrift-trace\",\"version\":1,\"producer\":\"write_trace.c\"}\n", header) >= 0
          && fclose(header) == 0, "trace.json");

    put("input", "input", "x", x, 2, 3);
    for (int i = 0; i < 6; i++)
        y[i] = x[i] > 0 ? x[i] : 0;
    put("fwd", "relu1", "out", y, 2, 3);

    check(fprintf(index_file, "{\"end\":%llu}\n", lines) > 0, "index.jsonl");
    check(fclose(data_file) == 0 && fclose(index_file) == 0, "closing");
    return EXIT_SUCCESS;
}
