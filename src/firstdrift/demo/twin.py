"""The PyTorch twin of the C port: the same network, weights, clips and step, recorded with `fd.trace`.

    python -m firstdrift.demo.twin --export weights.bin
    python -m firstdrift.demo.twin --weights weights.bin --out reference
    python -m firstdrift.demo.twin --weights weights.bin --npy dump

It runs the batch at once and takes the mean; the port runs samples one by one and sums. `firstdrift diff` knows.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import numpy as np
import torch
from torch import nn

from ..capture.tracing import trace
from ..compare.open_trace import open_trace
from ..core.records import Record
from ..core.sites import PHASES
from ..core.traces import Array, Trace
from ..errors import FirstdriftError, printable
from ..live.sides import one_thread
from ..pair.batches import SCALED_PHASES, sample_steps
from ..pair.pairs import Transform, apply_all
from ..store.formats import npy_steps
from .audio import CLASSES, make_batch
from .spotter_files import PROBES, Arrays, read_probes, read_weights, write_weights

RATE, MOMENTUM = 0.005, 0.9
ACTIVATIONS = frozenset({"input", "fwd", "lossgrad", "agrad"})


def layers() -> Iterator[nn.Module]:
    """The 17 layers, as PyTorch makes them."""
    yield nn.AvgPool1d(16)
    length = 1000
    for inputs, channels, kernel in (1, 16, 9), (16, 32, 5), (32, 64, 3):
        yield nn.Conv1d(inputs, channels, kernel, padding=kernel // 2)
        yield nn.LayerNorm([channels, length])
        yield nn.ReLU()
        yield nn.MaxPool1d(4)
        length //= 4
    yield nn.AdaptiveAvgPool1d(1)
    yield nn.Flatten()
    yield nn.Linear(64, CLASSES)
    yield nn.Softmax(-1)


class KeywordSpotter(nn.Sequential):
    """The layers under the names of the manifest. Gives the logits, which the loss reads, and the probabilities."""

    def __init__(self, probes: list[str]) -> None:
        super().__init__(OrderedDict(zip(probes, layers(), strict=True)))

    def forward(self, audio: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Both of them; the softmax is the last layer."""
        *before, softmax = self
        logits = audio
        for layer in before:
            logits = layer(logits)
        return logits, softmax(logits)


def initial_weights(seed: int, probes: list[str]) -> Arrays:
    """PyTorch's own initialisation, and norms that are not ones and zeros: those would hide mistakes."""
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = KeywordSpotter(probes)
    for layer in model:
        if isinstance(layer, nn.LayerNorm):
            for parameter in layer.parameters():
                parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    return {name: value.detach().numpy() for name, value in model.named_parameters()}


@dataclass(frozen=True, slots=True)
class Run:
    """What to run; the options are those of the port."""

    weights: Path
    probes: Path = PROBES
    start: int = 0
    batch: int = 32
    samples: int = 4  # 0 leaves the activations out; else the batch is recorded whole, and diff cuts samples out
    steps: int = 1
    seed: int = 0
    dtype: torch.dtype = torch.float32

    def load(self) -> KeywordSpotter:
        """The model with the exported weights."""
        model = KeywordSpotter(read_probes(self.probes))
        found = read_weights(self.weights, {name: tuple(p.shape) for name, p in model.named_parameters()})
        model.load_state_dict({name: torch.from_numpy(value) for name, value in found.items()})
        return model.to(self.dtype)

    def record(self, path: Path, *, overwrite: bool = False) -> tuple[list[float], str | None]:
        """Run the steps under `fd.trace`. Gives the losses, and what is to be said of the batch."""
        model = self.load()
        names = read_probes(self.probes)
        losses = []
        clips, labels, note = make_batch(self.seed, self.start, self.batch)
        x, y = torch.from_numpy(clips).to(self.dtype), torch.from_numpy(labels)
        x.requires_grad_()  # so that the first layer has a gradient, as it has in the port
        optimizer = torch.optim.SGD(model.parameters(), RATE, MOMENTUM)
        phases = [phase for phase in PHASES if self.samples or phase not in ACTIVATIONS]
        with one_thread(), trace(
            model, path, optimizer=optimizer, logits=names[-2], only=names, phases=phases, overwrite=overwrite,
            seed=self.seed, start=self.start, batch=len(y),
        ):  # fmt: skip
            for _ in range(self.steps):
                optimizer.zero_grad()
                logits, _ = model(x)
                loss = nn.functional.cross_entropy(logits, y)
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                losses.append(float(loss.detach()))
        return losses, note

    def leave(self, out: Path | None, npy: Path | None, *, overwrite: bool) -> tuple[list[float], str | None]:
        """Run the steps and leave a trace, or npy step directories as the port's `--npy` does, or both."""
        with TemporaryDirectory() as scratch:
            recorded = out or Path(scratch) / "trace"
            found = self.record(recorded, overwrite=overwrite)
            if npy is not None:
                dump(open_trace(recorded), npy, self.samples, overwrite=overwrite)
        return found


