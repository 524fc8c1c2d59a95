"""The bar of firstdrift.h: recording from C, against a plain loop of fwrite of the same bytes."""

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ratios import Row, median_ratio

import firstdrift

INCLUDE = Path(firstdrift.__file__).parent / "include"
TOTAL = 192 << 20  # bytes that each of the two writes in a run

PROGRAM = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define FIRSTDRIFT_IMPLEMENTATION
#include "firstdrift.h"

int main(int argc, char **argv)
{
    static fd_trace trace;
    static char values[1 << 20], path[4096];
    const long size = argc == 5 ? atol(argv[3]) : 0, count = argc == 5 ? atol(argv[4]) : 0;
    const int64_t shape[] = {size / 4};
    for (long i = 0; i < size; i++)
        values[i] = (char)(i * 7);
    if (!strcmp(argv[1], "plain")) {
        snprintf(path, sizeof path, "%s/plain.bin", argv[2]);
        remove(path);
        FILE *file = fopen(path, "wb");
        if (!file)
            return 1;
        for (long i = 0; i < count; i++)
            if (fwrite(values, 1, (size_t)size, file) != (size_t)size)
                return 1;
        return fclose(file) != 0;
    }
    fd_options options;
    memset(&options, 0, sizeof options);
    options.overwrite = 1;
    fd_open(&trace, argv[2], &options);
    for (long i = 0; i < count; i++) {
        const fd_site site = fd_make_site(i, "fwd", "transformer.layers.3.attn");
        fd_put(&trace, &site, values, FD_F32, shape, 1);
    }
    return fd_close(&trace) != FD_OK;
}
"""


def rows() -> Iterator[Row]:
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as directory:
        source, program = Path(directory, "bench.c"), Path(directory, "bench")
        source.write_text(PROGRAM)
        subprocess.run(["gcc", "-std=c99", "-O2", "-I", INCLUDE, "-o", program, source], check=True)

        for kib in (64, 256, 1024):

            def write(how: str, size: int = kib << 10) -> None:
                command = [program, how, f"{directory}/{how}", str(size), str(TOTAL // size)]
                subprocess.run(command, check=True)

            Path(directory, "plain").mkdir(exist_ok=True)
            ratio = median_ratio(lambda: write("plain"), lambda: write("trace"), 9)
            yield Row(f"firstdrift.h, tensors of {kib} KiB, speed against plain fwrite", ratio, 0.8, True)


if __name__ == "__main__":
    for row in rows():
        print(row, flush=True)
