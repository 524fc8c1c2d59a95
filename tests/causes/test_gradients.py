"""Causes in the backward pass, on gradients that torch really computed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from firstdrift.capture.torch.names import attrs_of
from firstdrift.causes.backward import gradients
from firstdrift.causes.evidence import Evidence, Nowhere
from firstdrift.causes.hypotheses import explain
from firstdrift.causes.table import TABLE
from firstdrift.sites import Site

torch.manual_seed(0)


class Around(Nowhere):
    def __init__(self, tensors=(), facts=None):
        self.tensors = dict(tensors)
        self.facts = facts or {}

    def sites(self, phase):
        return [site for site in self.tensors if site.phase == phase]

    def reference(self, site):
        return self.tensors.get(site, (None, None))[0]

    def candidate(self, site):
        return self.tensors.get(site, (None, None))[1]


def noisy(array, noise):
    return array * (1 + noise * np.random.default_rng(5).uniform(-1, 1, array.shape))


def ran(module, value):
    """A module's input, the gradient of its output, and the gradients that its backward made."""
    module = module.double()
    module.zero_grad()
    leaf = value.clone()
    if leaf.is_floating_point():
        leaf = leaf.double().requires_grad_()
    out = module(leaf)
    gradient = torch.randn(out.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    out.backward(gradient)
    own = {name: item.grad.numpy() for name, item in module.named_parameters() if item.grad is not None}
    return leaf.detach().numpy(), gradient.numpy(), None if leaf.grad is None else leaf.grad.numpy(), own


def agrad(module, value, found, noise=1e-9):
    """The gradient before a module; `found` makes the candidate's from the gradient after it, its input, the weight."""
    x, gradient, expected, _ = ran(module, value)
    parameters = {name: item.detach().numpy() for name, item in module.named_parameters()}
    made = noisy(found(gradient, x, parameters.get("weight"), expected), noise)
    inputs = {"agrad next": gradient, "fwd": x}
    attrs = attrs_of(module)
    return Evidence(
        Site(0, "agrad", "before", "out"), expected, made, noise, op=type(module).__name__, inputs=inputs,
        candidate_inputs=inputs, parameters=parameters, attrs=attrs,
    )  # fmt: skip


def grad(module, value, found, port="weight", noise=1e-9):
    """A parameter's gradient; `found` makes the candidate's of the gradient after the module, its input, the right."""
    x, gradient, _, own = ran(module, value)
    made = noisy(found(gradient, x, own[port]), noise)
    inputs = {"agrad": gradient, "in.0": x}
    attrs = attrs_of(module)
    return Evidence(
        Site(0, "grad", "here", port), own[port], made, noise, op=type(module).__name__, inputs=inputs,
        candidate_inputs=inputs, attrs=attrs,
    )  # fmt: skip


def hat(x, centred=True):
    x = x - x.mean(-1, keepdims=True) if centred else x
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)


def layer_norm_lacking(*terms):
    def made(g, x, w, _):
        g = g if "weight" in terms else g * w
        rate = 1 / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
        out = g
        if "mean" not in terms:
            out = out - g.mean(-1, keepdims=True)
        if "along" not in terms:
            out = out - hat(x) * (g * hat(x)).mean(-1, keepdims=True)
        return out * rate

    return made


NORM = nn.LayerNorm(10)
RMS = nn.RMSNorm(10, eps=1e-5)
for norm in (NORM, RMS):
    nn.init.normal_(norm.weight, 1.0, 0.3)
ROWS = torch.randn(6, 8, 10)
WITH_ZEROS = torch.relu(torch.randn(6, 8, 10)) - torch.relu(torch.randn(6, 8, 10))
WORDS = torch.randint(0, 20, (4, 30))


IMAGES = torch.randn(3, 4, 8, 8)
TIED = torch.relu(torch.randn(3, 4, 8, 8)).round()
CONV, BATCH, GROUP = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.GroupNorm(2, 4)
for norm in (BATCH, GROUP):
    nn.init.normal_(norm.weight, 1.0, 0.3)


def into(g, x, w):
    return torch.nn.grad.conv2d_input(x.shape, torch.tensor(w), torch.tensor(g), padding=1).numpy()


def flipped_kernel(g, x, w):
    return into(g, x, np.flip(w, (2, 3)).copy())


def without_border(e):
    kept = np.zeros_like(e)
    kept[:, :, 1:-1, 1:-1] = e[:, :, 1:-1, 1:-1]
    return kept


