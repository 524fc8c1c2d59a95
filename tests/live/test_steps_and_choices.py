"""Optimizers that extend others, gradients that are zero but for rounding, choices in short formats."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import firstdrift as fd


class Extended(torch.optim.SGD):
    """Clips first, then lets the class it extends step."""

    def step(self, closure=None):
        torch.nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], 0.1)
        return super().step(closure)


def test_an_optimizer_that_calls_the_step_it_extends_is_replayed_once():
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)  # from now on torch wraps both steps
    torch.manual_seed(0)
    reference, candidate = (nn.Linear(4, 4) for _ in range(2))
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))
    result = fd.check(
        reference=reference, candidate=candidate, inputs=(x,), loss_fn=lambda output: output.square().mean(),
        optimizer=lambda model: Extended(model.parameters(), lr=0.1), load="reference",
    )  # fmt: skip
    assert (result.exit_code, result.coverage.compared > 10) == (0, True), result.sentence


class Attention(nn.Module):
    """Fused projections: what a key's bias adds to the scores of a query is the same for all keys."""

    def __init__(self, by_einsum):
        super().__init__()
        self.qkv, self.out, self.by_einsum = nn.Linear(8, 24), nn.Linear(8, 8), by_einsum

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        if self.by_einsum:
            weights = torch.einsum("btc,bsc->bts", q * 8**-0.5, k)
            return self.out(torch.einsum("bts,bsc->btc", weights.softmax(-1), v))
        return self.out(F.scaled_dot_product_attention(q, k, v))


def test_a_gradient_that_is_zero_but_for_rounding_leaves_no_doubt_in_later_steps():
    torch.manual_seed(0)
    reference, candidate = Attention(False), Attention(True)
    x = torch.randn(3, 6, 8, generator=torch.Generator().manual_seed(1))
    result = fd.check(
        reference=reference, candidate=candidate, inputs=(x,), loss_fn=lambda output: output.square().mean(),
        optimizer=lambda model: torch.optim.Adam(model.parameters(), lr=1e-3), steps=3, load="reference",
    )  # fmt: skip
    assert result.exit_code == 0, result.sentence


class Choosing(nn.Linear):
    """The largest of its outputs, summed in one order or the other."""

    backwards, shift = False, 0

    def forward(self, x):
        terms = [x[:, i, None] * self.weight[:, i] for i in range(self.in_features)]
        return (sum(reversed(terms) if self.backwards else terms).argmax(-1) + self.shift) % self.out_features


@pytest.mark.parametrize(("shift", "verdict"), [(0, "flip"), (1, "drift")])
def test_choices_between_near_ties_of_a_short_format_are_flips(shift, verdict):
    torch.manual_seed(0)
    reference = nn.Sequential(nn.Linear(6, 16), Choosing(16, 64, bias=False), nn.Embedding(64, 4)).bfloat16()
    candidate = copy.deepcopy(reference)
    candidate[1].backwards, candidate[1].shift = True, shift
    x = torch.randn(200, 6, generator=torch.Generator().manual_seed(1)).bfloat16()
    assert fd.check(reference=reference, candidate=candidate, inputs=(x,)).verdict == verdict


class Best(nn.Module):
    """The places of the two largest, the first of equals coming first or last; or of the first and third."""

    def __init__(self, first=True, wrong=False):
        super().__init__()
        self.first, self.wrong = first, wrong

    def forward(self, x):
        order = torch.argsort(x if self.first else x.flip(-1), dim=-1, descending=True, stable=True)
        order = order if self.first else x.shape[-1] - 1 - order
        return order[:, [0, 2] if self.wrong else [0, 1]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("wrong", "verdict"), [(False, "flip"), (True, "drift")])
def test_choices_between_equals_are_flips(wrong, verdict, dtype):
    torch.manual_seed(0)
    scores = nn.Linear(6, 8)
    with torch.no_grad():
        scores.weight[5], scores.bias[5] = scores.weight[2], scores.bias[2]
    reference = nn.Sequential(scores, Best(), nn.Embedding(8, 4)).to(dtype)
    candidate = nn.Sequential(copy.deepcopy(scores), Best(False, wrong), copy.deepcopy(reference[2])).to(dtype)
    with torch.no_grad():
        for model in (reference, candidate):
            model[2].weight[5] = model[2].weight[2]
    result = fd.check(reference=reference, candidate=candidate, inputs=(torch.randn(40, 6).to(dtype),))
    assert result.verdict == verdict, result.sentence
