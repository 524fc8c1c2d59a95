"""Who names the causes of driftbench and realbugs: the program, or which module; and what is lost without some.

`python bench/ablation.py --winners` asks every case, counts who gave the cause, and prints a table in Markdown.
`python bench/ablation.py --without elementwise --suite driftbench` asks with a module left out, and names the cases
whose cause is not right.
"""

from __future__ import annotations

import argparse
import random
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import driftbench.cases
import driftbench.running
import realbugs.cases
import realbugs.running
from driftbench.asking import MODES

import firstdrift.compare.comparison as comparison
from firstdrift.explain.relations import hypotheses
from firstdrift.explain.relations import known as table
from firstdrift.live.sides import one_thread

PROGRAM, NOBODY = "the program", "nobody"
SUITES = ("driftbench", "realbugs")


@dataclass(frozen=True)
class Said:
    """What was said of one case, who said it, and whether it is right."""

    suite: str
    case: str
    mode: str
    label: str
    right: bool

    @property
    def worth(self) -> str:
        """The column that it counts in: to say nothing is not right, but not wrong either."""
        return "right" if self.right else "none" if self.label in ("", "unknown") else "wrong"


class Winners:
    """Remembers who gave the last cause."""

    def __init__(self) -> None:
        self.last = NOBODY
        self.made_by: dict[int, str] = {}
        self.kept: list[Any] = []
        chosen, changed, findings = hypotheses._ranked, comparison.smallest_change, hypotheses._findings

        def ranked(trial: Any) -> Any:
            found = chosen(trial)
            self.last = self.made_by.get(id(found[0].finding.parameters), NOBODY) if found else NOBODY
            return found

        def change(*args: Any) -> Any:
            found = changed(*args)
            self.last = PROGRAM if found is not None else self.last
            return found

        def noted(hypothesis: Any, evidence: Any) -> Iterator[Any]:
            for finding in findings(hypothesis, evidence):
                self.kept.append(finding.parameters)  # alive, so that no other has its identity
                self.made_by[id(finding.parameters)] = hypothesis.__module__.removeprefix("firstdrift.")
                yield finding

        hypotheses._findings, hypotheses._ranked = noted, ranked
        comparison.smallest_change = change  # type: ignore[assignment]

    def asked(self) -> str:
        """Who gave it; from here on the next one is asked for."""
        who, self.last = self.last, NOBODY
        self.made_by.clear()
        self.kept.clear()
        return who


def without(names: Sequence[str]) -> None:
    """Leave modules out of the table."""
    table.TABLE = tuple(one for one in table.TABLE if one.__module__.split(".")[-1] not in names)


def ask_driftbench(modes: Sequence[str], every: int) -> Iterator[Said]:
    """Every Nth bug, in a fixed random order."""
    cases = [case for case in driftbench.cases.all_cases() if not case.benign]
    random.Random(0).shuffle(cases)
    for case in cases[::every]:
        for mode in modes:
            for one in driftbench.running.run_case(case, [mode], with_baselines=False):
                yield Said("driftbench", case.name, mode, one.said_label, bool(one.label))


def ask_realbugs(modes: Sequence[str], every: int) -> Iterator[Said]:
    """Every Nth bug between two releases."""
    cases = [case for case in realbugs.cases.all_cases() if case.truth is not None]
    for case in cases[::every]:
        for one in realbugs.running.run_case(case, modes):
            yield Said("realbugs", case.name, one.by, one.said_label, bool(one.cause))


ASKING = {"driftbench": ask_driftbench, "realbugs": ask_realbugs}


def rendered(counts: Counter[tuple[str, str, str]]) -> str:
    """The table: who gave how many causes of each suite, the most first."""
    columns = [(suite, worth) for suite in SUITES for worth in ("right", "wrong", "none")]
    names = sorted({by for by, _, _ in counts}, key=lambda by: (-sum(counts[by, *one] for one in columns), by))
    lines = ["| cause given by | " + " | ".join(" ".join(one) for one in columns) + " |", "|---" * 7 + "|"]
    rows = [(by, [counts[by, *one] for one in columns]) for by in names]
    rows.append(("together", [sum(row[at] for _, row in rows) for at in range(len(columns))]))
    return "\n".join(lines + [f"| {by} | {' | '.join(map(str, row))} |" for by, row in rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--winners", action="store_true", help="count who gave the cause")
    parser.add_argument("--without", action="append", default=[], metavar="MODULE", help="leave a module out")
    parser.add_argument("--suite", choices=SUITES, action="append", help="ask the cases of one suite only")
    parser.add_argument("--mode", choices=MODES, action="append", help="ask in one way only")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only every Nth case")
    options = parser.parse_args()
    without(options.without)
    winners = Winners() if options.winners else None
    counts: Counter[tuple[str, str, str]] = Counter()
    with one_thread(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # old releases warn of much that is deprecated today
        suites = options.suite or SUITES
        for said in chain.from_iterable(ASKING[one](options.mode or MODES, options.every) for one in suites):
            by = "anybody" if winners is None else winners.asked()
            counts[by, said.suite, said.worth] += 1
            print(f"{said.suite} {said.case} {said.mode}: {said.label} ({by}), {said.worth}", flush=True)
    print(rendered(counts))


if __name__ == "__main__":
    main()
