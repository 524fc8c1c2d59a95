"""Building the C port with the compiler at hand, and running it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from ..errors import CaptureError, SelectionError
from .spotter_files import HERE, PROBES

INCLUDE = HERE.parent / "include"
STRICT = ("-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O2")
NO_COMPILER = "no C compiler was found: neither CC nor cc, gcc or clang; install one, or set CC"


@dataclass(frozen=True, slots=True)
class Bug:
    """A mistake that the port can be told to make."""

    name: str
    steps: int  # from how many on it shows
    what: str


def known_bugs() -> dict[str, Bug]:
    """The table that the C sources include, by name."""
    rows = re.findall(r'^X\(\w+, "([^"]+)", (\d+), "([^"]+)"\)$', (HERE / "bugs.def").read_text("utf-8"), re.MULTILINE)
    return {name: Bug(name, int(steps), what) for name, steps, what in rows}


def find_bug(name: str) -> Bug:
    """The bug of this name."""
    known = known_bugs()
    if name not in known:
        raise SelectionError(f"there is no bug {name!r}; choose one of: {', '.join(known)}")
    return known[name]


def find_compiler() -> list[str] | None:
    """The compiler's command: that of the environment, or the first there is."""
    asked = shlex.split(os.environ.get("CC", ""))
    for words in (asked, ["cc"], ["gcc"], ["clang"]):
        if words and (path := shutil.which(words[0])):
            return [path, *words[1:]]
    return None


@dataclass(frozen=True, slots=True)
class Port:
    """The built program."""

    program: Path
    compiler: str = ""

    @classmethod
    def build(cls, directory: Path, flags: tuple[str, ...] = STRICT) -> Port:
        """Compile the port into a directory."""
        compiler = find_compiler()
        if compiler is None:
            raise CaptureError(NO_COMPILER)
        program = directory / "kws"
        sources = [str(path) for path in sorted(HERE.glob("*.c"))]
        command = [*compiler, *flags, "-I", str(INCLUDE), "-o", str(program), *sources, "-lm"]
        done = _run(command, f"the compiler {compiler[0]} cannot be run")
        if done.returncode:
            line = next((line for line in done.stderr.splitlines() if "error" in line), "it says nothing")
            raise CaptureError(f"{Path(compiler[0]).name} cannot build the C port ({line}); try another by CC=...")
        return cls(program, Path(compiler[0]).name)

    def run(self, *arguments: str | Path) -> str:
        """Run it and give what it prints; what it complains of is an error."""
        done = _run([str(self.program), *map(str, arguments)], f"{self.program} cannot be run")
        if done.returncode:
            said = done.stderr.strip().splitlines() or [f"it ended with {done.returncode} and said nothing"]
            raise CaptureError(said[0])
        return done.stdout

    def record(
        self, weights: Path, out: Path, *, start: int, batch: int, samples: int, steps: int, seed: int, bug: str
    ) -> None:
        """Record a step of the port, or several; the options are those of the twin."""
        numbers = {"--start": start, "--batch": batch, "--samples": samples, "--steps": steps, "--seed": seed}
        given = [text for name, value in numbers.items() for text in (name, str(value))]
        self.run("--weights", weights, "--probes", PROBES, "--out", out, "--force", "--bug", bug, *given)


def _run(command: list[str], refusal: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, errors="replace")  # noqa: S603
    except OSError as error:
        raise CaptureError(f"{refusal} ({error.strerror or error}); choose another") from error
