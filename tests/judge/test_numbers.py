"""Every number that decides a verdict: it is in the table, and a claim about it fails where it is half or twice as
large.

A claim is a plain function. It is called with the numbers as they are, and with each moved.
"""

import ast
import importlib
import sys
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import firstdrift
from firstdrift.core.records import Record
from firstdrift.core.sites import Site
from firstdrift.judge import noise
from firstdrift.judge.apriori import calibrated, kinds, ladder
from firstdrift.judge.exceptions import shorter
from firstdrift.judge.measure import scales, updates
from firstdrift.judge.measure.scales import Parts
from firstdrift.judge.numbers import NUMBERS, SOURCES
from firstdrift.pair.pairs import Pair

SOURCE = Path(firstdrift.__file__).parent
JUDGING = [
    *sorted(
        path
        for path in (SOURCE / "judge").rglob("*.py")
        if path.parent.name != "measure" and path.stem != "stage_values"
    ),
    *(SOURCE / "judge" / "measure" / f"{one}.py" for one in ("scales", "updates")),
    SOURCE / "kernels" / "profiles.py",  # what scales are summed by
    *(
        SOURCE / "program" / "running" / f"{one}.py" for one in ("rounding", "scalars", "shaking", "sums")
    ),  # what noise is drawn by
]
F32 = 2.0**-24
RNG = np.random.default_rng


def normal(*shape, seed=0):
    return RNG(seed).standard_normal(shape)


# Claims, by the names that the table has


def of_rows():
    assert scales.matrix_of((3, 8)) == (3, 8)
    assert scales.matrix_of((3, 4, 4)) == (3, 16)
    assert scales.matrix_of((2, 7, 7)) == (2, 49)


def _row(known, of=200):
    logs = np.full((2, of), np.nan)
    logs[:, :known] = 3.0
    return scales._means(logs)[0]


def sparse_rows():
    assert _row(60) == 3.0
    assert _row(40) == 0.0


def sampled_positions():
    assert len(scales._spread(1000)) == 64


def fills():
    logs = np.zeros((1, 400))
    logs[0, 0] = 10.0
    assert scales._means(logs)[0] == -np.inf
    logs[0, 0] = 6.0
    assert np.isfinite(scales._means(logs)[0])


def normal_numbers():
    rows, columns = scales.scales_of(normal(64, 64).astype(np.float32), 1e-7)
    assert 0.85 < np.mean(np.sqrt(np.outer(rows, columns))) < 1.15


def scattered_parts():
    assert 4.5 < scales.scattered(1.0, 100) < 5.5
    assert 5.5 < scales.scattered(1.0, 16) < 6.5
    assert 6.5 < scales.scattered(1.0, 8) < 7.2


def _parts(usual=1e-6, row=1e-6, column=1e-6, element=1e-6):
    return Parts(usual, row, column, element, (0, 0, 0, 0), (1024, 1024))


def rows_beside_the_usual():
    assert scales.least_part(_parts(row=2.5e-6), F32, 2e-6).excess <= 1
    assert scales.least_part(_parts(row=4.5e-6), F32, 2e-6).excess > 1


def elements_beside_the_usual():
    assert scales.least_part(_parts(element=6e-6), F32, 2e-6).excess <= 1
    assert scales.least_part(_parts(element=12e-6), F32, 2e-6).excess > 1


def neighbours():
    assert scales.least_part(_parts(0.0, 0.0, 0.0, 1.5 * F32), F32, 2e-6).excess <= 1
    assert scales.least_part(_parts(0.0, 0.0, 0.0, 3 * F32), F32, 2e-6).excess > 1
    assert _local(0.1, 1.7) == "noise"
    assert _local(0.1, 3.0) == "inconclusive"


def elements_beyond_the_whole():
    assert scales.worst_of(_parts(element=12e-6), 1e-6).excess <= 1
    assert scales.worst_of(_parts(element=24e-6), 1e-6).excess > 1


