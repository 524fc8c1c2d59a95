"""What `fd.calibrate` does: a run of the reference, the same in float64 and perturbed, and how far they are apart.

What comes in, or what one module makes, is perturbed by one rounding: times one plus or minus eps. That is done in the
working precision, so that everything after it rounds anew: the same perturbation carried through in float64
underestimates noise by a factor of three to five.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from ..capture.answers import Calibration
from ..compare.open_trace import open_trace
from ..core.dtypes import UNIT_ROUNDOFF
from ..core.sites import Site
from ..core.traces import Trace, unchanged
from ..errors import FirstdriftError
from ..judge.apriori.calibrated import AGREE, figure, is_rounding
from ..judge.apriori.limits import CALIBRATION
from ..judge.measure.measuring import measure_pairs
from ..kernels import Measurement
from ..pair.align import align
from ..store.annotate import annotate
from .copying import copied_model
from .sides import Side, record

_DOUBLE = ("f64", "c128")
GIVEN = ("input", "weight")  # phases that no run computes

Distances = dict[Site, tuple[float, float]]  # of the whole tensor, and of its worst part


@dataclass(frozen=True, slots=True)
class Point:
    """One call of one module, whose output is perturbed."""

    name: str
    call: int


def calibrate(side: Side, path: Path, runs: int, advance: Callable[[int], None], **options: Any) -> Calibration:
    """Record a side, run it again in all ways, and write into the trace how far those runs are from it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    notes: list[str] = []
    with tempfile.TemporaryDirectory(prefix=".calibrating-", dir=path.parent) as folder:
        reference = record(side, path, **options)
        advance(1)

        def distances(name: str, other: Side) -> Distances:
            found = _distances(reference, record(other, Path(folder, name), program=False))
            advance(1)
            return found

        precise = _in_float64(side, reference, Path(folder, "float64"), notes)
        advance(1)
        perturbed = [distances(f"inputs-{n}", one) for n, one in enumerate(_perturbed(side, runs, notes))]
        point = _middle(side, reference)
        middle = {} if point is None else distances("middle", at_module(side, point, seed=runs))
    figures = _figures(reference, precise, perturbed, middle)
    total = len(perturbed) + (point is not None) + bool(precise)
    notes = [f"the reference is calibrated: {_words(bool(precise), len(perturbed), point)}", *notes]
    header = {
        "calibration": {"runs": len(perturbed), "float64": bool(precise), "perturbed_at": point and point.name},
        "notes": [*reference.notes, *notes],
    }
    annotate(path, {site: {CALIBRATION: said} for site, said in figures.items()}, header)
    return _answer(path, total, notes)


def _in_float64(side: Side, reference: Trace, path: Path, notes: list[str]) -> Distances:
    """How far the reference is from its own float64 run, if there can be one; and what in it was not float64."""
    try:
        precise = record(side.as_precise(), path, program=False)
    except FirstdriftError:
        raise
    except Exception as error:  # whatever a model does that float64 cannot do
        notes.append(f"there is no float64 run ({type(error).__name__}: {error})")
        return {}
    kept = [line.site.name for line in precise if line.dtype in UNIT_ROUNDOFF and line.dtype not in _DOUBLE]
    if kept:
        notes.append(f"not float64 in the float64 run either: {_some(kept)}")
    return _distances(reference, precise)


def _perturbed(side: Side, runs: int, notes: list[str]) -> list[Side]:
    """The side, with what it is fed perturbed anew for every run."""
    made = [at_inputs(side, seed) for seed in range(runs)]
    if not all(reached for _, reached in made):
        notes.append("nothing that is fed in could be perturbed: no floats, and no module that looks integers up")
        return []
    return [one for one, _ in made]


