"""What many gradients have in common: all are scaled or clipped, none arrives, those of the step before were kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ...core.sites import Site
from ...core.traces import Array
from ..evidence import Evidence
from ..one_program.agreement import ALONE, agree, distance, factor, floats, limit, rounded, snapped, telling
from .hypotheses import Finding, Hypothesis

CANCELLED = 1e-3  # of the largest: gradients below that may be the rounding errors of a sum that is zero
PHASES = ("agrad", "grad", "grad_scaled")
MOST_COMPARED = 24  # tensors that are asked whether all gradients have one factor
PARALLEL = 1e-2  # of a gradient: what a factor may leave of it to be its factor


def nothing_flows(evidence: Evidence) -> Iterator[Finding]:
    """A gradient that is zero where the reference's is not."""
    if evidence.site.phase in PHASES and not np.any(evidence.found) and np.any(evidence.expected):
        sentence = "no gradient arrives here: it is zero, as after detach() or a frozen parameter"
        yield Finding("gradient-missing", sentence, np.zeros_like(floats(evidence.expected)))


def one_factor(evidence: Evidence) -> Iterator[Finding]:
    """One factor of all gradients, or of all that come of this one."""
    if evidence.site.phase not in PHASES or evidence.found.size < 2:
        return
    times = factor(evidence.expected, evidence.found)
    if not np.isfinite(times) or times <= 0 or abs(times - 1) <= limit(evidence):
        return
    predicted = floats(evidence.expected) * times
    if not agree(evidence, predicted, evidence.found):
        return
    value = rounded(times, limit(evidence))
    if _everywhere(evidence, times):
        sentence = f"all gradients are {value:.6g} times what they should be{_reason(evidence, times)}"
        yield Finding("gradient-scale", sentence, predicted, 1, {"factor": value})
    elif _from_here(evidence, times):
        sentence = f"this gradient and all that come of it are {value:.6g} times what they should be"
        sentence += _reason(evidence, times)
        yield Finding(
            "gradient-scale", sentence, predicted, 1, {"factor": value, "from": evidence.site.name}, most=ALONE
        )


def not_zeroed(evidence: Evidence) -> Iterator[Finding]:
    """A gradient to which that of the step before was added."""
    site = evidence.site
    if site.phase not in ("grad", "grad_scaled") or site.step == 0:
        return
    sentence = "the gradient of the step before was added: gradients are not set to zero"
    for phase in dict.fromkeys((site.phase, "grad_scaled")):  # what is left there may have been scaled since
        left = evidence.around.candidate(site._replace(step=site.step - 1, phase=phase))
        if left is not None and left.shape == evidence.found.shape:
            predicted = floats(evidence.expected) + floats(left)
            yield Finding("gradient-formula", sentence, predicted, 0, {"step": site.step - 1})


def shared_parameter(evidence: Evidence) -> Iterator[Finding]:
    """One parameter under two names on one side, two parameters that begin equal on the other: the gradients of the
    two add up to that of the one."""
    site = evidence.site
    if site.phase not in ("grad", "grad_scaled") or evidence.expected.ndim < 2:
        return
    around, own = evidence.around, _weights(evidence, site)
    for other in (one for one in _now(evidence, site.phase) if one != site):
        reference, candidate, there = around.reference(other), around.candidate(other), _weights(evidence, other)
        if reference is None or candidate is None or own is None or there is None:
            continue
        if not all(np.array_equal(one, its) for one, its in zip(own, there, strict=True)):
            continue
        name, a, b = f"{other.name}.{other.port}", floats(evidence.expected), floats(evidence.found)
        reference, candidate = floats(reference), floats(candidate)
        if agree(evidence, a, reference) and not agree(evidence, b, candidate):
            said = f"the reference shares this parameter with {name}; the candidate has two that begin equal, and each "
            said += "gets its own gradient"
            if np.any(candidate) and agree(evidence, a - candidate, b):
                yield Finding("untied-head", said, a - candidate, 0, {"tied_to": name})
        elif np.array_equal(b, candidate) and not agree(evidence, a, reference):
            said = f"the candidate shares this parameter with {name}, and its gradient is that of both"
            if np.any(reference) and agree(evidence, a + reference, b):
                yield Finding("tied-gradient", said, a + reference, 0, {"tied_to": name})


def _weights(evidence: Evidence, site: Site) -> tuple[Array, Array] | None:
    """Both sides' numbers of a parameter before the step."""
    weight = site._replace(phase="weight")
    reference, candidate = evidence.around.reference(weight), evidence.around.candidate(weight)
    return None if reference is None or candidate is None else (reference, candidate)


def _everywhere(evidence: Evidence, times: float) -> bool:
    """Whether every gradient recorded has this factor: those of activations count where this is one."""
    phases = ("agrad", "grad") if evidence.site.phase == "agrad" else (evidence.site.phase,)
    return _shared(evidence, [site for phase in phases for site in _now(evidence, phase)], times)