def _update(added, error, weight=1.0, gradients=None, size=4096):
    before = np.full(size, weight)
    step = added * np.sign(normal(size)) * (1 + 0.1 * normal(size, seed=1))
    return updates.update_of((before, before), (before + step, before + step + error(step)), F32, gradients)


def _one(value):
    def error(step):
        found = np.zeros_like(step)
        found[5] = value
        return found

    return error


def gross_elements():
    assert not _update(1e-12, _one(3 * F32)).is_gross
    assert _update(1e-12, _one(6 * F32)).is_gross


def longest_steps():
    longest = float(np.abs(1 + 0.1 * normal(4096, seed=1)).max())
    assert not _update(1.0, _one(3 * longest), weight=1e-3).is_gross
    assert _update(1.0, _one(6 * longest), weight=1e-3).is_gross


def rounding_of_an_update():
    found = _update(1.0, lambda step: 0 * step, weight=1e-9)
    assert 6 * F32 < found.noise < 11 * F32


def noisier_updates():
    scatter = lambda times: lambda step: times * 8 * F32 * step * np.sign(normal(len(step), seed=2))  # noqa: E731
    assert not _update(1.0, scatter(6), weight=1e-9).is_apart()
    assert _update(1.0, scatter(12), weight=1e-9).is_apart()


def derived_constants():
    """The usual beta of 0.999, twice rounded: a constant derived from it in float32 is off by 1.3e-5."""
    from firstdrift.judge.passes.by_limits import derived

    record = Record(Site(0, "weight_after", "w", "weight"), "f32", (4,), (0, 0, 16))
    off = derived(Pair(record.site, record, (record,), "name"), SimpleNamespace(header={}))
    assert 1e-4 < off < 1.5e-4


def turned_steps():
    gradients = normal(4096, seed=4), normal(4096, seed=4) * (1 + 1e-3)
    assert not abs(_update(1.0, lambda step: 1.5e-3 * step, 1e-9, gradients).factor) > _open(gradients)
    assert abs(_update(1.0, lambda step: 3e-3 * step, 1e-9, gradients).factor) > _open(gradients)


def _open(gradients):
    return _update(1.0, lambda step: 0 * step, 1e-9, gradients).open


def factors_by_chance():
    chance = F32 / 1e-3 / np.sqrt(4096)  # of weights of 1 and steps of a thousandth
    assert 4.5 * chance < _update(1e-3, lambda step: 0 * step).open < 8 * chance


def given_weights():
    from firstdrift.judge.passes.by_bytes import _given as _of

    def verdict(roundings):
        record = Record(Site(0, "weight", "w", "weight"), "f32", (4,), (0, 0, 16))
        measured = SimpleNamespace(nonfinite_agree=True, rel_l2=1e-8, max_rel=roundings * F32)
        item = SimpleNamespace(
            pair=Pair(record.site, record, (record,), "name"), measurement=measured, is_integer=False,
            rounded_equal=False, parts=None,
        )  # fmt: skip
        return str(_of(item, SimpleNamespace(items={}, unit=lambda pair: F32), {}).verdict)

    assert verdict(1.9) == "noise"
    assert verdict(3) == "drift"


def _local(row, element):
    from firstdrift.judge.passes.by_bytes import _local as _of

    record = Record(Site(0, "fwd", "a", "out"), "f32", (4,), (0, 0, 16))
    measured = SimpleNamespace(nonfinite_agree=True, rel_l2=1e-8, compared=4)
    item = SimpleNamespace(zeros_agree=True,
        pair=Pair(record.site, record, (record,), "name"), measurement=measured, is_integer=False,
        parts=_parts(row * F32, row * F32, row * F32, element * F32),
    )  # fmt: skip
    return str(_of(item, SimpleNamespace(truths={}, unit=lambda pair: F32)).verdict)


def clear_rows():
    assert _local(0.8, 0.5) == "noise"
    assert _local(1.5, 0.5) == "inconclusive"


