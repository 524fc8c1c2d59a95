"""Values that no formula gives: overflow, NaN, memory nobody wrote, dropout, no update, unequal runs."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ...core.sites import BACKWARD_PHASES, Site
from ...core.traces import Array
from ..evidence import Evidence
from ..one_program.agreement import ALONE, Floats, floats, limit
from .hypotheses import FEW, Finding, Hypothesis

LARGEST = {"f16": 65504.0, "f8e5m2": 57344.0, "f8e4m3": 448.0}
ROUNDS_BEYOND = {"f16": 65520.0, "f8e5m2": 61440.0, "f8e4m3": 464.0}  # half a step above the largest
NEAR = 0.1  # of a bound: how near to it a number may end up on the other side
OPERANDS = 3.0  # times a rounding: two operands and their result
DENORMAL = 2.0**-126  # below the smallest normal float32
GARBAGE = 1e6  # times the usual size of the values
BLOCK = 0.9  # of the unwritten elements must lie in slices that are unwritten as a whole
ZERO_IS_NAMED_ELSEWHERE = BACKWARD_PHASES | {"loss", "lossgrad", "optim", "weight_after"}
FEWEST = 64  # elements before zeros can be called random
SURPRISE = 6.0  # standard deviations that chance does not reach

Mask = NDArray[np.bool_]


def overflow(evidence: Evidence) -> Iterator[Finding]:
    """found is not finite exactly where expected is beyond what a dtype can hold."""
    expected, found = floats(evidence.expected), floats(evidence.found)
    lost = ~np.isfinite(found) & np.isfinite(expected)
    if not lost.any():
        return
    size = np.abs(np.where(np.isfinite(expected), expected, 0.0))
    spread = 2 * _furthest(expected, found)
    for dtype, bound in ROUNDS_BEYOND.items():
        slack = max(2 * evidence.noise * bound, 1e-3 * bound, min(spread, NEAR * bound))
        beyond = size > bound + slack
        if (lost & (size < bound - slack)).any() or (beyond & ~lost).any() or not beyond.any():
            continue
        left = _error(evidence, expected, found, ~lost)
        said = f"{int(lost.sum())} elements beyond {LARGEST[dtype]:g}, the largest {dtype}, are not finite"
        yield Finding("overflow", said, None, 0, {"dtype": dtype, "largest": LARGEST[dtype]}, _or_rounded(left, dtype))
        return


def nan_origin(evidence: Evidence) -> Iterator[Finding]:
    """found is not finite where expected is, and what it was computed from is finite."""
    lost = ~np.isfinite(floats(evidence.found)) & np.isfinite(floats(evidence.expected))
    if not lost.any() or any(not np.isfinite(floats(array)).all() for array in evidence.candidate_inputs.values()):
        return
    first = np.unravel_index(int(np.argmax(lost)), lost.shape)
    kind = "NaN" if np.isnan(floats(evidence.found)[lost]).any() else "infinite"
    place = ", ".join(str(number) for number in first)
    said = (
        f"{int(lost.sum())} of {lost.size} elements are {kind}, the first at [{place}]; what they came from is finite"
    )
    parameters = {"count": int(lost.sum()), "first": [int(number) for number in first]}
    yield Finding("nan-origin", said, None, FEW, parameters, 0.0)


def uninitialised(evidence: Evidence) -> Iterator[Finding]:
    """Part of found is zero, denormal or garbage; the rest is as expected."""
    expected, found = floats(evidence.expected), floats(evidence.found)
    size = np.abs(found)
    if expected.size < FEW or not (
        (size < DENORMAL).any() or float(size.max()) > GARBAGE**0.5 * np.abs(expected).max()
    ):
        return
    usual = float(np.abs(expected[np.isfinite(expected)]).mean()) if np.isfinite(expected).any() else 0.0
    if usual == 0.0:
        return
    far = ~(np.abs(found - expected) <= 2 * limit(evidence) * np.maximum(np.abs(expected), usual))
    kinds = {
        "zero": (found == 0.0) if evidence.site.phase not in ZERO_IS_NAMED_ELSEWHERE else np.zeros_like(far),
        "denormal": far & (found != 0.0) & (size < DENORMAL) & (usual > 1e6 * DENORMAL),
        "garbage": far & _garbage(found, GARBAGE * max(usual, float(np.abs(expected).max()) / GARBAGE**0.5)),
    }
    bad = kinds["zero"] | kinds["denormal"] | kinds["garbage"]
    if not (bad & far).any() or (kinds["zero"].any() and not _blocks(kinds["zero"], expected)):
        return
    what = ", ".join(kind for kind, mask in kinds.items() if mask.any())
    predicted = np.where(bad, found, expected)
    said = f"{int(bad.sum())} of {bad.size} elements are {what}, as if nobody had written them"
    yield Finding("uninitialised", said, predicted, 1, {"count": int(bad.sum()), "kinds": what.split(", ")})


def _garbage(found: Floats, above: float) -> Mask:
    """Where numbers are far too large; one and the same number in several places is a fill, and somebody wrote it."""
    far = (np.abs(found) > above) & np.isfinite(found)
    return far if far.sum() == 1 or len(np.unique(found[far])) > 1 else np.zeros_like(far)


def dropout_active(evidence: Evidence) -> Iterator[Finding]:
    """Random elements, or random channels, of found are zero and the others are larger by 1 / (1 - p)."""
    expected, found = floats(evidence.expected), floats(evidence.found)
    live = (expected != 0.0) & np.isfinite(expected)
    dropped = live & (found == 0.0)
    kept = live & ~dropped
    if live.sum() < FEWEST or not dropped.any() or not kept.any():
        return
    ratio = float(expected[kept] @ found[kept]) / float(expected[kept] @ expected[kept])
    p = 1 - 1 / ratio if ratio > 1 else 0.0
    if p <= 2 * limit(evidence) or not (_random(dropped, live, p) or _random_channels(dropped, live, p)):
        return
    predicted = np.where(dropped, 0.0, ratio * expected)
    said = f"{dropped.sum() / live.sum():.1%} of the elements are zero and the others {ratio:.6g} times as large"
    yield Finding("dropout-active", f"{said}: dropout with p = {p:.4g} is active", predicted, 1, {"p": p})


def _error(evidence: Evidence, a: Floats, b: Floats, where: Mask) -> float:
    """The relative difference of the chosen elements."""
    size = max(float(np.linalg.norm(a[where])), float(np.linalg.norm(b[where])))
    error = float(np.linalg.norm(a[where] - b[where]))
    return error / size if size > 0 else error


def _furthest(expected: Floats, found: Floats) -> float:
    """How far numbers that are still finite are off: as far may those near a bound be."""
    both = np.isfinite(expected) & np.isfinite(found)
    return float(np.abs(found - expected)[both].max()) if both.any() else 0.0


def _or_rounded(left: float, dtype: str) -> float:
    """What an overflowing dtype leaves: nothing beyond its own rounding, of the operands and of the result."""
    roundoff = {"f16": 2.0**-11, "f8e5m2": 2.0**-3, "f8e4m3": 2.0**-4}[dtype]
    return 0.0 if left <= OPERANDS * roundoff else left


def _blocks(zero: Mask, expected: Floats) -> bool:
    """Whether zeros fill whole slices or long runs, whatever sign was expected: a ReLU or dropout leaves others."""
    if not ((expected[zero] > 0).any() and (expected[zero] < 0).any()) and zero.mean() < BLOCK:
        return False
    if zero.ndim < 2:
        runs = np.diff(np.flatnonzero(np.diff(zero.astype(np.int8), prepend=0, append=0)))[::2]
        return bool(runs.mean() >= FEW)
    covered = np.zeros_like(zero)
    for axis in range(zero.ndim):
        full = zero.all(axis=axis, keepdims=True)
        covered |= full & zero
    return bool(covered.sum() >= BLOCK * zero.sum())


def _random(dropped: Mask, live: Mask, p: float) -> bool:
    """Whether as many are dropped as chance gives, and in every slice of every axis."""
    if not _chance(np.array([dropped.sum()]), np.array([live.sum()]), p):
        return False
    for axis in range(dropped.ndim):
        others = tuple(number for number in range(dropped.ndim) if number != axis)
        if not _chance(dropped.sum(axis=others), live.sum(axis=others), p):
            return False
    return True


def _random_channels(dropped: Mask, live: Mask, p: float) -> bool:
    """Whether whole channels (of the first two axes) are dropped, as many as chance gives."""
    if dropped.ndim < 3:
        return False
    rest = tuple(range(2, dropped.ndim))
    some: Mask = np.asarray(dropped.any(axis=rest))
    every = (dropped | ~live).all(axis=rest)
    return bool((some == every).all()) and some.size >= FEWEST // 4 and _random(some, np.ones_like(some), p)


def _chance(hits: Array, tries: Array, p: float) -> bool:
    """Whether so many hits of so many tries are what probability p gives."""
    n = floats(tries)
    deviation = (floats(hits) - n * p) / np.sqrt(np.maximum(n * p * (1 - p), 1e-9))
    deviation = deviation[n > 0]
    square = float(deviation @ deviation)
    return square <= len(deviation) + SURPRISE * math.sqrt(2 * len(deviation))


def not_updated(evidence: Evidence) -> Iterator[Finding]:
    """A parameter, buffer or state that the candidate's step left as it was."""
    site = evidence.site
    if not _is_still(evidence, site, evidence.found) or not np.any(evidence.expected):
        return
    if not np.any(evidence.candidate_inputs.get("grad", np.ones(1))):
        return  # nothing was to be done
    others = [one for one in evidence.around.sites(site.phase) if one != site and one.step == site.step]
    alike = [one for one in others if _kind(evidence, one) == _kind(evidence, site) and _state(one) == _state(site)]
    known = [(one, both) for one in alike if (both := evidence.around.recorded(one)) is not None]
    still = sum(_is_still(evidence, one, both[1]) for one, both in known if np.any(both[0]))
    kind, more = _kind(evidence, site), f", nor {still} of {len(known)} others" if still else ""
    by = "the candidate" if kind == "buffer" else "the candidate's optimizer"
    later = next((step for step in _later_steps(evidence) if _is_moved(evidence, site._replace(step=step))), None)
    if later is None:
        most = 1.0 if kind == "buffer" or still or _later_steps(evidence) else ALONE
        yield Finding("skipped-op", f"{by} did not update this {kind}{more}", evidence.found, most=most)
    elif site.phase == "weight_after" and _moves_states(evidence):
        said = f"the learning rate is 0 at step {site.step}: {by} moves the states of this {kind} and not the {kind}, "
        said += f"which it moves at step {later}"
        yield Finding("optimizer-lr", said, evidence.found, 0, {"lr": 0.0, "steps": [site.step], "moves_at": later})
    else:
        yield Finding("skipped-op", f"{by} did not update this {kind} at step {site.step}, and does at step {later}",
                      evidence.found)  # fmt: skip


