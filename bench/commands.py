"""Whole commands on real traces, in CPU time: `diff` of decoder stages, of a large step, and `fd.check`.

Each is held against what it cannot do without: reading every byte once, or running both models.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from diff import FIRSTDRIFT, _reading, _stages
from ratios import Row, cpu_seconds, median_ratio
from torch import nn

import firstdrift as fd

RUNS = 3
# The decoder with its products summed in two halves, as another kernel may: all but the embedding is noise.
HALVES = """
import torch
whole = torch.nn.functional.linear
def halves(x, weight, bias=None):
    middle = weight.shape[1] // 2
    found = whole(x[..., :middle], weight[:, :middle]) + whole(x[..., middle:], weight[:, middle:])
    return found if bias is None else found + bias
torch.nn.functional.linear = halves
from firstdrift.__main__ import main
main()
"""
PEAK = r"""
import re, sys, threading, time, firstdrift as fd
def anonymous(): return int(re.search(r"RssAnon:\s+(\d+) kB", open("/proc/self/status").read())[1]) / 1024
peak, done = anonymous(), threading.Event()
def watch():
    global peak
    while not done.wait(0.005):
        peak = max(peak, anonymous())
import torch, firstdrift.judge.passes.by_program
loaded = anonymous()
watching = threading.Thread(target=watch)
watching.start()
result = fd.diff(sys.argv[1], sys.argv[2])
done.set()
watching.join()
assert result.exit_code == 0, result.sentence
print(peak - loaded)
"""
WIDTH, LAYERS, TOKENS = 1024, 24, 16  # 302 million parameters
SMALL = (256, 6)  # of the networks that are checked

Sides = tuple[Path, Path]


class Block(nn.Module):
    """One layer of a decoder."""

    def __init__(self, width: int, activation: nn.Module) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.activation, self.down = nn.Linear(width, 4 * width), activation, nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (8, -1)).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(self.activation(self.up(self.norm2(x))))


def network(width: int, layers: int, wrong: int | None = None) -> nn.Sequential:
    """The same weights every time; the layer `wrong` has another activation."""
    torch.manual_seed(0)
    return nn.Sequential(*(Block(width, nn.GELU("tanh" if layer == wrong else "none")) for layer in range(layers)))


def rows() -> Iterator[Row]:
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as directory:
        yield from stages(Path(directory))
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as directory:
        yield from large_step(Path(directory))
    yield from checks()


def stages(directory: Path) -> Iterator[Row]:
    """Two engines on one checkpoint, of which one rounds to bfloat16: every stage of every layer differs."""
    sides = [_stages(directory / name, "decoder", dtype) for name, dtype in (("single", "f32"), ("half", "bf16"))]
    equal = _stages(directory / "again", "decoder", "f32")
    other = _stages(directory / "halves", "decoder", "f32", (sys.executable, "-c", HALVES))
    name = "CPU of diff, 258 MiB of stages that are all noise, vs equal"
    yield against(name, (sides[0], other), (sides[0], equal), 4)
    drifted = against_reading(sides[0], sides[1], codes=(0, 1, 2))
    yield Row("CPU of diff, decoder stages in two dtypes, vs a reading", drifted, 20, False)
    yield Row("CPU of diff, decoder stages that are equal, vs a reading", against_reading(sides[0], equal), 15, False)


def large_step(directory: Path) -> Iterator[Row]:
    """A training step of 300 million parameters, computed again in one thread, and with a bug half way."""
    sides = [directory / "reference", directory / "candidate", directory / "wrong"]
    threads = torch.get_num_threads()
    for path, count, wrong in zip(sides, (threads, 1, threads), (None, None, LAYERS // 2), strict=True):
        torch.set_num_threads(count)
        model = network(WIDTH, LAYERS, wrong)
        parameters = sum(one.numel() for one in model.parameters())
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with fd.trace(model, path, optimizer=optimizer):
            model(torch.randn(1, TOKENS, WIDTH, generator=torch.Generator().manual_seed(1))).square().mean().backward()
            optimizer.step()
        del model, optimizer
    torch.set_num_threads(threads)
    clean, drifted = (sides[0], sides[1]), (sides[0], sides[2])
    name = f"CPU of diff, a step of {parameters / 1e6:.0f} M parameters"
    yield Row(f"{name}, vs a reading", against_reading(*clean, runs=1), 4, False)
    yield against(f"{name}, with a bug, site alone, vs clean", drifted, clean, 2, runs=1)
    peak = subprocess.run([sys.executable, "-c", PEAK, *map(str, clean)], capture_output=True, text=True, check=True)
    one = 4 * 8 * 4 * WIDTH**2 / 2**20  # a weight, its gradient, and the squares of either, in float64
    beyond = float(peak.stdout) - one
    yield Row("memory of diff of that step, beyond one operation's tensors", beyond, 512, False, "MiB")


def checks() -> Iterator[Row]:
    """`fd.check` of a training step, against the two steps alone; and with a drift, against without."""
    x = torch.randn(2, 32, SMALL[0], generator=torch.Generator().manual_seed(1))

    def loss(output: torch.Tensor) -> torch.Tensor:
        return output.square().mean()

    def check(wrong: int | None) -> Callable[[], object]:
        ours, theirs = network(*SMALL), network(*SMALL, wrong=wrong)
        code = 0 if wrong is None else 1

        def run() -> None:
            found = fd.check(reference=ours, candidate=theirs, inputs=x, loss_fn=loss)
            assert found.exit_code == code, found.sentence

        return run

    def steps() -> None:
        for _ in range(2):
            model = network(*SMALL)
            loss(model(x)).backward()

    clean, drifted = check(None), check(SMALL[1] // 2)
    alone = median_ratio(clean, steps, RUNS, time.process_time)
    yield Row("CPU of fd.check, a clean step, vs the two steps", alone, 15, False)
    yield Row(
        "CPU of fd.check with a drift vs without", median_ratio(drifted, clean, RUNS, time.process_time), 8, False
    )


def against(name: str, above: Sides, below: Sides, bar: float, runs: int = RUNS) -> Row:
    """CPU time of verdict and site of one pair of traces over that of another."""

    def ratio() -> float:
        return _seconds_of(above) / _seconds_of(below)

    return Row(name, statistics.median(ratio() for _ in range(runs)), bar, False)


def _seconds_of(sides: Sides) -> float:
    return cpu_seconds(FIRSTDRIFT, "diff", *map(str, sides), "--quiet", "--no-cause", codes=(0, 1, 2))


def against_reading(reference: Path, candidate: Path, *, codes: tuple[int, ...] = (0,), runs: int = RUNS) -> float:
    """CPU time of the command over that of reading both sides once with the kernel."""
    command = [FIRSTDRIFT, "diff", str(reference), str(candidate), "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode in codes, done.stdout + done.stderr
    print(f"    {done.stdout.strip()[:150]}", flush=True)
    return statistics.median(cpu_seconds(*command, codes=codes) / _reading(reference, candidate) for _ in range(runs))


if __name__ == "__main__":
    for row in rows():
        print(row, flush=True)
