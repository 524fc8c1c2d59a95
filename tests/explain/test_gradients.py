"""What many gradients have in common: scales, clipping, gradients of the step before, of one rank, of nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from firstdrift.core.sites import Site
from firstdrift.explain.evidence import Evidence, Surroundings
from firstdrift.explain.relations import gradients
from firstdrift.explain.relations.hypotheses import explain

TABLE = gradients.HYPOTHESES

torch.manual_seed(0)


class Around(Surroundings):
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
    cause = explain(first_of(everything(0.25, phase, 0.25), facts={"batch": 4}), TABLE)
    assert (cause.label, cause.parameters) == ("gradient-scale", {"factor": 0.25})
    assert "batch being of 4" in cause.sentence
    assert explain(first_of(everything(0.25, phase, 1.0)), TABLE).label == "unknown"


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
    [(None, "gradient-scale"), (("grad", "d"), "unknown"), (("agrad", "c"), "unknown")],
)
def test_a_factor_of_all_that_comes_of_a_gradient_is_its_scale(but, label):
    tensors, site = chain(0.5, but), Site(0, "agrad", "b", "out")
    said = explain(Evidence(site, *tensors[site], 1e-9, around=Chain(tensors)), TABLE)
    assert said.label == label
    assert said.parameters.get("factor", 0.5) == 0.5


def test_gradients_that_are_not_zeroed_are_named():
    a, b = (np.random.default_rng(n).standard_normal((5, 4)) for n in range(2))
    before, now = Site(0, "grad", "fc", "weight"), Site(1, "grad", "fc", "weight")
    evidence = Evidence(now, b, a + b, 1e-9, around=Around({before: (a, a), now: (b, a + b)}))
    assert explain(evidence, TABLE).label == "gradient-formula"


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
    cause = explain(clipping(reference, candidate, noise), TABLE)
    assert cause.label == label, cause


def while_scaled(scale, size):
    """Clips gradients that still are multiplied by the scale of the loss."""
    return lambda leaves: (scaled_by(scale)(leaves), to_norm(size)(leaves), scaled_by(1 / scale)(leaves))


@pytest.mark.parametrize("candidate", [to_norm(0.5), nothing, each_to_norm(1.0), while_scaled(16.0, 1.0)])
@pytest.mark.parametrize("noise", [1e-9, 1e-7])
def test_gradients_that_are_zero_but_for_noise_do_not_hide_clipping(candidate, noise):
    cause = explain(clipping(to_norm(1.0), candidate, noise, unlike=1e-7), TABLE)
    assert cause.label == "clip-norm", cause


def test_where_a_gradient_of_some_size_is_another_nothing_is_said_of_clipping():
    cause = explain(clipping(to_norm(1.0), while_scaled(16.0, 1.0), unlike=0.5), TABLE)
    assert cause.label != "clip-norm", cause


def test_a_gradient_that_was_not_reduced_over_ranks_is_named():
    own, other = (np.random.default_rng(n).standard_normal((5, 4)) for n in range(2))
    raw, seen = Site(0, "grad", "fc", "weight"), Site(0, "grad_scaled", "fc", "weight")
    tensors = {raw: (own, own), seen: ((own + other) / 2, own)}
    evidence = Evidence(seen, *tensors[seen], 1e-9, around=Around(tensors))
    assert explain(evidence, TABLE).label == "missing-reduce"


def test_a_gradient_of_zero_is_missing():
    site, one = Site(0, "grad", "fc", "weight"), np.random.default_rng(0).standard_normal((5, 4))
    assert explain(Evidence(site, one, 0 * one, 1e-9), TABLE).label == "gradient-missing"


@pytest.mark.parametrize("phase", ["fwd", "weight", "weight_after"])
def test_only_gradients_are_explained_here(phase):
    tensors = {site._replace(phase=phase): both for site, both in everything(0.25, but=0.25).items()}
    assert explain(first_of(tensors), TABLE).label == "unknown"
