"""Whether the blocks of a channel axis may be heads, or channels and places of an image: by what they were made of."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ...judge.apriori.kinds import ELEMENTWISE, kind_of
from ...sites import Site
from ..evidence import Evidence
from ..regions import heads_of
from ..roles import role

PROJECTED = frozenset({"q", "k", "v", "qkv", "kv"})
PLACES = re.compile(r"conv|[23]d\b|pool(?!er)|upsampl|pixel_?shuffle|unfold|interpolat", re.IGNORECASE)
LINEAR_CONV = "Conv1D"  # GPT-2's name for a linear layer
FARTHEST = 8  # operations, back from a tensor, that are asked what they make


def has_heads(evidence: Evidence) -> bool:
    """Whether an attention is around: q, k or v were merged, a number of heads is recorded, or its name says so.

    What a convolution or a pool made has channels and places, whatever the names around it are.
    """
    own = () if evidence.site.port.startswith("in.") else (evidence.site.name,)  # what a projection reads has no heads
    if any(role(name) in PROJECTED for name in (*own, *evidence.inputs)):
        return True
    if _has_places(evidence):
        return False
    named = (evidence.op, evidence.site.name, *evidence.inputs)
    return heads_of(evidence) is not None or any(kind_of(one) == "attention" for one in named)


def _has_places(evidence: Evidence) -> bool:
    ops = [evidence.around.op(site) for site in _makers(evidence)]
    return any(PLACES.search(op) and op != LINEAR_CONV for op in ops)


def _makers(evidence: Evidence) -> Iterator[Site]:
    """The operations that a tensor came from, back through those that change neither its axes nor their meaning."""
    waiting = [(site, 1) for site in evidence.around.producers(evidence.site)]
    seen = {site for site, _ in waiting}
    while waiting:
        site, far = waiting.pop(0)
        if site.phase != "fwd":
            continue
        yield site
        passes = site.port.startswith("in.") or kind_of(evidence.around.op(site)) in (*ELEMENTWISE, "norm")
        for other in evidence.around.producers(site) if passes and far < FARTHEST else ():
            if other not in seen:
                seen.add(other)
                waiting.append((other, far + 1))
