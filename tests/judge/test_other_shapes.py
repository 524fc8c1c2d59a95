"""Tensors that only one side repeats for every sample are not comparable, and no replay starts from them."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import firstdrift as fd
from firstdrift import Verdict

WORDS, TOKENS, WIDTH, BATCH = 50, 10, 32, 3


class Reference(nn.Module):
    """Looks positions up once."""

    def __init__(self):
        super().__init__()
        self.emb, self.pos, self.norm = nn.Embedding(WORDS, WIDTH), nn.Embedding(TOKENS, WIDTH), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS)

    def positions(self, ids):
        return torch.arange(ids.shape[1])

    def forward(self, ids):
        return self.head(self.norm(self.emb.weight[ids] + self.pos(self.positions(ids))))


class Candidate(Reference):
    """Looks positions up for every sample."""

    def positions(self, ids):
        return super().positions(ids).expand(ids.shape)


def library(logits, target):
    return functional.cross_entropy(logits.flatten(0, 1), target.flatten())


def by_hand(logits, target):
    return -(logits - logits.logsumexp(-1, keepdim=True)).gather(-1, target[..., None]).mean()


def traced(kind, loss, path, seed):
    torch.manual_seed(seed)
    model, ids = kind(), torch.randint(0, WORDS, (BATCH, TOKENS))
    with fd.trace(model, path):
        loss(model(ids), torch.randint(0, WORDS, (BATCH, TOKENS))).backward()
    return path


@pytest.mark.parametrize("seed", range(4))
def test_a_gradient_behind_positions_of_every_sample_is_noise(tmp_path, seed):
    """The reference's gradient of the table starts from a tensor that the candidate has in another shape."""
    sides = traced(Reference, library, tmp_path / "a", seed), traced(Candidate, by_hand, tmp_path / "b", seed)
    verdicts = {str(pair.site): pair.verdict for pair in fd.diff(*sides, explain=False).pairs}
    assert verdicts["agrad pos:out step 0"] is Verdict.NOISE  # by what is made of it
    assert verdicts["grad pos:weight step 0"] is Verdict.NOISE


class Convolved(nn.Module):
    """Zeros around an image inside the convolution; or its own border, put around it before."""

    def __init__(self, *, outside, mode):
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3, padding=0 if outside else 1), nn.Conv2d(4, 2, 1)
        self.is_outside, self.mode = outside, mode

    def forward(self, x):
        return self.head(self.conv(functional.pad(x, (1, 1, 1, 1), mode=self.mode) if self.is_outside else x))


def padded(tmp_path, mode):
    for name, outside in (("a", False), ("b", True)):
        torch.manual_seed(0)
        model, x = Convolved(outside=outside, mode=mode), torch.randn(2, 3, 8, 8)
        with fd.trace(model, tmp_path / name), torch.no_grad():
            model(x)
    return fd.diff(tmp_path / "a", tmp_path / "b", explain=False)


def test_another_border_outside_of_a_convolution_is_no_equal_function(tmp_path):
    """The candidate's program has no value like the reference's input: it is not the reference's with its weights."""
    result = padded(tmp_path, "replicate")
    assert result.exit_code == 1
    assert (result.first_drift.name, result.first_drift.port) == ("conv", "out")


def test_zeros_put_around_an_image_before_are_no_drift(tmp_path):
    assert padded(tmp_path, "constant").exit_code != 1