def moved(x):
    return np.pad(x, [(0, 0)] * 3 + [(1, 0)])[..., :-1]


def of_kernel(g, x):
    return torch.nn.grad.conv2d_weight(torch.tensor(x.copy()), (4, 4, 3, 3), torch.tensor(g.copy()), padding=1).numpy()


def pooled(g, x):
    """The backward of a pool that takes the largest of 2 x 2."""
    leaf = torch.tensor(np.ascontiguousarray(x), requires_grad=True)
    nn.functional.max_pool2d(leaf, 2).backward(torch.tensor(np.ascontiguousarray(g)))
    return leaf.grad.numpy()


def per_channel(w):
    return w.reshape(-1, 1, 1)


def grouped_without_weight(g, x):
    leaf = torch.tensor(x, requires_grad=True)
    nn.functional.group_norm(leaf, 2).backward(torch.tensor(g))
    return leaf.grad.numpy()


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


ACTIVATIONS = [
    ("gradient-formula", nn.ReLU(), WITH_ZEROS, lambda g, x, w, e: g * (x >= 0)),
    ("gradient-formula", nn.ReLU(), ROWS, lambda g, x, w, e: g * (x < 0)),
    ("gradient-formula", nn.ReLU(), ROWS, lambda g, x, w, e: g),
    ("gradient-formula", nn.LeakyReLU(0.2), ROWS, lambda g, x, w, e: g * (x > 0)),
    ("gradient-formula", nn.Sigmoid(), ROWS, lambda g, x, w, e: g * x * (1 - x)),
    ("gradient-formula", nn.Tanh(), ROWS, lambda g, x, w, e: g * (1 - x * x)),
    ("gradient-formula", nn.SiLU(), ROWS, lambda g, x, w, e: g * sigmoid(x)),
    ("gradient-formula", nn.GELU(), ROWS, lambda g, x, w, e: ran(nn.GELU(approximate="tanh"), torch.tensor(x))[2]),
    ("gradient-formula", nn.GELU(approximate="tanh"), ROWS, lambda g, x, w, e: ran(nn.GELU(), torch.tensor(x))[2]),
    ("gradient-formula", nn.Softmax(-1), ROWS, lambda g, x, w, e: g * ran_forward(nn.Softmax(-1), x)),
    ("gradient-formula", NORM, ROWS, layer_norm_lacking("mean")),
    ("gradient-formula", NORM, ROWS, layer_norm_lacking("along")),
    ("gradient-formula", NORM, ROWS, layer_norm_lacking("weight")),
    ("gradient-formula", NORM, ROWS, layer_norm_lacking("mean", "along")),
    ("gradient-formula", RMS, ROWS, lambda g, x, w, e: g * w / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)),
    ("gradient-formula", nn.Linear(10, 10), ROWS, lambda g, x, w, e: -e),
    ("transpose", nn.Linear(10, 10, bias=False), ROWS, lambda g, x, w, e: g @ w.T),
    ("gradient-missing", nn.Linear(10, 10), ROWS, lambda g, x, w, e: 0 * e),
    ("gradient-formula", nn.AvgPool1d(2), ROWS, lambda g, x, w, e: 2 * e),
    ("gradient-formula", nn.ReLU(), ROWS, lambda g, x, w, e: g * (g > 0)),
    ("gradient-formula", nn.ReLU(), ROWS, lambda g, x, w, e: g * (g > 0) * (x > 0)),
    ("gradient-formula", nn.Tanh(), ROWS, lambda g, x, w, e: g * (1 - np.tanh(np.tanh(x)) ** 2)),
    ("gradient-formula", nn.LogSoftmax(-1), ROWS, lambda g, x, w, e: g),
    ("gradient-formula", nn.Softmax(1), ROWS, lambda g, x, w, e: g * ran_forward(nn.Softmax(1), x)),
    ("gradient-formula", CONV, IMAGES, lambda g, x, w, e: flipped_kernel(g, x, w)),
    ("gradient-formula", CONV, IMAGES, lambda g, x, w, e: without_border(e)),
    ("gradient-formula", CONV, IMAGES, lambda g, x, w, e: into(g, x, w.transpose(1, 0, 2, 3).copy())),
    ("gradient-formula", nn.MaxPool2d(2), IMAGES, lambda g, x, w, e: np.repeat(np.repeat(g, 2, 2), 2, 3) / 4),
    (
        "gradient-formula",
        nn.MaxPool2d(2),
        TIED,
        lambda g, x, w, e: np.flip(pooled(np.flip(g, (2, 3)), np.flip(x, (2, 3))), (2, 3)),
    ),
    ("gradient-formula", nn.AvgPool2d(2), IMAGES, lambda g, x, w, e: pooled(g, x)),
    (
        "gradient-formula",
        BATCH.train(),
        IMAGES,
        lambda g, x, w, e: g * per_channel(w) / np.sqrt(x.var((0, 2, 3), keepdims=True) + 1e-5),
    ),
    ("gradient-formula", GROUP, IMAGES, lambda g, x, w, e: grouped_without_weight(g, x)),
    ("unknown", CONV, IMAGES, lambda g, x, w, e: np.tanh(e)),
    ("unknown", nn.MaxPool2d(2), IMAGES, lambda g, x, w, e: np.roll(e, 1, 3)),
    ("unknown", nn.Linear(10, 10), ROWS, lambda g, x, w, e: e + 0.3 * np.roll(e, 1)),
    ("unknown", nn.ReLU(), ROWS, lambda g, x, w, e: g * (x > 0.3)),
    ("unknown", NORM, ROWS, lambda g, x, w, e: e * np.nan),
]


