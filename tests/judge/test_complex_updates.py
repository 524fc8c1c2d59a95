"""Complex weights: their updates are compared with both of their parts."""

import numpy as np
import pytest

import firstdrift as fd


@pytest.mark.parametrize(("part", "verdict"), [("neither", "same"), ("real", "drift"), ("imaginary", "drift")])
def test_an_update_that_is_wrong_in_either_part_drifts(tmp_path, part, verdict):
    rng = np.random.default_rng(0)
    weight, step = (rng.standard_normal((2, 6, 5)) @ [[1], [1j], [0], [0], [0]] for _ in range(2))
    weight, step = weight.astype(np.complex64), 1e-3 * step.astype(np.complex64)
    wrong = {"neither": step, "real": step - 0.5 * step.real, "imaginary": step - 0.5j * step.imag}[part]
    for side, moved in (("reference", step), ("candidate", wrong)):
        with fd.Writer(tmp_path / side) as writer:
            writer.put("mix", "weight", weight, port="weight")
            writer.put("mix", "weight_after", (weight - moved).astype(np.complex64), port="weight")
    result = fd.diff(tmp_path / "reference", tmp_path / "candidate")
    assert str(result.verdict) == verdict, result.sentence
