"""The demo's work: training steps of both sides for each batch, what `diff` says of them, and whether the port's
difference grows over many steps.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..compare.comparison import diff
from ..compare.open_trace import open_trace
from ..errors import TraceExistsError, storage
from ..judge.measure.result import CLEAN, PairResult, Result, Verdict
from .audio import CLIPS
from .port import Port, find_bug

FIRST_NORM = "ln1"


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch: its clips, where its traces are, and what was found."""

    number: int
    start: int
    clips: int
    reference: Path
    candidate: Path
    result: Result

    @property
    def matters(self) -> bool:
        """Whether there is more to say of it than that it is noise."""
        return self.result.verdict not in (Verdict.SAME, Verdict.NOISE) or self.result.exit_code != 0

    @property
    def flips(self) -> int:
        """How many tensors a decision at a near-tie has changed."""
        return len(self.result.flips)

    @property
    def norm_error(self) -> float | None:
        """The larger error of the two gradients of the first LayerNorm, raw."""
        errors = [
            _error(pair) for pair in self.result.pairs if (pair.site.phase, pair.site.name) == ("grad", FIRST_NORM)
        ]
        return max(errors, default=None)


def _error(pair: PairResult) -> float:
    return 0.0 if pair.measurement is None or pair.measurement.rel_l2 is None else pair.measurement.rel_l2


@dataclass(frozen=True, slots=True)
class Settings:
    """What the demo runs."""

    directory: Path
    port: Port
    bug: str = "none"
    batches: int = 10
    batch: int = 32
    seed: int = 0

    @property
    def weights(self) -> Path:
        """What both sides load."""
        return self.directory / "weights.bin"

    def starts(self) -> range:
        """The first clip of each batch; there are only so many clips."""
        return range(0, min(self.batches * self.batch, CLIPS), self.batch)


def run_batches(settings: Settings) -> Iterator[Batch]:
    """Run and compare batch after batch. The traces of the first one, and of the first that matters, are kept."""
    from .twin import Run, export

    export(settings.weights, seed=settings.seed)
    steps = find_bug(settings.bug).steps
    kept = 0
    for number, start in enumerate(settings.starts()):
        place = settings.directory / f"batch-{number}"
        reference, candidate = place / "reference", place / "candidate"
        size = min(settings.batch, CLIPS - start)
        run = Run(settings.weights, start=start, batch=size, samples=size, steps=steps, seed=settings.seed)
        run.record(reference, overwrite=True)
        settings.port.record(
            settings.weights, candidate, start=start, batch=size, samples=size, steps=steps, seed=settings.seed,
            bug=settings.bug,
        )  # fmt: skip
        batch = Batch(number, start, size, reference, candidate, diff(reference, candidate))
        if number and (kept or not batch.matters):
            shutil.rmtree(place)
        kept += batch.matters
        yield batch


def run_steps(settings: Settings, steps: int) -> list[Distance]:
    """Many steps over the first batch, without activations: by the port, by PyTorch, and by PyTorch in float64."""
    import torch

    from .twin import Run

    place = settings.directory / "steps"
    size = min(settings.batch, CLIPS)
    for name, dtype in ("reference", torch.float32), ("float64", torch.float64):
        run = Run(settings.weights, batch=size, samples=0, steps=steps, seed=settings.seed, dtype=dtype)
        run.record(place / name, overwrite=True)
    settings.port.record(
        settings.weights, place / "candidate", start=0, batch=size, samples=0, steps=steps, seed=settings.seed,
        bug=settings.bug,
    )  # fmt: skip
    found = distances(place / "candidate", place / "reference", place / "float64")
    shutil.rmtree(place)  # a megabyte a step, of which the distances are the essence
    return found


