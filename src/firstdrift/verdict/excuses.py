"""Errors beyond noise that are no drift, because what was recorded before explains them: amplified, or a flip."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..compare.measuring import Measured
from ..compare.pairs import Pair
from ..compare.result import CLEAN, PairResult
from ..dtypes import roundoff
from ..sites import Site
from ..traces import Array
from .flips import explained_by_flips, explained_by_kinks
from .graph import Graph
from .handed_on import follows_from_outputs, multiple_of_error
from .reasons import AMPLIFIED


@dataclass(frozen=True, slots=True)
class Excuses:
    """What was measured, what has been judged so far, and the error that each site is known to have."""

    items: Mapping[Site, Measured]
    results: Mapping[Site, PairResult]
    graph: Graph
    error: Callable[[Site], float]
    load: Callable[[Pair], tuple[Array, Array]]

    def handed_on(self, judged: PairResult) -> str | None:
        """Whether a loss, or its gradient, differs by what the outputs that it reads make it differ by."""
        site = judged.site
        assert judged.limit is not None
        if site.phase == "loss" and follows_from_outputs(self.load(judged.pair), self._read(site), judged.limit):
            return f"{AMPLIFIED}: it differs by what its gradient says of how its outputs do"
        if site.phase != "lossgrad":
            return None
        for output in self._read_by_loss(site):
            both = self.load(judged.pair), self.load(self.items[output].pair)
            if (factor := multiple_of_error(*both, judged.limit)) is not None:
                return (
                    f"{AMPLIFIED}: it differs by {factor:.3g} times what the output does, which is close to its target"
                )
        return None

    def _read(self, loss: Site) -> list[tuple[tuple[Array, Array], tuple[Array, Array]]]:
        """Both sides' gradients and outputs of everything that a loss reads; none, where an output is not known."""
        found = []
        for site, item in self.items.items():
            if (site.phase, site.step, site.sample) != ("lossgrad", loss.step, loss.sample):
                continue
            shape = item.pair.reference.shape
            outputs = [one for one in self._read_by_loss(site) if self.items[one].pair.reference.shape == shape]
            if not outputs or item.measurement is None:
                return []
            found.append((self.load(item.pair), self.load(self.items[outputs[0]].pair)))
        return found

    def _read_by_loss(self, site: Site) -> list[Site]:
        """The clean outputs that a loss may have read to make this gradient."""
        ends = [site._replace(phase="fwd", name="", port=port) for port in (site.port, "out")]
        found = [one for one in dict.fromkeys((*ends, *self.graph.producers(site))) if one in self.results]
        return [one for one in found if self.results[one].verdict in CLEAN and self.items[one].measurement is not None]

    def flip(self, judged: PairResult) -> str | None:
        """Whether a gradient differs only where the forward pass took a decision between near-ties."""
        if judged.site.phase not in ("agrad", "lossgrad"):
            return None
        assert judged.limit is not None
        gradients = None
        for forward in self._decided_on(judged.site):
            pair = self.items[forward].pair
            gradients = gradients or self.load(judged.pair)
            noise = max(self.error(forward), roundoff(pair.reference.dtype, pair.candidate[0].dtype))
            explained = explained_by_flips if judged.site.phase == "agrad" else explained_by_kinks
            if (flip := explained(gradients, self.load(pair), judged.limit, noise)) is not None:
                return flip
        return None

    def _decided_on(self, site: Site) -> list[Site]:
        """Forward values that a mask on this gradient may have been decided on: those of the output itself, or what
        its readers were fed, which a sum and a ReLU that nobody recorded may have made of it."""
        if site.phase == "lossgrad":
            return [one for one in self._read_by_loss(site) if not self.items[one].is_integer]
        own = site._replace(phase="fwd")
        fed = [other for other in self.graph.consumers(own) if other.port.startswith("in.")]
        found = [one for one in dict.fromkeys((own, *fed)) if one in self.results and self.items[one].measurement]
        return [one for one in found if self.results[one].verdict in CLEAN and not self.items[one].is_integer]
