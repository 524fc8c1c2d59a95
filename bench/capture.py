"""The bars of PyTorch capture: what it costs a GPT-2-small-shaped training step, beside other tools."""

import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import torch
from ratios import Row, seconds
from torch import nn

import firstdrift as fd
from firstdrift.capture.torch.backward import Backward
from firstdrift.capture.torch.session import Tracing
from firstdrift.capture.torch.step_updates import Updates

LAYERS, WIDTH, HEADS, VOCABULARY = 12, 768, 12, 50257
BATCH, LENGTH = 4, 256
PAIRS = 3


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.c_attn(x).chunk(3, -1))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(fd.tap("mixed", mixed.transpose(1, 2).flatten(2)))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.attn, self.ln_2 = nn.LayerNorm(WIDTH), Attention(), nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU("tanh"), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = fd.tap("middle", x + self.attn(self.ln_1(x)))
        return x + self.mlp(self.ln_2(x))


class GPT2(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(1024, WIDTH)
        self.h = nn.ModuleList(Block() for _ in range(LAYERS))
        self.ln_f, self.lm_head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


class Training:
    """A training step that can be repeated."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = GPT2()
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.ids = torch.randint(0, VOCABULARY, (BATCH, LENGTH))

    def step(self) -> None:
        logits = self.model(self.ids)
        nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), self.ids[:, 1:].flatten()).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def traced(self, path: Path, **options: object) -> Callable[[], None]:
        def run() -> None:
            with fd.trace(self.model, path, optimizer=self.optimizer, overwrite=True, **options):
                self.step()

        return run


def rows() -> Iterator[Row]:
    with tempfile.TemporaryDirectory(dir=_memory(), prefix=".bench-") as directory:
        path, training = Path(directory) / "trace", Training()
        yield taps(training)
        part = ("input", "fwd", "loss", "lossgrad", "agrad", "grad")
        for name, bar, phases in (("activations and gradients", 1.15, part), ("everything", 1.25, ())):
            cost = inside_hooks(training.traced(path, keep="stats", phases=phases))
            yield Row(f"statistics of {name}, time of a step", cost, bar, False)
        yield from full(path, training)
        yield from peers(training)
    yield from memory()


def taps(training: Training) -> Row:
    """Taps without a trace: the time of a tap, as often as the step calls it."""
    tensor, calls = torch.ones(1), 100_000
    start = time.perf_counter()
    for _ in range(calls):
        fd.tap("mixed", tensor)
    each = (time.perf_counter() - start) / calls
    training.step()
    ratio = 1 + 2 * LAYERS * each / seconds(training.step)
    return Row("no trace open, taps in the code, time of a step", ratio, 1.01, False)


def inside_hooks(traced: Callable[[], None], runs: int = 3) -> float:
    """What a traced step takes over what it takes without our hooks."""
    return median((step + spent) / step for step, spent in hook_times(traced, runs))


def hook_times(traced: Callable[[], None], runs: int) -> Iterator[tuple[float, float]]:
    """Seconds of a step, and of our hooks in it, as an idle machine would take them.

    Both are CPU time of one run, because on a shared machine two steps differ by more than a trace costs. The step's
    is divided by the threads that share it: no machine is faster than that. Hooks run in one.
    """
    spent = 0.0

    def timed(work: Callable[..., object]) -> Callable[..., object]:
        def run(*args: object, **kwargs: object) -> object:
            nonlocal spent
            start = time.thread_time()
            try:
                return work(*args, **kwargs)
            finally:
                spent += time.thread_time() - start

        return run

    hooks = (
        (Tracing, "enter"), (Tracing, "leave"), (Tracing, "tapped"), (Tracing, "begin_backward"),
        (Tracing, "end_backward"), (Tracing, "__enter__"), (Tracing, "__exit__"), (Backward, "_flowed"),
        (Updates, "before"), (Updates, "after"),
    )  # fmt: skip
    with ExitStack() as stack:
        for owner, name in hooks:
            original = getattr(owner, name)
            setattr(owner, name, timed(original))
            stack.callback(setattr, owner, name, original)
        traced()
        for _ in range(runs):
            spent = 0.0
            whole = seconds(traced, time.process_time)
            yield (whole - spent) / torch.get_num_threads(), spent


def full(path: Path, training: Training) -> Iterator[Row]:
    """A full trace, against the step followed by plain write() of as many bytes into new files beside it."""
    source = memoryview(np.ones(64 << 20))  # 512 MiB: as little of it is in a cache as of a model's tensors
    ratios, size = [], 0
    for step, spent in hook_times(training.traced(path), PAIRS):
        sizes = [file.stat().st_size for file in path.glob("*.bin")]
        size = sum(sizes)
        plain = path.with_name("plain")
        shutil.rmtree(path)
        plain.mkdir()
        writing = seconds(partial(_write, plain, sizes, source), time.process_time)
        print(f"    step {step:.2f} s, hooks {spent:.2f} s, write() {writing:.2f} s", flush=True)
        ratios.append((step + spent) / (step + writing))
        shutil.rmtree(plain)
    yield Row(f"a full trace ({size / 2**30:.1f} GiB), against the step and write()", median(ratios), 1.2, False)


def _write(directory: Path, sizes: list[int], source: memoryview) -> None:
    octets, offset = source.cast("B"), 0
    for number, left in enumerate(sizes):
        with open(directory / str(number), "wb", buffering=0) as file:
            while left > 0:
                offset %= len(octets)
                written = file.write(octets[offset : offset + min(left, 4 << 20)]) or 0
                left, offset = left - written, offset + written


def peers(training: Training) -> Iterator[Row]:
    """The same step under other tools, for comparison; no bar of ours."""
    for name, run in (("torchlens", _torchlens), ("transformers' debugger", _debugger)):
        try:
            ratio = _ratio(lambda run=run: run(training), training.step, 1)
        except ImportError:
            print(f"  {name}: not installed")
            continue
        yield Row(f"a forward pass under {name}, against a whole plain step", ratio, float("inf"), False)


def _torchlens(training: Training) -> None:
    import torchlens

    with torch.no_grad():
        torchlens.trace(training.model, training.ids)


def _debugger(training: Training) -> None:
    from transformers.model_debugging_utils import model_addition_debugger_context

    with (
        tempfile.TemporaryDirectory(dir=_memory()) as directory,
        torch.no_grad(),
        model_addition_debugger_context(training.model, debug_path=directory, do_prune_layers=False),
    ):
        training.model.forward(training.ids)


def memory() -> Iterator[Row]:
    """Anonymous memory that a full trace adds to the peak of a step, of which the largest tensor is 196 MiB."""
    peaks = []
    for mode in ("plain", "full"):
        code = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
import capture, tempfile, pathlib, threading, re, time
training = capture.Training()
def anonymous(): return int(re.search(r"RssAnon:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) / 1024
training.step()
peak, stop = 0.0, False
def watch():
    global peak
    while not stop:
        peak = max(peak, anonymous()); time.sleep(0.002)
watcher = threading.Thread(target=watch); watcher.start()
with tempfile.TemporaryDirectory(dir=capture._memory()) as directory:
    (training.traced(pathlib.Path(directory) / "t") if {mode == "full"} else training.step)()
stop = True; watcher.join(); print(peak)
"""
        out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        peaks.append(float(out))
    largest = BATCH * LENGTH * VOCABULARY * 4 / 2**20
    yield Row("extra anonymous memory of a full trace", peaks[1] - peaks[0], 4 * largest + 256, False, "MiB")


def _memory() -> str | None:
    """A directory in memory, so that no disk is measured."""
    return "/dev/shm" if re.search(r" /dev/shm tmpfs", Path("/proc/mounts").read_text()) else None


def _ratio(numerator: Callable[[], None], denominator: Callable[[], None], pairs: int = PAIRS) -> float:
    numerator()
    denominator()
    ratios = []
    for _ in range(pairs):
        start = time.perf_counter()
        denominator()
        between = time.perf_counter()
        numerator()
        ratios.append((time.perf_counter() - between) / (between - start))
    return median(ratios)


if __name__ == "__main__":
    for row in rows():
        print(row, flush=True)
