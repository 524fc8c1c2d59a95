"""What an attention was computed from, as it was recorded.

That is either the outputs of the projections before it, or the hidden states together with the projections' weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from ..evidence import Evidence
from .between import Way, handed_on
from .extras import mask_of, masks_among, tables_among
from .latent import latent_parts
from .nearby import Nearby
from .norming import Norm, Norms
from .roles import parameter, role
from .rotary import Floats
from .scored import divided_before, without_values

# Batches first, then heads or tokens; tokens before batches; tokens before the heads of what is divided already.
LAYOUTS = ("batches first", "tokens first", "heads inside")


@dataclass(frozen=True, eq=False, slots=True)
class Sources:
    """One side's operands, as recorded: `parts` by role (q, k, v, kv, qkv), and the rest."""

    parts: Mapping[str, Floats]
    observed: Floats
    heads: int | None = None
    mask: Floats | None = None
    bias: Floats | None = None
    rotary: tuple[Floats, float] | None = None
    projection: tuple[Floats, Floats] | None = None
    norms: Mapping[str, Norm] = field(default_factory=dict)  # of q and k, which are applied before anything else
    norm: Norms | None = None  # the same behind the rotation
    sinks: Floats | None = None  # learned scores of a key without a value, one of each head


Found = tuple[dict[str, Floats], int | None, tuple[Floats, Floats] | None]  # parts, heads, the output projection


@dataclass(slots=True)
class _Found:
    parts: dict[str, Floats] = field(default_factory=dict)
    heads: int | None = None


def sources(
    evidence: Evidence, candidate: bool, layout: str = LAYOUTS[0], other_mask: Floats | None = None,
    near: Nearby | None = None, way: Way | None = None,
) -> Sources | None:  # fmt: skip
    """The operands of one side, or None where this is no attention, or one to which another mask does not fit; in some
    way those that modules between the projections and the attention made."""
    near = near or Nearby()
    recorded = evidence.candidate_inputs if candidate else evidence.inputs
    seen = evidence.found if candidate else evidence.expected
    if evidence.site.phase != "fwd" or seen.ndim not in (2, 3, 4) or not np.issubdtype(seen.dtype, np.floating):
        return None
    given = {name: np.asarray(value, np.float64) for name, value in recorded.items() if not np.iscomplexobj(value)}
    observed = np.asarray(seen, np.float64)
    if layout != LAYOUTS[0]:
        rank, first = (3, 0) if layout == "tokens first" else (4, 1)
        if observed.ndim != rank:
            return None
        given = {k: value.swapaxes(first, first + 1) if value.ndim == rank else value for k, value in given.items()}
        observed = observed.swapaxes(first, first + 1)
    found: Found | None
    if way is not None:
        found = None if near.made is None else handed_on(near.made[candidate], observed, way)
        given = {name: value for name, value in given.items() if name.partition(":")[0] not in _used(near)}
    else:
        found = _recorded(evidence, given, observed, candidate, layout)
    if found is None:
        return None
    parts, heads, projection = found
    key = parts.get("k", parts.get("kv", parts.get("qkv")))
    assert key is not None
    batch, keys = key.shape[:2]
    queries = parts.get("q", parts.get("qkv", key)).shape[1]
    target = _target(observed, batch, queries, keys)
    if target is None:
        return None
    rest = {name: value for name, value in {**_around(evidence, candidate), **given}.items() if not role(name)}
    mask, bias = masks_among(rest, batch, queries, keys)
    if bias is None:
        told, bias = masks_among(near.biases[candidate], batch, queries, keys)
        mask = mask if told is None or np.isin(told, (0, 1)).all() or (told <= 0).all() else told
    if other_mask is not None:
        before, mask = mask, mask_of(other_mask, batch, queries, keys)
        if mask is None or (before is not None and np.array_equal(before, mask)):
            return None
    tokens = max(keys, queries)
    rotary = tables_among(rest, tokens) or tables_among(near.tables[candidate], tokens)
    return Sources(parts, target, heads, mask, bias, rotary, projection, sinks=_sinks(evidence, candidate))


def _recorded(
    evidence: Evidence, given: Mapping[str, Floats], observed: Floats, candidate: bool, layout: str
) -> Found | None:
    """The operands as the projections left them, or as whatever is called like them."""
    found = _projected(given, observed) or _from_weights(evidence, given, candidate) or _unnamed(given, observed)
    if found is None and layout == LAYOUTS[0] and (pair := divided_before(evidence, candidate, observed)) is not None:
        return pair, observed.shape[1], None
    return found


