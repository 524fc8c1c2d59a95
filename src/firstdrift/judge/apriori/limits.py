"""How large an error noise explains at a site: what its operation adds, and what its inputs pass on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ...core.sites import BACKWARD_PHASES, Site, is_inside
from ...pair.pairs import Pair
from ..graph import Graph
from ..measure.measuring import Measured, unit_of
from .kinds import forward_length, gain_limit, is_product, kind_of, norm_length, per_sample
from .ladder import SQUARES, floor, likely_limit, local_limit

CALIBRATION = "noise"  # the key of a trace's line that says how noisy the reference itself is there
_BACKWARD = frozenset({"lossgrad", "agrad", "grad", "grad_scaled"})


def limits_for(items: Mapping[Site, Measured], graph: Graph) -> Limits:
    """Limits from the ladder, or from the calibration of the reference where it has one."""
    if not any(CALIBRATION in item.pair.reference.details for item in items.values()):
        return Limits(items, graph)
    from .calibrated import CalibratedLimits

    return CalibratedLimits(items, graph)


class Limits:
    """Errors and their limits, from the measurements of a run and what each site was computed from."""

    def __init__(self, items: Mapping[Site, Measured], graph: Graph) -> None:
        self.items = items
        self.graph = graph
        self.gains = self.measured_gains()

    def limit(self, item: Measured, producers: Sequence[Site], inherited: float) -> float:
        """The largest error that this site's own rounding and its inputs' errors explain."""
        pair = item.pair
        if pair.tolerance is not None:
            return pair.tolerance.relative
        passed = self.gain(pair) * (inherited if math.isfinite(inherited) else 0.0)
        return self.local(item, producers) + passed

    def is_calibrated(self, item: Measured) -> bool:
        """Whether the reference's own runs say how noisy a site is."""
        return False

    def calibrated(self, item: Measured, error: float, limit: float) -> float | None:
        """How noisy the reference itself is at a site, where that has decided; None where the ladder did."""
        return None

    def producers(self, site: Site) -> list[Site]:
        """The measured sites that a site was computed from."""
        return [other for other in self.graph.producers(site) if other in self.items]

    def gain(self, pair: Pair) -> float:
        """How much the error of its inputs may be amplified at a site."""
        # Backward passes are linear in the gradient that comes in.
        kind = "linear" if pair.site.phase in BACKWARD_PHASES else _kind(pair)
        return gain_limit(kind, *self.peers(pair))

    def local(self, item: Measured, producers: Sequence[Site]) -> float:
        """The error that the operation itself can add."""
        pair = item.pair
        if pair.tolerance is not None:
            return pair.tolerance.relative
        limit = local_limit(unit_of(pair), self.length(pair, _kind(pair), producers), _kind(pair), item.count)
        return limit * self.unseen_depth(pair.site, producers)

    def unshared(self, item: Measured, producers: Sequence[Site]) -> float:
        """The same without a look at other sites: an error that all sites of an operation share moves these, too."""
        return self.local(item, producers)

    def least(self, item: Measured, producers: Sequence[Site]) -> float:
        """The error that two correct implementations show at least, where nobody says how a tensor was made."""
        pair = item.pair
        unit = unit_of(pair)
        likely = likely_limit(unit, self.told_length(pair, producers))
        if pair.site.phase == "fwd":  # of modules in a row, each adds its own
            return math.hypot(likely, floor(unit) * math.sqrt(len(self.unseen_inside(pair.site))))
        return likely * self.unseen_depth(pair.site, producers)

    def told_length(self, pair: Pair, producers: Sequence[Site]) -> int:
        """The number of terms summed for one element, as far as that is known and not only possible."""
        site, shapes = pair.site, [self.items[producer].pair.reference.shape or () for producer in producers]
        if site.phase == "fwd" and _kind(pair) == "linear":
            return self.length(pair, "linear", producers)
        if site.phase == "fwd" and _kind(pair) == "norm":
            return self.length(pair, "norm", producers) // SQUARES
        if site.phase == "grad":
            return max([1, *(math.prod(shape[:-1]) for shape in shapes)])
        return 1

    def unseen_depth(self, site: Site, producers: Sequence[Site]) -> float:
        """By how much noise grows on the way to a gradient of which nothing was recorded: forward and back again
        through every module, whose errors add up like a random walk."""
        if site.phase == "fwd":
            return math.sqrt(1 + 2 * len(self.unseen_inside(site)))
        if site.phase != "grad" or any(other.phase in ("fwd", "agrad") for other in producers):
            return 1.0
        modules = {other.name for other in self.items if (other.phase, other.step) == ("grad", site.step)}
        return math.sqrt(2 * len(modules))

    def unseen_inside(self, site: Site) -> set[str]:
        """The modules inside another whose weights are on record, and nothing that they give."""
        inside = {item.name for item in self.items if item.phase == "weight" and is_inside(item.name, site.name)}
        return inside and inside - {item.name for item in self.items if item.phase == "fwd" and item.step == site.step}

    def peers(self, pair: Pair) -> tuple[int, float]:
        """How many other sites this operation has, and the largest gain among them: one wrong layer stands out."""
        gains = self.gains.get(pair.reference.op or "", []) if pair.site.phase == "fwd" else []
        others = [gain for gain, site in gains[:2] if site != pair.site]  # sorted, so that two are enough
        return len(gains) - (len(others) < len(gains[:2])), max(others, default=0.0)

    def measured_gains(self) -> dict[str, list[tuple[float, Site]]]:
        """By operation, the error of every forward output over that of its inputs, largest first."""
        gains: dict[str, list[tuple[float, Site]]] = {}
        for site, item in self.items.items():
            op = item.pair.reference.op
            if site.phase != "fwd" or op is None or not (error := _raw_error(item)):
                continue
            inputs = [_raw_error(self.items[other]) for other in self.producers(site)]
            if inputs and max(inputs) > 0:
                gains.setdefault(op, []).append((error / max(inputs), site))
        return {op: sorted(found, key=lambda item: -item[0]) for op, found in gains.items()}

    def length(self, pair: Pair, kind: str, producers: Sequence[Site]) -> int:
        """The number of terms summed for one element of this site, from the shapes of what it was computed from."""
        shape = pair.reference.shape or ()
        shapes = {site: self.items[site].pair.reference.shape or () for site in producers}
        flowing = [shape for site, shape in shapes.items() if site.phase != "weight"]
        weights = [shape for site, shape in shapes.items() if site.phase == "weight"]
        if pair.site.phase == "grad_scaled":
            return 1
        if pair.site.phase == "grad":
            return max([1, *(math.prod(s) * max(1, self.batch_factor(site)) for site, s in shapes.items())])
        if pair.site.phase in _BACKWARD or pair.site.phase == "loss":
            return max(
                [1, math.prod(shape) if pair.site.phase == "loss" else per_sample(shape), *map(per_sample, flowing)]
            )
        if kind == "norm":
            return norm_length(pair.reference.op or "", shape, weights)
        return self.fan_in(pair) or forward_length(kind, shape, flowing, weights)

    def fan_in(self, pair: Pair) -> int:
        """The terms of one product with the site's own weight, where that was compared; 0 where it was not."""
        site = pair.site._replace(phase="weight", port="weight", call=0, sample=None)
        op = (pair.reference.op or "").lower()
        if pair.site.phase != "fwd" or site not in self.items or not is_product(op) or "transpose" in op:
            return 0
        shape = self.items[site].pair.reference.shape or ()
        return math.prod(shape[1:]) if len(shape) > 1 else 0

    def batch_factor(self, site: Site) -> int:
        """A parameter's gradient sums over the whole batch, of which a per-sample site is one part."""
        return self.graph.batch if site.sample is not None else 1

    def error_of(self, item: Measured, producers: Sequence[Site]) -> float:
        """The relative error, on the scale of the site's terms where the site itself nearly cancels to zero."""
        measurement = item.measurement
        assert measurement is not None
        if measurement.bit_equal:
            return 0.0
        error = math.inf if measurement.rel_l2 is None else measurement.rel_l2
        if measurement.rms == 0:
            return 0.0
        natural = self.scale_of_terms(item, producers)
        if natural > measurement.norm_reference and measurement.rms is not None:
            return measurement.rms * math.sqrt(measurement.compared) / natural
        return error

    def scale_of_terms(self, item: Measured, producers: Sequence[Site]) -> float:
        """The norm a site would have if its terms did not cancel, as far as what it was computed from tells.

        What an optimizer is handed, and remembers, is a gradient times a factor: its terms have cancelled already.
        """
        site, measurement = item.pair.site, item.measurement
        if site.phase not in ("grad_scaled", "optim") or measurement is None:
            return max([self.sibling_norm(item, producers), *(self.natural_norm(item, other) for other in producers)])
        factor = 1.0
        for other in producers:
            before = self.items[other]
            if other.phase in ("grad", "grad_scaled") and before.measurement and before.measurement.norm_reference:
                terms = self.scale_of_terms(before, self.producers(other))
                factor = max(factor, terms / before.measurement.norm_reference)
        squares = site.port.endswith("_sq")  # a mean of squares
        return measurement.norm_reference * (factor**2 if squares else factor)

    def natural_norm(self, item: Measured, site: Site) -> float:
        """The norm that a sum of this many terms of random sign would have: the scale of its rounding errors."""
        other = self.items[site].measurement
        if other is None or item.measurement is None or not other.compared:
            return 0.0
        phase = item.pair.site.phase
        if phase == "grad" and site.phase == "agrad" and len(item.pair.reference.shape or ()) <= 1:
            return other.norm_reference  # a bias sums its output's gradients over all positions
        ratio = item.measurement.compared / other.compared
        if phase == "fwd" and _kind(item.pair) in ("add", "move"):  # sums and means of what goes in
            return other.norm_reference * math.sqrt(ratio) * min(1.0, math.sqrt(ratio))
        if phase == "fwd" and item.measurement.norm_reference == 0:
            return other.norm_reference * math.sqrt(ratio)
        return 0.0

    def sibling_norm(self, item: Measured, producers: Sequence[Site]) -> float:
        """The scale of a bias's gradient from that of the weight beside it, where no activation gradient tells."""
        site = item.pair.site
        if site.phase != "grad" or site.port == "weight" or any(other.phase == "agrad" for other in producers):
            return 0.0
        beside = self.items.get(site._replace(port="weight"))
        if beside is None or beside.measurement is None or len(item.pair.reference.shape or ()) > 1:
            return 0.0
        fan_in = math.prod((beside.pair.reference.shape or ())[1:])
        inputs = [m for other in producers if other.phase in ("fwd", "input") and (m := self.items[other].measurement)]
        scale = max((m.norm_reference / math.sqrt(m.compared) for m in inputs if m.compared), default=1.0)
        return beside.measurement.norm_reference / (math.sqrt(fan_in) * scale) if scale > 0 else 0.0


def _kind(pair: Pair) -> str:
    return kind_of(pair.reference.op) if pair.site.phase == "fwd" else "unknown"


def _raw_error(item: Measured) -> float:
    found = item.measurement
    return 0.0 if found is None or found.rel_l2 is None or not math.isfinite(found.rel_l2) else found.rel_l2
