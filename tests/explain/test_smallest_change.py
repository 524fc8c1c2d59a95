"""A drift is explained by the smallest change of the reference's calls, with the lines of both sides."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import firstdrift as fd


class Attention(nn.Module):
    """Heads, a mask by comparison, a softmax; `way` is how it is written wrongly."""

    def __init__(self, way=""):
        super().__init__()
        self.qkv, self.out, self.way = nn.Linear(24, 72), nn.Linear(24, 24), way

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = (one.view(batch, length, 3, 8).transpose(1, 2) for one in self.qkv(x).split(24, -1))
        scores = q @ k.transpose(-1, -2) / (8.0 if self.way == "scale" else math.sqrt(8))
        at = torch.arange(length)
        seen = at[None] < at[:, None] + 1 if self.way != "edge" else at[None] < at[:, None] + 2
        scores = scores.masked_fill(~seen, -3.0 if self.way == "fill" else float("-inf"))
        weights = scores.softmax(-1)
        mixed = weights @ (k if self.way == "source" else v)
        mixed = mixed.clamp(max=0.1) if self.way == "clamp" else mixed
        return self.out(mixed.transpose(1, 2).reshape(batch, length, 24))


class Block(nn.Module):
    """A norm by its formula, a gate, a residual."""

    def __init__(self, way=""):
        super().__init__()
        self.up, self.down, self.gain, self.way = (
            nn.Linear(16, 32),
            nn.Linear(32, 16),
            nn.Parameter(torch.rand(16)),
            way,
        )

    def forward(self, x):
        eps = 1e-2 if self.way == "eps" else 1e-5
        normed = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * self.gain
        hidden = F.gelu(self.up(normed), approximate="tanh" if self.way == "gelu" else "none")
        hidden = hidden.flip(-1) if self.way == "flip" else hidden
        return (normed if self.way == "skip" else x) + self.down(hidden)


CASES = [
    (Attention, "scale", "attention-scale", "divided by 8 instead of 2.82843"),
    (Attention, "edge", "mask-off-by-one", "2 is added instead of 1"),
    (Attention, "fill", "changed-call", "is -3 instead of -inf"),
    (Attention, "source", "qkv-order", "reads part 2 of split of line"),
    (Attention, "clamp", "clamp", "one call more, clamp"),
    (Block, "eps", "norm-eps", "0.01 is added instead of 1e-05"),
    (Block, "gelu", "activation-variant", "approximate of gelu is tanh instead of none"),
    (Block, "skip", "residual-source", "instead of"),
]


UNNAMED = ("fill", "source", "gelu")


def sides(kind, way):
    torch.manual_seed(1)
    reference, candidate = kind(), kind(way)
    candidate.load_state_dict(reference.state_dict())
    width = 24 if kind is Attention else 16
    return reference, candidate, torch.randn(2, 6, width)


def of_traces(tmp_path, reference, candidate, x, *, program=True):
    for name, model in (("reference", reference), ("candidate", candidate)):
        with fd.trace(model, tmp_path / name), torch.no_grad():
            model(x)
    if not program:
        (tmp_path / "candidate" / "program.jsonl").unlink()
    return fd.diff(tmp_path / "reference", tmp_path / "candidate")


@pytest.mark.parametrize(("kind", "way", "label", "said"), CASES, ids=[case[1] for case in CASES])
def test_two_programs_name_the_change_and_the_line(tmp_path, kind, way, label, said):
    cause = of_traces(tmp_path, *sides(kind, way)).first_drift.cause
    assert cause.label == label, cause
    if way in UNNAMED:  # what relations between tensors have no name for
        assert said in cause.sentence
        assert "test_smallest_change.py:" in cause.sentence


@pytest.mark.parametrize("way", ["edge", "source", "gelu"])
def test_check_says_the_same_as_two_traces(way):
    kind = Attention if way != "gelu" else Block
    reference, candidate, x = sides(kind, way)
    label = next(case[2] for case in CASES if case[1] == way)
    assert fd.check(reference=reference, candidate=candidate, inputs=(x,)).first_drift.cause.label == label


def test_the_references_program_alone_finds_a_change(tmp_path):
    reference, candidate, x = sides(Block, "gelu")
    cause = of_traces(tmp_path, reference, candidate, x, program=False).first_drift.cause
    assert (cause.label, cause.parameters["approximate"]) == ("activation-variant", "tanh")


def test_a_change_that_a_program_does_not_hold_is_not_made_up(tmp_path):
    class Noisy(Block):
        def forward(self, x):
            return super().forward(x) + torch.linspace(-1, 1, x.numel()).view(x.shape).sin() * x.abs().sort().values

    reference, _, x = sides(Block, "")
    candidate = Noisy()
    candidate.load_state_dict(reference.state_dict())
    cause = of_traces(tmp_path, reference, candidate, x, program=False).first_drift.cause
    assert cause.label == "unknown" or cause.confidence < 0.5


def test_equal_programs_have_no_cause(tmp_path):
    reference, candidate, x = sides(Block, "")
    result = of_traces(tmp_path, reference, candidate, x)
    assert result.verdict == "same"
    assert result.first_drift is None
