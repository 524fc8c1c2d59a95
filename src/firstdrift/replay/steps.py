"""Optimizer steps once more, and running statistics: what the reference's rule makes of the candidate's gradients."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from math import prod

import numpy as np

from ..causes.optimizer.optimizer_steps import Given, rule_of, take
from ..sites import Site
from .operation import Floats
from .replayable import Replayable, Tensors
from .sources import Sources

SEEN = ("grad_scaled", "grad")  # what the optimizer was given, the surest first
OWN = ("weight", "grad", "step")  # inputs that are no state of their own


class Steps:
    """Finds how a parameter, its optimizer's state or a running statistic was updated."""

    def __init__(self, sources: Sources) -> None:
        self.sources = sources
        said = sources.reference.header.get("optimizer")
        first = said[0] if isinstance(said, list) and said else said
        found = (first.get("class") or first.get("name") or "") if isinstance(first, dict) else first
        self.optimizer = str(found or "")

    def recipes(self, site: Site) -> Iterator[Replayable]:
        """Ways in which a tensor may have been updated; each is still to be confirmed."""
        if site.phase == "optim":
            port, _, key = site.port.rpartition(".")
            yield from self._by_rule(site, site._replace(phase="weight", port=port), key)
            return
        before = site._replace(phase="weight")
        if before not in self.sources.pairs:
            return
        if site.port.startswith("running_"):
            yield from self._running(site, before)
        else:
            yield from self._by_rule(site, before, "update")
            yield from self._plain(site, before)

    def _by_rule(self, site: Site, weight: Site, key: str) -> Iterator[Replayable]:
        """The optimizer that the run recorded, from each state that it may have started from."""
        after, gradient = weight._replace(phase="weight_after"), self._gradient(weight)
        if gradient is None or weight not in self.sources.pairs or after not in self.sources.pairs:
            return
        attrs = self.sources.record(after).attrs
        rule = rule_of(attrs, self.optimizer) if "lr" in attrs else None
        if rule is None:
            return

        def formula(read: Tensors, parameters: Tensors) -> Floats:
            step = 1 + int(read["step"].max()) if "step" in read else 1
            state = {name: item for name, item in read.items() if name not in OWN}
            made = take(rule, Given(read["weight"], read["grad"], state, step))
            return np.asarray(float(step)) if key == "step" else made.get(key, np.empty(0))

        for state in self._states(weight):
            inputs = {"weight": weight, "grad": gradient, **state}
            base = weight if key == "update" else None
            yield Replayable(
                site, self.optimizer or rule.kind, "move", 1, inputs, {}, formula, settings=attrs, base=base
            )

    def _states(self, weight: Site) -> Iterator[dict[str, Site]]:
        """The state before: that after the step before, or none where this was the first."""
        stored = self.sources.record(weight).site  # the state of a tied parameter has one name
        found = self._optimizer_states.get((stored.step - 1, stored.name, stored.port))
        if found:
            yield found
        yield {}

    @cached_property
    def _optimizer_states(self) -> dict[tuple[int, str, str], dict[str, Site]]:
        found: dict[tuple[int, str, str], dict[str, Site]] = {}
        for site in self.sources.pairs:
            if site.phase == "optim":
                port, _, key = site.port.rpartition(".")
                found.setdefault((site.step, site.name, port), {})[key] = site
        return found

    def _plain(self, site: Site, weight: Site) -> Iterator[Replayable]:
        """Where no rule is recorded: the gradient times a rate, which the reference tells."""
        gradient = self._gradient(weight)
        if gradient is None or "lr" in self.sources.record(site).attrs:
            return
        loaded = [self.sources.load(one) for one in (site, weight, gradient)]
        if any(pair is None for pair in loaded):
            return
        after, before, slope = (np.asarray(pair[0], np.float64).reshape(-1) for pair in loaded if pair is not None)
        energy = float(np.dot(slope, slope))
        if not energy or not np.isfinite(energy):
            return
        rate = -float(np.dot(after - before, slope)) / energy

        def formula(read: Tensors, parameters: Tensors) -> Floats:
            return -rate * read["grad"]

        inputs = {"weight": weight, "grad": gradient}
        yield Replayable(
            site, "gradient times rate", "move", 1, inputs, {}, formula, settings={"lr": rate}, base=weight
        )

    def _running(self, site: Site, before: Site) -> Iterator[Replayable]:
        """Running statistics of a batch norm that ran once."""
        read = Site(site.step, "fwd", site.name, "in.0", 0, None)
        made = read._replace(port="out")
        if (
            read not in self.sources.pairs
            or made not in self.sources.pairs
            or made._replace(call=1) in self.sources.pairs
        ):
            return
        said = self.sources.record(made).attrs.get("momentum", 0.1)
        momentum = float(said) if isinstance(said, int | float) else 0.1
        unbiased = site.port == "running_var"

        def formula(inputs: Tensors, parameters: Tensors) -> Floats:
            x = inputs["in.0"]
            over = (0, *range(2, x.ndim))
            batch = x.var(over, ddof=1) if unbiased else x.mean(over)
            return np.asarray(momentum * (batch - inputs["weight"]))

        inputs = {"in.0": read, "weight": before}
        length = prod(self.sources.shape(read))
        yield Replayable(
            site,
            "running statistics",
            "norm",
            length,
            inputs,
            {},
            formula,
            settings={"momentum": momentum},
            base=before,
        )

    def _gradient(self, weight: Site) -> Site | None:
        options = (weight._replace(phase=phase) for phase in SEEN)
        return next((option for option in options if option in self.sources.pairs), None)