SIGMA = 1e-5  # of the draws below, far above one rounding
LONG, SHORT = 1e-9, 2.0**-8  # unit roundoffs of a long format and a short one


def _excess(error, unit=LONG):
    """Of an error in standard deviations of the draws, which are far above one rounding."""
    expected, sigma = np.ones(error.shape), max(SIGMA, 1e4 * unit)
    return noise.excess_of(
        expected, expected + sigma * error, unit, lambda seed: expected + sigma * _drawn(error.shape, seed)
    )  # fmt: skip


def _drawn(shape, seed):
    return normal(*shape, seed=1000 + seed)


def _is_noise(error, unit):
    return _excess(error, unit).times <= 1


def _whole(times, unit):
    """Whether a row is noise of which every element is so many times its own draws' root mean square."""
    own = np.sqrt(np.mean([_drawn((1, 1024), 1 + n) ** 2 for n in range(12)], axis=0))
    return _is_noise(times * own * np.resize([1, -1], own.shape), unit)


def _few(times, unit):
    worst = max(abs(float(_drawn((1, 1), 1 + n)[0, 0])) for n in range(16))
    return _is_noise(np.full((1, 1), times * worst), unit)


def whole_tensors():
    assert _whole(1.7, LONG)
    assert not _whole(3.2, LONG)


def short_whole_tensors():
    assert _whole(1.4, SHORT)
    assert not _whole(2.7, SHORT)


def few_elements():
    assert _few(2.5, LONG)
    assert not _few(4.6, LONG)


def short_few_elements():
    assert _few(2.2, SHORT)
    assert not _few(4.2, SHORT)


def _times_of_one(size, noise_of_it):
    """How far beyond noise is one element of a size, beside others of noise 1."""
    error, drawn = np.ones((1, 100)), np.ones((1, 100))
    error[0, 5], drawn[0, 5] = size**2, noise_of_it**2
    return noise._worst("element", error, [drawn] * 12, 1.0, 1.0).times


def noisier_parts():
    assert _times_of_one(5.0, 3.4**0.5) > 1
    assert _times_of_one(5.0, 6.5**0.5) <= 1


def own_draws():
    assert _times_of_one(40.0, 10.0) <= 1
    assert _times_of_one(70.0, 10.0) > 1


def factors_of_draws():
    draws = [normal(64, 64, seed=1 + n) for n in range(12)]
    drawn = np.sqrt(np.mean([one.mean() ** 2 for one in draws]))

    def times(size):
        ones = np.ones((64, 64))
        return noise._factor(size * drawn * ones, draws, ones, ones, 1e-9).times

    assert times(6) <= 1
    assert times(12) > 1


def constants():
    expected = np.ones((64, 64))

    def times(roundings):
        error = roundings * 1e-3 + 1e-9 * normal(64, 64)
        return noise._factor(error, [1e-9 * normal(64, 64, seed=1)], expected, np.ones((64, 64)), 1e-3).times

    assert times(1.5) <= 1
    assert times(3.0) > 1


def many_draws():
    asked = []

    def draw(seed):
        asked.append(seed)
        return np.ones((64, 64)) + SIGMA * normal(64, 64, seed=seed)

    noise.excess_of(np.ones((64, 64)), np.ones((64, 64)) * 2, 1e-9, draw)
    assert len(asked) == 12


def few_draws():
    asked = []

    def draw(seed):
        asked.append(seed)
        return np.ones((64, 64)) + SIGMA * normal(64, 64, seed=seed)

    noise.excess_of(np.ones((64, 64)), np.ones((64, 64)) + 0.1 * SIGMA * np.resize([1, -1], (64, 64)), 1e-9, draw)
    assert len(asked) == 3


def _is_acquitted(error, unit):
    """Whether the first draws are enough."""
    return _excess(error, unit).draws == 3


def _row_of(size, unit, beside=1.0):
    error = beside * normal(64, 64, seed=9)
    error[3] = size * np.resize([1, -1], 64)
    return _is_acquitted(error, unit)


