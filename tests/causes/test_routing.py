"""Routing: what became of the router's logits, seen on the weights and on the mixture."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from firstdrift.causes.evidence import Evidence
from firstdrift.causes.hypotheses import explain
from firstdrift.causes.mixture.routing import HYPOTHESES, mixture, router_weights
from firstdrift.sites import Site


@dataclass(frozen=True)
class Config:
    experts: int = 6
    chosen: int = 2
    scores: str = "softmax"
    renormalised: bool = True
    first: str = "scores"  # whether the scores or the choice come first
    shared: bool = False
    reverse: bool = False
    dropped: bool = False
    sparse: bool = True
    by_slot: bool = True
    norm: str = ""  # by which weights are divided, if not by the usual one


NORMS = {
    "a token's squares": lambda w, o: w.norm(dim=-1, keepdim=True),
    "all": lambda w, o: w.sum(),
    "all squares": lambda w, o: w.norm(),
    "a slot": lambda w, o: w.sum(0, keepdim=True),
    "a slot of a sequence": lambda w, o: w.reshape(2, 20, -1).sum(1, keepdim=True).expand(2, 20, -1).flatten(0, 1),
    "an expert's squares": lambda w, o: (
        torch.zeros(6, dtype=w.dtype).index_add(0, o.flatten(), w.flatten() ** 2)[o] ** 0.5
    ),
}


class Mixture(nn.Module):
    """A mixture as models have it: each expert sees the tokens that chose it, or all of them."""

    def __init__(self, config: Config, width: int = 16) -> None:
        super().__init__()
        self.config = config
        self.gate = nn.Linear(width, config.experts, bias=False)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(config.experts))
        self.shared_expert = nn.Linear(width, width)

    def weights(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        c = self.config
        score = {"softmax": lambda x: x.softmax(-1), "sigmoid": torch.sigmoid, "logits": lambda x: x}[c.scores]
        if c.first == "choice":
            given, order = logits.topk(c.chosen, dim=-1)
            return score(given), order
        given, order = score(logits).topk(c.chosen, dim=-1)
        if c.norm:
            return given / NORMS[c.norm](given, order), order
        return given / given.sum(-1, keepdim=True) if c.renormalised else given, order

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        c = self.config
        flat = x.flatten(0, -2)
        given, order = self.weights(self.gate(flat))
        self.routed = given
        given = given.flip(-1) if c.reverse else given
        out = self.shared_expert(flat) if c.shared else torch.zeros_like(flat)
        if c.dropped:
            given = torch.cat([given[:, :-1], torch.zeros_like(given[:, -1:])], dim=-1)
        for number, expert in enumerate(self.experts):
            if not c.sparse:
                weight = (given * (order == number)).sum(-1, keepdim=True)
                out = out + weight * expert(flat)
                continue
            slot, token = torch.where((order == number).T) if c.by_slot else torch.where(order == number)[::-1]
            out = out.index_add(0, token, given[token, slot, None] * expert(flat[token]))
        return out.reshape(x.shape)


def both(
    reference: Config, noise: float = 1e-6, dtype: torch.dtype = torch.float32, **changes: Any
) -> tuple[Evidence, Evidence]:
    """The drift on the weights and on the output of two mixtures of the same parameters."""
    torch.manual_seed(0)
    one, other = Mixture(reference).to(dtype), Mixture(replace(reference, **changes)).to(dtype)
    with torch.no_grad():
        one.gate.weight.mul_(3)
    other.load_state_dict(one.state_dict())
    x = torch.randn(2, 20, 16, dtype=dtype)
    seen: list[dict[str, np.ndarray]] = []
    outs = []
    for model in (one, other):
        record: dict[str, np.ndarray] = {}
        for name, module in model.named_modules():
            if isinstance(module, nn.Linear) and (name != "shared_expert" or model.config.shared):
                module.register_forward_hook(
                    lambda m, a, y, name=name, record=record: record.__setitem__(
                        f"moe.{name}", y.detach().double().numpy()
                    )
                )
        outs.append((model(x).detach().double().numpy(), model.routed.detach().double().numpy()))
        seen.append(record)
    if "moe.shared_expert" in seen[0] and "moe.shared_expert" not in seen[1]:
        seen[1]["moe.shared_expert"] = seen[0]["moe.shared_expert"]
    gates = [{"moe.gate": record["moe.gate"]} for record in seen]
    weights = Evidence(
        Site(0, "fwd", "moe.dropout", "in.0"), outs[0][1], outs[1][1], noise, inputs=gates[0], candidate_inputs=gates[1]
    )
    mixture = Evidence(
        Site(0, "fwd", "moe", "out"), outs[0][0], outs[1][0], noise, inputs=seen[0], candidate_inputs=seen[1]
    )
    return weights, mixture


SOFT = Config()
PLAIN = Config(renormalised=False)
SIGMOID = Config(scores="sigmoid")
CHANGES = [
    ("router-renorm", SOFT, {"renormalised": False}),
    ("router-renorm", PLAIN, {"renormalised": True}),
    ("router-renorm", PLAIN, {"first": "choice"}),
    ("router-renorm", replace(SOFT, chosen=3), {"renormalised": False}),
    ("skipped-op", PLAIN, {"scores": "logits"}),
    ("skipped-op", SOFT, {"scores": "logits", "renormalised": False}),
    ("activation-variant", PLAIN, {"scores": "sigmoid"}),
    ("activation-variant", SIGMOID, {"scores": "softmax"}),
]
PRECISIONS = [(torch.float32, 1e-6), (torch.float64, 1e-13)]


@pytest.mark.parametrize(("dtype", "noise"), PRECISIONS)
@pytest.mark.parametrize(("label", "reference", "changes"), CHANGES)
def test_a_changed_router_is_named_from_its_weights(
    label: str, reference: Config, changes: dict[str, Any], dtype: torch.dtype, noise: float
) -> None:
    assert explain(both(reference, noise, dtype, **changes)[0], HYPOTHESES).label == label


@pytest.mark.parametrize("by_slot", [True, False])
@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize(("label", "reference", "changes"), CHANGES)
def test_a_changed_router_is_named_from_the_mixture(
    label: str, reference: Config, changes: dict[str, Any], sparse: bool, by_slot: bool
) -> None:
    evidence = both(replace(reference, sparse=sparse, by_slot=by_slot), **changes)[1]
    assert explain(evidence, HYPOTHESES).label == label


@pytest.mark.parametrize(
    ("label", "reference", "changes"),
    [
        ("missing-term", replace(SOFT, shared=True), {"shared": False}),
        ("missing-term", SOFT, {"dropped": True}),
        ("swapped-operands", SOFT, {"reverse": True}),
    ],
)
def test_an_expert_that_is_left_out_or_exchanged_is_named(
    label: str, reference: Config, changes: dict[str, Any]
) -> None:
    assert explain(both(reference, **changes)[1], HYPOTHESES).label == label


def test_choosing_before_a_softmax_is_the_same_as_renormalising_after_it() -> None:
    weights, mixture = both(SOFT, first="choice", renormalised=False)
    assert np.allclose(weights.expected, weights.found, atol=1e-6)
    assert np.allclose(mixture.expected, mixture.found, atol=1e-5)


@pytest.mark.parametrize("which", [0, 1])
def test_an_unrelated_difference_is_not_explained_by_routing(which: int) -> None:
    evidence = both(SOFT)[which]
    other = evidence.expected + 0.1 * np.random.default_rng(0).normal(size=evidence.expected.shape)
    assert explain(replace(evidence, found=other), HYPOTHESES).label == "unknown"


@pytest.mark.parametrize("which", [0, 1])
def test_nothing_is_said_where_no_router_makes_the_reference(which: int) -> None:
    weights = both(SOFT, renormalised=False)[which]
    moved = {name: value[::-1].copy() for name, value in weights.inputs.items()}
    moved_evidence = replace(weights, inputs=moved, candidate_inputs=moved)
    assert explain(moved_evidence, (router_weights, mixture)).label == "unknown"


@pytest.mark.parametrize("which", [0, 1])
def test_numbers_that_are_not_finite_are_not_explained(which: int) -> None:
    evidence = both(SOFT)[which]
    assert explain(replace(evidence, found=evidence.found * np.nan), HYPOTHESES).label == "unknown"


def in_a_block(evidence: Evidence, beside: int, backwards: bool) -> Evidence:
    """The drift of a block that adds a mixture to its stream, where the last layers of experts were recorded too."""
    streams = {
        f"block.{n}": np.random.default_rng(n).normal(size=evidence.expected.shape) for n in range(3, 3 + beside)
    }

    def inputs(given: Any) -> dict[str, Any]:
        recorded = {name: value for name, value in given.items() if "experts" not in name}
        names = [name for name in given if "experts" in name]
        for name in names[::-1] if backwards else names:
            recorded |= {name: given[name], f"{name}.down": given[name]}
        return recorded | streams

    added = sum(streams.values())
    return replace(
        evidence, expected=evidence.expected + added, found=evidence.found + added,
        inputs=inputs(evidence.inputs), candidate_inputs=inputs(evidence.candidate_inputs),
    )  # fmt: skip


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("beside", [0, 1, 2])
@pytest.mark.parametrize(("label", "reference", "changes"), CHANGES)
def test_a_changed_router_is_named_from_a_block_that_adds_its_stream(
    label: str, reference: Config, changes: dict[str, Any], beside: int, backwards: bool
) -> None:
    evidence = both(replace(reference, sparse=False, shared=True), **changes)[1]
    assert explain(in_a_block(evidence, beside, backwards), HYPOTHESES).label == label


def test_a_stream_that_was_not_recorded_leaves_nothing_to_say() -> None:
    evidence = both(SOFT, renormalised=False)[1]
    added = np.random.default_rng(5).normal(size=evidence.expected.shape)
    other = replace(evidence, expected=evidence.expected + added, found=evidence.found + added)
    assert explain(other, HYPOTHESES).label == "unknown"


ONE = Config(chosen=1)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("reference", [SOFT, PLAIN, replace(ONE, scores="sigmoid")])
def test_weights_divided_by_another_norm_are_named_from_the_mixture(
    reference: Config, norm: str, sparse: bool, shared: bool
) -> None:
    evidence = both(replace(reference, sparse=sparse, shared=shared), norm=norm)[1]
    if reference.chosen == 1 and norm == "a token's squares":
        assert np.allclose(evidence.expected, evidence.found)  # one over one, either way
        return
    said = explain(evidence, HYPOTHESES)
    assert said.label == "router-renorm", said
    assert "divided by" in said.sentence


@pytest.mark.parametrize("norm", [one for one in NORMS if "sequence" not in one])  # of which flat weights tell nothing
def test_weights_divided_by_another_norm_are_named_from_themselves(norm: str) -> None:
    assert explain(both(SOFT, norm=norm)[0], HYPOTHESES).label == "router-renorm"


@pytest.mark.parametrize("scores", ["softmax", "sigmoid"])
def test_the_weight_of_a_single_expert_that_is_not_renormalised_is_named(scores: str) -> None:
    evidence = both(replace(ONE, scores=scores), renormalised=False)[1]
    assert explain(evidence, HYPOTHESES).label == "router-renorm"
    evidence = both(replace(ONE, scores=scores, renormalised=False), renormalised=True)[1]
    assert explain(evidence, HYPOTHESES).label == "router-renorm"


@pytest.mark.parametrize("reference", [SOFT, PLAIN, ONE])
@pytest.mark.parametrize("factor", [0.5, 1.7])
def test_a_factor_of_a_token_that_no_norm_gives_is_not_called_one(reference: Config, factor: float) -> None:
    evidence = both(replace(reference, sparse=False), renormalised=reference.renormalised)[1]
    tokens = np.linspace(factor, 1, 40).reshape(2, 20, 1)
    said = explain(replace(evidence, found=evidence.found * tokens), HYPOTHESES)
    assert said.label == "unknown", said
