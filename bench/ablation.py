"""Which families of hypotheses win cases of driftbench, and what is lost without some of them.

`python bench/ablation.py --winners` asks every case and counts who gave the cause: the program, or a module of
`firstdrift.causes`. `python bench/ablation.py --without norms --without rope` asks with these modules left out, and
names the cases whose label is lost.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from driftbench.asking import MODES
from driftbench.case import Case
from driftbench.cases import all_cases
from driftbench.running import run_case

import firstdrift.comparison as comparison
from firstdrift.causes import hypotheses, table
from firstdrift.live.sides import one_thread

PROGRAM = "the program"


class Winners:
    """Remembers who gave the last cause."""

    def __init__(self) -> None:
        self.last = ""
        chosen, changed = hypotheses._ranked, comparison.smallest_change

        def ranked(trial: Any) -> Any:
            found = chosen(trial)
            self.last = self.made_by.get(id(found[0].finding.parameters), "") if found else ""
            return found

        def change(*args: Any) -> Any:
            found = changed(*args)
            self.last = PROGRAM if found is not None else self.last
            return found

        self.made_by: dict[int, str] = {}
        self.kept: list[Any] = []
        findings = hypotheses._findings

        def noted(hypothesis: Any, evidence: Any) -> Iterator[Any]:
            for finding in findings(hypothesis, evidence):
                self.kept.append(finding.parameters)  # alive, so that no other has its identity
                self.made_by[id(finding.parameters)] = hypothesis.__module__.removeprefix("firstdrift.causes.")
                yield finding

        hypotheses._findings, hypotheses._ranked = noted, ranked
        comparison.smallest_change = change  # type: ignore[assignment]


def without(names: Sequence[str]) -> None:
    """Leave modules out of the table."""
    table.TABLE = tuple(one for one in table.TABLE if one.__module__.split(".")[-1] not in names)


def asked(cases: Sequence[Case], modes: Sequence[str]) -> Iterator[tuple[Case, Any]]:
    """Every case with its scores."""
    with one_thread():
        for case in cases:
            for score in run_case(case, modes, with_baselines=False):
                yield case, score


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--winners", action="store_true", help="count who gave the cause")
    parser.add_argument("--without", action="append", default=[], metavar="MODULE", help="leave a module out")
    parser.add_argument("--mode", choices=MODES, action="append", help="ask in one way only")
    parser.add_argument(
        "--every", type=int, default=1, metavar="N", help="only every Nth case, in a fixed random order"
    )
    options = parser.parse_args()
    without(options.without)
    winners = Winners() if options.winners else None
    cases = [case for case in all_cases() if not case.benign]
    random.Random(0).shuffle(cases)
    counts: Counter[tuple[str, bool]] = Counter()
    for case, score in asked(cases[:: options.every], options.mode or MODES):
        by = winners.last if winners is not None else ""
        counts[by, bool(score.label)] += 1
        mark = "right" if score.label else f"wrong, {score.expected_labels} expected"
        print(f"{case.name} {score.by} {score.outcome}: {score.said_label} ({by}), {mark}", flush=True)
    for (by, right), count in sorted(counts.items()):
        print(f"{count:4} {'right' if right else 'wrong'} {by}")


if __name__ == "__main__":
    main()
