"""What an optimizer's state was before the first recorded step, on steps that torch's optimizers really took."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from blame import Run

from firstdrift.causes.evidence import Evidence
from firstdrift.causes.hypotheses import explain
from firstdrift.causes.table import TABLE
from firstdrift.sites import Site

NAMES = ("a", "b", "c")
KEYS = {"Adam": "exp_avg", "AdamW": "exp_avg", "SGD": "momentum_buffer", "RMSprop": "square_avg"}
SETTINGS = {
    "Adam": {"lr": 1e-2, "weight_decay": 0.1}, "AdamW": {"lr": 1e-2}, "SGD": {"lr": 0.1, "momentum": 0.9},
    "RMSprop": {"lr": 0.01},
}  # fmt: skip


def seeded(name, seed):
    return torch.Generator().manual_seed(seed + sum(map(ord, name)))


def started(kind, name):
    """The state in which a parameter was left by the run before."""
    one, two = (torch.randn(24, 10, generator=seeded(name, seed), dtype=torch.float64) * 1e-2 for seed in (1, 2))
    state = {"exp_avg": one, "exp_avg_sq": two**2, "momentum_buffer": one, "square_avg": two**2}
    names = {"SGD": ("momentum_buffer",), "RMSprop": ("square_avg",)}.get(kind, ("exp_avg", "exp_avg_sq"))
    return {key: state[key].clone() for key in names} | ({} if kind == "SGD" else {"step": torch.tensor(7.0)})


def taken(kind, begin):
    """All tensors of one step from a given state of every parameter, and the settings."""
    weights = {
        name: torch.nn.Parameter(torch.randn(24, 10, generator=seeded(name, 3), dtype=torch.float64)) for name in NAMES
    }
    optimizer = getattr(torch.optim, kind)(list(weights.values()), **SETTINGS[kind])
    tensors = {}
    for name, weight in weights.items():
        if (state := begin(name)) is not None:
            optimizer.state[weight] = state
        weight.grad = torch.randn(24, 10, generator=seeded(name, 4), dtype=torch.float64) * 1e-2
        tensors[Site(0, "weight", name, "weight")] = weight.detach().numpy().copy()
        tensors[Site(0, "grad", name, "weight")] = weight.grad.numpy().copy()
    optimizer.step()
    for name, weight in weights.items():
        tensors[Site(0, "optim", name, f"weight.{KEYS[kind]}")] = optimizer.state[weight][KEYS[kind]].numpy().copy()
    group = {k: list(v) if isinstance(v, tuple) else v for k, v in optimizer.param_groups[0].items() if k != "params"}
    return tensors, group


def said(kind, begin, of="a"):
    reference, group = taken(kind, lambda name: started(kind, name))
    candidate, _ = taken(kind, begin)
    site = Site(0, "optim", of, f"weight.{KEYS[kind]}")
    both = [
        {phase: run[Site(0, phase, of, "weight")] for phase in ("weight", "grad")} for run in (reference, candidate)
    ]
    evidence = Evidence(
        site, reference[site], candidate[site], 1e-9, inputs=both[0], candidate_inputs=both[1], attrs=group,
        candidate_attrs=group, around=Run(reference, candidate, facts={"optimizer": {"class": kind}}),
    )  # fmt: skip
    return explain(evidence, TABLE)


@pytest.mark.parametrize("kind", KEYS)
def test_the_state_of_another_parameter_is_named(kind):
    cause = said(kind, lambda name: started(kind, {"a": "b"}.get(name, name)))
    assert (cause.label, cause.parameters["of"]) == ("wrong-weight", "b.weight"), cause


@pytest.mark.parametrize("kind", KEYS)
def test_states_that_were_exchanged_are_named(kind):
    cause = said(kind, lambda name: started(kind, {"a": "c", "c": "a"}.get(name, name)))
    assert (cause.label, cause.parameters["with"]) == ("weight-swap", "c.weight"), cause


@pytest.mark.parametrize("kind", ["Adam", "AdamW", "RMSprop"])
def test_one_state_of_two_parameters_is_named(kind):
    shared = started(kind, "b")
    cause = said(kind, lambda name: shared if name in "ab" else started(kind, name))
    assert (cause.label, cause.parameters["shared_with"]) == ("wrong-weight", "b.weight"), cause


@pytest.mark.parametrize("kind", KEYS)
def test_a_state_that_was_not_restored_is_named(kind):
    cause = said(kind, lambda name: None)
    assert cause.label == "uninitialised", cause


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("seed", [5, 6])
def test_a_state_that_no_parameter_had_is_not_given_to_one(kind, seed):
    def begin(name):
        state = started(kind, name)
        return state | {KEYS[kind]: (torch.randn(24, 10, generator=seeded(name, seed)).double() * 1e-2).abs()}

    assert said(kind, begin).label not in ("wrong-weight", "weight-swap", "uninitialised")


@pytest.mark.parametrize("kind", KEYS)
def test_a_state_of_another_size_is_no_other_parameters(kind):
    cause = said(kind, lambda name: {k: 2 * v if k == KEYS[kind] else v for k, v in started(kind, name).items()})
    assert cause.label not in ("wrong-weight", "weight-swap", "uninitialised"), cause


def test_where_the_state_before_is_recorded_nothing_is_guessed():
    from firstdrift.causes.optimizer.optimizer_states import other_start

    x = np.random.default_rng(0).standard_normal((4, 5))
    inputs = {"weight": x, "grad": x, "exp_avg": x}
    site = Site(1, "optim", "a", "weight.exp_avg")
    attrs = {"betas": [0.9, 0.999]}
    assert list(other_start(Evidence(site, x, x + 1, 1e-9, inputs=inputs, candidate_inputs=inputs, attrs=attrs))) == []