def _element_of(size, unit):
    error = normal(64, 64, seed=9)
    error[3, 5] = size
    return _is_acquitted(error, unit)


def rows_of_draws():
    assert _row_of(2.6, LONG)
    assert not _row_of(5.0, LONG)


def short_rows_of_draws():
    assert _row_of(1.6, SHORT)
    assert not _row_of(3.0, SHORT)


def elements_of_draws():
    assert _element_of(8.0, LONG)
    assert not _element_of(16.0, LONG)


def short_elements_of_draws():
    assert _element_of(5.0, SHORT)
    assert not _element_of(9.5, SHORT)


def better_candidates():
    assert _row_of(1.9, LONG, beside=0.01)
    assert not _row_of(3.6, LONG, beside=0.01)


def own_rounding():
    own = RNG(0).lognormal(size=(100, 100))
    assert 0.6 < noise.ROUNDED / np.sqrt(np.mean((noise.rounding_of(own, 1) / own) ** 2)) < 1.6


def small_tensors():
    for size, count in ((60, 16), (70, 12)):
        asked = []

        def draw(seed, size=size, asked=asked):
            asked.append(seed)
            return np.ones(size) + SIGMA * normal(size, seed=seed)

        noise.excess_of(np.ones(size), np.ones(size) * 2, 1e-9, draw)
        assert len(asked) == count


def _drawing(func, unit=F32):
    from firstdrift.kernels import noises
    from firstdrift.program.running.rounding import Rounding

    return Rounding(func, unit, unit, F32, False, lambda at: noises.key_of(1, 0, at))


def _drawn_ones(func):
    """By how many roundings ones are moved that a function gives inside a call, in the root mean square."""
    import torch

    with _drawing(func):
        ones = torch.exp(torch.zeros(10_000, dtype=torch.float64))
    return float((ones - 1).square().mean().sqrt()) / F32


def drawn_steps():
    import torch

    from firstdrift.program.running.rounding import rounded_once

    moved = rounded_once(torch.ones(10_000, dtype=torch.float64), F32, 1)
    assert 0.9 < float((moved - 1).abs().max()) / F32 < 1.1


def drawn_functions():
    import torch

    assert 1.7 < _drawn_ones(torch.ops.aten.exp.default) * 3**0.5 < 2.4


def drawn_functions_in_kernels():
    import torch

    assert 3.4 < _drawn_ones(torch.ops.aten._softmax.default) * 3**0.5 < 4.8


def error_functions_in_kernels():
    import torch

    with _drawing(torch.ops.aten.gelu.default):
        found = torch.erf(torch.zeros(10_000, dtype=torch.float64))
    assert 1.6 < float(found.std()) * 3**0.5 / F32 < 2.4
    assert found.mean() != 0


def _of_sums(left, right, unit):
    import torch

    from firstdrift.program.running.sums import added_up

    factors = torch.from_numpy(left), torch.from_numpy(right)
    return added_up(torch.ops.aten.mm.default, factors, {}, unit, min(unit, F32), F32)[0].error.numpy()


def roundings_of_sums():
    left, right = RNG(0).lognormal(size=(10_000, 1)), np.full((1, 1), 1.1)
    exact = left @ right
    off = exact.astype(np.float32) - exact
    assert 0.6 < np.linalg.norm(_of_sums(left, right, F32)) / np.linalg.norm(off) < 1.6


def blocks_of_sums():
    from firstdrift.program.running.sums import _slices

    assert len(_slices(640)) == 8


def split_sums():
    error = _of_sums(np.ones((1, 64)), np.ones((64, 1)), 2.0**-8)  # of 64 terms, in one rounding of the root of them
    assert 0.15 < float(error[0, 0]) / 2.0**-8 / 8 < 0.3


def next_to_noise():
    from firstdrift.judge.replay.introducing import Introduced

    assert not Introduced(1.0, 1.0, times=1.3).beyond
    assert Introduced(1.0, 1.0, times=2.0).beyond


