"""Tensors of which nothing says how they were made: as close as two results of few roundings, or left open."""

import numpy as np
import pytest
import torch
from torch import nn

import firstdrift as fd
from firstdrift.judge.measure.scales import least_part, parts_of

BF16 = 2.0**-8


def written(path, tensors):
    """A run of which only names and numbers are on record, in the order of the names."""
    with fd.Writer(path) as writer:
        for (phase, name, port), tensor in tensors.items():
            writer.put(name, phase, tensor, port=port)
    return path


def two_layers(activation, dtype, seed=0):
    """A layer and what an activation makes of it."""
    generator = torch.Generator().manual_seed(seed)
    x, weight = (torch.randn(shape, generator=generator).to(dtype) for shape in ((9, 16), (64, 16)))
    y = x @ weight.T
    return {("input", "x", "x"): x, ("weight", "fc", "weight"): weight, ("fwd", "fc", "out"): y,
            ("fwd", "act", "out"): activation(y)}  # fmt: skip


def test_what_a_relu_cuts_off_is_not_let_through_by_a_limit(tmp_path):
    ours = written(tmp_path / "r", two_layers(torch.relu, torch.bfloat16))
    wrong = written(tmp_path / "w", two_layers(lambda y: nn.functional.leaky_relu(y, 0.005), torch.bfloat16))
    right = written(tmp_path / "c", two_layers(torch.relu, torch.bfloat16))
    result = fd.diff(ours, wrong, explain=False)
    assert (result.exit_code, result.first_drift.name) == (1, "act"), result.sentence
    assert fd.diff(ours, right, explain=False).exit_code == 0


def deep(path, error, dtype, modules=11):
    """Weights of many modules, and what comes out at the end, off by an error in every number."""
    random = np.random.default_rng(0)
    noise = np.random.default_rng(1).standard_normal((32, 64))
    out = random.standard_normal((32, 64))
    tensors = {("weight", f"m{i}", "weight"): torch.ones(4) for i in range(modules)}
    tensors["fwd", "", "out"] = torch.from_numpy(out * (1 + error * noise)).to(dtype)
    return written(path, tensors)


@pytest.mark.parametrize(("roundings", "code"), [(0.6, 0), (1.2, 0), (4.5, 2), (8.0, 2)])
def test_modules_of_which_nothing_is_seen_excuse_a_rounding_each(tmp_path, roundings, code):
    ours, theirs = deep(tmp_path / "r", 0, torch.bfloat16), deep(tmp_path / "c", roundings * BF16, torch.bfloat16)
    assert fd.diff(ours, theirs, explain=False).exit_code == code


def off(share, worst):
    """Rows that are all off by a share of a rounding, and one by more."""
    random = np.random.default_rng(0)
    expected = random.standard_normal((16, 32))
    errors = share * BF16 * random.standard_normal((16, 32))
    errors[3] *= worst / share
    return parts_of(expected, expected * (1 + errors), least=1e-3)


@pytest.mark.parametrize(("share", "worst", "is_clear"), [(0.5, 1.0, True), (1.6, 1.6, True), (1.6, 5.0, False)])
def test_what_is_off_everywhere_excuses_no_row_by_more(share, worst, is_clear):
    part = least_part(off(share, worst), BF16, 2 * BF16, 2 * BF16 / 3)
    assert (part.excess <= 1) is is_clear, part


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize(("steps", "code"), [(1, 0), (3, 1)])
def test_a_weight_may_be_the_neighbour_of_another_and_no_further_off(tmp_path, dtype, steps, code):
    torch.manual_seed(0)
    ours, eps = torch.randn(12, 16).to(dtype), torch.finfo(dtype).eps
    theirs = ours.clone()
    ours[3, 4], theirs[3, 4] = 1, 1 + steps * eps
    traces = [written(tmp_path / name, {("weight", "fc", "weight"): one, ("fwd", "fc", "out"): torch.ones(2, 3)})
              for name, one in (("r", ours), ("c", theirs))]  # fmt: skip
    assert fd.diff(*traces, explain=False).exit_code == code