def ran_forward(module, x):
    return module(torch.tensor(x)).numpy()


@pytest.mark.parametrize("noise", [1e-9, 1e-7])
@pytest.mark.parametrize(("label", "module", "value", "found"), ACTIVATIONS)
def test_a_wrong_backward_is_named(label, module, value, found, noise):
    cause = explain(agrad(module, value, found, noise), gradients.HYPOTHESES)
    assert cause.label == label, cause


@pytest.mark.parametrize(("label", "module", "value", "found"), ACTIVATIONS)
def test_a_wrong_backward_is_named_through_the_noise_of_bfloat16_or_left_alone(label, module, value, found):
    evidence = agrad(module, value, found, 3e-3)
    if np.linalg.norm(evidence.found - evidence.expected) > 0.1 * np.linalg.norm(evidence.expected):
        assert explain(evidence, gradients.HYPOTHESES).label in (label, "unknown")


PARAMETERS = [
    ("transpose", nn.Linear(10, 10), ROWS, "weight", lambda g, x, e: e.T),
    ("transpose", nn.Linear(10, 7), ROWS, "weight", lambda g, x, e: e.T.reshape(e.shape)),
    ("gradient-formula", nn.Linear(10, 7), ROWS, "weight", lambda g, x, e: g[-1].T @ x[-1]),
    ("gradient-formula", nn.Linear(10, 7), ROWS, "weight", lambda g, x, e: g[:, -1].T @ x[:, -1]),
    ("gradient-formula", nn.Linear(10, 7), ROWS, "weight", lambda g, x, e: e - g[0].T @ x[0]),
    ("gradient-formula", nn.Linear(10, 7), ROWS, "bias", lambda g, x, e: g[-1].sum(0)),
    ("gradient-formula", nn.Conv1d(8, 5, 3), ROWS, "bias", lambda g, x, e: g[-1].sum(-1)),
    ("gradient-formula", nn.Linear(10, 7), ROWS, "weight", lambda g, x, e: e / 6),
    ("gradient-formula", nn.Linear(10, 7), ROWS, "bias", lambda g, x, e: e / 48),
    ("gradient-formula", nn.Linear(10, 7), ROWS, "weight", lambda g, x, e: 1.37 * e),
    ("gradient-formula", nn.Linear(10, 7), ROWS, "weight", lambda g, x, e: -e),
    ("gradient-formula", NORM, ROWS, "weight", lambda g, x, e: (g * x).sum((0, 1))),
    ("gradient-formula", RMS, ROWS, "weight", lambda g, x, e: (g * x).sum((0, 1))),
    ("gradient-formula", NORM, ROWS, "weight", lambda g, x, e: (g * hat(x, False)).sum((0, 1))),
    ("gradient-formula", nn.Embedding(20, 6), WORDS, "weight",
     lambda g, x, e: np.stack([g.reshape(-1, 6)[np.flatnonzero(x.ravel() == i)[-1]] if i in x else 0 * e[0]
                               for i in range(20)])),
    ("gradient-formula", nn.Embedding(20, 6), WORDS, "weight",
     lambda g, x, e: e / np.maximum(np.bincount(x.ravel(), minlength=20), 1)[:, None]),
    ("gradient-formula", CONV, IMAGES, "weight", lambda g, x, e: np.flip(e, (2, 3))),
    ("gradient-formula", CONV, IMAGES, "weight", lambda g, x, e: of_kernel(g, moved(x))),
    ("gradient-formula", CONV, IMAGES, "weight", lambda g, x, e: of_kernel(g[-1:], x[-1:])),
    ("gradient-formula", nn.Conv2d(4, 5, 3), IMAGES, "bias", lambda g, x, e: e / 108),
    ("gradient-formula", BATCH.train(), IMAGES, "weight", lambda g, x, e: (g * x).sum((0, 2, 3))),
    ("gradient-formula", GROUP, IMAGES, "weight", lambda g, x, e: g.sum((0, 2, 3))),
    ("unknown", CONV, IMAGES, "weight", lambda g, x, e: np.roll(e, 1, 1) + e),
    ("gradient-missing", nn.Linear(10, 7), ROWS, "weight", lambda g, x, e: 0 * e),
    ("unknown", nn.Linear(10, 7), ROWS, "weight", lambda g, x, e: e + 0.2 * e.mean()),
    ("unknown", NORM, ROWS, "weight", lambda g, x, e: e + 1.0),
]  # fmt: skip


