"""A candidate that recorded outputs only: judged through the reference's producers, and nobody blamed without proof."""

import copy

import pytest
import torch
from torch import nn

import firstdrift as fd


class Attention(nn.Module):
    """Queries, keys and values of separate projections, turned by position; what joins them is no module."""

    def __init__(self, width, heads, causal, rotary):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=not rotary) for _ in range(4))
        self.heads, self.causal, self.rotary = heads, causal, rotary
        self.scale, self.theta, self.masked = (width // heads) ** -0.5, 100.0, causal

    def forward(self, x):
        batch, time, width = x.shape
        q, k, v = (part(x).view(batch, time, self.heads, -1).transpose(1, 2) for part in (self.q, self.k, self.v))
        if self.rotary:
            q, k = self.turned(q), self.turned(k)
        scores = q @ k.transpose(-1, -2) * self.scale
        if self.masked:
            scores = scores.masked_fill(torch.ones(time, time).triu(1).bool(), float("-inf"))
        return self.o((scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, time, width))

    def turned(self, x):
        half = x.shape[-1] // 2
        angles = torch.arange(x.shape[-2])[:, None] * self.theta ** (-torch.arange(half) / half)
        a, b = x.chunk(2, -1)
        return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)


class Layer(nn.Module):
    def __init__(self, width, heads, decoder):
        super().__init__()
        self.attn, self.decoder = Attention(width, heads, decoder, decoder), decoder
        self.ln1, self.ln2 = (nn.RMSNorm(width, 1e-5) if decoder else nn.LayerNorm(width) for _ in range(2))
        self.up, self.act, self.down = nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)

    def forward(self, x):
        if self.decoder:  # norms before
            x = x + self.attn(self.ln1(x))
            return x + self.down(self.act(self.up(self.ln2(x))))
        x = self.ln1(x + self.attn(x))
        return self.ln2(x + self.down(self.act(self.up(x))))


class Network(nn.Module):
    def __init__(self, decoder):
        super().__init__()
        torch.manual_seed(0)
        self.emb = nn.Embedding(40, 32)
        self.layers = nn.Sequential(*(Layer(32, 4, decoder) for _ in range(3)))
        self.head = nn.Linear(32, 40)
        for parameter in self.parameters():
            parameter.data += 0.1 * torch.randn_like(parameter)

    def forward(self, x):
        return self.head(self.layers(self.emb(x)))


def mask(attention):
    attention.masked = not attention.causal


def transposed(attention):
    attention.v.weight.data = attention.v.weight.data.T.contiguous()


# What is changed in the second layer, and the outputs at which it shows first.
BUGS = {
    "norm eps": (lambda layer: setattr(layer.ln2, "eps", 1e-2), "ln2"),
    "GELU form": (lambda layer: setattr(layer, "act", nn.GELU("tanh")), "act"),
    "attention scale": (lambda layer: setattr(layer.attn, "scale", 0.3), "attn.o"),
    "mask": (lambda layer: mask(layer.attn), "attn.o"),
    "theta": (lambda layer: setattr(layer.attn, "theta", 50.0), "attn.o"),
    "transposed": (lambda layer: transposed(layer.attn), "attn.v"),
}
CASES = [(decoder, bug) for decoder in (True, False) for bug in BUGS if decoder or bug != "theta"]


def recorded(model, path):
    with fd.trace(model, path), torch.no_grad():
        model(torch.randint(0, 40, (3, 9), generator=torch.Generator().manual_seed(1)))
    return path


def outputs_of(path, target):
    """The same run as another engine would dump it: what it was fed and what its modules return."""
    trace = fd.open_trace(path)
    with fd.Writer(target) as writer:
        for record in trace:
            if record.site.phase == "input" or (record.site.phase, record.site.port) == ("fwd", "out"):
                writer.put(record.site.name, record.site.phase, trace.array(record), port=record.site.port)
    return target


@pytest.fixture
def compared(tmp_path):
    def compare(decoder, change=lambda layer: None):
        model = Network(decoder)
        recorded(copy.deepcopy(model), tmp_path / "ref")
        change(model.layers[1])
        candidate = outputs_of(recorded(model, tmp_path / "whole"), tmp_path / "cand")
        return fd.diff(tmp_path / "ref", candidate, allow_missing="*")

    return compare


@pytest.mark.parametrize(("decoder", "bug"), CASES)
def test_the_site_is_named_and_what_was_not_recorded_is_said(compared, decoder, bug):
    change, place = BUGS[bug]
    result = compared(decoder, change)
    assert result.exit_code == 1
    assert (result.first_drift.phase, result.first_drift.name) == ("fwd", f"layers.1.{place}"), result.sentence
    by = result.first_drift.introduced_by
    glued = place in ("attn.o", "ln2")  # something is computed on the way that is no module's output
    assert by.startswith("something between ") if glued else by == f"layers.1.{place}", by


@pytest.mark.parametrize("decoder", [True, False])
def test_a_right_candidate_is_right(compared, decoder):
    result = compared(decoder)
    assert (result.exit_code, result.verdict) == (0, "same")


@pytest.mark.parametrize("decoder", [True, False])
def test_a_right_candidate_that_rounds_otherwise_is_noise(compared, decoder):
    def through_float64(layer):
        inner = copy.deepcopy(layer.attn).double()
        layer.attn.forward = lambda x: inner(x.double()).float()

    result = compared(decoder, through_float64)
    assert (result.exit_code, str(result.verdict)) == (0, "noise"), result.sentence


def test_nobody_between_is_acquitted_or_blamed_alone(compared):
    by = compared(True, BUGS["attention scale"][0]).first_drift.introduced_by
    assert by == "something between fwd layers.1.attn.v and fwd layers.1.attn.o"
