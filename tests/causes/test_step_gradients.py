"""What an optimizer does to gradients inside its step, told from the states and updates of all parameters."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from blame import Run
from torch import nn

from firstdrift.causes.evidence import Evidence
from firstdrift.causes.hypotheses import explain
from firstdrift.causes.table import TABLE
from firstdrift.sites import Site

SHAPES = {"first": (14, 9), "second": (9, 14), "third": (5, 9), "last": (30,)}
PHASES = ("weight", "grad", "weight_after")
SETTINGS = {
    "SGD": {"lr": 0.05},
    "Momentum": {"lr": 0.05, "momentum": 0.9},
    "Decayed": {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.1},
    "Adam": {"lr": 0.01, "betas": (0.9, 0.99)},
    "RMSprop": {"lr": 0.01, "alpha": 0.99},
    "Adagrad": {"lr": 0.01},
}
CLASSES = {"Momentum": "SGD", "Decayed": "SGD"}


def times(factor):
    return lambda leaves: [leaf.grad.mul_(factor) for leaf in leaves]


def together(most, scale=1.0):
    """Clipping of gradients that still are multiplied by a loss's scale, which is divided out after it."""

    def clip(leaves):
        times(scale)(leaves)
        nn.utils.clip_grad_norm_(leaves, most)
        times(1 / scale)(leaves)

    return clip


def apart(most):
    return lambda leaves: [nn.utils.clip_grad_norm_([leaf], most) for leaf in leaves]


def as_is(leaves):
    return None


def run(kind, change, settings=None, steps=1, cancelling=False):
    """Everything that some steps of an optimizer leave, whose gradients are changed inside of it."""
    given = torch.Generator().manual_seed(4)
    leaves = {name: nn.Parameter(torch.randn(shape, generator=given).double()) for name, shape in SHAPES.items()}
    options = SETTINGS[kind] | (settings or {})
    optimizer = getattr(torch.optim, CLASSES.get(kind, kind))(list(leaves.values()), **options)
    left = {}
    for step in range(steps):
        for name, leaf in leaves.items():
            leaf.grad = torch.randn(leaf.shape, generator=given).double() * (1 + 3 * (name == "third"))
            if cancelling and name == "last":
                leaf.grad *= 1e-9
            left[Site(step, "weight", name, "weight")] = leaf.detach().numpy().copy()
            left[Site(step, "grad", name, "weight")] = leaf.grad.numpy().copy()
        if step == steps - 1:  # what came before is clean
            change(list(leaves.values()))
        optimizer.step()
        for name, leaf in leaves.items():
            left[Site(step, "weight_after", name, "weight")] = leaf.detach().numpy().copy()
            for key, state in optimizer.state[leaf].items():
                if state is not None:
                    left[Site(step, "optim", name, f"weight.{key}")] = np.asarray(state.detach(), np.float64).copy()
    return left, options


def drift(kind, reference, candidate, at, step=0, noise=1e-9, settings=None, **more):
    """The drift of a state, or of a weight after the step."""
    ours, options = run(kind, reference, steps=step + 1, **more)
    theirs, own = run(kind, candidate, settings, steps=step + 1, **more)
    rng = np.random.default_rng(2)
    theirs = {site: value * (1 + noise * rng.uniform(-1, 1, value.shape)) for site, value in theirs.items()}
    phase, port = ("weight_after", "weight") if at == "update" else ("optim", f"weight.{at}")
    site = Site(step, phase, "second", port)
    inputs = {key: ours[site._replace(phase=key, port="weight")] for key in ("weight", "grad")}
    for other in ours:
        if (other.phase, other.name, other.step) == ("optim", "second", step - 1):
            inputs[other.port.partition(".")[2]] = ours[other]
    before = inputs["weight"] if at == "update" else 0.0
    facts = {"optimizer": {"class": CLASSES.get(kind, kind)}}
    return Evidence(
        site, ours[site] - before, theirs[site] - before, 1e-6 if at == "update" else max(noise, 1e-9), inputs=inputs,
        candidate_inputs=inputs, attrs=options, candidate_attrs=own, around=Run(ours, theirs, facts=facts),
    )  # fmt: skip


@pytest.mark.parametrize("factor", [4.0, 0.125, 1.7])
@pytest.mark.parametrize(
    ("kind", "at"),
    [
        ("Adam", "exp_avg"), ("Adam", "exp_avg_sq"), ("Momentum", "momentum_buffer"), ("Decayed", "momentum_buffer"),
        ("RMSprop", "square_avg"), ("Adagrad", "sum"),
    ],
)  # fmt: skip
def test_one_factor_of_all_states_is_that_of_the_gradients(kind, at, factor):
    said = explain(drift(kind, as_is, times(factor), at), TABLE)
    assert said.label == "gradient-scale", said
    assert said.parameters["factor"] == pytest.approx(factor)