def _later_steps(evidence: Evidence) -> list[int]:
    """The steps behind this one at which the same tensor is recorded."""
    site = evidence.site
    same = (one for one in evidence.around.sites(site.phase) if one._replace(step=site.step) == site)
    return sorted(one.step for one in same if one.step > site.step)


def _is_moved(evidence: Evidence, site: Site) -> bool:
    """Whether the candidate's step gave a tensor other numbers."""
    source = site._replace(phase="weight") if site.phase == "weight_after" else site._replace(step=site.step - 1)
    before, after = evidence.around.candidate(source), evidence.around.candidate(site)
    return before is not None and after is not None and not np.array_equal(before, after)


def _moves_states(evidence: Evidence) -> bool:
    """Whether the candidate's optimizer moved a state of a parameter that it left as it was."""
    site = evidence.site
    own = [
        one for one in evidence.around.sites("optim")
        if (one.step, one.name, one.port.split(".")[0]) == (site.step, site.name, site.port)
    ]  # fmt: skip
    found = [(one, evidence.around.candidate(one)) for one in own]
    return any(
        array is not None and not _is_still(evidence, one, array)
        for one, array in found
        if array is not None and array.size > 1
    )


def _state(site: Site) -> str:
    return site.port.rpartition(".")[2] if site.phase == "optim" else ""