def _used(near: Nearby) -> set[str]:
    """The modules whose outputs are operands, and so neither masks nor biases."""
    return set() if near.made is None else {site.name for site, _ in near.made[0].rest}


def with_norms(given: Sources, norms: Mapping[str, tuple[Norm, Floats]], mine: Sources, limit: float) -> Sources:
    """One side's operands with the norms that only one side records; behind the rotation if the reference's projections
    (`mine`) are not what they were given."""
    early: dict[str, Norm] = {}
    late: dict[str, Norm] = {}
    divided = given.heads
    for side, (norm, x) in norms.items():
        flat, heads = _flat(x, mine.observed)
        part = mine.parts.get(side)
        wide = replace(norm, wide=x.ndim == 3 and (part is None or part.shape[-1] == x.shape[-1]))
        close = part is not None and part.shape == flat.shape
        same = close and bool(np.linalg.norm(part - flat) <= limit * np.linalg.norm(flat)) if part is not None else True
        (early if same else late)[side] = wide
        divided = heads if side == "q" and heads else divided
    norm_late = Norms(late.get("q"), late.get("k"), late=True) if late else None
    return replace(given, heads=divided, norms=early, norm=norm_late)


def _projected(given: Mapping[str, Floats], observed: Floats) -> tuple[dict[str, Floats], int | None, None] | None:
    """Operands that were recorded as such."""
    if observed.ndim == 3 and (latent := latent_parts(given)) is not None:
        return latent, None, None
    named = _Found()
    for name, value in given.items():
        which = role(name)
        last = which not in named.parts or "norm" in name.lower()  # what was normalised is what is attended
        if which in ("q", "k", "v", "kv", "qkv") and value.ndim in (2, 3, 4) and last:
            flat, heads = _flat(value, observed)
            named.parts[which] = flat
            named.heads = heads or named.heads if which == "q" else named.heads
    if _complete(named.parts):
        return named.parts, named.heads, None
    if (scored := without_values(named.parts, observed)) is not None:
        return scored, named.heads, None
    plain = [value for value in given.values() if value.ndim == 3]
    if any(role(name) for name in given) or any(name.startswith("in.") for name in given):
        return None
    if len(plain) == 1 and observed.shape[-1] * 3 == plain[0].shape[-1]:
        return {"qkv": plain[0]}, None, None
    if len(plain) == 3 and plain[0].shape[-1] == observed.shape[-1]:
        return dict(zip("qkv", plain, strict=True)), None, None
    return None


def _unnamed(given: Mapping[str, Floats], observed: Floats) -> tuple[dict[str, Floats], int | None, None] | None:
    """Operands that a module without weights was handed in the usual order."""
    three = [value for name, value in given.items() if name in ("in.0", "in.1", "in.2")]
    if len(three) != 3 or any(value.ndim != observed.ndim or value.ndim < 3 for value in three):
        return None
    flat = [_flat(value, observed) if value.ndim == 3 else _joined(value) for value in three]
    return dict(zip("qkv", (value for value, _ in flat), strict=True)), flat[0][1], None


def _joined(value: Floats) -> tuple[Floats, int]:
    """Heads before tokens as (batch, tokens, width)."""
    batch, heads, tokens, channels = value.shape
    return value.transpose(0, 2, 1, 3).reshape(batch, tokens, heads * channels), heads


def _from_weights(
    evidence: Evidence, given: Mapping[str, Floats], candidate: bool
) -> tuple[dict[str, Floats], None, tuple[Floats, Floats] | None] | None:
    """Operands computed from hidden states by the weights of the module."""
    states = [value for name, value in given.items() if value.ndim == 3]
    weights = dict(_weights(evidence, candidate))
    if not states or not weights or evidence.expected.ndim != 3:
        return None
    by_role: dict[tuple[str, str], Floats] = {}
    for name, value in weights.items():
        by_role.setdefault((role(name), parameter(name)), value)
    parts = {}
    for which, source in (("q", 0), ("k", 1), ("v", 2), ("kv", 1), ("qkv", 0)):
        x = states[min(source, len(states) - 1)]
        projected = _linear(x, by_role.get((which, "weight")), by_role.get((which, "bias")))
        if projected is not None:
            parts[which] = projected
    fused = by_role.get(("qkv", "weight"))
    if "qkv" in parts and len(states) > 1 and fused is not None:  # three inputs, one stacked weight
        parts = _stacked(states, fused, by_role.get(("qkv", "bias")))
    if not _complete(parts):
        return None
    out = by_role.get(("o", "weight"))
    width = evidence.expected.shape[-1]
    if out is None:
        return parts, None, None
    if out.ndim != 2 or out.shape[0] != width:
        out = out.T if out.ndim == 2 and out.shape[1] == width else None
    if out is None:
        return None
    bias = by_role.get(("o", "bias"))
    return parts, None, (out, np.zeros(width) if bias is None else bias)