def test_gradients_that_cancel_do_not_hide_the_factor_of_the_others():
    said = explain(drift("Adam", as_is, times(4.0), "exp_avg", cancelling=True), TABLE)
    assert said.label == "gradient-scale"


@pytest.mark.parametrize(
    ("kind", "at", "settings"),
    [
        ("Adam", "exp_avg", {"betas": (0.6, 0.99)}),
        ("Adam", "exp_avg_sq", {"betas": (0.9, 0.9)}),
        ("RMSprop", "square_avg", {"alpha": 0.9}),
    ],
)
def test_a_rate_that_changes_one_state_alone_is_no_factor_of_gradients(kind, at, settings):
    evidence = drift(kind, as_is, as_is, at, settings=settings)
    for attrs in (evidence.candidate_attrs, {}):  # declared, or to be fitted
        said = explain(replace(evidence, candidate_attrs=attrs), TABLE)
        assert said.label == "optimizer-momentum", said


def test_a_factor_of_one_parameters_state_is_not_that_of_all_gradients():
    said = explain(drift("Momentum", as_is, lambda leaves: leaves[1].grad.mul_(3), "momentum_buffer"), TABLE)
    assert said.label not in ("gradient-scale", "clip-norm")


@pytest.mark.parametrize("step", [0, 1])
@pytest.mark.parametrize(("kind", "at"), [("SGD", "update"), ("Momentum", "momentum_buffer"), ("Adam", "exp_avg")])
@pytest.mark.parametrize(
    ("reference", "candidate"),
    [
        (together(0.7), together(0.7, scale=8.0)),
        (together(0.7), together(0.7, scale=16.0)),
        (together(0.7), as_is),
        (as_is, together(0.7)),
        (together(0.7), together(0.3)),
        (together(0.7), apart(0.7)),
    ],
)
def test_clipping_inside_a_step_is_seen_in_what_it_leaves(kind, at, reference, candidate, step):
    said = explain(drift(kind, reference, candidate, at, step), TABLE)
    assert said.label == "clip-norm", said


@pytest.mark.parametrize("factor", [0.5, 2.0, 3.0])
def test_a_factor_of_all_updates_that_somebody_wrote_is_a_rate_even_beside_clipping(factor):
    def slower(leaves):
        together(0.73)(leaves)
        times(factor)(leaves)

    assert explain(drift("SGD", together(0.73), slower, "update"), TABLE).label == "optimizer-lr"


def test_another_rate_after_the_same_clipping_is_a_rate():
    said = explain(drift("SGD", together(0.7), together(0.7), "update", settings={"lr": 0.0125}), TABLE)
    assert said.label == "optimizer-lr"


class Unheard(torch.optim.SGD):
    """A step of which no rule is known."""

    def step(self):
        for group in self.param_groups:
            for leaf in group["params"]:
                leaf.data -= group["lr"] * torch.tanh(3 * leaf.grad) * leaf.grad.abs().sqrt()


@pytest.mark.parametrize(
    ("factors", "label"),
    [((0.5,) * 4, "optimizer-lr"), ((1.0, 0.5, 0.5, 1.0), "optimizer-lr"), ((0.9, 0.5, 0.7, 0.3), "scale")],
)
def test_updates_of_an_unknown_optimizer_tell_a_rate_where_they_share_it(monkeypatch, factors, label):
    monkeypatch.setattr(torch.optim, "Unheard", Unheard, raising=False)
    monkeypatch.setitem(SETTINGS, "Unheard", {"lr": 0.05})
    evidence = drift("Unheard", as_is, as_is, "update")
    ours, theirs = ({site: look(site) for phase in PHASES for site in evidence.around.sites(phase)}
                    for look in (evidence.around.reference, evidence.around.candidate))  # fmt: skip
    for name, factor in zip(SHAPES, factors, strict=True):
        before, after = Site(0, "weight", name, "weight"), Site(0, "weight_after", name, "weight")
        theirs[before] = ours[before]
        theirs[after] = ours[before] + factor * (ours[after] - ours[before])
    said = explain(replace(evidence, found=0.5 * evidence.expected, around=Run(ours, theirs)), TABLE)
    assert said.label == label, said
