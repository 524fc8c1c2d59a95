"""Parts of a model that agree as a whole although something inside them differs: a permuted basis, a folded norm,
scales moved from one layer to the next. Something in the part makes up for the difference, so that it is a layout
and no drift."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import sqrt

import numpy as np

from ..compare.pairs import Pair
from ..compare.result import CLEAN, PairResult, Verdict
from ..dtypes import roundoff
from ..sites import PARAMETER_PHASES, Site
from ..traces import Array
from .graph import Graph
from .ladder import is_short
from .limits import Limits
from .made_up import IN_SIGHT, outweighs
from .noise import GAIN_MARGIN
from .orders import other_orders
from .reasons import LAYOUT
from .rescaled import other_lengths

AGREES = "as a whole agrees"
LIKEWISE = f"{LAYOUT}, perhaps: so it is in other layers, and here nothing agrees as a whole"

Results = Mapping[Site, PairResult]
Load = Callable[[Pair], tuple[Array, Array]]


def other_layouts(
    results: Results, limits: Limits, graph: Graph, load: Load
) -> tuple[dict[Site, str], dict[Site, str]]:  # fmt: skip
    """The sites inside parts that agree as a whole, and the outputs of these parts, each with the reason in words."""
    outputs: dict[str, list[PairResult]] = {}
    for result in results.values():
        if result.site.phase == "fwd" and result.site.port.startswith("out"):
            outputs.setdefault(result.site.name, []).append(result)
    parts: list[str] = []
    drifts = [r for r in results.values() if r.verdict is Verdict.DRIFT and r.site.phase in ("fwd", "weight")]
    weights = [result.site for result in drifts if result.site.phase == "weight"]
    for result in drifts:
        if not any(_holds(part, result.site) for part in parts):
            # With equal weights it is the operation that differs, even where a norm or a pool behind it hides that.
            around = (n for n in _around(result.site) if n in outputs and any(_holds(n, weight) for weight in weights))
            parts += [name for name in around if _makes_up(name, outputs[name], result, results, limits, graph, load)][
                :1
            ]
    inside = {site: _reason(part) for site in results for part in parts if _holds(part, site)}
    if not parts:  # else what follows from them is looked at first: a part that agrees by itself needs no other
        inside |= _likewise(results, drifts)
    whole = {result.site: _reason(part) for part in parts for result in outputs[part]}
    for name in dict.fromkeys(site.name for site in weights if site not in inside):
        if readers := _undone_by(name, outputs, results, limits, graph):
            inside |= {site: _undone(readers) for site in results if _is_between(site, name, readers)}
            whole |= {result.site: _undone(readers) for reader in readers for result in outputs[reader]}
    if not inside:
        others = other_orders(results, limits, graph, load) or other_lengths(results, limits, graph, load)
        inside = {site: f"{LAYOUT}; {reason}" for site, reason in others.items()}
    unread = {
        site for site in inside if site.phase == "weight" and _is_unread(results[site], outputs, results, graph, load)
    }
    return {site: reason for site, reason in inside.items() if site not in unread}, whole


def _is_unread(
    weight: PairResult, outputs: Mapping[str, Sequence[PairResult]], results: Results, graph: Graph, load: Load
) -> bool:
    """Whether a weight that differs does not show: its own module makes the same of the same, or some of its rows are
    the same and others no rows of the reference. Nothing makes up for it then; this batch does not read what is wrong.
    """
    if weight.verdict in CLEAN:
        return False
    own = outputs.get(weight.site.name, ())
    fed = [results[site] for result in own for site in graph.producers(result.site) if site in results]
    flowing = [result for result in fed if result.site.phase != "weight"]
    if own and flowing and all(one.measurement is not None and one.verdict in CLEAN for one in (*own, *flowing)):
        return True
    return _has_other_rows(*load(weight.pair))


def _has_other_rows(ours: Array, theirs: Array) -> bool:
    """Whether some rows are the same on both sides, and others are not to be found among the reference's."""
    if ours.shape != theirs.shape or ours.ndim < 2:
        return False
    x, z = (np.ascontiguousarray(one).reshape(len(one), -1) for one in (ours, theirs))
    equal = (x == z).all(axis=1)
    if not equal.any() or equal.all():
        return False
    known = {row.tobytes() for row in x}
    return any(row.tobytes() not in known for row in z[~equal])


def _undone_by(
    name: str, outputs: Mapping[str, Sequence[PairResult]], results: Results, limits: Limits, graph: Graph
) -> list[str]:
    """The modules that read what a module with other weights makes of the same, if what they make of it agrees: a norm
    after a convolution that it was folded into."""
    made = outputs.get(name, ())
    readers = list(dict.fromkeys(reader.name for result in made for reader in graph.consumers(result.site)))
    fed = [
        r for site, r in results.items() if site.name == name and site.phase == "fwd" and site.port.startswith("in.")
    ]
    behind = [result for reader in readers for result in outputs.get(reader, ())]
    if not made or not behind or not all(reader in outputs for reader in readers):
        return []
    local = {result.site: limits.local(limits.items[result.site], []) for result in (*fed, *behind)}
    if any((result.error or 0.0) > local[result.site] and result.verdict not in CLEAN for result in fed):
        return []
    entered = max((result.error or 0.0 for result in fed), default=0.0)
    passed = GAIN_MARGIN * entered if any((result.error or 0.0) > local[result.site] for result in fed) else 0.0
    if any((result.error or 0.0) > local[result.site] + passed for result in behind):
        return []
    return readers if all(outweighs(one, left, left.error or 0.0) for one in made for left in behind) else []


