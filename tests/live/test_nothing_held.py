"""After a comparison nothing is held: no descriptor, no map of a file that is gone, no memory that grows."""

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import firstdrift as fd
from firstdrift.sweeping.answer import SweepResult

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

WIDE, NARROW = 512, 128  # of weights that a few calls, or many, may leave behind
GROWTH = 12 << 20  # bytes: a few small ones a call, and less than one copy of the weights a call


class Block(nn.Module):
    def __init__(self, activation: nn.Module, *, scale: float = 1.0, width: int = 32) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.norm, self.activation = nn.LayerNorm(width), activation
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.norm(self.down(self.activation(self.up(x)))) * self.scale


class Odd(nn.Module):
    """What no hypothesis knows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.gelu(x) + 0.01 * torch.sin(37 * x) * torch.cos(x.flip(-1))


class Fussy(Block):
    """Refuses to be run on the tensors of another model."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.up(x)
        if not torch.equal(made.float(), nn.functional.linear(x, self.up.weight, self.up.bias).float()):
            raise RuntimeError("these are not my numbers")
        return x + self.norm(self.down(self.activation(made)))


def _pair(candidate: Block, reference: Block | None = None) -> tuple[nn.Module, nn.Module, torch.Tensor]:
    reference = Block(nn.GELU()) if reference is None else reference
    candidate.load_state_dict(reference.state_dict())
    return reference, candidate, torch.randn(4, 32)


def _check(candidate: Block, reference: Block | None = None, **options: object) -> Callable[[], fd.Result]:
    torch.manual_seed(0)
    ours, theirs, x = _pair(candidate, reference)
    return lambda: fd.check(reference=ours, candidate=theirs, inputs=x, **options)  # type: ignore[arg-type]


def _loss(output: torch.Tensor) -> torch.Tensor:
    return output.square().mean()


def _adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters())


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.1)


CHECKS: dict[str, tuple[Callable[[], Callable[[], fd.Result]], int]] = {
    "clean": (lambda: _check(Block(nn.GELU())), 0),
    "explained": (lambda: _check(Block(nn.GELU("tanh"))), 1),
    "unexplained": (lambda: _check(Block(Odd())), 1),
    "clean step": (lambda: _check(Block(nn.GELU()), loss_fn=_loss, optimizer=_adam, steps=2), 0),
    "other optimizer": (
        lambda: _check(Block(nn.GELU()), loss_fn=_loss, optimizer=_adam, candidate_optimizer=_sgd),
        1,
    ),
    "gradient": (lambda: _check(Block(nn.GELU("tanh")), loss_fn=_loss, steps=2), 1),
    "random": (lambda: _check(Block(nn.Sequential(nn.GELU(), nn.Dropout(0.1).train())), train=True), 1),
    "not replayed": (lambda: _check(Block(nn.GELU(), scale=1.5), Fussy(nn.GELU())), 1),
}  # fmt: skip


def _held() -> tuple[int, int]:
    """Open descriptors, and maps of files that are gone."""
    with open("/proc/self/maps") as maps:
        gone = sum("(deleted)" in line for line in maps)
    return len(list(Path("/proc/self/fd").iterdir())), gone


