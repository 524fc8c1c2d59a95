"""Compiles the C programs beside this file against firstdrift.h, each once, and talks to driver.c."""

import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

import firstdrift

HERE = Path(__file__).parent
HEADER = Path(firstdrift.__file__).parent / "include" / "firstdrift.h"
WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]
C99 = ["gcc", "-std=c99", *WARNINGS]
CPP17 = ["g++", "-x", "c++", "-std=c++17", *WARNINGS]
CPP11 = ["g++", "-x", "c++", "-std=c++11", *WARNINGS]
SANITIZED = [*C99, "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


def enumerated(enum):
    """The names of an enum, read from the header itself."""
    inside = re.search(enum + r" \{(.*?)\}", HEADER.read_text(), re.DOTALL)[1]
    return re.findall(r"\bFD_(\w+)", re.sub(r"/\*.*?\*/", "", inside, flags=re.DOTALL))


DTYPES = {name.lower(): number for number, name in enumerate(enumerated("enum fd_dtype"), 1)}
CODES = enumerated("enum")
OK, ARGUMENT, SITE, PATH, EXISTS, IO, CLOSED, MANIFEST = range(8)


class Compiler:
    """Programs by source and command line, each compiled when it is first asked for."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._made: dict[tuple[str, ...], Path] = {}

    def __call__(self, sources: str, command: list[str] = SANITIZED, *flags: str) -> Path:
        key = (sources, *command, *flags)
        if key not in self._made:
            if shutil.which(command[0]) is None:
                pytest.fail(f"{command[0]} is not installed, so nobody knows whether firstdrift.h works; install it")
            out = self._directory / f"{sources.split('.')[0]}-{len(self._made)}"
            files = [HERE / source for source in sources.split()]
            done = subprocess.run(
                [*command, "-I", HEADER.parent, "-o", out, *files, *flags], capture_output=True, text=True
            )
            assert done.returncode == 0, done.stderr
            self._made[key] = out
        return self._made[key]


def number(value):
    return struct.pack("<q", value)


def text(value):
    if value is None:
        return number(-1)
    data = value if isinstance(value, bytes) else value.encode()
    return number(len(data)) + data


def texts(values):
    return number(-1) if values is None else number(len(values)) + b"".join(map(text, values))


def site(
    phase, name, *, step=0, port=None, call=0, sample=None, op=None, attrs=None, layer=None, order=None, producers=None
):
    """The fields of an fd_site, in terms of fd.Writer."""
    return b"".join(
        [
            number(step), text(phase), text(name), text(port), number(call), number(-1 if sample is None else sample),
            text(op), text(attrs), number(-1 if layer is None else layer), number(-1 if order is None else order),
            texts(producers),
        ]
    )  # fmt: skip


def tensor(data, dtype="f32", shape=None):
    data = None if data is None else bytes(data)
    shape = [len(data) // 4] if shape is None else shape
    code = DTYPES[dtype] if isinstance(dtype, str) else dtype
    count = number(-1) if data is None else number(len(data)) + data
    return number(code) + number(len(shape)) + b"".join(map(number, shape)) + count


def opening(path, *, producer=None, model=None, batch=0, reduction=None, header=None, rank=0, ranks=0, overwrite=0):
    options = [text(producer), text(model), number(batch), text(reduction), text(header)]
    return b"O" + text(str(path)) + b"".join(options) + number(rank) + number(ranks) + number(overwrite)


FLOATS = b"\0\0\x80?" * 3


def put(phase="fwd", name="conv1", data=FLOATS, dtype="f32", shape=None, **more):
    return b"P" + site(phase, name, **more) + tensor(data, dtype, shape)


def absent(phase, name, reason, **more):
    return b"A" + site(phase, name, **more) + text(reason)


CLOSE, ABORT = b"C", b"X"


def run(program, *commands, **options):
    """What each command returned: a code, and the error text."""
    done = subprocess.run([program], input=b"".join(commands), capture_output=True, **options)
    assert done.returncode == 0, (done.returncode, done.stderr.decode(errors="replace"))
    replies = [line.split(" ", 1) for line in done.stdout.decode("utf-8", "backslashreplace").split("\n")[:-1]]
    assert len(replies) == len(commands)
    return [(int(code) if code.isdigit() else code, said) for code, said in replies]