@pytest.mark.parametrize("noise", [1e-9, 1e-7])
@pytest.mark.parametrize(("label", "module", "value", "port", "found"), PARAMETERS)
def test_a_wrong_gradient_of_a_parameter_is_named(label, module, value, port, found, noise):
    cause = explain(grad(module, value, found, port, noise), gradients.HYPOTHESES)
    assert cause.label == label, cause


def everything(times, phase="grad", but=1.0):
    tensors = {}
    for number, name in enumerate(("a", "b", "c")):
        one = np.random.default_rng(number).standard_normal((5, 4))
        tensors[Site(0, phase, name, "weight")] = (one, one * (but if name == "c" else times))
    return tensors


def first_of(tensors, noise=1e-9, facts=None):
    site = next(iter(tensors))
    return Evidence(site, *tensors[site], noise, around=Around(tensors, facts))


@pytest.mark.parametrize("phase", ["agrad", "grad", "grad_scaled"])
def test_one_factor_of_all_gradients_is_their_scale(phase):
    cause = explain(first_of(everything(0.25, phase, 0.25), facts={"batch": 4}), gradients.HYPOTHESES)
    assert (cause.label, cause.parameters) == ("gradient-scale", {"factor": 0.25})
    assert "batch being of 4" in cause.sentence
    assert explain(first_of(everything(0.25, phase, 1.0)), gradients.HYPOTHESES).label == "gradient-formula"


class Chain(Around):
    """Gradients of which each was computed from the one before it."""

    def producers(self, site):
        before = [one for one in self.tensors if one.phase == "agrad"]
        if site.phase == "grad":
            return [site._replace(phase="agrad", port="out")]
        place = before.index(site)
        return before[place - 1 : place] if place else []


def chain(times, but=None):
    """Tensors `a` to `d`: the first is right, those from `b` on are scaled, but one; gradients of weights as well."""
    tensors = {}
    for number, name in enumerate("abcd"):
        for phase, port in (("agrad", "out"), ("grad", "weight")):
            one = np.random.default_rng(2 * number + (phase == "grad")).standard_normal((5, 4))
            factor = 1.0 if name == "a" or (phase, name) == but else times
            tensors[Site(0, phase, name, port)] = (one, one * factor)
    noise = [np.random.default_rng(seed).standard_normal(4) * 1e-9 for seed in (90, 91)]
    tensors[Site(0, "grad", "c", "bias")] = (noise[0], noise[1])  # a sum that is zero
    return tensors


@pytest.mark.parametrize(
    ("but", "label"),
    [(None, "gradient-scale"), (("grad", "d"), "gradient-formula"), (("agrad", "c"), "gradient-formula")],
)
def test_a_factor_of_all_that_comes_of_a_gradient_is_its_scale(but, label):
    tensors, site = chain(0.5, but), Site(0, "agrad", "b", "out")
    said = explain(Evidence(site, *tensors[site], 1e-9, around=Chain(tensors)), gradients.HYPOTHESES)
    assert (said.label, said.parameters["factor"]) == (label, 0.5)
    assert "alone" not in said.sentence