def _stacked(states: list[Floats], weight: Floats, bias: Floats | None) -> dict[str, Floats]:
    weights = np.split(weight, 3)
    biases = [None] * 3 if bias is None else np.split(bias, 3)
    inputs = [states[0], states[1], states[min(2, len(states) - 1)]]
    projected = [_linear(x, w, b) for x, w, b in zip(inputs, weights, biases, strict=True)]
    return {name: value for name, value in zip("qkv", projected, strict=True) if value is not None}


def _weights(evidence: Evidence, candidate: bool) -> Iterator[tuple[str, Floats]]:
    """The parameters of a module and of what is below it, by their path from the module."""
    own = evidence.candidate_parameters if candidate else evidence.parameters
    for port, given in own.items():
        yield port, np.asarray(given, np.float64)
    prefix = f"{evidence.site.name}." if evidence.site.name else ""
    read = evidence.around.candidate if candidate else evidence.around.reference
    for site in evidence.around.sites("weight"):
        below = site.name.startswith(prefix) and site.name.count(".") - prefix.count(".") <= 1
        if below and role(f"{site.name[len(prefix) :]}.{site.port}"):
            value = read(site)
            if value is not None and value.ndim <= 2:
                yield f"{site.name[len(prefix) :]}.{site.port}", np.asarray(value, np.float64)


def _sinks(evidence: Evidence, candidate: bool) -> Floats | None:
    """Learned scores of a key that takes its share of every query and has no value."""
    own = evidence.candidate_parameters if candidate else evidence.parameters
    found = (value for port, value in own.items() if "sink" in port.lower() and 1 < value.size == max(value.shape))
    return next((np.asarray(value, np.float64).ravel() for value in found), None)


def _around(evidence: Evidence, candidate: bool) -> dict[str, Floats]:
    """Masks that the model was fed, which reach an attention without being recorded as its input."""
    read = evidence.around.candidate if candidate else evidence.around.reference
    found = {}
    for site in evidence.around.sites("input"):
        if "mask" in site.port.lower() or "mask" in site.name.lower():
            value = read(site)
            if value is not None:
                found[f"input {site.port}"] = np.asarray(value, np.float64)
    return found


def _linear(x: Floats, weight: Floats | None, bias: Floats | None) -> Floats | None:
    if weight is None or weight.ndim != 2 or x.shape[-1] not in weight.shape:
        return None
    out = x @ (weight.T if weight.shape[1] == x.shape[-1] else weight)
    return np.asarray(out if bias is None or bias.shape != out.shape[-1:] else out + bias)


def _complete(parts: Mapping[str, Floats]) -> bool:
    return {"q", "k", "v"} <= set(parts) or {"q", "kv"} <= set(parts) or "qkv" in parts


def _flat(value: Floats, observed: Floats) -> tuple[Floats, int | None]:
    """A projection as (batch, tokens, width), and its heads where it was divided already."""
    if value.ndim == 2:
        tokens = observed.shape[-2] if observed.ndim == 3 and observed.shape[-2] else len(value)
        if len(value) % tokens == 0:
            return value.reshape(-1, tokens, value.shape[-1]), None
        return value[None], None
    if value.ndim == 3:
        return value, None
    tokens = observed.shape[-2]
    if value.shape[1] != tokens and value.shape[2] == tokens:  # heads come first
        value = value.transpose(0, 2, 1, 3)
    return value.reshape(*value.shape[:2], -1), value.shape[2]


def _target(observed: Floats, batch: int, queries: int, keys: int) -> Floats | None:
    """What was observed as (batch, queries, width), or as scores (batch, heads, queries, keys)."""
    if observed.ndim == 4:
        if observed.shape[0] == batch and observed.shape[2:] == (queries, keys):
            return observed
        if observed.shape[:3:2] == (batch, queries):
            return observed.transpose(0, 2, 1, 3).reshape(batch, queries, -1)
        return observed.reshape(batch, queries, -1) if observed.shape[:2] == (batch, queries) else None
    if observed.ndim == 2 and len(observed) == batch * queries:
        return observed.reshape(batch, queries, -1)
    return observed if observed.shape[:2] == (batch, queries) else None
