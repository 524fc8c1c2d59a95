"""Whole commands on real traces, in CPU time: `diff` of decoder stages, of a large step, and `fd.check`.

Each is held against what it cannot do without: reading every byte once, or running both models.
"""

import statistics
import subprocess
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
WIDTH, LAYERS, TOKENS = 1024, 24, 16  # 302 million parameters
SMALL = (256, 6)  # of the networks that are checked


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
    drifted = against_reading(sides[0], sides[1], codes=(0, 1, 2))
    yield Row("CPU of diff, decoder stages in two dtypes, vs a reading", drifted, 20, False)
    yield Row("CPU of diff, decoder stages that are equal, vs a reading", against_reading(sides[0], equal), 15, False)


def large_step(directory: Path) -> Iterator[Row]:
    """A training step of 300 million parameters, computed twice: in one thread and in all of them."""
    sides = [directory / "reference", directory / "candidate"]
    threads = torch.get_num_threads()
    for path, count in zip(sides, (threads, 1), strict=True):
        torch.set_num_threads(count)
        model = network(WIDTH, LAYERS)
        parameters = sum(one.numel() for one in model.parameters())
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with fd.trace(model, path, optimizer=optimizer):
            model(torch.randn(1, TOKENS, WIDTH, generator=torch.Generator().manual_seed(1))).square().mean().backward()
            optimizer.step()
        del model, optimizer
    torch.set_num_threads(threads)
    name = f"CPU of diff, a step of {parameters / 1e6:.0f} M parameters, vs a reading"
    yield Row(name, against_reading(*sides, runs=1), 6, False)


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