def _kind(evidence: Evidence, site: Site) -> str:
    if site.phase == "optim":
        return "state"
    return "parameter" if site._replace(phase="grad") in evidence.around.sites("grad") else "buffer"


def _is_still(evidence: Evidence, site: Site, found: Array) -> bool:
    """Whether a step added nothing to weights, or left a state as it was, or as it begins."""
    if site.phase == "weight_after":
        return not np.any(found)
    if site.phase != "optim" or found.size < 2:
        return False
    before = evidence.around.candidate(site._replace(step=site.step - 1))
    return not np.any(found) if before is None else np.array_equal(before, found)


def step_count(evidence: Evidence) -> Iterator[Finding]:
    """The count of steps that bias corrections use."""
    if evidence.site.phase != "optim" or not evidence.site.port.endswith("step") or evidence.expected.size != 1:
        return
    expected, found = float(floats(evidence.expected).item()), float(floats(evidence.found).item())
    if abs(found - expected) == 1:
        sentence = f"the optimizer counts this as step {found:g} instead of {expected:g}"
        parameters = {"step": found, "reference_step": expected}
        yield Finding("optimizer-bias-correction", sentence, evidence.found, 0, parameters)


HYPOTHESES: tuple[Hypothesis, ...] = (
    overflow, nan_origin, uninitialised, dropout_active, not_updated, step_count,
)  # fmt: skip