def export(path: Path, *, seed: int = 0, probes: Path = PROBES) -> None:
    """Write the weights that both sides load."""
    weights = initial_weights(seed, read_probes(probes))
    write_weights(path, {name: np.asarray(value) for name, value in weights.items()})


@click.command(help=(__doc__ or "").split("\n\n    ")[0])
@click.option("--export", "export_to", metavar="FILE", type=Path, help="Write the weights that both sides load.")
@click.option("--weights", metavar="FILE", type=Path, help="Load them.")
@click.option("--probes", metavar="FILE", type=Path, default=PROBES, help="The names of the layers, one a line.")
@click.option("--out", metavar="DIR", type=Path, help="Record a trace.")
@click.option("--npy", metavar="DIR", type=Path, help="Write npy step directories, in the names and units of the port.")
@click.option("--force", is_flag=True, help="Replace what is there.")
@click.option("--start", metavar="N", type=click.IntRange(min=0), default=0, help="The first clip (0).")
@click.option("--batch", metavar="N", type=click.IntRange(min=1), default=32, help="Clips in a step (32).")
@click.option(
    "--samples", metavar="N", type=click.IntRange(min=0), default=4,
    help="0: no activations; else those of the whole batch, whose samples diff cuts out; of --npy, how many (4).",
)  # fmt: skip
@click.option("--steps", metavar="N", type=click.IntRange(min=1), default=1, help="Steps, over the same batch (1).")
@click.option("--seed", metavar="N", type=click.IntRange(min=0), default=0, help="Of weights and audio (0).")
@click.option("--double", is_flag=True, help="Compute in float64, to be the arbiter.")
def main(
    export_to: Path | None, weights: Path | None, probes: Path, out: Path | None, npy: Path | None, force: bool,
    start: int, batch: int, samples: int, steps: int, seed: int, double: bool,
) -> None:  # fmt: skip
    """Export, or record."""
    if (export_to is None) == (weights is None or out is npy is None):
        raise click.UsageError("give either --export FILE, or --weights FILE and --out DIR or --npy DIR")
    try:
        if export_to is not None:
            export(export_to, seed=seed, probes=probes)
            return
        assert weights is not None
        dtype = torch.float64 if double else torch.float32
        run = Run(weights, probes, start=start, batch=batch, samples=samples, steps=steps, seed=seed, dtype=dtype)
        losses, note = run.leave(out, npy, overwrite=force)
    except FirstdriftError as error:
        click.echo(f"twin: {error}", err=True)
        sys.exit(2)
    if note:
        click.echo(f"note: {printable(note)}")
    for loss in losses:
        click.echo(f"mean_loss={loss:.6f}")


BATCHED = frozenset({"input", "fwd", "lossgrad", "agrad"})  # of which a sample is a row


def dump(trace: Trace, directory: Path, samples: int, *, overwrite: bool) -> None:
    """Write npy step directories with the names and the units that the port's have."""
    batch = trace.header["batch"]
    made = [site for record in trace.lines for site in _as_the_port_has_it(record, samples, batch)]
    arrays = {line.site: partial(_array, trace, record, steps) for line, record, steps in made}
    said = {"gradient_of": {"reduction": "sum", "batch": batch}}
    lines = [line for line, _, _ in made]
    whole = Trace(trace.path, trace.format, lines, lambda number: trace.path, header=said, special=arrays)
    npy_steps.write(whole, directory, overwrite=overwrite, advance=lambda nbytes: None)


def _as_the_port_has_it(
    record: Record, samples: int, batch: int
) -> Iterator[tuple[Record, Record, tuple[Transform, ...]]]:
    """What the port would dump of a tensor, the tensor, and the way there; of what it does not dump, nothing."""
    site, shape = record.site, record.shape
    if record.at is None or shape is None or site.phase == "optim" or site.port.startswith("in."):
        return
    scaled = (Transform("scale", factor=float(batch)),) if site.phase in SCALED_PHASES else ()
    if site.phase not in BATCHED:
        yield record, record, scaled
        return
    for sample in range(min(samples, batch)):
        line = record._replace(site=site._replace(sample=sample), shape=(1, *shape[1:]))
        yield line, record, (*sample_steps(sample), *scaled)


def _array(trace: Trace, record: Record, steps: tuple[Transform, ...]) -> Array:
    return apply_all(trace.array(record), steps)


if __name__ == "__main__":
    main()