def _masked(size, lost, gained):
    from firstdrift.judge.replay.introducing import is_other_mask

    ours, theirs = np.ones(size), np.ones(size)
    ours[:gained] = 0
    theirs[gained : gained + lost] = 0
    return is_other_mask(ours, theirs)


def other_masks():
    assert _masked(80, 10, 10)
    assert not _masked(48, 10, 10)


def other_formulas():
    from firstdrift.judge.replay.random_inputs import are_apart

    one = np.array([1.0, 0.5])
    assert not are_apart(one, one + 0.7e-13)
    assert are_apart(one, one + 1.6e-13)


def jumps():
    from firstdrift.judge import jump

    assert pytest.approx(1e-3, rel=0.3) == jump.FACTOR * jump.START
    assert 700 < jump.FACTOR < 1400


def first_floors():
    from firstdrift.judge import jump

    assert 700 < 1e-3 / jump.START < 1400


def _truth(size, candidate, count=100_000):
    from firstdrift.judge.truth import _truth as judged

    exact = normal(size)
    record = Record(Site(0, "fwd", "a", "out"), "f32", (size,), (0, 0, 4 * size))
    item = SimpleNamespace(pair=Pair(record.site, record, (record,), "name"), count=count)
    off = normal(size, seed=1)
    found = judged(item, exact, exact + 1e-4 * off, exact + 1e-4 * candidate * off)
    return found.candidate <= found.limit


def truths():
    assert _truth(4096, 3)
    assert not _truth(4096, 6)


def small_truths():
    assert _truth(900, 6, 900)
    assert not _truth(900, 12, 900)
    assert _truth(9, 12, 9)
    assert not _truth(9, 24, 9)
    assert not _truth(15, 12, 15)
    assert not _truth(1500, 6, 1500)


def stored_truths():
    from firstdrift.judge.truth import _truth as judged

    exact = normal(4096)
    record = Record(Site(0, "fwd", "a", "out"), "f32", (4096,), (0, 0, 16384))
    item = SimpleNamespace(pair=Pair(record.site, record, (record,), "name"), count=4096)
    assert 1.5 * F32 < judged(item, exact, exact, exact).limit < 3 * F32


def gains():
    assert 7 < kinds.gain_limit("attention", 0, 0.0) < 14
    assert 3 < kinds.gain_limit("linear", 0, 0.0) < 6
    assert 4 < kinds.gain_limit("activation", 0, 0.0) < 8


def peers():
    assert kinds.gain_limit("linear", 2, 0.1) > 3
    assert kinds.gain_limit("linear", 3, 0.1) < 3
    assert kinds.gain_limit("linear", 4, 0.1) < 3


def margins_of_peers():
    assert 2.4 < kinds.gain_limit("linear", 9, 1.0) < 3.9


def least_margins():
    assert 1.2 < kinds.gain_limit("linear", 9, 0.0) < 2.4


def agreeing_runs():
    assert calibrated.is_rounding(50 * 1e-6, 1e-6, "f32")
    assert not calibrated.is_rounding(100 * 1e-6, 1e-6, "f32")


def short_limits():
    assert 2 < ladder.local_limit(2.0**-8, 1, "linear", 10_000) / 2.0**-8 < 4.5


def long_limits():
    assert 18 < ladder.local_limit(F32, 1, "linear", 10_000) / F32 < 35


def double_limits():
    assert 700 < ladder.local_limit(2.0**-53, 1, "linear", 10_000) / 2.0**-53 < 1400


def serial_sums():
    terms = normal(512, 4096).astype(np.float32)
    exact = terms.sum(1, dtype=np.float64)
    error = np.linalg.norm(terms.cumsum(1, dtype=np.float32)[:, -1] - exact) / np.linalg.norm(exact)
    assert 8 < ladder.local_limit(F32, 4096, "linear", 10_000) / error < 17


def likely_limits():
    assert 1.9 * F32 < ladder.likely_limit(F32, 1) < 3 * F32
    assert 1.7 * 2.0**-8 < ladder.likely_limit(2.0**-8, 10_000) < 3 * 2.0**-8


