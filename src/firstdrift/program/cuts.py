"""The part of a program that makes one recorded tensor from those that were recorded before it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..sites import Site
from .calls import Call, Leaf, Ref, Step, Type, reads


@dataclass(frozen=True, slots=True)
class Cut:
    """The nodes that make a value, in order, and the recorded values that they start from."""

    target: Ref
    given: Mapping[Ref, Site]
    nodes: tuple[int, ...]

    @property
    def is_empty(self) -> bool:
        """Whether nothing is computed: the value is a leaf, or was recorded before under another name."""
        return not self.nodes


class Cuts:
    """The cuts of one step. `starts` says from which sites they may start."""

    def __init__(self, step: Step, starts: Callable[[Site], bool]) -> None:
        self.step = step
        self._sites: dict[Ref, list[Site]] = defaultdict(list)
        for site, ref in step.sites.items():
            if starts(site):
                self._sites[ref].append(site)

    def at(self, site: Site) -> Cut | None:
        """How a site was made; None where the program does not say."""
        target = self.step.sites.get(site)
        if target is None:
            return None
        given: dict[Ref, Site] = {}
        needed: set[int] = set()
        waiting = [target]
        while waiting:
            ref = waiting.pop()
            if ref in given or ref.node in needed:
                continue
            start = self._start(ref, site) if ref != target else None
            if start is not None:
                given[ref] = start
                continue
            node = self.step.nodes[ref.node]
            if isinstance(node, Leaf) and ref == target:
                return Cut(target, {}, ())
            needed.add(ref.node)
            waiting += reads(node)
            if isinstance(node, Call) and node.drawn:
                waiting += [Ref(leaf) for leaf in node.drawn.values()]
        return Cut(target, given, tuple(sorted(needed)))

    def _start(self, ref: Ref, target: Site) -> Site | None:
        """The site to take a value from: the one nearest to the target, because an edge may be wrong."""
        return max(self._sites.get(ref, ()), key=lambda site: _nearness(site, target), default=None)


def type_of(step: Step, ref: Ref) -> Type | None:
    """The type of a value."""
    node = step.nodes[ref.node]
    return node.type if isinstance(node, Leaf) else node.results[ref.at]


def _nearness(site: Site, target: Site) -> tuple[bool, int]:
    """How near a site is to what a target was made by: its own module's, else the most names in common."""
    common = 0
    for one, other in zip(site.name.split("."), target.name.split("."), strict=False):
        if one != other:
            break
        common += 1
    return site.name == target.name and site.call == target.call, common
