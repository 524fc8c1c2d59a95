"""Norms, recurrent layers and masks made otherwise are named by the reference's program alone."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import firstdrift as fd
from firstdrift.explain.naming import phase_label
from firstdrift.explain.one_program.around import Around
from firstdrift.program.calls import Call


class Norm(nn.Module):
    """A layer norm, fused, or by its formula and made otherwise."""

    def __init__(self, way=""):
        super().__init__()
        self.lead, self.gain, self.bias = nn.Linear(12, 12), nn.Parameter(torch.rand(12)), nn.Parameter(torch.rand(12))
        self.way = way

    def forward(self, x):
        x = self.lead(x) + 0.3
        if not self.way:
            return F.layer_norm(x, (12,), self.gain, self.bias, 1e-2)
        seen = x if self.way == "rms" else x - x.mean(-1, keepdim=True)
        variance = seen.square().mean(-1, keepdim=True) * (12 / 11 if self.way == "unbiased" else 1)
        root = variance.sqrt() + 1e-2 if self.way == "outside" else (variance + 1e-2).sqrt()
        return seen / root * self.gain + self.bias


class Rms(nn.Module):
    """A root mean square norm by its formula; the candidate subtracts the mean, or adds eps to the root."""

    def __init__(self, way=""):
        super().__init__()
        self.lead, self.gain, self.way = nn.Linear(12, 12), nn.Parameter(torch.rand(12)), way

    def forward(self, x):
        x = self.lead(x) + 0.3
        x = x - x.mean(-1, keepdim=True) if self.way == "centred" else x
        square = x.square().mean(-1, keepdim=True)
        return x * (1 / (square.sqrt() + 1e-2) if self.way == "root" else torch.rsqrt(square + 1e-2)) * self.gain


class Grouped(nn.Module):
    """Groups of neighbouring channels, or of every so-manyth."""

    def __init__(self, way=""):
        super().__init__()
        self.lead, self.norm, self.way = nn.Conv2d(8, 8, 1), nn.GroupNorm(2, 8), way

    def forward(self, x):
        x = self.lead(x)
        if not self.way:
            return F.group_norm(x, 2, self.norm.weight, self.norm.bias)
        apart = x.unflatten(1, (4, 2)).transpose(1, 2).flatten(1, 2)
        normed = F.group_norm(apart, 2).unflatten(1, (2, 4)).transpose(1, 2).flatten(1, 2)
        return normed * self.norm.weight[:, None, None] + self.norm.bias[:, None, None]


class Cells(nn.Module):
    """A recurrent layer; the candidate runs its steps by hand."""

    def __init__(self, kind, way=""):
        super().__init__()
        self.cells, self.way = getattr(nn, kind)(6, 5, batch_first=True), way

    def forward(self, x):
        if not self.way:
            return self.cells(x)[0]
        cell = self.cells
        hidden = state = x.new_zeros(len(x), 5)
        out = []
        for at in range(x.shape[1]):
            given = F.linear(x[:, at], cell.weight_ih_l0, cell.bias_ih_l0)
            kept = F.linear(hidden, cell.weight_hh_l0, cell.bias_hh_l0)
            if isinstance(cell, nn.GRU):
                update, reset = (given + kept)[:, :10].sigmoid().chunk(2, -1)  # torch has the reset gate first
                new = (given.chunk(3, -1)[2] + reset * kept.chunk(3, -1)[2]).tanh()
                hidden = (1 - update) * new + update * hidden
            else:
                put, forget, new, shown = (given + kept).chunk(4, -1)
                state = forget.sigmoid() * state + put.sigmoid() * (new if self.way == "plain" else new.tanh())
                hidden = shown.sigmoid() * state.tanh()
            out.append(hidden)
        return torch.stack(out, 1)


CASES = [
    (Norm, "rms", "rms-vs-layernorm"),
    (Norm, "outside", "norm-eps-placement"),
    (Norm, "unbiased", "batchnorm-unbiased"),
    (Rms, "centred", "rms-vs-layernorm"),
    (Rms, "root", "norm-eps-placement"),
    (Grouped, "apart", "norm-axis"),
    (lambda *way: Cells("GRU", *way), "blocks", "gate-order"),
    (lambda *way: Cells("LSTM", *way), "plain", "gate-formula"),
]


def explained(kind, way, x, tmp_path):
    torch.manual_seed(1)
    reference, candidate = kind(), kind(way)
    candidate.load_state_dict(reference.state_dict())
    for name, model in (("reference", reference), ("candidate", candidate)):
        with fd.trace(model.eval(), tmp_path / name), torch.no_grad():
            model(x)
    (tmp_path / "candidate" / "program.jsonl").unlink()  # the reference's alone has to tell
    return fd.diff(tmp_path / "reference", tmp_path / "candidate").first_drift.cause


@pytest.mark.parametrize(("kind", "way", "label"), CASES, ids=[case[1] for case in CASES])
def test_a_layer_made_otherwise_is_named_by_the_references_program(kind, way, label, tmp_path):
    shape = {"apart": (2, 8, 3, 3), "blocks": (3, 7, 6), "plain": (3, 7, 6)}.get(way, (2, 6, 12))
    cause = explained(kind, way, torch.randn(*shape), tmp_path)
    assert cause.label == label, cause


def test_the_steps_of_a_recurrent_layer_by_hand_are_the_layer(tmp_path):
    torch.manual_seed(1)
    reference, candidate = Cells("LSTM"), Cells("LSTM", "right")
    inputs = (torch.randn(3, 7, 6),)
    assert fd.check(reference=reference, candidate=candidate, inputs=inputs, load="reference").exit_code == 0


class Observed(nn.Module):
    """Weights of attention that a module hands on, so that they are recorded."""

    def __init__(self, way=""):
        super().__init__()
        self.query, self.key, self.hand, self.way = nn.Linear(8, 8), nn.Linear(8, 8), nn.Identity(), way

    def forward(self, x):
        scores = self.query(x) @ self.key(x).transpose(-1, -2) / math.sqrt(8)
        if self.way:
            hides = torch.ones(7, 7, dtype=torch.bool).triu(1) if self.way == "future" else torch.arange(7) > 4
            scores = scores.masked_fill(hides, float("-inf"))
        return self.hand(scores.softmax(-1)) @ x


@pytest.mark.parametrize(("way", "hides"), [("future", "what comes after a query"), ("keys", "the same keys")])
def test_a_mask_that_the_reference_has_not_is_named_with_what_it_hides(way, hides, tmp_path):
    cause = explained(Observed, way, torch.randn(2, 7, 8), tmp_path)
    assert cause.label == "mask-missing", cause
    assert hides in cause.sentence


@pytest.mark.parametrize(
    ("label", "phase", "named"),
    [
        ("changed-call", "agrad", "gradient-formula"),
        ("changed-call", "fwd", "changed-call"),
        ("changed-call", "loss", "loss-formula"),
        ("missing-term", "grad", "tied-gradient"),
        ("missing-term", "agrad", "gradient-missing"),
        ("missing-term", "weight_after", "missing-term"),
        ("scale", "grad", "gradient-formula"),
        ("norm-eps", "weight_after", "optimizer-eps"),
    ],
)
def test_a_change_is_named_after_the_pass_that_it_is_in(label, phase, named):
    assert phase_label(label, phase) == named


class Told(nn.Module):
    """A sum with what a second input says, which the candidate adds twice."""

    def __init__(self, way=""):
        super().__init__()
        self.lead, self.say, self.way = nn.Linear(8, 8), nn.Linear(3, 8), way

    def forward(self, x, when):
        said = self.say(when).tanh()[:, None]
        made = self.lead(x).relu() + said
        return (made + said if self.way else made).sigmoid()


def test_a_term_that_the_candidate_adds_once_more_is_named():
    torch.manual_seed(1)
    result = fd.check(
        reference=Told(), candidate=Told("twice"), inputs=(torch.randn(2, 5, 8), torch.randn(2, 3)), load="reference"
    )
    assert result.first_drift.cause.label in ("double-bias", "scale"), result.sentence
    assert "twice" in result.sentence


def test_no_setting_is_changed_of_a_kernel_that_reads_beyond_its_tensors_if_told_to():
    nodes = [Call(f"aten.{op}.default", (), {}, ()) for op in ("mkldnn_rnn_layer", "cumsum")]
    rerun = SimpleNamespace(step=SimpleNamespace(nodes=nodes), settings=lambda _: [SimpleNamespace(name="dim")])
    assert [list(Around(rerun, at).settings) for at in (0, 1)] == [[], ["dim"]]
