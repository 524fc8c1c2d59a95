"""What was matched right, what wrong, and of what nothing was said."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

import firstdrift as fd
from firstdrift.compare.comparison import align_traces

from .making import Made

PHASES = ("fwd", "weight")


@dataclass
class Score:
    """Modules and weights of one pair or of many."""

    right: int = 0
    wrong: int = 0
    said: int = 0
    mistakes: list[str] = field(default_factory=list)
    unsaid: list[str] = field(default_factory=list)

    def add(self, other: Score) -> None:
        self.right += other.right
        self.wrong += other.wrong
        self.said += other.said

    @property
    def total(self) -> int:
        return self.right + self.wrong + self.said

    def __str__(self) -> str:
        return f"{self.right:5} right {self.wrong:3} wrong {self.said:4} said"


def score(made: Made) -> Score:
    """Modules by their outputs, weights one by one; what the candidate does not have is wrong to be matched."""
    opened = align_traces(made.reference, made.candidate)
    pairs = {pair.site: pair for pair in opened.alignment.pairs}
    names = {site.name for site in made.truth}
    found = Score()
    for record in fd.open_trace(made.reference):
        site = record.site
        if site.phase not in PHASES or site.port.startswith("in.") or site.step or record.at is None:
            continue
        pair = pairs.get(site)
        truth = made.truth.get(site)
        if truth is None:
            if pair is None or not pair.candidate or site.name in names:
                continue  # another port of what is there, or rightly left alone
            if _same_tensor(opened.candidate, pair, made, site):
                continue
            found.wrong += 1
            found.mistakes.append(f"{site} has no counterpart, given {pair.candidate[0].site.name}")
            continue
        if pair is None or not pair.candidate:
            found.said += 1
            found.unsaid.append(str(site))
        elif _is_right(opened.candidate, pair, made, truth):
            found.right += 1
        else:
            found.wrong += 1
            found.mistakes.append(
                f"{site} is {truth}, given {pair.candidate[0].site.name} by {pair.matched} {pair.sure}"
            )
    return found


def _is_right(candidate: fd.Trace, pair: object, made: Made, truth: tuple[str, str]) -> bool:
    if truth in {(one.site.name, one.site.port) for one in pair.candidate}:
        return True
    given = pair.candidate[0]
    like = given.site._replace(name=truth[0], port=truth[1])
    same = made.any_of_one_tensor and like in candidate
    return same and candidate.array(like).tobytes() == candidate.array(given).tobytes()


def _same_tensor(candidate: fd.Trace, pair: object, made: Made, site: object) -> bool:
    """Whether what it was given is the very tensor that its own child returns."""
    array = candidate.array(pair.candidate[0])
    for other, (name, port) in made.truth.items():
        if other.phase == "fwd" and other.name.startswith(f"{site.name}.") and not port.startswith("in."):
            like = other._replace(name=name, port=port)
            if like in candidate and np.array_equal(candidate.array(like), array):
                return True
    return False