@pytest.mark.parametrize("noise", [1e-9, 1e-6])
def test_a_backward_that_lets_the_gradient_pass_is_a_wrong_formula_and_no_skipped_operation(noise):
    x = torch.randn(6, 10, dtype=torch.float64)
    evidence = agrad(nn.Hardtanh(-0.5, 0.5), x, lambda g, x, w, e: g, noise)
    for op in ("Hardtanh", "FakeQuantise", ""):
        said = explain(replace(evidence, op=op), TABLE)
        assert said.label == "gradient-formula", said


@pytest.mark.parametrize("missing", ["tok", "head"])
def test_a_tied_weight_with_one_of_two_contributions_is_named(missing):
    table = nn.Parameter(torch.randn(20, 6, dtype=torch.float64))
    embedded = nn.functional.embedding(WORDS, table)
    hidden = torch.tanh(embedded)
    out = hidden @ table.T
    embedded.retain_grad()
    gradient = torch.randn_like(out)
    out.backward(gradient)
    of_head = (gradient.reshape(-1, 20).T @ hidden.detach().reshape(-1, 6)).numpy()
    found = of_head if missing == "tok" else table.grad.numpy() - of_head
    uses = {
        "head": {"agrad": gradient.numpy(), "in.0": hidden.detach().numpy()},
        "tok": {"agrad": embedded.grad.numpy(), "in.0": WORDS.numpy()},
    }
    for name, inputs in uses.items():
        evidence = Evidence(
            Site(0, "grad", name, "weight"), table.grad.numpy(), found, 1e-9, inputs=inputs, candidate_inputs=inputs
        )
        assert explain(evidence, gradients.HYPOTHESES).label == "tied-gradient"


class Joined(nn.Module):
    """A tensor that three modules read: two linear layers and, through a sum, a norm."""

    def __init__(self):
        super().__init__()
        self.query, self.value, self.norm = nn.Linear(10, 10), nn.Linear(10, 10), nn.LayerNorm(10, eps=1e-6)
        nn.init.normal_(self.norm.weight, 1.0, 0.3)


def joined(found, noise=1e-9):
    """The gradient of that tensor; `found` makes the candidate's of what each reader sends back."""
    model = Joined().double()
    x = torch.randn(6, 8, 10, dtype=torch.float64, requires_grad=True)
    outs = {"query": model.query(x), "value": model.value(x)}
    summed = x + torch.tanh(outs["query"]) * outs["value"]
    outs["norm"] = model.norm(summed)
    for out in outs.values():
        out.retain_grad()
    (outs["norm"] * torch.randn_like(x)).sum().backward()
    inputs = {"fwd": x.detach().numpy()} | {f"agrad {name}": out.grad.numpy() for name, out in outs.items()}
    tensors = {Site(0, "fwd", "norm", "in.0"): (summed.detach().numpy(),) * 2}
    for name, one in model.named_parameters():
        owner, port = name.split(".")
        tensors[Site(0, "weight", owner, port)] = (one.detach().numpy(),) * 2
    weights = {name: getattr(model, name).weight.detach().numpy() for name in ("query", "value")}
    sent = {name: outs[name].grad.numpy() @ weight for name, weight in weights.items()}
    sent["norm"] = x.grad.numpy() - sent["query"] - sent["value"]
    made = noisy(found(sent, {name: out.grad.numpy() for name, out in outs.items()}, weights), noise)
    return Evidence(
        Site(0, "agrad", "before", "out"), x.grad.numpy(), made, noise, True, "Linear", inputs, inputs,
        around=Around(tensors),
    )  # fmt: skip


READERS = [
    ("gradient-missing", lambda sent, g, w: sent["query"] + sent["value"]),
    ("gradient-missing", lambda sent, g, w: sent["value"] + sent["norm"]),
    ("gradient-missing", lambda sent, g, w: sent["norm"]),
    ("gradient-formula", lambda sent, g, w: sent["query"] + sent["value"] + 0.5 * sent["norm"]),
    ("gradient-formula", lambda sent, g, w: 2 * sent["query"] + sent["value"] + sent["norm"]),
    ("gradient-formula", lambda sent, g, w: g["query"] + sent["value"] + sent["norm"]),
    ("transpose", lambda sent, g, w: sent["query"] + g["value"] @ w["value"].T + sent["norm"]),
    ("unknown", lambda sent, g, w: sent["query"] + np.tanh(sent["value"]) + sent["norm"]),
    ("unknown", lambda sent, g, w: 0.3 * sent["query"] + 0.6 * sent["value"] + sent["norm"]),
]