def _middle(side: Side, reference: Trace) -> Point | None:
    """A module halfway through the forward pass: its perturbation reaches branches that the inputs do not."""
    modules = dict(side.model.named_modules())
    outputs = (one for one in reference.lines if one.site.phase == "fwd" and one.site.port.startswith("out"))
    made = [one.site for one in outputs if one.site.name and one.site.name in modules and one.dtype in UNIT_ROUNDOFF]
    return Point(made[len(made) // 2].name, made[len(made) // 2].call) if made else None


def _distances(reference: Trace, other: Trace) -> Distances:
    """How far another run is from the reference, at every site that both have and that was computed."""
    found: Distances = {}
    pairs = [pair for pair in align(reference, other).pairs if pair.site.phase not in GIVEN]
    with unchanged(reference, other):
        items = list(measure_pairs(pairs, reference, other))
    for item in items:
        measured = item.measurement
        if measured is None or item.is_integer or not measured.nonfinite_agree or measured.rel_l2 is None:
            continue
        found[item.pair.site] = measured.rel_l2, _worst_part(measured)
    return found


def _worst_part(measured: Measurement) -> float:
    """The error of the worst row, column or block, on the scale of the whole tensor."""
    detail = measured.detail
    regions = () if detail is None else (detail.worst_row, detail.worst_column, detail.worst_block)
    return max((region.error for region in regions if region is not None), default=0.0)


def _figures(
    reference: Trace, precise: Distances, perturbed: Sequence[Distances], middle: Distances
) -> dict[Site, dict[str, float]]:
    """What every site says of its noise."""
    figures: dict[Site, dict[str, float]] = {}
    for line in reference.lines:
        site = line.site
        said = {"float64": precise[site][0]} if site in precise else {}
        runs = [run[site] for run in perturbed if site in run]
        if runs or site in middle:
            both = middle.get(site, (0.0, 0.0))
            said["perturbed"], said["worst"] = (_noise([run[i] for run in runs], both[i]) for i in (0, 1))
            if site in precise and is_rounding(precise[site][0], said["perturbed"], line.dtype):
                said["worst"] = max(said["worst"], precise[site][1])
        if said:
            figures[site] = {key: float(f"{value:.3g}") for key, value in said.items()}
    return figures


def _noise(inputs: Sequence[float], middle: float) -> float:
    """One number from perturbed runs that agree; where one of them flipped a decision, that of the others."""
    usual = 0.0 if not inputs else min(inputs) if max(inputs) > AGREE * min(inputs) > 0 else max(inputs)
    return usual if 0 < AGREE * usual < middle else max(usual, middle)


def _answer(path: Path, runs: int, notes: Sequence[str]) -> Calibration:
    trace = open_trace(path)
    known = {line.site: noise for line in trace if (noise := figure(line)) is not None}
    noisiest = max(known, key=known.__getitem__, default=None)
    largest = 0.0 if noisiest is None else known[noisiest]
    return Calibration(str(path), len(trace), len(known), runs, noisiest, largest, tuple(notes))


def _words(precise: bool, perturbed: int, point: Point | None) -> str:
    runs = f"{perturbed} runs on perturbed inputs" if perturbed > 1 else "a run on perturbed inputs"
    said = ["a float64 run"] if precise else []
    said += [runs] if perturbed else []
    said += [f"one perturbed at {point.name}"] if point is not None else []
    return ", ".join(said) or "by nothing"


def _some(names: Sequence[str]) -> str:
    """A few names for people."""
    each = list(dict.fromkeys(name or "the model" for name in names))
    return ", ".join(each[:3]) + (f" and {len(each) - 3} more" if len(each) > 3 else "")


def at_inputs(side: Side, seed: int) -> tuple[Side, bool]:
    """The side with everything perturbed that comes in as floats, or that a lookup of integers makes; and whether
    there is any such thing."""
    noise = _Noise(seed)
    data = side.args, dict(side.kwargs)
    args, kwargs = noise.everywhere(data)
    model = copied_model(side.model)
    found = any(_is_float(leaf) for leaf in tree_leaves(data))
    for module in model.modules():
        if not any(module.children()):
            module.register_forward_hook(noise.of_lookups, with_kwargs=True)
            found |= isinstance(module, nn.Embedding | nn.EmbeddingBag)
    return replace(side, model=model, args=args, kwargs=kwargs), found


def at_module(side: Side, point: Point, seed: int) -> Side:
    """The side with the output of one call of one module perturbed."""
    model = copied_model(side.model)
    calls = iter(range(1 << 62))
    noise = _Noise(seed)

    def hook(module: nn.Module, args: Any, output: Any) -> Any:
        return noise.everywhere(output) if next(calls) == point.call else output

    model.get_submodule(point.name).register_forward_hook(hook)
    return replace(side, model=model)


class _Noise:
    """Perturbs tensors, each time by other signs; the program's own random numbers are not used."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def everywhere(self, value: Any) -> Any:
        """Every float in a structure, perturbed."""
        return tree_map(lambda item: self._perturbed(item) if _is_float(item) else item, value)

    def of_lookups(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        """A forward hook: the first floats of a model that is fed integers."""
        tensors = [item for item in tree_leaves((args, kwargs)) if isinstance(item, torch.Tensor)]
        return self.everywhere(output) if tensors and not any(map(_is_float, tensors)) else output

    def _perturbed(self, tensor: torch.Tensor) -> torch.Tensor:
        signs = torch.randint(0, 2, tensor.shape, generator=self._generator) * 2 - 1
        factor = 1 + signs.to(tensor.device, torch.float64) * _eps(tensor)
        return tensor * factor.to(tensor.dtype)


def _is_float(item: object) -> bool:
    return isinstance(item, torch.Tensor) and item.is_floating_point()


def _eps(tensor: torch.Tensor) -> float:
    """Of the precision that the tensor is worked on in."""
    own = torch.finfo(tensor.dtype).eps
    device = tensor.device.type
    if not torch.is_autocast_enabled(device):
        return own
    return max(own, torch.finfo(torch.get_autocast_dtype(device)).eps)
