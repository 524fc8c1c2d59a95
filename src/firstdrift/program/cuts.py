"""The part of a program that makes one recorded tensor from those that were recorded before it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..core.sites import Site
from .calls import Leaf, Ref, Step
from .control import Control, NumberRead


@dataclass(frozen=True, slots=True)
class Cut:
    """The nodes that make a value, in order, and the recorded values that they start from.

    `control` is what the run read out of tensors before it made these calls, each with the cut that its tensors come
    from, None where these are not on record: from other tensors, the numbers must come out the same.
    """

    target: Ref
    given: Mapping[Ref, Site]
    nodes: tuple[int, ...]
    control: tuple[tuple[NumberRead, Cut | None], ...] = ()

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
        self._control = Control(step)
        self._reads: dict[tuple[int, tuple[Ref, ...]], Cut] = {}

    def at(self, site: Site) -> Cut | None:
        """How a site was made; None where the program does not say."""
        target = self.step.sites.get(site)
        if target is None:
            return None
        if isinstance(self.step.nodes[target.node], Leaf):
            return Cut(target, {}, ())
        given, nodes = self._behind([target], site)
        return Cut(target, given, nodes, tuple((number, self._read(number)) for number in self._control.behind(nodes)))

    def _read(self, read: NumberRead) -> Cut | None:
        """How the tensors that a number was read out of are made; None where the program does not hold them."""
        if not read.of:
            return None
        key = (read.before, read.of)
        if key not in self._reads:
            given, nodes = self._behind(read.of, None)
            self._reads[key] = Cut(read.of[0], given, nodes)
        return self._reads[key]

    def _behind(self, targets: Sequence[Ref], site: Site | None) -> tuple[dict[Ref, Site], tuple[int, ...]]:
        """What values are made from; `site` is one of the first's, which is not to be given."""
        given: dict[Ref, Site] = {}
        needed: set[int] = set()
        waiting = list(targets)
        while waiting:
            ref = waiting.pop()
            if ref in given or ref.node in needed:
                continue
            start = None if site is not None and ref == targets[0] else self._start(ref, site)
            if start is not None:
                given[ref] = start
                continue
            needed.add(ref.node)
            waiting += self.step.needs(ref.node)
        return given, tuple(sorted(needed))

    def _start(self, ref: Ref, target: Site | None) -> Site | None:
        """The site to take a value from: the one nearest to the target, because an edge may be wrong."""
        there = self._sites.get(ref, ())
        return max(there, key=lambda one: (False, 0) if target is None else _nearness(one, target), default=None)


def _nearness(site: Site, target: Site) -> tuple[bool, int]:
    """How near a site is to what a target was made by: its own module's, else the most names in common."""
    common = 0
    for one, other in zip(site.name.split("."), target.name.split("."), strict=False):
        if one != other:
            break
        common += 1
    return site.name == target.name and site.call == target.call, common
