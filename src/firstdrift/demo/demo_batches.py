"""The demo's work: one training step of both sides for each batch, and what `diff` says of them."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..compare.comparison import diff
from ..errors import TraceExistsError, storage
from ..judge.measure.result import CLEAN, PairResult, Result, Verdict
from .audio import CLIPS
from .compounding import Distance, distances
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
