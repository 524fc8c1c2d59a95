"""An update is judged by what all of its elements show together."""

import ml_dtypes
import numpy as np
import pytest
from tests.compare.making import normal, record

import firstdrift as fd
from firstdrift.judge.measure.updates import update_of

SHORT = ml_dtypes.bfloat16


def after(weight, rate, gradient):
    return (weight.astype(np.float64) - rate * gradient.astype(np.float64)).astype(weight.dtype)


@pytest.mark.parametrize(("dtype", "rate"), [(np.float32, 1e-3), (np.float32, 2e-7), (SHORT, 0.02), (SHORT, 0.002)])
@pytest.mark.parametrize(("times", "code"), [(1.0, 0), (1.5, 1), (0.0, 1), (-1.0, 1)])
def test_another_learning_rate_is_found_below_the_rounding_of_single_weights(tmp_path, dtype, rate, times, code):
    weight, gradient = normal(64, 64).astype(dtype), normal(64, 64, seed=1).astype(dtype)
    sides = [
        record(tmp_path / side, {"weight a": weight, "grad a": gradient, "weight_after a": after(weight, r, gradient)})
        for side, r in (("r", rate), ("c", times * rate))
    ]
    result = fd.diff(*sides)
    assert result.exit_code == code, result.sentence
    assert not code or result.first_drift.phase == "weight_after"


@pytest.mark.parametrize(
    "wrong", [lambda w: -100 * w, lambda w: 0 * w, lambda w: np.where(np.arange(64) == 3, 1e30, w)]
)
def test_what_no_step_is_long_enough_for_is_found_where_the_update_is_lost(tmp_path, wrong):
    weight = np.ones(64, SHORT)
    ours = {"weight a": weight, "weight_after a": weight}
    theirs = ours | {"weight_after a": wrong(weight.astype(np.float32)).astype(SHORT)}
    result = fd.diff(record(tmp_path / "r", ours), record(tmp_path / "c", theirs))
    assert (result.exit_code, result.first_drift.phase) == (1, "weight_after")


def test_a_full_step_the_other_way_is_no_drift_where_its_gradient_is_noise():
    weight, gradient = normal(64, 64), normal(64, 64, seed=1)
    gradient[3] *= np.float32(1e-9)
    other = gradient.copy()
    other[3] *= -1
    both = [weight - np.float32(1e-3) * np.sign(one) for one in (gradient, other)]
    known = update_of((weight, weight), (both[0], both[1]), 2.0**-24, (gradient, other))
    unknown = update_of((weight, weight), (both[0], both[1]), 2.0**-24)
    assert (known.is_apart(), unknown.is_apart()) == (False, True)


def test_an_update_that_nobody_could_see_is_hidden():
    weight = normal(4, 4) * np.float32(1e4)
    assert update_of((weight, weight), (np.nextafter(weight, np.float32(np.inf)), weight), 2.0**-24).is_hidden


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_a_number_that_is_not_finite_hides_no_update_beside_it(tmp_path, value):
    weight, gradient = normal(32, 32), normal(32, 32, seed=1)
    sides = []
    for side, rate in (("r", 0.1), ("c", 0.2)):
        made = after(weight, rate, gradient)
        made[0, 0] = value
        sides.append(record(tmp_path / side, {"weight a": weight, "grad a": gradient, "weight_after a": made}))
    assert fd.diff(*sides, allow_nan="*").exit_code == 1
