"""The same names under another prefix: `model.layers.0.fc` on one side, `layers.0.fc` on the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from itertools import takewhile


def rename_by_prefix(reference: Collection[str], candidate: Collection[str]) -> dict[str, str]:
    """Reference names to candidate names, when stripping one prefix from one side (or both) makes them equal.

    One prefix must explain more names than any other and at least half of the shorter side: a single `fc` below
    another parent is a coincidence, not a prefix.
    """
    best = _best(Counter(_votes(set(reference), set(candidate))))
    if best is None:
        return {}
    strip, add = best
    renamed = {name: _join(add, rest) for name in reference if (rest := _without(name, strip)) is not None}
    found = {name: other for name, other in renamed.items() if other in candidate and name not in candidate}
    enough = 2 * len(found) >= min(len(set(reference)), len(set(candidate)))
    return found if enough else {}


def _votes(reference: set[str], candidate: set[str]) -> Iterator[tuple[str, str]]:
    """Every (prefix to strip from the reference, prefix to add for the candidate) that makes two names equal."""
    for name in reference - candidate:
        for prefix, rest in _splits(name):
            if rest in candidate:
                yield prefix, ""
    for name in candidate - reference:
        for prefix, rest in _splits(name):
            if rest in reference:
                yield "", prefix
    of_reference, of_candidate = _common(reference), _common(candidate)
    if of_reference and of_candidate and of_reference != of_candidate and min(len(reference), len(candidate)) > 1:
        stripped = {_without(name, of_candidate) for name in candidate} - {None}
        for name in reference:
            if _without(name, of_reference) in stripped:
                yield _shortest(of_reference, of_candidate)


def _shortest(reference: str, candidate: str) -> tuple[str, str]:
    """The two prefixes without the components that both end in: stripping those as well says nothing more."""
    left, right = reference.split("."), candidate.split(".")
    while left and right and left[-1] == right[-1]:
        left.pop()
        right.pop()
    return ".".join(left), ".".join(right)


def _best(votes: Counter[tuple[str, str]]) -> tuple[str, str] | None:
    ranked = votes.most_common(2)
    if not ranked or (len(ranked) == 2 and ranked[0][1] == ranked[1][1]):
        return None  # nothing, or two answers that explain as much
    return ranked[0][0]


def _splits(name: str) -> Iterator[tuple[str, str]]:
    parts = name.split(".")
    for cut in range(1, len(parts) + 1):
        yield ".".join(parts[:cut]), ".".join(parts[cut:])


def _common(names: set[str]) -> str:
    """The dotted prefix that all names share."""
    components = zip(*(name.split(".") for name in names), strict=False)
    return ".".join(several[0] for several in takewhile(lambda several: len(set(several)) == 1, components))


def _without(name: str, prefix: str) -> str | None:
    if not prefix:
        return name
    if name == prefix:
        return ""
    return name[len(prefix) + 1 :] if name.startswith(prefix + ".") else None


def _join(prefix: str, rest: str) -> str:
    return f"{prefix}.{rest}" if prefix and rest else prefix or rest
