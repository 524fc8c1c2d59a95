"""The bars of recording programs: time and memory on top of a trace, size, and what can be run again from the file."""

import json
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import torch
from capture import Training, _memory
from ratios import Row
from torch import nn

import firstdrift as fd

HERE = Path(__file__).parent
STEPS, ROUNDS = 3, 5


def rows() -> Iterator[Row]:
    with tempfile.TemporaryDirectory(dir=_memory(), prefix=".bench-") as folder:
        path = Path(folder) / "trace"
        training = Training()
        ratio, _ = overhead(training.model, training.optimizer, training.step, path, STEPS, ROUNDS)
        yield Row("program on top of statistics, GPT-2-small step", ratio, 1.10, False)
        yield from size(training, path)
        model, optimizer, step = tiny()
        _, extra = overhead(model, optimizer, step, path, 20, ROUNDS, time.thread_time)  # which runs in one thread
        calls = _calls(_lines(model, optimizer, step, path))
        yield Row(f"program, microseconds a call (tiny model, {calls} calls)", extra / calls * 1e6, 25, False)
    yield peak_memory()
    yield from again()


def tiny() -> tuple[nn.Module, torch.optim.Optimizer, Callable[[], None]]:
    """A model whose operations take no time."""
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.GELU()) for _ in range(8)]
    model, x = nn.Sequential(*blocks), torch.randn(4, 8)
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, optimizer, step


def overhead(
    model: nn.Module, optimizer: torch.optim.Optimizer, step: Callable[[], None], path: Path, steps: int, rounds: int,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[float, float]:  # fmt: skip
    """The time of a step with a program over one without, and the difference: the best of each round, alternating."""

    def best(program: bool) -> float:
        with fd.trace(model, path, optimizer=optimizer, overwrite=True, keep="stats", program=program):
            step()
            return min(_seconds(step, clock) for _ in range(steps))

    best(True)
    pairs = [(best(False), best(True)) for _ in range(rounds)]
    return median(b / a for a, b in pairs), median(b - a for a, b in pairs)


def size(training: Training, path: Path) -> Iterator[Row]:
    """Bytes a call, of a first step and of a later one that makes the same calls."""
    with fd.trace(training.model, path, optimizer=training.optimizer, overwrite=True, keep="stats"):
        for _ in range(4):
            training.step()
    lines = (path / "program.jsonl").read_text().splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith('{"step"')]
    first = lines[: starts[1]]
    yield Row(
        "bytes of program a call, with module and line",
        sum(len(line) + 1 for line in first) / _calls(first),
        160,
        False,
    )
    yield Row("bytes of a later step with the same program", max(len(lines[n]) + 1 for n in starts[2:]), 1024, False)


def peak_memory() -> Row:
    """Resident memory of a traced step, with a program and without, each in a process of its own."""
    code = """
import resource, sys, tempfile
sys.path.insert(0, {here!r})
import capture, firstdrift as fd
training = capture.Training()
training.step()
with tempfile.TemporaryDirectory() as folder:
    with fd.trace(training.model, folder + "/t", optimizer=training.optimizer, keep="stats", program={program}):
        training.step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
    peaks = {}
    for program in (False, True):
        script = code.format(here=str(HERE), program=program)
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        peaks[program] = int(done.stdout)
    return Row("program, peak memory of a traced step", peaks[True] / peaks[False], 1.05, False)


def again() -> Iterator[Row]:
    """Calls of many networks that can be made again, in a fresh process, from the file; the others are listed."""
    script = [sys.executable, str(HERE / "programs" / "again.py")]
    done = subprocess.run(script, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    why: Counter[str] = Counter()
    for name, one in found.items():
        for reason, count in one["failed"].items():
            why[f"{name}: {reason}"] += count
    for reason, count in sorted(why.items()):
        print(f"    {count} x {reason}")
    calls, made = (sum(one[key] for one in found.values()) for key in ("calls", "made"))
    sites, same = (sum(one[key] for one in found.values()) for key in ("sites", "same"))
    traced = sum(one["calls"] > 0 for one in found.values())
    yield Row(f"calls of {traced} networks made again from the file, share of {calls}", made / calls, 0.99, True)
    yield Row(f"their tensors bit-equal, share of {sites}", same / sites, 0.99, True)
    yield from alone({name: one["alone"] for name, one in found.items()})


def alone(found: dict[str, Any]) -> Iterator[Row]:
    """Each tensor from what was recorded before it alone, in that fresh process; what is not bit-equal is listed."""
    for part in ("forward", "backward", "optimizer"):
        ones = [one[part] for one in found.values() if part in one]
        sites, equal, rounded, lifted = (
            sum(one[key] for one in ones) for key in ("sites", "equal", "rounded", "lifted")
        )
        for name, one in found.items():
            for other in [*one.get(part, {}).get("others", []), *one.get(part, {}).get("lost", [])]:
                print(f"    {name}: {other}")
        replayed = sites - sum(len(one["lost"]) for one in ones)
        networks = sum(one["sites"] > 0 for one in ones)
        title = f"{part}, {sites} tensors of {networks} networks, each from what was recorded before it alone"
        yield Row(f"{title}: bit-equal", equal / sites, 0.99, True)
        yield Row(
            f"{title}: of {replayed} that can be run, within one rounding",
            (equal + rounded) / max(1, replayed),
            1,
            True,
        )
        yield Row(f"{title}: run in float64", lifted / sites, 0.99, True)


def _lines(model: nn.Module, optimizer: torch.optim.Optimizer, step: Callable[[], None], path: Path) -> list[str]:
    with fd.trace(model, path, optimizer=optimizer, overwrite=True, keep="stats"):
        step()
    return (path / "program.jsonl").read_text().splitlines()


def _calls(lines: list[str]) -> int:
    return sum(bool(re.match(r'\{"n":\d+,"op"', line)) for line in lines)


def _seconds(work: Callable[[], None], clock: Callable[[], float]) -> float:
    start = clock()
    work()
    return clock() - start


if __name__ == "__main__":
    for row in rows():
        print(row, flush=True)
