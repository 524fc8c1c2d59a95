"""What float64 lifts and what it keeps: casts, dtypes that calls ask for, constants, whole numbers, drawn numbers."""

import numpy as np
import pytest
import torch
from tests.program.replaying import record
from torch import nn

import firstdrift as fd
from firstdrift.program.cuts import Cuts
from firstdrift.program.interpreter import Interpreter, NotReplayableError

X = torch.tensor([[0.1, 1.7, -2.3], [3.9, 1e-6, 5.0]])


def exact(path, forward, x=X):
    """The output of a function, in float64 from its recorded input; and what the input is in float64."""

    class Model(nn.Module):
        def forward(self, x):
            return forward(x)

    model = Model()
    found = record(path, model, lambda: model(x))
    cut = Cuts(found.step, lambda site: site.phase == "input").at(fd.Site(0, "fwd", "", "out"))
    return Interpreter(found.step, found.trace, exact=True).array_of(cut), x.double().numpy()


LIFTED = {
    "a cast to bfloat16 and back": lambda x: x.bfloat16().float() * 3,
    "a cast to float16": lambda x: x.half() * 3,
    "a dtype that a call asks for": lambda x: (3 * x).unsqueeze(-1).sum(-1, dtype=torch.bfloat16),
    "a result of another dtype": lambda x: torch.full((2, 3), 3.0, dtype=torch.bfloat16) * x,
}


@pytest.mark.parametrize("name", LIFTED)
def test_a_shorter_float_rounds_nothing(tmp_path, name):
    found, x = exact(tmp_path / "t", LIFTED[name])
    assert found.dtype == np.float64
    assert np.abs(found - 3 * x).max() <= 1e-15 * 15


def test_a_cast_to_a_whole_number_cuts_off_as_it_did(tmp_path):
    found, x = exact(tmp_path / "t", lambda x: x.to(torch.int32).float() + x.to(torch.bool) * 0.5)
    assert found.tolist() == (np.trunc(x) + 0.5).tolist()


def test_a_whole_number_keeps_its_dtype_and_wraps_as_it_did(tmp_path):
    found, _ = exact(tmp_path / "t", lambda x: (x.to(torch.uint8) + 250).float(), X.abs())
    assert found.tolist() == [[250.0, 251.0, 252.0], [253.0, 250.0, 255.0]]


def test_a_fill_with_the_least_number_of_a_dtype_keeps_its_value(tmp_path):
    """In float64 there is a lesser one; what was filled in is what was filled in."""
    least = torch.finfo(torch.float16).min
    found, _ = exact(tmp_path / "t", lambda x: x.half().masked_fill(x > 1, torch.finfo(torch.float16).min))
    assert found.min() == least
    masked, x = exact(tmp_path / "u", lambda x: x.masked_fill(x > 3, torch.finfo(x.dtype).min).softmax(-1))
    expected = np.exp(np.where(x > 3, -np.inf, x))
    assert np.abs(masked - expected / expected.sum(-1, keepdims=True)).max() < 1e-15


def test_the_eps_of_a_dtype_is_the_number_that_it_was(tmp_path):
    found, x = exact(tmp_path / "t", lambda x: x / (x.abs().amax() * 0 + torch.finfo(x.dtype).eps))
    assert np.abs(found * 2.0**-23 - x).max() < 1e-15


def test_looking_at_the_bits_of_a_float_is_not_replayable(tmp_path):
    with pytest.raises(NotReplayableError):
        exact(tmp_path / "t", lambda x: x.view(torch.int32).bitwise_and(0x7FFFFFFF).view(torch.float32))


def test_random_numbers_are_those_drawn(tmp_path):
    torch.manual_seed(0)
    found, x = exact(tmp_path / "t", lambda x: nn.functional.dropout(x, 0.5) + torch.rand_like(x).round() * 100)
    again, _ = exact(tmp_path / "u", lambda x: nn.functional.dropout(x, 0.5) + torch.rand_like(x).round() * 100)
    assert found.tobytes() == again.tobytes()  # recorded with the same seed, replayed with none
    rest = found - 100 * (np.abs(found) > 50)
    assert (np.isclose(rest, 0) | np.isclose(rest, 2 * x)).all()