@pytest.mark.parametrize("noise", [1e-9, 1e-7])
@pytest.mark.parametrize(("label", "found"), READERS)
def test_of_several_readers_the_one_that_errs_is_named(label, found, noise):
    cause = explain(joined(found, noise), gradients.HYPOTHESES)
    assert cause.label == label, cause


def test_the_reader_whose_gradient_is_scaled_is_told_with_the_factor():
    cause = explain(joined(lambda sent, g, w: sent["query"] + sent["value"] + 0.5 * sent["norm"]), gradients.HYPOTHESES)
    assert cause.parameters == {"factor": 0.5, "from": "norm"}


@pytest.mark.parametrize("term", ["mean", "along", "weight"])
def test_a_wrong_backward_is_named_through_a_gate_before_it(term):
    """Between the output and the norm that reads it, elements are multiplied by those of a gate."""
    value, gate = ROWS.double().requires_grad_(), torch.rand(6, 8, 10, dtype=torch.float64) * 4
    read = torch.randn(6, 8, 10, dtype=torch.float64) + gate * value
    gradient = torch.randn_like(read)
    (NORM.double()(read) * gradient).sum().backward()
    weight = NORM.weight.detach().numpy()
    found = gate.numpy() * layer_norm_lacking(term)(gradient.numpy(), read.detach().numpy(), weight, None)
    inputs = {"fwd": value.detach().numpy(), "agrad norm": gradient.numpy()}
    around = Around({Site(0, "fwd", "norm", "in.0"): (read.detach().numpy(),) * 2})
    evidence = Evidence(
        Site(0, "agrad", "act", "out"), value.grad.numpy(), noisy(found, 1e-9), 1e-9, True, "LayerNorm", inputs, inputs,
        {"weight": weight}, {"weight": weight}, {"eps": 1e-5}, around=around,
    )  # fmt: skip
    cause = explain(evidence, gradients.HYPOTHESES)
    assert cause.label == "gradient-formula", cause
    other = replace(evidence, found=evidence.expected * np.random.default_rng(1).uniform(0.5, 2, found.shape))
    assert explain(other, gradients.HYPOTHESES).label == "unknown"


def test_a_backward_on_what_an_earlier_sample_left_is_a_stale_buffer():
    first, now, gradient = (np.random.default_rng(n).standard_normal((1, 4, 9)) for n in range(3))
    inputs = {"fwd": now, "agrad relu": gradient}
    around = Around({Site(0, "fwd", "conv", "out", sample=n): (one,) * 2 for n, one in enumerate((first, now))})
    site = Site(0, "agrad", "conv", "out", sample=1)
    expected, found = gradient * (now > 0), gradient * (first > 0)
    evidence = Evidence(site, expected, found, 1e-9, True, "ReLU", inputs, inputs, around=around)
    cause = explain(evidence, gradients.HYPOTHESES)
    assert (cause.label, cause.parameters) == ("stale-buffer", {"of": "sample 0"})


def test_a_path_that_is_cut_is_a_missing_gradient():
    a, b = (np.random.default_rng(n).standard_normal((5, 4)) for n in range(2))
    inputs = {"agrad norm": a, "agrad add": b, "fwd": a}
    for found in (a, b):
        evidence = Evidence(Site(0, "agrad", "x", "out"), a + b, found, 1e-9, inputs=inputs, candidate_inputs=inputs)
        assert explain(evidence, gradients.HYPOTHESES).label == "gradient-missing"


def test_gradients_that_are_not_zeroed_are_named():
    a, b = (np.random.default_rng(n).standard_normal((5, 4)) for n in range(2))
    before, now = Site(0, "grad", "fc", "weight"), Site(1, "grad", "fc", "weight")
    evidence = Evidence(now, b, a + b, 1e-9, around=Around({before: (a, a), now: (b, a + b)}))
    assert explain(evidence, gradients.HYPOTHESES).label == "gradient-formula"


