"""The bar of the demo: `make demo` after installing, from the start of the process to its end."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ratios import Row, seconds


def rows() -> Iterator[Row]:
    program = Path(sys.executable).with_name("firstdrift")
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as directory:
        run = [program, "demo"]
        took = seconds(lambda: subprocess.run(run, cwd=directory, stdout=subprocess.DEVNULL, check=True))
    yield Row("make demo after install: ten batches of 32 clips, both sides", took, 60, False, "s")


if __name__ == "__main__":
    for row in rows():
        print(row, flush=True)
