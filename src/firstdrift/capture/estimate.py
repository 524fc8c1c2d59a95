"""What `fd.estimate` answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


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