def prepare(directory: Path, *, force: bool) -> None:
    """An empty directory, or one of an earlier demo, which is emptied; anything else only by force."""
    reference = {"demo.json", "kws", "weights.bin", "steps"}
    with storage(directory, "make the demo's directory", "choose another by --out"):
        directory.mkdir(parents=True, exist_ok=True)
        found = list(directory.iterdir())
        foreign = [path.name for path in found if path.name not in reference and not path.name.startswith("batch-")]
        if found and not force and (foreign or not (directory / "demo.json").is_file()):
            name = (foreign or [path.name for path in found])[0]
            raise TraceExistsError(f"{directory}: holds {name!r}, which no demo made; choose another --out, or --force")
        for path in found:
            if path.name in reference or path.name.startswith("batch-"):
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        (directory / "demo.json").write_text("{}\n")


def answer(batches: Iterable[Batch]) -> str:
    """What the batches say to the question why the first LayerNorm's gradients differ from batch to batch."""
    batches = list(batches)
    clips = sum(batch.clips for batch in batches)
    errors = [batch.norm_error for batch in batches if batch.norm_error is not None]
    flipped = [batch for batch in batches if batch.flips]
    if not all(batch.result.verdict in CLEAN for batch in batches):
        return "not asked: the two sides differ by more than noise and near-ties"
    if not errors:
        return "not asked: the gradients of the first LayerNorm were not recorded"
    if not flipped:
        return (
            f"no decision flipped in these {clips} clips, and {FIRST_NORM}'s gradients agree to {max(errors):.0e} in "
            "every batch: its backward is right; a larger difference in one batch and not in another would be a flip"
        )
    calm = [batch.norm_error or 0.0 for batch in batches if not batch.flips]
    where = ", ".join(f"batch {batch.number} ({batch.norm_error or 0:.0e})" for batch in flipped)
    elsewhere = f"; elsewhere they agree to {max(calm):.0e}" if calm else ""
    return (
        f"flips: {FIRST_NORM}'s gradients differ in {where}, where a ReLU or a max-pool decided a near-tie the other "
        f"way, each side by its own values{elsewhere}: no formula is wrong"
    )


COMPOUNDS = 4.0  # times PyTorch's own distance from float64


@dataclass(frozen=True, slots=True)
class Distance:
    """How far all weights, as one vector, are from those of the float64 run after a step."""

    step: int
    port: float
    torch: float
    moved: float  # how far the float64 run has come since its first step began

    @property
    def ratio(self) -> float:
        """The port's distance, in units of PyTorch's."""
        return self.port / self.torch if self.torch else math.inf if self.port else 1.0


def distances(port: Path, torch: Path, double: Path) -> list[Distance]:
    """From three traces of the same steps."""
    start = next(_weights(double, "weight"))
    runs = (_weights(path, "weight_after") for path in (port, torch, double))
    return [
        Distance(
            number + 1,
            float(np.linalg.norm(reference - truth)),
            float(np.linalg.norm(candidate - truth)),
            float(np.linalg.norm(truth - start)),
        )
        for number, (reference, candidate, truth) in enumerate(zip(*runs, strict=True))
    ]


def _weights(path: Path, phase: str) -> Iterator[np.ndarray[tuple[int], np.dtype[np.float64]]]:
    """All parameters of a step in one vector, step after step."""
    trace = open_trace(path)
    by_step: dict[int, dict[tuple[str, str], np.ndarray[tuple[int], np.dtype[np.float64]]]] = {}
    for record in trace:
        site = record.site
        if site.phase == phase:
            value = np.asarray(trace.array(record), np.float64).ravel()
            by_step.setdefault(site.step, {})[site.name, site.port] = value
    for step in sorted(by_step):
        yield np.concatenate([by_step[step][key] for key in sorted(by_step[step])])


def conclusion(found: Sequence[Distance]) -> str:
    """What the distances say, in a sentence."""
    last = found[-1]
    after = f"after {last.step} steps the port is {last.ratio:.1f} times as far from float64 as PyTorch is"
    share = f"{last.port / (last.moved or 1.0):.0e} of the way that the weights went"
    if last.ratio <= COMPOUNDS:
        return f"the port adds nothing that compounds: {after}; both have parted from it by {share}"
    return f"the port's difference compounds: {after}; it has parted from it by {share}"
