"""Errors beyond noise of which the traces do not tell whether a flip that nobody recorded is behind them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..compare.measuring import Measured
from ..compare.pairs import Pair
from ..compare.result import PairResult, Verdict
from ..sites import Site
from ..traces import Array
from .flips import FLIP_IN_GRADIENT, FLIP_REACH, sign_changes
from .graph import Graph
from .limits import Limits
from .routes import rows_sent_elsewhere

_DOUBTED = (Verdict.FLIP, Verdict.INCONCLUSIVE)


@dataclass(frozen=True, slots=True)
class Doubts:
    """What was measured, and what has been judged so far."""

    items: Mapping[Site, Measured]
    results: Mapping[Site, PairResult]
    graph: Graph
    limits: Limits
    load: Callable[[Pair], tuple[Array, Array]]

    def about(self, judged: PairResult) -> str | None:
        """Why an error cannot be told from what a flip does; None where it can."""
        if judged.site.phase in ("optim", "weight_after"):
            return self._remembered(judged.site)
        if judged.site.phase in ("grad", "grad_scaled") and judged.error is not None:
            return self._unrecorded(judged.site, judged.error)
        if judged.site.phase == "agrad":
            return self._sent_elsewhere(judged)
        return None

    def _sent_elsewhere(self, judged: PairResult) -> str | None:
        """Whether rows went to another of several like modules, as tokens do to another expert."""
        rows = rows_sent_elsewhere(judged.site, self.items, self.load, judged.limit or 0.0)
        if rows is None:
            return None
        which = "a row" if rows == 1 else f"{rows} rows"
        return f"it differs in {which} sent another way, maybe at a near-tie; record what chose"

    def _unrecorded(self, site: Site, error: float) -> str | None:
        """Whether a flip may be behind a parameter's gradient: in a sample, or in a pass, that was not recorded, or one
        that is visible in the forward pass alone. A few flips among many explain an error of that size only."""
        if site.phase == "grad" and self.graph.samples_missing and self._errs_from_here_on(site):
            return (
                "every gradient from here on differs, none before it: a sample that was not recorded may have flipped"
            )
        if self.graph.has_gradient(site):
            return None
        if not self.graph.saw_pass(site.step) and error <= FLIP_IN_GRADIENT * (1 + self._doubted_before(site.step)):
            return "nothing that it was computed from was recorded, and a flip there may explain it; record activations"
        for result in self.results.values():
            same_pass = (result.site.phase, result.site.step) == ("fwd", site.step) and result.verdict is Verdict.NOISE
            flips = sign_changes(*self.load(result.pair)) if same_pass and result.measurement is not None else 0
            if flips and error <= FLIP_REACH * (flips / result.pair.count) ** 0.5:
                signs = "1 sign" if flips == 1 else f"{flips} signs"
                which = f"{signs} of fwd {result.site.name} decided the other way at a near-tie"
                return f"{which}, which may explain it; record activation gradients to tell"
        return None

    def _remembered(self, site: Site) -> str | None:
        """Whether an optimizer remembers a gradient of an earlier step of which nothing could be said."""
        parameter = site.port.split(".")[0] if site.phase == "optim" else site.port
        for step in range(site.step):
            gradient = self.results.get(Site(step, "grad", site.name, parameter))
            if gradient is not None and gradient.verdict in _DOUBTED:
                return f"the optimizer remembers the gradient of step {step}, where {gradient.reason}"
        return None

    def _doubted_before(self, step: int) -> int:
        """How many steps before this one had flips, or gradients of which nothing could be said: they add up."""
        gradients = [result for result in self.results.values() if result.site.phase == "grad"]
        return len({one.site.step for one in gradients if one.site.step < step and one.verdict in _DOUBTED})

    def _errs_from_here_on(self, site: Site) -> bool:
        """Whether all parameters' gradients upstream of a point, weights and biases alike, differ by more than noise.

        That is what a flip in one sample does. A wrong formula hits one kind of parameter, or every sample.
        """
        flow = [item for other, item in self.items.items() if (other.phase, other.step) == ("grad", site.step)]
        names = [item.pair.site.name for item in flow]
        from_here = flow[names.index(site.name) :]
        return all(item.measurement is not None and self.limits.is_beyond_local(item) for item in from_here)