def _resident() -> int:
    with open("/proc/self/statm") as said:
        return int(said.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Nothing may wait for the garbage collector: with few, large objects it does not come."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("kind", CHECKS)
def test_a_check_leaves_nothing_open(kind: str, uncollected: None) -> None:
    make, code = CHECKS[kind]
    check = make()
    assert check().exit_code == code  # libraries open what they need
    before = _held()
    kept = [check() for _ in range(2)]  # results hold nothing, either
    assert _held() == before
    assert {result.exit_code for result in kept} == {code}


def _traces(folder: Path, *activations: nn.Module) -> list[Path]:
    torch.manual_seed(0)
    ours, theirs, x = _pair(Block(activations[1]), Block(activations[0]))
    paths = [folder / "reference", folder / "candidate"]
    for model, path in zip((ours, theirs), paths, strict=True):
        with fd.trace(model, path):
            _loss(model(x)).backward()
            model.zero_grad()
    return paths


@pytest.mark.parametrize("candidate", [nn.GELU(), nn.GELU("tanh"), Odd()], ids=["clean", "explained", "unexplained"])
def test_a_diff_leaves_nothing_open(candidate: nn.Module, tmp_path: Path, uncollected: None) -> None:
    paths = _traces(tmp_path, nn.GELU(), candidate)
    fd.diff(*paths)
    before = _held()[0], _maps_of(tmp_path)
    kept = [fd.diff(*paths, verify=verify) for verify in (True, False)]
    assert (_held()[0], _maps_of(tmp_path)) == before
    assert _maps_of(tmp_path) == 0
    assert kept


def _maps_of(folder: Path) -> int:
    with open("/proc/self/maps") as maps:
        return sum(str(folder) in line for line in maps)


def _side(wrong: float) -> Callable[..., None]:
    def run(out: str, width: int) -> None:
        rng = np.random.default_rng(0)
        x, w = rng.standard_normal((4, width), np.float32), rng.standard_normal((width, width), np.float32)
        with fd.Writer(out) as writer:
            writer.put("", "input", x, port="0")
            writer.put("layer", "weight", w, port="weight")
            writer.put("layer", "fwd", x @ w.T * np.float32(wrong if width > 16 else 1), port="out")

    return run


def test_a_sweep_leaves_nothing_open(tmp_path: Path, uncollected: None) -> None:
    def sweep() -> SweepResult:
        return fd.sweep({"width": [8, 16, 32]}, _side(1.0), _side(1.5), jobs=1)

    sweep()
    before = _held()
    kept = [sweep() for _ in range(2)]
    assert _held() == before
    assert [row.exit_code for row in kept[0].rows] == [0, 0, 1]


def _wide(activation: nn.Module, width: int, **options: object) -> Callable[[], object]:
    ours, theirs = Block(nn.GELU(), width=width), Block(activation, width=width)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(2, width)
    return lambda: fd.check(reference=ours, candidate=theirs, inputs=x, **options)  # type: ignore[arg-type]


def _diff(folder: Path) -> Callable[[], object]:
    paths = _traces(folder, nn.GELU(), nn.GELU("tanh"))
    return lambda: fd.diff(*paths)


GROWING: dict[str, Callable[[Path, int], Callable[[], object]]] = {
    "clean": lambda folder, width: _wide(nn.GELU(), width),
    "gradient": lambda folder, width: _wide(nn.GELU("tanh"), width, loss_fn=_loss),
    "unexplained": lambda folder, width: _check(Block(Odd())),
    "diff": lambda folder, width: _diff(folder),
    "sweep": lambda folder, width: lambda: fd.sweep({"width": [8, 32]}, _side(1.0), _side(1.5), jobs=1),
}


def growth(kind: str, calls: int, width: int, folder: Path) -> tuple[int, int, int]:
    """Bytes, descriptors and maps that calls leave behind."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    call = GROWING[kind](folder, width)
    for _ in range(3):
        call()
    gc.collect()
    held, before = _held(), _resident()
    for _ in range(calls):
        call()
    gc.collect()
    now = _held()
    return _resident() - before, now[0] - held[0], now[1] - held[1]


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("calls", "width"), [(12, WIDE), pytest.param(500, NARROW, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", GROWING)
def test_memory_does_not_grow(kind: str, calls: int, width: int, tmp_path: Path) -> None:
    """One copy of the weights that each call left behind would show."""
    code = f"""
from pathlib import Path
from tests.live.test_nothing_held import growth
print(*growth({kind!r}, {calls}, {width}, Path({str(tmp_path)!r})))
"""
    # Alone, and with a fixed threshold: what is freed is given back at once, and nobody else's heap has gaps to fill.
    settings = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(1 << 16)}
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, env=settings)
    assert done.returncode == 0, done.stderr
    grown, *held = map(int, done.stdout.split())
    assert held == [0, 0]
    assert grown < GROWTH
