"""The vocabulary of causes, as data: what each label means, how it is recognised and confirmed, and real cases.

The texts are in labels.toml. They are read when a label is first looked up.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("labels.toml")


@dataclass(frozen=True, slots=True)
class Label:
    """One cause. Of labels that explain a drift equally well, the one of greater `specificity` is given.

    `cases` are bugs of public projects, as `owner/repository#number: what was wrong`.
    """

    meaning: str
    recognised: str = ""
    confirm: str = ""
    cases: tuple[str, ...] = ()
    specificity: int = 1


class Vocabulary(Mapping[str, Label]):
    """Every label by its name, in the order in which they are documented."""

    @cached_property
    def _labels(self) -> dict[str, Label]:
        said: dict[str, dict[str, Any]] = tomllib.loads(FILE.read_text("utf-8"))
        return {name: Label(**item | {"cases": tuple(item.get("cases", ()))}) for name, item in said.items()}

    def __getitem__(self, name: str) -> Label:
        return self._labels[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._labels)

    def __len__(self) -> int:
        return len(self._labels)


LABELS = Vocabulary()


def link(case: str) -> str:
    """Where a case can be read about."""
    place, _, _ = case.partition(":")
    repository, _, number = place.partition("#")
    return f"https://github.com/{repository}/issues/{number}"


def nearest(name: str) -> list[str]:
    """The labels that a misspelt or incomplete name may mean, likeliest first."""
    plain = name.strip().lower().replace("_", "-").replace(" ", "-")
    parts = {part for part in plain.split("-") if len(part) > 2}
    like = get_close_matches(plain, LABELS, 3, 0.6)
    return list(dict.fromkeys([*like, *(one for one in LABELS if parts & set(one.split("-")))]))[:4]
