"""Measured pairs as rows of one table, in the words of comparators of training-step traces."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import inf

from ...core.sites import Site
from ...core.strict_json import Json
from ...kernels import Measurement
from .measuring import Measured

# The tiers of training-step traces: what such a comparator walks first. Their names are ours.
TIERS = {"fwd": 0, "lossgrad": 1, "agrad": 2, "grad": 3, "grad_scaled": 4, "weight": 5, "weight_after": 6}
OTHER_TIER = 7


@dataclass(frozen=True, slots=True)
class PairRow:
    """One pair of `fd.compare_pairs`.

    `probe` is the reference's module. `max_abs` and `max_rel` are the largest absolute and relative difference over
    finite elements: infinite if not comparable (`problem` says why), None without numbers. `tier` counts fwd, lossgrad,
    agrad, grad, grad_scaled, weight, weight_after, others from 0.
    """

    probe: str
    phase: str
    tier: int
    max_abs: float | None
    max_rel: float | None
    port: str
    step: int
    call: int
    sample: int | None
    measurement: Measurement | None = None
    problem: str | None = None

    @property
    def site(self) -> Site:
        """The reference's site."""
        return Site(self.step, self.phase, self.probe, self.port, self.call, self.sample)

    def to_dict(self) -> dict[str, Json]:
        """The row as a flat dict with the same keys for every row."""
        own = {key: getattr(self, key) for key in self.__slots__ if key != "measurement"}
        measured = {} if self.measurement is None else _flat(self.measurement)
        return own | {key: measured.get(key) for key in MEASURED if key not in own}


DETAILS = ("max_ulp", "p999_ulp", "sign_flips")
MEASURED = (*(key for key in Measurement.__slots__ if key != "detail"), *DETAILS)


def row_of_pair(measured: Measured) -> PairRow:
    """The row of a pair that was measured."""
    step, phase, name, port, call, sample = measured.pair.site
    found, nothing = measured.measurement, inf if measured.problem else None
    return PairRow(
        name, phase, TIERS.get(phase, OTHER_TIER),
        nothing if found is None else float(found.max_abs), nothing if found is None else found.max_rel,
        port, step, call, sample, found, measured.problem,
    )  # fmt: skip


def _flat(found: Measurement) -> dict[str, Json]:
    numbers = asdict(found)
    detail = numbers.pop("detail") or {}
    return numbers | {key: detail.get(key) for key in DETAILS}
