/* Writes the same trace or npy directory again and again, each time with room for one byte more, into <root>/N.
 * Its own I/O is what it tests the header with: writes that stop in the middle, alone or with the whole process, and
 * files that will not close. Mode "over" writes over a whole trace and dies before its Nth call of anything. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define FIRSTDRIFT_IMPLEMENTATION
#include "firstdrift.h"

static long room;       /* bytes that still fit */
static int will_close;  /* files that still close well */
static int open_files;
static int deadly; /* whether the process dies when there is no more room */

static long calls = 1 << 20; /* that are still allowed */

static void count_call(void)
{
    if (calls-- == 0)
        _exit(9);
}

static int create(void *context, const char *path, void **file)
{
    count_call();
    FILE *stream = fopen(path, "wb");
    *file = stream;
    open_files += stream != NULL;
    return context != &room ? -7 : !stream ? errno : setvbuf(stream, NULL, _IONBF, 0);
}

static int write_some(void *context, void *file, const void *data, size_t size)
{
    count_call();
    const size_t fits = room < (long)size ? (size_t)room : size;
    if (context != &room || fwrite(data, 1, fits, (FILE *)file) != fits)
        return -7;
    room -= (long)fits;
    if (deadly && fits < size)
        _exit(9);
    return fits == size ? 0 : ENOSPC;
}

static int close_file(void *context, void *file)
{
    count_call();
    open_files--;
    if (fclose((FILE *)file) || context != &room)
        return -7;
    return will_close-- > 0 ? 0 : EIO;
}

static int manage(void *context, int what, const char *path, const char *to)
{
    FILE *file;
    count_call();
    if (context != &room)
        return -7;
    switch (what) {
    case FD_EXISTS:
        file = fopen(path, "rb");
        return file ? fclose(file) : ENOENT;
    case FD_REMOVE:
        return remove(path);
    case FD_RENAME:
        return rename(path, to);
    default:
        return mkdir(path, 0777);
    }
}

static const float values[40] = {1, 2, 3};

/* Returns what closing it said; the puts after a failure must all fail, and say the same. */
static int record(const char *directory, int overwrite)
{
    static fd_trace trace;
    const fd_io io = {&room, create, write_some, close_file, manage};
    const int64_t shape[] = {5, 2};
    fd_options options;
    int failed;
    memset(&options, 0, sizeof options);
    options.io = &io;
    options.overwrite = overwrite;
    failed = fd_open(&trace, directory, &options) != FD_OK;
    for (int i = 0; i < 3; i++) {
        fd_site site = fd_make_site(i, "fwd", "conv\n1");
        const int code = i == 1 ? fd_put_absent(&trace, &site, "no gradient")
                                : fd_put(&trace, &site, values, FD_F32, shape, 1 + (i == 2));
        if (failed && code == FD_OK)
            return -1;
        failed = failed || code != FD_OK;
    }
    const int code = fd_close(&trace);
    if ((failed && code == FD_OK) || (code != FD_OK && !*fd_error_text(&trace)) || open_files)
        return -1;
    return code;
}

static int dump(const char *directory)
{
    static fd_npy npy;
    static const char *const probes[] = {"conv1", "relu1"};
    const fd_io io = {&room, create, write_some, close_file, manage};
    const int64_t shape[] = {5, 2};
    int code = fd_npy_open(&npy, directory, probes, 2, &io);
    code = code != FD_OK ? code : fd_npy_gradient_of(&npy, "sum", 4);
    for (int i = 0; i < 2; i++) {
        const fd_site site = fd_make_site(0, "fwd", probes[i]);
        const int now = fd_npy_put(&npy, &site, values, FD_F32, shape, 2);
        if (code != FD_OK && now == FD_OK)
            return -1;
        code = code != FD_OK ? code : now;
    }
    return open_files ? -1 : code;
}

int main(int argc, char **argv)
{
    char directory[4096];
    if (argc != 4)
        return 3;
    const int npy = strstr(argv[2], "npy") != NULL, closing = !strcmp(argv[2], "closing");
    const int over = !strcmp(argv[2], "over");
    deadly = over || strstr(argv[2], "killed") != NULL;
    for (long n = 0; n < atol(argv[3]); n++) {
        room = closing ? 1 << 20 : n;
        will_close = closing ? (int)n : 1 << 20;
        snprintf(directory, sizeof directory, "%s/%ld", argv[1], n);
        int code;
        if (over) {
            room = 1 << 20;
            if (record(directory, 0) != FD_OK)
                return 3;
        }
        if (!deadly || fork() == 0) {
            calls = over ? n : calls;
            code = npy ? dump(directory) : record(directory, over);
            if (deadly)
                _exit(code);
        } else if (wait(&code) < 0 || !WIFEXITED(code))
            return 3;
        printf("%d\n", deadly ? WEXITSTATUS(code) : code);
    }
    return 0;
}