def _is_between(site: Site, name: str, readers: Sequence[str]) -> bool:
    """Whether a site belongs to a module, or lies between it and those that read what it makes."""
    if site.name == name:
        return not (site.phase == "fwd" and site.port.startswith("in."))
    return site.name in readers and (site.phase not in ("fwd", "agrad") or site.port.startswith("in."))


def _undone(readers: Sequence[str]) -> str:
    return f"{LAYOUT}; {', '.join(readers)} makes up for it"


def _likewise(results: Results, drifts: Sequence[PairResult]) -> dict[Site, str]:
    """Weights that differ at the same place of other layers as some that are known to be a layout: where something
    else is wrong around them, they cannot be told from it by what comes out."""
    known = {_place(site) for site, r in results.items() if site.phase == "weight" and r.reason.endswith(AGREES)}
    alike = {r.site.name for r in drifts if r.site.phase == "weight" and _place(r.site) in known}
    return {site: LIKEWISE for site in results if site.name in alike and site.phase in PARAMETER_PHASES}


def _place(site: Site) -> tuple[str, ...]:
    return (*("*" if part.isdecimal() else part for part in site.name.split(".")), site.port)


def same_numbers(ours: Array, theirs: Array, limit: float) -> bool:
    """Whether two tensors hold the same numbers, up to noise, in whatever order."""
    if ours.size != theirs.size or ours.size == 0:
        return False
    a, b = (np.sort(np.asarray(one, np.float64).reshape(-1)) for one in (ours, theirs))
    return bool(np.linalg.norm(a - b) <= limit * np.linalg.norm(a))


def _reason(part: str) -> str:
    return f"{LAYOUT}; {part or 'the model'} {AGREES}"


def _makes_up(
    part: str, outputs: Iterable[PairResult], drift: PairResult, results: Results, limits: Limits,
    graph: Graph, load: Load,
) -> bool:  # fmt: skip
    """Whether a part's outputs agree, and would not if nothing made up for the drift."""
    fed = [
        r for r in results.values() if r.site.name == part and r.site.phase == "fwd" and r.site.port.startswith("in.")
    ]
    if any(result.verdict not in CLEAN for result in fed):
        return False
    steps = sum(1 for s in results if s.phase == "fwd" and s.port.startswith("out") and _holds(part, s))
    entered = max((result.error or 0.0 for result in fed), default=0.0)
    for result in outputs:
        measurement = result.measurement
        if measurement is None or not measurement.nonfinite_agree or result.error is None or not measurement.compared:
            return False
        item = limits.items[result.site]
        if item.is_integer:  # a choice says nothing of the numbers it was made by
            return False
        noise = limits.local(item, []) * sqrt(max(1, steps))
        if result.error > noise + GAIN_MARGIN * entered or not outweighs(drift, result, result.error):
            return False
        unit = roundoff(result.pair.reference.dtype, result.pair.candidate[0].dtype)
        if is_short(unit):
            diluted = max(result.error, unit) * _dilution(drift.site, part, results, graph, load)
            if not outweighs(drift, result, diluted):
                return False
    return True


def _dilution(site: Site, part: str, results: Results, graph: Graph, load: Load) -> float:
    """How many times larger a tensor is than what was added to something that agrees, at most, where a difference goes
    into a part's sums: behind a residual, a short format's rounding may be as large as all that was added."""
    most = 1.0
    for made in results.values():
        if (
            made.site.phase != "fwd"
            or made.site.step != site.step
            or not (_holds(part, made.site) or made.site.name == part)
        ):
            continue
        sources = [
            results[one] for one in graph.producers(made.site) if one in results and one.phase in ("fwd", "input")
        ]
        if any((one.error or 0.0) >= IN_SIGHT for one in sources):
            agreeing = [one for one in sources if one.measurement is not None and (one.error or 0.0) < IN_SIGHT]
            most = max([most, *(_against_added(load(made.pair)[0], load(one.pair)[0]) for one in agreeing)])
    return most


def _against_added(made: Array, fed: Array) -> float:
    """The size of a tensor against that of its difference from another of the same shape."""
    if made.shape != fed.shape or "c" in (made.dtype.kind, fed.dtype.kind):
        return 1.0
    output = np.asarray(made, np.float64)
    size, added = float(np.linalg.norm(output)), float(np.linalg.norm(output - np.asarray(fed, np.float64)))
    return size / added if added else np.inf


def _around(site: Site) -> list[str]:
    """The modules around a site, from the inside out."""
    parts = site.name.split(".") if site.name else []
    names = [".".join(parts[:length]) for length in range(len(parts), -1, -1)]
    return [name for name in names if _holds(name, site)]


def _holds(part: str, site: Site) -> bool:
    """Whether a site lies between the inputs and the outputs of a part."""
    if site.phase in ("input", "loss", "lossgrad"):
        return False
    inside = not part or site.name.startswith(f"{part}.")
    if site.phase in ("fwd", "agrad"):
        return inside and site.name != part
    return inside or site.name == part