def clipping(reference, candidate, noise=1e-9, unlike=0.0):
    """A drift in what the optimizer sees, after each side's clipping of the same raw gradients.

    One more gradient, of elements that are `unlike` in size, is another on each side.
    """
    raw = [torch.randn(shape, dtype=torch.float64) * size for shape, size in (((5, 4), 3), ((7,), 0.1), ((3, 3), 1))]
    both = [[*raw, torch.randn(6, dtype=torch.float64) * unlike] if unlike else raw for _ in range(2)]
    seen = []
    for clip, own in zip((reference, candidate), both, strict=True):
        leaves = [nn.Parameter(torch.zeros_like(one)) for one in own]
        for leaf, one in zip(leaves, own, strict=True):
            leaf.grad = one.clone()
        clip(leaves)
        seen.append([leaf.grad.numpy() for leaf in leaves])
    tensors = {}
    for number, (one, other) in enumerate(zip(*both, strict=True)):
        tensors[Site(0, "grad", f"fc{number}", "weight")] = (one.numpy(), other.numpy())
        tensors[Site(0, "grad_scaled", f"fc{number}", "weight")] = (seen[0][number], noisy(seen[1][number], noise))
    site = Site(0, "grad_scaled", "fc0", "weight")
    return Evidence(site, *tensors[site], noise, around=Around(tensors))


def to_norm(size):
    return lambda leaves: nn.utils.clip_grad_norm_(leaves, size)


def each_to_norm(size):
    return lambda leaves: [nn.utils.clip_grad_norm_([leaf], size) for leaf in leaves]


def scaled_by(factor):
    return lambda leaves: [leaf.grad.mul_(factor) for leaf in leaves]


def nothing(leaves):
    return None


@pytest.mark.parametrize(
    ("label", "reference", "candidate"),
    [
        ("clip-norm", to_norm(1.0), nothing),
        ("clip-norm", nothing, to_norm(1.0)),
        ("clip-norm", to_norm(1.0), to_norm(0.5)),
        ("clip-norm", to_norm(1.0), each_to_norm(1.0)),
        ("clip-norm", to_norm(1.0), lambda leaves: nn.utils.clip_grad_value_(leaves, 0.5)),
        ("gradient-scale", nothing, scaled_by(0.125)),
        ("gradient-scale", to_norm(1.0), lambda leaves: (to_norm(1.0)(leaves), scaled_by(0.317)(leaves))),
    ],
)
@pytest.mark.parametrize("noise", [1e-9, 1e-7])
def test_clipping_is_told_from_scaling(label, reference, candidate, noise):
    cause = explain(clipping(reference, candidate, noise), gradients.HYPOTHESES)
    assert cause.label == label, cause


def while_scaled(scale, size):
    """Clips gradients that still are multiplied by the scale of the loss."""
    return lambda leaves: (scaled_by(scale)(leaves), to_norm(size)(leaves), scaled_by(1 / scale)(leaves))


@pytest.mark.parametrize("candidate", [to_norm(0.5), nothing, each_to_norm(1.0), while_scaled(16.0, 1.0)])
@pytest.mark.parametrize("noise", [1e-9, 1e-7])
def test_gradients_that_are_zero_but_for_noise_do_not_hide_clipping(candidate, noise):
    cause = explain(clipping(to_norm(1.0), candidate, noise, unlike=1e-7), gradients.HYPOTHESES)
    assert cause.label == "clip-norm", cause


def test_where_a_gradient_of_some_size_is_another_nothing_is_said_of_clipping():
    cause = explain(clipping(to_norm(1.0), while_scaled(16.0, 1.0), unlike=0.5), gradients.HYPOTHESES)
    assert cause.label != "clip-norm", cause


def test_a_gradient_that_was_not_reduced_over_ranks_is_named():
    own, other = (np.random.default_rng(n).standard_normal((5, 4)) for n in range(2))
    raw, seen = Site(0, "grad", "fc", "weight"), Site(0, "grad_scaled", "fc", "weight")
    tensors = {raw: (own, own), seen: ((own + other) / 2, own)}
    evidence = Evidence(seen, *tensors[seen], 1e-9, around=Around(tensors))
    assert explain(evidence, gradients.HYPOTHESES).label == "missing-reduce"


@pytest.mark.parametrize("phase", ["fwd", "weight", "weight_after"])
def test_only_gradients_are_explained_here(phase):
    evidence = grad(nn.Linear(10, 10), ROWS, lambda g, x, e: e.T)
    assert explain(replace(evidence, site=evidence.site._replace(phase=phase)), gradients.HYPOTHESES).label == "unknown"
