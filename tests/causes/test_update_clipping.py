"""Clipping inside an optimizer's step: what each parameter's update tells of it."""

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


class Clipped(torch.optim.SGD):
    """Gradient descent that changes gradients before its step."""

    def __init__(self, parameters, clip, lr=0.05, **settings):
        super().__init__(parameters, lr=lr, **settings)
        self.clip = clip

    def step(self):
        self.clip(self.param_groups[0]["params"])
        super().step()


def together(most=0.7):
    return lambda leaves: nn.utils.clip_grad_norm_(leaves, most)


def apart(most=0.7):
    return lambda leaves: [nn.utils.clip_grad_norm_([leaf], most) for leaf in leaves]


def twice(leaves):
    for leaf in leaves[:2]:
        leaf.grad *= 2


def drift(reference, candidate, at="second", small=(), optimizer=Clipped, lrs=(0.05, 0.05)):
    """The drift of one weight after a step with two optimizers from the same gradients."""
    given = torch.Generator().manual_seed(4)
    start = {name: torch.randn(shape, generator=given) for name, shape in SHAPES.items()}
    slopes = {
        name: torch.randn(shape, generator=given) * (0.01 if name in small else 1 + 3 * (name == "third"))
        for name, shape in SHAPES.items()
    }
    sides = []
    for clip, lr in zip((reference, candidate), lrs, strict=True):
        leaves = {name: nn.Parameter(value.clone()) for name, value in start.items()}
        for name, leaf in leaves.items():
            leaf.grad = slopes[name].clone()
        optimizer(list(leaves.values()), clip, lr).step()
        after = {Site(0, "weight_after", name, "weight"): leaf for name, leaf in leaves.items()}
        before = {Site(0, "weight", name, "weight"): value for name, value in start.items()}
        raw = {Site(0, "grad", name, "weight"): value for name, value in slopes.items()}
        sides.append({site: x.detach().double().numpy() for site, x in (before | raw | after).items()})
    site = Site(0, "weight_after", at, "weight")
    weight, gradient = (sides[0][site._replace(phase=phase)] for phase in ("weight", "grad"))
    inputs = {"weight": weight, "grad": gradient}
    stored = 2.0**-23 * np.linalg.norm(weight) / np.linalg.norm(sides[0][site] - weight)
    return Evidence(
        site, sides[0][site] - weight, sides[1][site] - weight, max(1e-5, stored),
        inputs=inputs, candidate_inputs=inputs, attrs={"lr": lrs[0]}, candidate_attrs={"lr": lrs[1]},
        around=Run(*sides),
    )  # fmt: skip


@pytest.mark.parametrize("at", SHAPES)
def test_gradients_clipped_one_by_one_are_told_from_all_together(at):
    said = explain(drift(together(), apart(), at), TABLE)
    assert said.label == "clip-norm"
    assert said.parameters["max_norm"] == pytest.approx(0.7, rel=1e-2)


@pytest.mark.parametrize("at", ["second", "last"])
def test_parameters_that_are_too_short_to_be_clipped_do_not_hide_it(at):
    assert explain(drift(together(), apart(), at, small=("last",)), TABLE).label == "clip-norm"


@pytest.mark.parametrize(
    ("reference", "candidate", "more"),
    [
        (together(), twice, {}),
        (together(), together(), {"lrs": (0.05, 0.1)}),
        (lambda leaves: None, twice, {}),
        (together(), lambda leaves: [leaf.grad.sign_() for leaf in leaves], {}),
    ],
)
def test_other_steps_are_not_called_clipping_one_by_one(reference, candidate, more):
    said = explain(drift(reference, candidate, "second", **more), TABLE)
    assert "by itself" not in said.sentence


def test_noise_on_the_lengths_is_no_common_length():
    def uneven(leaves):
        for number, leaf in enumerate(leaves):
            nn.utils.clip_grad_norm_([leaf], 0.7 * (1 + 0.1 * number))

    said = explain(drift(together(), uneven), TABLE)
    assert "by itself" not in said.sentence
    assert np.isfinite(said.confidence)