def likely_sums():
    assert 25 * F32 < ladder.likely_limit(F32, 1022) < 45 * F32


def long_reductions():
    assert ladder.local_limit(F32, 6000, "linear", 10_000) < 400 * F32
    assert ladder.local_limit(F32, 12_000, "linear", 10_000) > 700 * F32


def longest_sums():
    assert 1.5e3 < ladder.local_limit(F32, 1 << 20, "linear", 10_000) / F32 < 2.7e3


def small_limits():
    short = [ladder.local_limit(F32, 1, "linear", count) / F32 for count in (9, 15, 900, 1500)]
    assert np.allclose(short, (100, 50, 50, 25), rtol=0.3)


def floors():
    assert 1.2 < ladder.floor(F32) / F32 < 2.6
    assert 0.4 < ladder.floor(2.0**-8) * 2.0**8 < 0.9


def off_grids():
    exact = normal(10_000).astype(np.float32)
    rounded = exact.astype(np.float16).astype(np.float32)
    mixed = np.where(np.arange(10_000) % 10 < 4, rounded, exact)
    mostly = np.where(np.arange(10_000) % 10 < 7, rounded, exact)
    assert shorter.coarser_grid(mixed, rounded, 1e-4) == "f16"
    assert shorter.coarser_grid(mostly, rounded, 1e-4) is None
    assert shorter.coarser_grid(np.where(np.arange(10_000) % 10 < 3, rounded, exact), rounded, 1e-4) == "f16"


def grids_claim():
    exact = normal(10_000).astype(np.float32)
    assert shorter.coarser_grid(exact, exact.astype(np.float16).astype(np.float32), 1e-4) == "f16"
    assert shorter.coarser_grid(exact, (exact.view(np.uint32) & 0xFFFFFF80).view(np.float32), 1e-4) is None


def systematic_ties():
    from firstdrift.judge.exceptions.near_ties import _is_a_rule

    for count, is_a_rule in ((10, False), (24, True)):
        runs = [np.zeros(count, np.int64), np.ones(count, np.int64)]
        assert _is_a_rule(np.ones(count, np.int64), runs) is is_a_rule


def jumps_of_decisions():
    from firstdrift.judge.exceptions.near_ties import _Runs

    still, noise = np.zeros((4, 8)), [np.ones((4, 8))]
    assert not _Runs(noise, [still + 10]).jumps(0, True).any()
    assert _Runs(noise, [still + 18]).jumps(0, True).all()


