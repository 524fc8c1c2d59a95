"""What a run holds around an attention: rotary tables, biases of scores, and norms that one side alone records."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from ...sites import Site
from ..evidence import Evidence
from .between import Both
from .extras import LARGEST_COSINE
from .norming import Norm, norms_of_one_side
from .rotary import Floats

MOST_HEADS = 256
MOST_PAIRS = 8  # of outputs that may be rotary tables


@dataclass(frozen=True, eq=False, slots=True)
class Nearby:
    """What was found, read once: `tables` and `biases` of the reference and of the candidate, `norms` with what
    they were given, and the operands that modules `made` between the projections and the attention."""

    tables: tuple[dict[str, Floats], dict[str, Floats]] = field(default_factory=lambda: ({}, {}))
    biases: tuple[dict[str, Floats], dict[str, Floats]] = field(default_factory=lambda: ({}, {}))
    norms: dict[str, tuple[Norm, Floats]] = field(default_factory=dict)
    made: Both | None = None


def nearby(evidence: Evidence, limit: float, made: Both | None = None) -> Nearby:
    """Everything around an attention that it may have been computed from."""
    given = [_given(evidence, candidate) for candidate in (False, True)]
    tables = [_tables(evidence, candidate, given[candidate]) for candidate in (False, True)]
    biases = [{name: value for name, value in one.items() if value.ndim in (3, 4)} for one in given]
    used = set() if made is None else {f"{site.name}:{site.port}" for site, _ in made[0].rest}
    tables = [{name: value for name, value in one.items() if name not in used} for one in tables]
    return Nearby((tables[0], tables[1]), (biases[0], biases[1]), norms_of_one_side(evidence, limit), made)


def _given(evidence: Evidence, candidate: bool) -> dict[str, Floats]:
    """What the modules around were given besides the hidden states, the innermost first."""
    around, here = evidence.around, evidence.site
    alone = around.facts.get("candidate_only" if candidate else "reference_only", ())
    near = [site for site in (*alone, *around.sites("fwd")) if _enters(site, here)]
    return dict(_floats(evidence, candidate, sorted(near, key=lambda site: -len(site.name))))


def _enters(site: Site, here: Site) -> bool:
    inside = bool(site.name) and (here.name == site.name or here.name.startswith(f"{site.name}."))
    return inside and site[:2] == here[:2] and site.port.startswith("in.") and site.port != "in.0"


def _tables(evidence: Evidence, candidate: bool, given: dict[str, Floats]) -> dict[str, Floats]:
    """What may be rotary tables: among what was given, and what a module returned as a pair."""
    here = evidence.site
    pairs = [one for one in evidence.around.sites("fwd") if one.step == here.step and one.port in ("out.0", "out.1")]
    found = given | dict(_floats(evidence, candidate, pairs[:MOST_PAIRS]))
    small = (np.abs(value[..., :1, :]).max(initial=0.0) < LARGEST_COSINE for value in found.values())
    return {name: value for (name, value), fits in zip(found.items(), small, strict=True) if fits}


def _floats(evidence: Evidence, candidate: bool, sites: list[Site]) -> Iterator[tuple[str, Floats]]:
    read = evidence.around.candidate if candidate else evidence.around.reference
    for site in sites:
        value = read(site)
        if value is not None and value.dtype.kind == "f" and value.ndim >= 2 and value.size:
            yield f"{site.name}:{site.port}", np.asarray(value, np.float64)


def tables_of(evidence: Evidence) -> Iterator[tuple[str, Floats]]:
    """Recorded weights whose names say that they hold biases by position."""
    for site in evidence.around.sites("weight"):
        name = f"{site.name}.{site.port}".lstrip(".")
        if re.search(r"rel|bias_table|position|alibi", name.lower()) and site.step == evidence.site.step:
            value = evidence.around.reference(site)
            if value is not None and value.ndim == 2 and min(value.shape) <= MOST_HEADS:
                yield name, np.asarray(value, np.float64)
