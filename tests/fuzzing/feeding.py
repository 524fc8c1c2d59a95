"""Feed damaged inputs to a reader, count them, and keep what is not ours: other errors, and too much memory."""

import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random

from tests.mutations import mutated

from firstdrift.errors import FirstdriftError

MEMORY = 64 << 20  # bytes that reading may take beyond the bytes of its files
DISTINCT = 12  # defects that are told of; one is often met a thousand times


def write_files(directory: Path, parts: Mapping[str, bytes]) -> None:
    """The parts are the files."""
    for name, data in parts.items():
        file = directory / name
        file.unlink(missing_ok=True)  # some file systems wait for the disk where a file is written over
        file.write_bytes(data)


@dataclass(frozen=True)
class Subject:
    """A reader, the parts of what it reads whole, and how parts become files again (checksums made right, say)."""

    parts: Mapping[str, bytes]
    read: Callable[[Path], object]
    put: Callable[[Path, Mapping[str, bytes]], None] = write_files

    def damaged(self, chance: Random) -> dict[str, bytes]:
        """The parts with one of them, now and then two, not as it was."""
        parts = dict(self.parts)
        for _ in range(1 if chance.random() < 0.9 else 2):
            name = chance.choice(list(parts))
            parts[name] = mutated(parts[name], chance, tuple(self.parts.values()))
        return parts


@dataclass
class Fed:
    """What came of some inputs."""

    inputs: int = 0
    read: int = 0  # without any complaint
    foreign: dict[str, str] = field(default_factory=dict)  # where it came from → what it was, and of which input
    peak: int = 0  # bytes beyond those of the files, of the worst input

    def assert_ours(self) -> None:
        assert not self.foreign, "\n\n".join(self.foreign.values())
        assert self.peak <= MEMORY, f"{self.peak >> 20} MiB beyond the files"


def feed(subject: Subject, directory: Path, seeds: range, begins: Callable[[int], object] = lambda seed: None) -> Fed:
    """One damaged input a seed. Whatever is wrong is kept and said at the end, with the seed that repeats it."""
    fed = Fed()
    for name in subject.parts:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
    for _ in range(2):  # libraries load what they need
        subject.put(directory, subject.parts)
        subject.read(directory)
    for seed in seeds:
        begins(seed)
        parts = subject.damaged(Random(seed))
        subject.put(directory, parts)
        _feed_one(fed, partial(subject.read, directory), seed, sum(map(len, parts.values())))
    return fed


def _feed_one(fed: Fed, read: Callable[[], object], seed: int, nbytes: int) -> None:
    before = _forget_peak()
    try:
        read()
        fed.read += 1
    except FirstdriftError as error:
        if not str(error):
            fed.foreign.setdefault("no sentence", f"input {seed}: {type(error).__name__} without a sentence")
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # panics of libraries in Rust are no Exception
        where = traceback.extract_tb(error.__traceback__)[-1]
        if len(fed.foreign) < DISTINCT:
            told = "".join(traceback.format_exception(error, limit=-6))
            fed.foreign.setdefault(f"{type(error)} {where}", f"input {seed}: {told}")
    fed.inputs += 1
    taken = _peak() - before - nbytes
    if taken > MEMORY:
        fed.foreign.setdefault("memory", f"input {seed}: took {taken >> 20} MiB beyond its {nbytes} bytes")
    fed.peak = max(fed.peak, taken)


def _forget_peak() -> int:
    """Bytes that this process holds; its peak is counted anew from here. 0 where the system does not say."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return 0
    return _status("VmRSS")


def _peak() -> int:
    return _status("VmHWM") if Path("/proc/self/clear_refs").exists() else 0


def _status(key: str) -> int:
    with open("/proc/self/status") as said:
        return next(int(line.split()[1]) << 10 for line in said if line.startswith(key))