def sums_of_squares():
    """A norm's statistics, one square added to the other in float32: the limit is above what they show, not far."""
    squares = np.square(normal(4096)).astype(np.float32)
    rows = [np.add.accumulate(squares[RNG(seed).permutation(4096)])[-1] for seed in range(16)]
    off = np.sqrt(rows) / np.sqrt(squares.astype(np.float64).sum()) - 1
    limit = ladder.likely_limit(F32, 4096 // ladder.SQUARES)
    assert limit > np.sqrt(np.mean(off**2))
    assert 14 * F32 < limit < 20 * F32


def moved_along():
    from firstdrift.judge.exceptions.near_ties import _Runs

    still, noise = np.zeros((4, 8)), [np.ones((4, 8))]
    for share, jumps in ((0.0, True), (0.35, True), (0.8, False), (1.0, False), (1.5, False)):
        slight = [still + share * 100 * 2.0**-6, still]
        assert _Runs(noise, [still + 100, still], slight).jumps(0, True).all() == jumps


def reach_of_decisions():
    from firstdrift.judge.exceptions.near_ties import _open_replaced, _Runs

    still, noise = np.zeros((4, 8)), [np.ones((4, 8))]
    for times, is_open in ((1.5, True), (3.0, False)):
        rest = _open_replaced(still, still + times * 100, [still + 100], _Runs(noise, [still + 100]), True)
        assert (rest is not None) is is_open


def fills_of_scores():
    from firstdrift.judge.exceptions.fills import _filled

    for lower, is_fill in ((30.0, False), (50.0, True)):
        scores = np.zeros((4, 8))
        scores[:, 0] = -lower
        assert bool(_filled(scores).any()) is is_fill


CLAIMS = {name: one for name, one in globals().items() if callable(one) and getattr(one, "__module__", "") == __name__}


# The table is complete


def numbers_in(path):
    """The names of a module's constants that hold a number; private ones bound work or describe formats."""
    for node in ast.parse(path.read_text("utf-8")).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        if target is None or value is None:
            continue
        held = [one for one in ast.walk(value) if isinstance(one, ast.Constant) and type(one.value) in (int, float)]
        names = [
            one.id for one in ast.walk(target) if isinstance(one, ast.Name) and one.id.isupper() and one.id[0] != "_"
        ]
        yield from names if held else ()


def test_every_number_that_judges_is_in_the_table():
    there = {
        (".".join(path.relative_to(SOURCE).with_suffix("").parts), name)
        for path in JUDGING for name in numbers_in(path) if name != "NUMBERS"
    }  # fmt: skip
    assert {(one.where, one.name.partition(".")[0]) for one in NUMBERS} == there


def test_a_constant_whose_fields_are_in_the_table_has_all_of_them_there():
    named = {(one.where, one.name) for one in NUMBERS}
    for where, name in named:
        constant, _, field = name.partition(".")
        held = getattr(importlib.import_module(f"firstdrift.{where}"), constant)
        assert not field or {(where, f"{constant}.{one.name}") for one in fields(held)} <= named


def test_every_row_has_a_unit_a_source_and_a_claim_that_is_there():
    for one in NUMBERS:
        assert one.unit
        assert one.source in SOURCES
        assert not one.test or one.test in CLAIMS, one


def test_no_function_that_judges_hides_a_number():
    plain = {0, 1, 2, 3, -1, 0.5}  # counts of axes, halves, squares
    shown = {
        ("noise", 12), ("noise", 4),
        ("introducing", 1e-6), *(("sums", place) for place in (6, 7, 8, 9)),
    }  # fmt: skip
    for path in JUDGING:
        for function in ast.walk(ast.parse(path.read_text("utf-8"))):
            for one in ast.walk(function) if isinstance(function, ast.FunctionDef) else ():
                if isinstance(one, ast.Constant) and type(one.value) in (int, float) and one.value not in plain:
                    assert (path.stem, one.value) in shown, f"{path.stem}.{function.name}: {one.value}"


# Its claims hold, and fail where a number is moved


@contextmanager
def moved(number, factor):
    """A number half or twice as large, wherever it was imported."""
    home, (name, _, field) = importlib.import_module(f"firstdrift.{number.where}"), number.name.partition(".")
    value, other = getattr(home, name), _times(number.value, factor)
    if field:
        other = replace(value, **{field: other})
    places = [
        module for path, module in list(sys.modules.items())
        if path.startswith("firstdrift") and getattr(module, name, None) is value
    ]  # fmt: skip
    try:
        for module in {home, *places}:
            setattr(module, name, other)
        yield
    finally:
        for module in {home, *places}:
            setattr(module, name, value)


def _times(value, factor):
    if isinstance(value, dict):
        return {key: _times(item, factor) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(_times(item, factor) for item in value)
    return type(value)(value * factor)


TESTED = [one for one in NUMBERS if one.test]


@pytest.mark.parametrize("name", sorted({one.test for one in TESTED}))
def test_a_claim_holds(name):
    CLAIMS[name]()


@pytest.mark.parametrize("factor", [0.5, 2])
@pytest.mark.parametrize("number", TESTED, ids=lambda one: f"{one.where}.{one.name}")
def test_a_claim_fails_where_its_number_is_moved(number, factor):
    with moved(number, factor), pytest.raises(AssertionError), np.errstate(all="ignore"):
        CLAIMS[number.test]()
