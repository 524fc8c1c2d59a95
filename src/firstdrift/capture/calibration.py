"""What `fd.calibrate` answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..sites import Site

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
