"""What `fd.calibrate` and `fd.estimate` answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..core.sites import Site

SCHEMA = "firstdrift-calibrate-v1"


@dataclass(frozen=True, slots=True)
class Calibration:
    """A calibrated trace: its sites, how many have measured noise, and the noisiest."""

    path: str
    sites: int
    calibrated: int
    runs: int  # besides the one that was recorded
    noisiest: Site | None
    largest: float  # its noise, relative to the tensor
    notes: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        """2 where no noise was measured anywhere: a comparison with this trace is like one with any other."""
        return 0 if self.calibrated else 2

    def __str__(self) -> str:
        head = f"{self.path}: {self.calibrated} of {self.sites} sites calibrated by {self.runs} further runs"
        nothing = "  no noise was measured: nothing finite came out of the runs, or nothing that rounds"
        noisiest = [nothing if self.noisiest is None else f"  noisiest: {self.noisiest}, {self.largest:.1e}"]
        return "\n".join([head, *noisiest, *(f"  {note}" for note in self.notes)])

    def to_json(self) -> dict[str, Any]:
        """JSON of schema `firstdrift-calibrate-v1`."""
        noisiest = None if self.noisiest is None else {**self.noisiest._asdict(), "noise": self.largest}
        return {
            "schema": SCHEMA, "path": self.path, "sites": self.sites, "calibrated": self.calibrated, "runs": self.runs,
            "noisiest": noisiest, "notes": list(self.notes),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Estimate:
    """Tensors and bytes of one step of a trace by phase, and the bytes of its largest tensor."""

    tensors_by_phase: Mapping[str, int]
    bytes_by_phase: Mapping[str, int]
    largest: int

    @property
    def tensors(self) -> int:
        """Tensors of one step; a tensor at two sites counts twice."""
        return sum(self.tensors_by_phase.values())

    @property
    def bytes(self) -> int:
        """Bytes of one step; a tensor at two sites counts once."""
        return sum(self.bytes_by_phase.values())

    def __str__(self) -> str:
        rows = [
            f"  {phase:<12} {count:>7,} tensors {self.bytes_by_phase.get(phase, 0):>18,} B"
            for phase, count in self.tensors_by_phase.items()
        ]
        total = f"{self.tensors:,} tensors, {self.bytes:,} B a step; the largest {self.largest:,} B"
        return "\n".join([total, *rows])
