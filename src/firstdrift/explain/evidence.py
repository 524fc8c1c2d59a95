"""What is known of one drift: the tensors, what they were computed from, and where to look further."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..core.sites import Site
from ..core.strict_json import Json
from ..core.traces import Array


class Surroundings:
    """The rest of both runs, for hypotheses that look beyond one tensor; here, one of which nothing is known.

    `facts` are what a run knows besides tensors, where known: `target`, `candidate_target`, `batch`, and the sites that
    one side alone has, `reference_only` and `candidate_only`.
    """

    facts: Mapping[str, Any] = {}

    def sites(self, phase: str) -> Sequence[Site]:
        """The compared sites of a phase, in causal order."""
        return ()

    def reference(self, site: Site) -> Array | None:
        """The reference's tensor, or None where there is none."""
        return None

    def candidate(self, site: Site) -> Array | None:
        """The candidate's tensor, or None where there is none."""
        return None

    def recorded(self, site: Site) -> tuple[Array, Array] | None:
        """Both tensors of a site as they were recorded, whose shapes may differ; None where a side has none."""
        return None

    def op(self, site: Site) -> str:
        """The operation that the reference recorded for a site; empty where it recorded none."""
        return ""

    def producers(self, site: Site) -> Sequence[Site]:
        """The compared sites that a tensor was computed from; none where that is not known."""
        return ()


@dataclass(frozen=True, slots=True)
class Evidence:
    """One drift.

    `expected` is what the reference's operation makes of the candidate's own inputs where that could be computed
    (`replayed`), else the reference's tensor; `found` is the candidate's tensor, of the same shape. Both are float64
    (integers stay integers). `noise` is the relative L2 error that noise explains here.

    `inputs` are what `expected` was computed from and `candidate_inputs` what `found` was computed from, under the
    same keys: ports (`in.0`) for the output of a module; the names of the sites before it for a tensor that was made
    between modules (an attention's, from `layers.0.attn.q_proj` and so on). `op` is the module's class and `attrs` are
    its settings, as the reference recorded them.
    """

    site: Site
    expected: Array
    found: Array
    noise: float
    replayed: bool = False
    op: str = ""
    inputs: Mapping[str, Array] = field(default_factory=dict)
    candidate_inputs: Mapping[str, Array] = field(default_factory=dict)
    attrs: Mapping[str, Json] = field(default_factory=dict)
    around: Surroundings = field(default_factory=Surroundings)
