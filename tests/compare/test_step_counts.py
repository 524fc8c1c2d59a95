"""How many steps an optimizer has made is a number, whatever it is kept as."""

import numpy as np
import pytest

import firstdrift as fd


@pytest.mark.parametrize(
    ("reference", "candidate", "code"),
    [
        (np.float32(3), np.int64(3), 0),
        (np.int64(3), np.float32(3), 0),
        (np.float32([3]), np.int32(3), 0),
        (np.float32(3), np.int64(4), 1),
        (np.float32(2.5), np.int64(2), 2),
        (np.float32(np.inf), np.int64(2), 2),
        (np.float32([3, 4]), np.int64([3, 4]), 0),
    ],
)
def test_counts_of_steps_are_compared_as_numbers(tmp_path, reference, candidate, code):
    for side, count in (("r", reference), ("c", candidate)):
        with fd.Writer(tmp_path / side) as writer:
            writer.put("fc", "fwd", np.arange(4, dtype=np.float32))
            writer.put("fc", "optim", count, port="weight.step")
    assert fd.diff(tmp_path / "r", tmp_path / "c").exit_code == code


def test_numbers_elsewhere_stay_of_their_kind(tmp_path):
    for side, count in (("r", np.float32(3)), ("c", np.int64(3))):
        with fd.Writer(tmp_path / side) as writer:
            writer.put("fc", "fwd", count)
    assert fd.diff(tmp_path / "r", tmp_path / "c").exit_code == 2
