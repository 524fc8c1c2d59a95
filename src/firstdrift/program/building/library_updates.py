"""What a step leaves behind, from the library: scaled gradients, an optimizer's state, parameters, statistics."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from ...core.records import Record
from ...core.sites import Site
from ...core.strict_json import Json
from ..interpreter import NotReplayableError
from ..operations.known_operations import named
from ..operations.op_table import Operation
from .library_forward import Building

SEEN = ("grad_scaled", "grad")  # what an optimizer was given, the surest first
STATISTICS = ("running_mean", "running_var")


_DIFFERS = object()  # in place of a setting that is not the same for all parameters


class Updates:
    """Makes what comes after the gradients of a step."""

    def __init__(self, building: Building) -> None:
        self._step = building

    def grad_scaled(self, record: Record) -> None:
        """The gradient that the optimizer sees: the raw one, divided by the batch where that is a sum over it."""
        raw = record.site._replace(phase="grad")
        if raw not in self._step.there:
            raise NotReplayableError("the gradient before it was scaled is not on record")
        said, ref = self._step.trace.header.get("gradient_of"), self._step.value(raw)
        batch = said.get("batch") if isinstance(said, dict) and said.get("reduction") == "sum" else None
        if type(batch) is int and batch > 1:
            args = ref, float(batch)
            ref = self._step.call("aten.div.Scalar", args, self._step.type(raw), "optimizer", record.site.name)
        self._step.settle(record, ref, "optimizer")

    def update(self, record: Record) -> None:
        """A parameter after the step, its optimizer's state, or a running statistic."""
        site = record.site
        port, _, state = site.port.rpartition(".") if site.phase == "optim" else (site.port, "", "")
        weight = self._step.weights.get(site.name, {}).get(port)
        if weight is None:
            raise NotReplayableError("the parameter before the step is not on record")
        if port in STATISTICS:
            self._running(record, weight)
        elif port == "num_batches_tracked":
            args = self._step.value(weight), 1
            ref = self._step.call("aten.add.Scalar", args, self._step.type(weight), "after", site.name)
            self._step.settle(record, ref, "after")
        else:
            self._by_rule(record, weight, state or "weight")

    def _by_rule(self, record: Record, weight: Site, at: str) -> None:
        gradient = next((one for phase in SEEN if (one := weight._replace(phase=phase)) in self._step.there), None)
        if gradient is None:
            raise NotReplayableError("the gradient that the optimizer saw is not on record")
        after = weight._replace(phase="weight_after")
        own = self._step.there[after].attrs if after in self._step.there else {}
        rule, said = self._optimizer
        differs = {key for key, item in said.items() if item is _DIFFERS} - own.keys()
        if unsure := [setting.names[0] for setting in rule.settings if differs & set(setting.names)]:
            raise NotReplayableError(
                f"{unsure[0]} differs between the optimizer's groups, and its own is not on record"
            )
        settings, _ = rule.settled({**said, **own})
        states = self._states_before(weight, settings)
        optimizer: dict[str, Json] = {"class": rule.names[0], "groups": [dict(settings)]}
        if optimizer not in self._step.optimizers:
            self._step.optimizers.append(optimizer)
        self._step.put(record, rule, settings, (weight, gradient), states, at, "optimizer")

    @property
    def _optimizer(self) -> tuple[Operation, Mapping[str, Any]]:
        said = self._step.trace.header.get("optimizer")
        said = said[0] if isinstance(said, list) and said else said
        told = said if isinstance(said, dict) else {}
        name = str(said if isinstance(said, str) else told.get("class") or told.get("name") or "")
        rule = named(name)
        if rule is None or "lr" not in {setting.names[0] for setting in rule.settings}:
            raise NotReplayableError(f"the optimizer is {name or 'not on record'}, which the library does not have")
        return rule, {**told, **_shared(told.get("groups"))}

    def _states_before(self, weight: Site, settings: Mapping[str, Any]) -> list[tuple[str, Site]]:
        """The optimizer's state before the step; there is none before the first step that was recorded."""
        found = self._states.get((weight.name, weight.port), [])
        keeps = settings.get("momentum") or "betas" in settings
        if keeps and not found and not self._is_first:
            raise NotReplayableError("the optimizer's state before this step is not on record")
        return found

    @cached_property
    def _states(self) -> dict[tuple[str, str], list[tuple[str, Site]]]:
        found: dict[tuple[str, str], list[tuple[str, Site]]] = {}
        for record in self._step.trace.records:
            site = record.site
            if site.phase == "optim" and site.step == self._step.number - 1 and record.at is not None:
                port, _, state = site.port.rpartition(".")
                found.setdefault((site.name, port), []).append((state, site))
        return found

    @cached_property
    def _is_first(self) -> bool:
        return all(record.site.step >= self._step.number for record in self._step.trace.records)

    def _running(self, record: Record, weight: Site) -> None:
        norm = next((site for site in self._step.made if site.phase == "fwd" and site.name == record.site.name), None)
        rule = named("RunningStatistics")
        if norm is None or rule is None:
            raise NotReplayableError("what the norm read is not on record")
        settings, _ = rule.settled(self._step.there[norm].attrs)
        self._step.put(record, rule, settings, (weight, self._step.made[norm].sites[0]), [], record.site.port, "after")


def _shared(groups: Json) -> Mapping[str, Any]:
    """The settings of an optimizer's groups of parameters: those that all have alike, and a mark for all others."""
    told = [group for group in groups if isinstance(group, dict)] if isinstance(groups, list) else []
    keys = dict.fromkeys(key for group in told for key in group)
    return {
        key: told[0][key] if all(key in group and group[key] == told[0].get(key) for group in told) else _DIFFERS
        for key in keys
    }
