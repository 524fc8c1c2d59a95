"""An error is held against draws of what rounding may do, part by part: what is noisy excuses itself alone."""

import numpy as np
import pytest

from firstdrift.judge.noise import excess_of, is_beyond
from firstdrift.judge.replay.introducing import DRIFT

UNIT = 2.0**-24
ILL = slice(0, 4)  # rows or columns that rounding changes altogether


def at(by_rows):
    return np.s_[ILL] if by_rows else np.s_[:, ILL]


def exact(shape=(24, 16)):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32).astype(np.float64)


def drawn(seed, by_rows=True, noise=0.3, shape=(24, 16), roundings=1):
    """What correct code makes: some roundings of everything, and of some parts whatever it may be."""
    random, found = np.random.default_rng([seed, 5]), exact(shape)
    found *= 1 + roundings * UNIT * random.standard_normal(shape)
    found[at(by_rows)] += noise * random.standard_normal(found[at(by_rows)].shape)
    return found


def excess(found, by_rows=True, noise=0.3, shape=(24, 16), roundings=1):
    def draw(seed):
        return drawn(seed, by_rows, noise, shape, roundings)

    said = excess_of(exact(shape), found.astype(np.float32), UNIT, draw)
    assert said is not None
    return said


@pytest.mark.parametrize("by_rows", [True, False])
def test_an_error_of_all_parts_is_not_the_noise_of_a_few(by_rows):
    own = excess(exact() * 1.02, by_rows)
    assert own.times > DRIFT, own


@pytest.mark.parametrize("by_rows", [True, False])
@pytest.mark.parametrize("seed", range(100, 105))
def test_noise_of_a_few_parts_is_theirs(by_rows, seed):
    assert excess(drawn(seed, by_rows), by_rows).times <= DRIFT


@pytest.mark.parametrize("by_rows", [True, False])
@pytest.mark.parametrize("size", [1e-5, 1e-3, 0.05])
def test_an_error_of_one_part_beside_noisy_ones_is_seen(by_rows, size):
    found = drawn(100, by_rows)
    index = np.s_[9] if by_rows else np.s_[:, 9]
    found[index] *= 1 + size
    own = excess(found, by_rows)
    assert own.times > DRIFT, own


def test_an_error_of_one_element_beside_noisy_rows_is_seen():
    found = drawn(100)
    found[9, 3] += 1e-4
    own = excess(found)
    assert (own.times > DRIFT, own.where) == (True, "element 9, 3"), own


def test_more_than_the_noise_of_a_noisy_part_is_seen():
    found = drawn(100, noise=30.0)
    assert excess(found).times > DRIFT


@pytest.mark.parametrize("by_rows", [True, False])
def test_rows_whose_noise_is_one_number_are_no_measure_of_each_other(by_rows):
    """As that of a mean: in single draws it is small now and then."""

    def made(seed):
        random = np.random.default_rng([seed, 7])
        shape = (24, 1) if by_rows else (1, 16)
        found = exact() + 1e-3 * random.uniform(-1, 1, size=shape)
        if seed == 1:
            found[at(by_rows)] = exact()[at(by_rows)]
        return found

    for seed in range(100, 110):
        own = excess_of(exact(), made(seed).astype(np.float32), UNIT, made)
        assert own is not None
        assert own.times <= DRIFT, own


def test_a_factor_on_all_of_a_tensor_is_less_than_the_noise_of_its_elements():
    shape = (256, 128)
    noise = {"noise": 0.0, "shape": shape, "roundings": 6}
    assert excess(drawn(100, **noise), **noise).times <= DRIFT
    own = excess(drawn(100, **noise) * (1 + 5 * UNIT), **noise)
    assert (own.times > DRIFT, own.where) == (True, "a factor on all of it"), own


def test_what_gives_every_element_is_within_noise_without_a_draw():
    def never(seed):
        raise AssertionError("something was drawn")

    own = excess_of(exact(), exact().astype(np.float32), UNIT, never)
    assert own is not None
    assert (own.times, own.draws) == (0.0, 0)


def test_without_draws_nothing_is_said():
    assert excess_of(exact(), exact().astype(np.float32) * np.float32(1.1), UNIT, lambda seed: None) is None
    assert not is_beyond(exact(), exact().astype(np.float32), UNIT, [], None, DRIFT)


def test_calls_that_round_nothing_explain_nothing():
    found = exact().astype(np.float32)
    found[3, 4] = np.nextafter(found[3, 4], np.float32(np.inf)) * np.float32(1 + 1e-6)
    own = excess_of(exact(), found, UNIT, lambda seed: exact())
    assert own is not None
    assert own.times > DRIFT


@pytest.mark.parametrize("shape", [(4, 8), (5, 3), (2, 20)])
def test_few_numbers_excuse_no_more_than_many(shape):
    """A short format in which every number of a small tensor is off by two roundings, where one is drawn."""
    random, unit = np.random.default_rng(0), 2.0**-4
    expected = random.standard_normal(shape)

    def draw(seed):
        return expected * (1 + 0.42 * unit * np.random.default_rng([seed, 1]).standard_normal(shape))

    said = excess_of(expected, expected * (1 + 2.3 * unit * random.choice([-1, 1], shape)), unit, draw)
    assert said is not None
    assert said.times > 1, said


def ill(shape=(16, 24), where=(3, 5), noise=1e-3):
    """Draws of correct code, of which one element is ill-conditioned."""

    def draw(seed):
        random, found = np.random.default_rng([seed, 6]), exact(shape)
        found *= 1 + UNIT * random.standard_normal(shape)
        found[where] += noise * random.standard_normal()
        return found

    return draw


OFF = [((3, 5), 2e-3, False), ((9, 8), 2e-4, True), ((9, 8), 2e-6, True)]


@pytest.mark.parametrize(("at", "error", "is_beyond"), OFF)
def test_an_element_that_is_ill_conditioned_excuses_itself_alone(at, error, is_beyond):
    draw = ill()
    found = draw(77)
    found[at] = exact((16, 24))[at] + error
    said = excess_of(exact((16, 24)), found, UNIT, draw)
    assert said is not None
    assert (said.times > DRIFT) is is_beyond, said


@pytest.mark.parametrize(("roundings", "is_within"), [(1.0, True), (2.6, False)])
def test_one_element_of_a_short_format_is_off_by_a_rounding_and_not_by_several(roundings, is_within):
    random, unit, shape = np.random.default_rng(0), 2.0**-8, (16, 24)
    expected = random.uniform(1, 2, shape)  # whose steps are all alike

    def draw(seed):
        return expected + unit * np.random.default_rng([seed, 2]).uniform(-1, 1, shape)

    found = draw(50)
    found[2, 3] = expected[2, 3] + roundings * unit
    said = excess_of(expected, found, unit, draw)
    assert said is not None
    assert (said.times <= 1) is is_within, said
