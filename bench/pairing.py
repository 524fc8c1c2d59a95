"""The bars of pairing without names: how much is told right, and what 2,000 modules against 2,000 cost."""

import random
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from time import process_time

import numpy as np
from matching.making import questions
from matching.scoring import Score, score
from ratios import Row

import firstdrift as fd
from firstdrift.compare.comparison import align_traces

LAYERS = 200
PARTS = ("norm", "q", "k", "v", "o", "norm2", "up", "act", "down", "sum")
OPS = {"norm": "LayerNorm", "norm2": "LayerNorm", "act": "GELU", "sum": "Add"}


def rows() -> Iterator[Row]:
    """All of them."""
    whole, count = Score(), 0
    for question in questions():
        with tempfile.TemporaryDirectory(prefix="matching-") as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            whole.add(score(question.make(Path(folder))))
            count += 1
    yield Row("pairs of implementations matched without names", count, 40, at_least=True, unit="")
    yield Row("of their modules and weights right", 100 * whole.right / whole.total, 98, at_least=True, unit="%")
    yield Row("of their modules and weights wrong", 100 * whole.wrong / whole.total, 0.5, at_least=False, unit="%")
    for weights, factor, said in ((True, 1.0, "clean"), (True, 1.3, "all outputs wrong"), (False, 1.3, "no weights")):
        spent = _spent(weights=weights, factor=factor)
        yield Row(f"2,000 modules against 2,000, {said}, CPU", spent, 5, at_least=False, unit="s")


def _spent(*, weights: bool, factor: float) -> float:
    draw, words = random.Random(1), dict[str, str]()

    def scrambled(name: str) -> str:
        return words.setdefault(name, f"x{draw.randrange(10**9)}")

    with tempfile.TemporaryDirectory(prefix="pairing-") as folder:
        sides = Path(folder) / "reference", Path(folder) / "candidate"
        _write(sides[0], lambda name: name, 1.0, weights=weights)
        _write(sides[1], scrambled, factor, weights=weights)
        start = process_time()
        pairs = align_traces(*sides).alignment.pairs
        spent = process_time() - start
    assert all(pair.candidate[0].site.name == words[pair.site.name] for pair in pairs)
    assert len({pair.site.name for pair in pairs}) == LAYERS * len(PARTS)
    return spent


def _write(path: Path, called: Callable[[str], str], factor: float, *, weights: bool) -> None:
    numbers = np.random.default_rng(0)
    with fd.Writer(path) as writer:
        for layer in range(LAYERS):
            for part in PARTS:
                name = called(f"layers.{layer}.{part}")
                weight, output = (numbers.standard_normal(shape, np.float32) for shape in ((32, 32), (4, 32)))
                if weights and part not in OPS:
                    writer.put(name, "weight", weight)
                writer.put(name, "fwd", output * np.float32(factor), op=OPS.get(part, "Linear"))
