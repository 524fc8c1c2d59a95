"""A tensor that changed on its way into a module changed for the innermost module that reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from ..compare.pairs import Pair
from ..compare.result import PairResult, Verdict
from ..sites import Site
from ..traces import Array
from .handed_on import is_handed_on

Load = Callable[[Pair], tuple[Array, Array]]


def settle_edges(results: dict[Site, PairResult], drifts: Iterable[Site], load: Load) -> None:
    """Name drifts of inputs at the modules that read them, in place."""
    for site in [site for site in drifts if site.phase == "fwd" and site.port.startswith("in.")]:
        result = results[site]
        reader = _innermost(site, results, load) if result.verdict is Verdict.DRIFT else None
        if reader is None:
            continue
        if results[reader].verdict is not Verdict.DRIFT:
            results[reader] = replace(
                results[reader], verdict=Verdict.DRIFT, reason=result.reason, limit=result.limit,
                inherited=result.inherited, introduced_by=result.introduced_by,
            )  # fmt: skip
        reason = f"{result.reason}; it is read by {reader.name}"
        results[site] = replace(result, verdict=Verdict.INHERITED, reason=reason, introduced_by=None)


def _innermost(site: Site, results: Mapping[Site, PairResult], load: Load) -> Site | None:
    """The innermost module inside another that is handed the other's input as it is; the first of several."""
    shape = results[site].pair.reference.shape
    inside = [
        other
        for other, result in results.items()
        if result.verdict in (Verdict.DRIFT, Verdict.INHERITED) and result.measurement is not None
        and other.phase == "fwd" and other.port.startswith("in.") and other.step == site.step
        and is_inside(other.name, site.name) and result.pair.reference.shape == shape
    ]  # fmt: skip
    made = load(results[site].pair)
    deepest_first = sorted(inside, key=lambda other: -other.name.count("."))
    return next((one for one in deepest_first if is_handed_on(load(results[one].pair), made)), None)


def is_inside(name: str, container: str) -> bool:
    """Whether a module is part of another."""
    return name != container and (not container or name.startswith(f"{container}."))


def described(site: Site) -> str:
    """A site for people."""
    return f"{site.phase} {site.name}" + (f":{site.port}" if site.port not in ("out", "weight") else "")
