"""Lookups and position tables made otherwise are named, and nothing else is called so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from drifts import array, drift, module_drift, random, settled
from torch import nn

from firstdrift.causes.hypotheses import explain
from firstdrift.causes.position.embeddings import HYPOTHESES
from firstdrift.causes.table import TABLE
from firstdrift.sites import Site

WORDS, PLACES = settled(nn.Embedding(50, 16)), settled(nn.Embedding(40, 16))
IDS = torch.randint(5, 45, (3, 9), generator=torch.Generator().manual_seed(0))
ORDER = torch.arange(9).expand(3, 9)


class Scaled(nn.Module):
    """An embedding multiplied by the root of its width."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = WORDS.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.weight[ids] * 4


Wrong = Callable[[torch.Tensor], torch.Tensor]
Row = tuple[nn.Module, torch.Tensor, Wrong, str, dict[str, float]]
DRIFTS: dict[str, Row] = {
    "next word": (WORDS, IDS, lambda ids: WORDS(ids + 1), "index-shift", {"shift": 1}),
    "three words before": (WORDS, IDS, lambda ids: WORDS(ids - 3), "index-shift", {"shift": -3}),
    "next word, last stays": (WORDS, IDS + 5, lambda ids: WORDS((ids + 1).clip(0, 49)), "index-shift", {"shift": 1}),
    "scaled": (WORDS, IDS, lambda ids: WORDS(ids) * 4, "scale", {"factor": 4.0}),
    "not scaled": (Scaled(), IDS, WORDS, "scale", {"factor": 0.25}),
    "positions from two": (PLACES, ORDER, lambda at: PLACES(at + 2), "position-shift", {"shift": 2}),
}


@pytest.mark.parametrize("noise", [1e-7, 3e-3])
@pytest.mark.parametrize("row", DRIFTS.values(), ids=DRIFTS)
def test_what_is_looked_up_otherwise_is_named(row: Row, noise: float) -> None:
    module, ids, wrong, label, parameters = row
    cause = explain(module_drift(module, ids, wrong(ids), noise), TABLE)
    assert cause.label == label, cause
    assert {name: cause.parameters[name] for name in parameters} == parameters


def test_positions_that_ignore_padding() -> None:
    mask = torch.ones(3, 9, dtype=torch.long)
    mask[1, :3] = 0
    at = (mask.cumsum(-1) - 1).clip(0)
    cause = explain(drift(PLACES(at), PLACES(ORDER), {"in.0": mask}, {"weight": PLACES.weight}), TABLE)
    assert (cause.label, "padding" in cause.sentence) == ("position-shift", True)


def test_positions_added_between_modules() -> None:
    site = Site(0, "weight", "", "pos_embed")

    def table(one: Site) -> np.ndarray:
        return array(PLACES.weight)[None]

    around = SimpleNamespace(
        facts={}, sites=lambda phase: [site], reference=table, candidate=table, op=lambda one: "",
        producers=lambda one: [],
    )  # fmt: skip
    words = WORDS(IDS)
    evidence = drift(
        words + PLACES(ORDER), words + PLACES(ORDER + 1), {"embed": words}, port="in.0", around=around
    )  # fmt: skip
    cause = explain(evidence, TABLE)
    assert (cause.label, cause.parameters) == ("position-shift", {"shift": 1})


def table(
    places: Sequence[float], width: int = 16, base: float = 1e4, interleaved: bool = False, step: float | None = None
) -> np.ndarray:
    """The sinusoids of the transformer paper, written out."""
    rows = np.zeros((len(places), width))
    for row, place in enumerate(places):
        for i in range(width // 2):
            angle = place / base ** ((2 / width if step is None else step) * i)
            rows[row, 2 * i if interleaved else i] = np.sin(angle)
            rows[row, 2 * i + 1 if interleaved else width // 2 + i] = np.cos(angle)
    return rows


RANGE = range(12)
TABLES = {
    "halves": (table(RANGE, interleaved=True), table(RANGE), "frequency-table", "halves"),
    "interleaved": (table(RANGE), table(RANGE, interleaved=True), "frequency-table", "interleaved"),
    "base": (table(RANGE), table(RANGE, base=1e3), "frequency-table", "base"),
    "exponent": (table(RANGE), table(RANGE, step=1 / 7), "frequency-table", "exponent"),
    "half the exponent": (table(RANGE), table(RANGE, step=1 / 16), "frequency-table", "exponent"),
    "cosine first": (table(RANGE), np.roll(table(RANGE), 8, 1), "swapped-halves", "exchanged"),
    "from one": (table(RANGE), table(range(1, 13)), "position-shift", "1 too high"),
}


@pytest.mark.parametrize("row", TABLES.values(), ids=TABLES)
def test_a_table_of_sinusoids_made_otherwise(row: tuple[np.ndarray, np.ndarray, str, str]) -> None:
    expected, found, label, sentence = row
    x = array(random(0, 2, 12, 16))
    stored, added = drift(expected, found, {}, phase="weight", port="pe"), drift(x + expected, x + found, {"in.0": x})
    for cause in (explain(stored, HYPOTHESES), explain(added, TABLE)):
        assert (cause.label, sentence in cause.sentence) == (label, True), cause


def test_an_embedding_of_times() -> None:
    times = np.array([3.0, 250.0, 999.0, 17.0])
    evidence = drift(table(times), table(times, step=1 / 7), {"in.0": times})
    assert explain(evidence, TABLE).label == "frequency-table"


CLAIMED = {row[3] for row in DRIFTS.values()} - {"scale"}

OTHERS: dict[str, Wrong] = {
    "a factor": lambda ids: WORDS(ids) * 0.9,
    "other rows": lambda ids: WORDS(50 - ids),
    "the words turned round": lambda ids: WORDS(ids.flip(1)),
    "rounding": lambda ids: WORDS(ids).bfloat16().double(),
    "NaN": lambda ids: WORDS(ids) * float("nan"),
    "zeros": lambda ids: WORDS(ids) * 0,
}


@pytest.mark.parametrize("wrong", OTHERS.values(), ids=OTHERS)
def test_another_cause_is_not_called_so(wrong: Wrong) -> None:
    assert explain(module_drift(WORDS, IDS, wrong(IDS)), TABLE).label not in CLAIMED