def _from_here(evidence: Evidence, times: float) -> bool:
    """Whether everything that the backward pass computes from a gradient has its factor: whatever it was scaled by,
    nothing else adds to the gradients behind it."""
    if evidence.site.phase != "agrad":
        return False
    behind = dict.fromkeys([evidence.site])  # in order
    for site in (*_now(evidence, "agrad"), *_now(evidence, "grad")):
        if not behind.keys().isdisjoint(evidence.around.producers(site)):
            behind[site] = None
    return _shared(evidence, list(behind), times)


def _now(evidence: Evidence, phase: str) -> list[Site]:
    return [site for site in evidence.around.sites(phase) if site.step == evidence.site.step]


def _shared(evidence: Evidence, sites: list[Site], times: float) -> bool:
    """Whether some gradients, more than one, have this factor; those that cancel to next to nothing do not tell."""
    compared = [one for site in _spread(sites) if (one := _compared(evidence, site)) is not None]
    largest = max((one.size for one in compared), default=0.0)
    telling = [one.times for one in compared if one.parallel or one.size > CANCELLED * largest]
    tolerance = max(8 * limit(evidence), 1e-3 * abs(times - 1))
    return len(telling) > 1 and all(abs(value - times) <= tolerance * times for value in telling)


def _spread(sites: list[Site]) -> list[Site]:
    """Some sites, from the first to the last."""
    stride = -(-len(sites) // MOST_COMPARED) or 1
    return list(dict.fromkeys([*sites[::stride], *sites[-1:]]))


@dataclass(frozen=True, slots=True)
class _Compared:
    """A gradient of both sides: the factor between them, whether that is all there is, and the size of an element."""

    times: float
    parallel: bool
    size: float


def _compared(evidence: Evidence, site: Site) -> _Compared | None:
    a, b = evidence.around.reference(site), evidence.around.candidate(site)
    if a is None or b is None or a.shape != b.shape or not np.any(a):
        return None
    times = factor(a, b)
    size = float(np.linalg.norm(floats(a))) / float(np.sqrt(a.size))
    return _Compared(times, distance(times * floats(a), b) <= PARALLEL, size)


def _reason(evidence: Evidence, times: float) -> str:
    batch = evidence.around.facts.get("batch")
    size = batch.get("size") if isinstance(batch, dict) else batch
    if isinstance(size, int) and size > 1 and snapped(times, (float(size), 1 / size), limit(evidence)) is not None:
        return f", the batch being of {size}"
    return ""


MOST_READ = 100_000_000  # elements of gradients that are read for a global norm
ROUND = 90  # numbers of two digits in a decade, of which a limit is one
UNCLIPPED = 1e-6
CLIPPED_BY = 1e-5  # a norm plus this is what gradients are divided by, so that much less remains


@dataclass(frozen=True, slots=True)
class _Side:
    """One side's gradients: the factor from raw to seen and the norm of what is seen, by parameter."""

    factors: tuple[float, ...]
    norms: tuple[float, ...]
    straight: bool  # whether what is seen is the raw gradient by a factor, everywhere

    @property
    def norm(self) -> float:
        """The norm of all gradients together."""
        return float(np.linalg.norm(self.norms))

    @property
    def together(self) -> bool:
        """Whether all parameters have one factor."""
        return self.straight and np.ptp(self.factors) <= 1e-3 * abs(np.mean(self.factors))

    @property
    def untouched(self) -> bool:
        """Whether nothing was clipped."""
        return self.together and abs(self.factors[0] - 1) <= UNCLIPPED


def clipped(evidence: Evidence) -> Iterator[Finding]:
    """Clipping to another norm, of single tensors, by value, or not at all."""
    sides = _sides(evidence)
    if sides is None or evidence.site.phase != "grad_scaled":
        return
    of_reference, candidate = sides
    raw = evidence.around.candidate(evidence.site._replace(phase="grad"))
    if raw is None or raw.shape != evidence.found.shape:
        return
    gradient = floats(raw)
    if not of_reference.untouched and of_reference.together and candidate.untouched:
        if of_reference.factors[0] >= 1 or not _written(evidence, of_reference.norm):
            return  # a factor, and no clipping
        sentence = (
            f"the gradients are not clipped; the reference clips their norm to {rounded(of_reference.norm, 1e-3):.6g}"
        )
        yield Finding("clip-norm", sentence, gradient, 0, {"max_norm": None, "reference_max_norm": of_reference.norm})
        return
    if not of_reference.together:
        return
    reference = "does not clip" if of_reference.untouched else f"clips to {rounded(of_reference.norm, 1e-3):.6g}"
    if candidate.together:
        yield from _other_norm(evidence, of_reference, candidate, reference)
    elif candidate.straight:
        most = max(candidate.norms)
        held = [norm for norm, times in zip(candidate.norms, candidate.factors, strict=True) if times < 1 - UNCLIPPED]
        if held and np.ptp(held) <= 1e-3 * most:
            own = float(np.linalg.norm(gradient))
            sentence = f"the norm of every gradient is clipped to {most:.6g} by itself; the reference {reference}"
            predicted = gradient * min(1.0, most / own) if own else gradient
            yield Finding("clip-norm", sentence, predicted, 0, {"max_norm": most, "per": "tensor"})
    else:
        most = float(np.abs(evidence.found).max())
        sentence = f"the gradients are clipped by value, to {most:.6g}; the reference {reference}"
        yield Finding("clip-norm", sentence, np.clip(gradient, -most, most), 1, {"max_value": most})


def _other_norm(evidence: Evidence, of_reference: _Side, candidate: _Side, reference: str) -> Iterator[Finding]:
    """One factor for all: clipping, where the norm that it leaves is a number somebody would write."""
    norm, times = candidate.norm, candidate.factors[0] / of_reference.factors[0]
    if candidate.factors[0] >= 1:
        return
    if not _written(evidence, norm):
        scale = power_of_two(1 / times, max(limit(evidence), CLIPPED_BY))
        if scale is not None and of_reference.factors[0] < 1 and _written(evidence, of_reference.norm):
            sentence = f"the reference {reference}, the candidate's norm is {times:.6g} times that: as when gradients"
            sentence += f" are clipped while they still are multiplied by {scale:g}"
            said = {"loss_scale": scale, "reference_max_norm": of_reference.norm}
            yield Finding("clip-norm", sentence, floats(evidence.expected) * times, 0, said)
        return
    written, two_digits = rounded(norm, max(limit(evidence), CLIPPED_BY)), float(f"{norm:.2g}")
    sentence = f"the norm of all gradients is clipped to {written:.6g}; the reference {reference}"
    parameters = {"max_norm": two_digits, "reference_max_norm": None if of_reference.untouched else of_reference.norm}
    yield Finding("clip-norm", sentence, floats(evidence.expected) * times, 0, parameters)


def power_of_two(value: float, tolerance: float) -> float | None:
    """The power of two above one that a number is, as the scales of losses are."""
    power = round(float(np.log2(value))) if value > 0 else 0
    return 2.0**power if power > 0 and abs(value / 2.0**power - 1) <= tolerance else None


def _written(evidence: Evidence, norm: float) -> bool:
    """Whether a norm is a number of two digits, as somebody would write it, and not by chance."""
    return abs(float(f"{norm:.2g}") / norm - 1) <= max(limit(evidence), CLIPPED_BY) and telling(evidence, ROUND)


def not_reduced(evidence: Evidence) -> Iterator[Finding]:
    """A gradient of one rank where the reference has that of all of them."""
    if evidence.site.phase != "grad_scaled":
        return
    site = evidence.site._replace(phase="grad")
    reference, candidate = evidence.around.reference(site), evidence.around.candidate(site)
    if reference is None or candidate is None or reference.shape != evidence.expected.shape:
        return
    alike = agree(evidence, reference, candidate) and agree(evidence, candidate, evidence.found)
    if alike and not _straight(reference, evidence.expected):
        sentence = "the optimizer sees this rank's own gradient, where the reference's was reduced over ranks"
        yield Finding("missing-reduce", sentence, floats(candidate))


def _sides(evidence: Evidence) -> tuple[_Side, _Side] | None:
    """Both sides' gradients before and after, where raw ones agree.

    Gradients that cancel to next to nothing, as those of a bias before a normalisation, differ by their noise and tell
    nothing.
    """
    if evidence.site.phase != "grad_scaled":
        return None
    rows: list[list[float]] = []
    straight = [True, True]
    read, largest, unclear = 0, 0.0, 0.0  # sizes of a gradient's elements
    for site in evidence.around.sites("grad_scaled"):
        if site.step != evidence.site.step:
            continue
        raw = site._replace(phase="grad")
        tensors = [
            evidence.around.reference(raw), evidence.around.reference(site),
            evidence.around.candidate(raw), evidence.around.candidate(site),
        ]  # fmt: skip
        if any(tensor is None for tensor in tensors):
            continue
        a, seen_a, b, seen_b = (floats(tensor) for tensor in tensors if tensor is not None)
        read += a.size
        if read > MOST_READ:
            return None
        size = max(_length(a), _length(b)) / float(np.sqrt(max(a.size, 1)))
        largest = max(largest, size)
        if not agree(evidence, a, b):
            unclear = max(unclear, size)
        elif np.any(a):
            rows.append([factor(a, seen_a), _length(seen_a), factor(b, seen_b), _length(seen_b)])
            straight = [straight[0] and _straight(a, seen_a), straight[1] and _straight(b, seen_b)]
    if not rows or not unclear <= CANCELLED * largest:
        return None
    table = [tuple(column) for column in zip(*rows, strict=True)]
    return _Side(table[0], table[1], straight[0]), _Side(table[2], table[3], straight[1])


def _length(array: Array) -> float:
    return float(np.linalg.norm(floats(array)))


def _straight(raw: Array, seen: Array) -> bool:
    times = factor(raw, seen)
    return bool(np.isfinite(times)) and distance(floats(raw) * times, seen) <= 1e-3


HYPOTHESES: tuple[Hypothesis, ...] = (
    nothing_flows, shared_parameter, one_factor, not_zeroed, clipped, not_reduced,
)  # fmt: skip
