"""Rows that rounding changes altogether excuse themselves, and no others."""

import copy

import pytest
import torch
from torch import nn

import firstdrift as fd


class Scores(nn.Module):
    """Attention whose rows of no keys are filled twice: uniform where rounding swallows the scores, not elsewhere."""

    def __init__(self, fills=2, temperature=1.0):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(8, 8) for _ in range(4))
        self.drop, self.fills, self.temperature = nn.Identity(), fills, temperature

    def forward(self, x, keep):
        scores = self.q(x) @ self.k(x).transpose(-1, -2) * 8**-0.5 * self.temperature
        near = (torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])).abs() <= 1
        masked = ~(near & keep[:, None, :])
        if self.fills == 2:
            scores = scores + masked.to(scores.dtype) * -1e9
        else:
            scores = scores.masked_fill(masked, torch.finfo(scores.dtype).min)
        return self.out(self.drop(scores.softmax(-1)) @ self.v(x))


def checked(dtype=torch.float32, padded=3, **other):
    torch.manual_seed(0)
    reference, candidate = Scores(), Scores(**other)
    candidate.load_state_dict(copy.deepcopy(reference.state_dict()))
    x = torch.randn(2, 12, 8, generator=torch.Generator().manual_seed(1)).to(dtype)
    keep = torch.ones(2, 12, dtype=torch.bool)
    keep[1, 12 - padded :] = False
    return fd.check(reference=reference.to(dtype), candidate=candidate.to(dtype), inputs=(x, keep))


@pytest.mark.parametrize(
    ("dtype", "padded", "temperature"),
    [(torch.float32, 3, 1.1), (torch.float32, 8, 3.0), (torch.bfloat16, 8, 1.1), (torch.bfloat16, 3, 3.0)],
)
def test_rows_without_keys_do_not_excuse_another_temperature(dtype, padded, temperature):
    result = checked(dtype, padded, fills=1, temperature=temperature)
    assert result.first_drift is not None, result.sentence
    assert (result.first_drift.phase, result.first_drift.name) == ("fwd", "drop")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("padded", [3, 8])
def test_rows_without_keys_are_excused_themselves(dtype, padded):
    result = checked(dtype, padded, fills=1)
    assert result.exit_code == 0, result.sentence


def test_a_float64_run_is_asked_of_the_rows_that_the_reference_is_close_to_it_in(tmp_path):
    class Model(nn.Module):
        def __init__(self, ill, factor):
            super().__init__()
            self.inner, self.ill, self.factor = nn.Tanh(), ill, factor

        def forward(self, x):
            rest = x * self.factor
            return self.inner(torch.cat([rest[:4] + self.ill, rest[4:]]))

    x = torch.randn(24, 16, generator=torch.Generator().manual_seed(0))
    sides = {"truth": (0.0, 1.0), "ours": (0.4, 1.0 + 1e-7), "bug": (-0.4, 1.02), "noise": (-0.4, 1.0 - 1e-7)}
    for name, side in sides.items():
        model = Model(*side)
        with fd.trace(model, tmp_path / name), torch.no_grad():
            model(x)
    paths = {name: tmp_path / name for name in sides}
    assert fd.diff(paths["ours"], paths["noise"], truth=paths["truth"]).exit_code == 0
    result = fd.diff(paths["ours"], paths["bug"], truth=paths["truth"])
    assert result.first_drift is not None, result.sentence
