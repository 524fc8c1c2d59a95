"""Tables of sines and cosines of positions, made otherwise."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..evidence import Evidence
from ..hypotheses import Finding
from ..variants import floats, reproduces

Floats = NDArray[np.float64]

BASES = (10000.0, 1000.0, 100.0, 500000.0, 1000000.0)
EXPONENTS = ("2i/d", "i/(d/2-1)", "i/d")
SINGLE = 2.0**-24
ROWS = 64  # positions to try tables on


@dataclass(frozen=True, slots=True)
class Table:
    """Sines and cosines of position / base**exponent."""

    interleaved: bool = False
    cosine_first: bool = False
    exponent: str = "2i/d"
    base: float = 10000.0
    first: int = 0

    def __call__(self, positions: Floats, width: int) -> Floats:
        """(positions, width)."""
        half = width // 2
        i = np.arange(half)
        powers = {"2i/d": 2 * i / width, "i/(d/2-1)": i / max(half - 1, 1), "i/d": i / width}
        angles = (positions[:, None] + self.first) * self.base ** -powers[self.exponent]
        pair = (np.cos(angles), np.sin(angles)) if self.cosine_first else (np.sin(angles), np.cos(angles))
        return np.stack(pair, -1).reshape(len(positions), width) if self.interleaved else np.concatenate(pair, -1)


def sinusoids(evidence: Evidence) -> Iterable[Finding]:
    """A table of sinusoids, alone, looked up by positions or added to what came before."""
    shape = evidence.expected.shape
    if evidence.site.phase not in ("fwd", "weight") or not floats(evidence) or len(shape) < 2 or shape[-1] % 2:
        return
    for positions, expected, added in _readings(evidence):
        some = slice(0, ROWS)
        noise = max(evidence.noise, _blur(positions[some], evidence))
        own = next(
            (one for one in _tables() if reproduces(one(positions[some], shape[-1]), expected[some], noise)),
            None,
        )
        if own is None:
            continue
        for label, sentence, table in _others(own):
            predicted = table(positions, shape[-1])
            yield Finding(label, sentence, _spread(predicted, evidence, added), 0)
        return


def _blur(positions: Floats, evidence: Evidence) -> float:
    """What angles of large positions cost that were rounded to float32 before their sine: that much of a turn."""
    single = not evidence.replayed  # a replay computes in float64
    return SINGLE * float(np.abs(positions).max(initial=0.0)) if single else 0.0


def _readings(evidence: Evidence) -> Iterator[tuple[Floats, Floats, Floats | None]]:
    """Positions, the rows that should be a table's, and what was added to the candidate's."""
    shape = evidence.expected.shape
    expected = np.asarray(evidence.expected, np.float64)
    inputs = [one for one in evidence.inputs.values() if one.size == np.prod(shape[:-1])]
    for one in inputs:
        yield np.asarray(one, np.float64).ravel(), expected.reshape(-1, shape[-1]), None
    steps = np.arange(shape[-2], dtype=np.float64)
    if expected.size == shape[-1] * shape[-2]:
        yield steps, expected.reshape(-1, shape[-1]), None
    for key, one in evidence.inputs.items():
        if one.shape == shape and one.dtype.kind == "f":
            rest = (expected - np.asarray(one, np.float64)).reshape(-1, *shape[-2:])
            added = np.asarray(evidence.candidate_inputs.get(key, one), np.float64)
            if reproduces(np.broadcast_to(rest[:1], rest.shape), rest, evidence.noise):
                yield steps, rest[0], added


def _spread(table: Floats, evidence: Evidence, added: Floats | None) -> Floats:
    shape = evidence.expected.shape
    if added is None:
        return table.reshape(shape)
    return np.asarray(added + table)


def _tables() -> Iterator[Table]:
    for exponent in EXPONENTS:
        for base in BASES:
            for interleaved in (False, True):
                for cosine_first in (False, True):
                    yield from (Table(interleaved, cosine_first, exponent, base, first) for first in (0, 1))


def _others(own: Table) -> Iterator[tuple[str, str, Table]]:
    """Tables that differ in one thing."""
    laid = {True: "interleaved", False: "in two halves"}
    yield ("frequency-table", f"sines and cosines are {laid[not own.interleaved]} instead of {laid[own.interleaved]}",
           replace(own, interleaved=not own.interleaved))  # fmt: skip
    label = "frequency-table" if own.interleaved else "swapped-halves"
    yield label, "sines and cosines are exchanged", replace(own, cosine_first=not own.cosine_first)
    both = replace(own, interleaved=not own.interleaved, cosine_first=not own.cosine_first)
    yield "frequency-table", "sines and cosines are exchanged, and laid out otherwise", both
    for exponent in EXPONENTS:
        if exponent != own.exponent:
            sentence = f"the exponent of the frequencies is {exponent} instead of {own.exponent}"
            yield "frequency-table", sentence, replace(own, exponent=exponent)
    for base in BASES:
        if base != own.base:
            sentence = f"the base of the frequencies is {base:g} instead of {own.base:g}"
            yield "frequency-table", sentence, replace(own, base=base)
    for shift in (-2, -1, 1, 2):
        sentence = f"the positions are {abs(shift)} too {'high' if shift > 0 else 'low'}"
        yield "position-shift", sentence, replace(own, first=own.first + shift)
