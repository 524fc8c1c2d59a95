"""The tensors of two aligned traces by site, and what each was computed from as far as the reference says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from math import prod

import numpy as np

from ..compare.measuring import load_pair
from ..compare.pairs import Pair, ReconcileError
from ..dtypes import roundoff
from ..records import Record
from ..sites import Site
from ..traces import Array, Trace

DEEPEST = 8  # names of one tensor that are followed
EARLIER = 12  # tensors before the last one that a chain without recorded producers may have read


class Sources:
    """Both sides of every pair that has numbers on both."""

    def __init__(self, reference: Trace, candidate: Trace, pairs: Sequence[Pair]) -> None:
        self.reference, self.candidate = reference, candidate
        self.pairs: Mapping[Site, Pair] = {pair.site: pair for pair in pairs if _has_numbers(pair)}
        self.recorded = any("from" in pair.reference.details for pair in pairs)

    def load(self, site: Site) -> tuple[Array, Array] | None:
        """Both tensors of a site; None where they cannot be brought together."""
        try:
            return load_pair(self.pairs[site], self.reference, self.candidate)
        except (KeyError, ReconcileError):
            return None

    def record(self, site: Site) -> Record:
        """What the reference says of a site."""
        return self.pairs[site].reference

    def shape(self, site: Site) -> tuple[int, ...]:
        """The shape of a site's tensors, once they are brought together."""
        pair = self.pairs[site]
        if pair.reference_steps:
            loaded = self.load(site)
            return () if loaded is None else loaded[0].shape
        return pair.reference.shape or ()

    def units(self, site: Site) -> tuple[float, float]:
        """The unit roundoffs of both sides."""
        pair = self.pairs[site]
        return roundoff(pair.reference.dtype), roundoff(*(record.dtype for record in pair.candidate))

    def parameters(self, name: str, step: int) -> dict[str, Site]:
        """A module's own parameters and buffers, by port."""
        return self._by_module.get((step, name), {})

    def reads(self, site: Site) -> Iterator[dict[str, Site]]:
        """What a forward tensor may have been computed from, each by a name; the likeliest first."""
        own = self._inputs.get(site._replace(port=""), {})
        recorded = self.record(site).producers
        found = None if recorded is None else self._known(recorded, site)
        if found is not None:
            inner = all(other.name == site.name and other.port.startswith("in.") for other in found)
            yield {other.port if inner else _key(other): other for other in found}
        elif own and not site.port.startswith("in."):
            yield own
        elif not site.port.startswith("in."):
            yield from self._chained(site)

    def same_tensor(self, one: Site, other: Site) -> bool:
        """Whether the reference stored two sites as one tensor."""
        ours, theirs = self.record(one), self.record(other)
        return ours.at is not None and ours.at == theirs.at and bool(ours.nbytes)

    def _known(self, producers: Sequence[Site], site: Site) -> list[Site] | None:
        """Producers that have numbers, one of each tensor; None if any is not to be had."""
        found: list[Site] = []
        for producer in producers:
            known = self._paired(producer, site.sample)
            if known is None or known == site:
                return None
            if not any(self.same_tensor(known, other) for other in found):
                found.append(known)
        return found or None

    def _paired(self, producer: Site, sample: int | None, depth: int = 0) -> Site | None:
        """A producer that was compared, or the same tensor under the name of what made it."""
        options = (producer._replace(sample=sample), producer)
        known = next((option for option in options if option in self.pairs), None)
        if known is not None or producer not in self.reference or depth > DEEPEST:
            return known
        record = self.reference[producer]
        for before in record.producers or ():
            if before in self.reference and self._alike(record, self.reference[before]):
                return self._paired(before, sample, depth + 1)
        return None

    def _alike(self, one: Record, other: Record) -> bool:
        if one.at is None or other.at is None or one.shape != other.shape or one.dtype != other.dtype:
            return False
        return one.at == other.at or np.array_equal(self.reference.array(one), self.reference.array(other))

    def _chained(self, site: Site) -> Iterator[dict[str, Site]]:
        """Without a graph: the tensor before, one of those before it, or the sum of two."""
        chain = self._chains[site.step, site.sample]
        before = [other for other in chain[: chain.index(site)] if other != site][-EARLIER:][::-1]
        fed = [other for other in self.pairs if (other.phase, other.step, other.sample) == ("input", *site[::5])]
        before = before or fed
        for other in before:
            yield {_key(other): other}
        same = [other for other in before if prod(self.shape(other)) == prod(self.shape(site))]
        if same and same[0] == before[0]:
            for other in same[1:]:
                yield {_key(same[0]): same[0], _key(other): other}

    @cached_property
    def _chains(self) -> dict[tuple[int, int | None], list[Site]]:
        chains: dict[tuple[int, int | None], list[Site]] = {}
        for site in self.pairs:
            if site.phase == "fwd":
                chains.setdefault((site.step, site.sample), []).append(site)
        return chains

    @cached_property
    def _inputs(self) -> dict[Site, dict[str, Site]]:
        found: dict[Site, dict[str, Site]] = {}
        for site in self.pairs:
            if site.phase == "fwd" and site.port.startswith("in."):
                found.setdefault(site._replace(port=""), {})[site.port] = site
        return found

    @cached_property
    def _by_module(self) -> dict[tuple[int, str], dict[str, Site]]:
        found: dict[tuple[int, str], dict[str, Site]] = {}
        for site in self.pairs:
            if site.phase == "weight":
                found.setdefault((site.step, site.name), {})[site.port] = site
        return found


def _has_numbers(pair: Pair) -> bool:
    return pair.reference.at is not None and all(one.at is not None for one in pair.candidate) and bool(pair.candidate)


def _key(site: Site) -> str:
    """A producer's name among others: its module's, with the port and call where those are not the only ones."""
    if site.phase == "input":
        return f"input {site.port}"
    text = site.name if site.phase == "fwd" else f"{site.phase} {site.name}"
    text += "" if site.port in ("out", "weight") else f":{site.port}"
    return text + (f" call {site.call}" if site.call else "")
