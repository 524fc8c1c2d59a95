"""Weights renormalised on one side only are told from the weights alone; other factors of rows are not called so."""

import numpy as np
import pytest
import torch
from blame import cause, drift, numbers

from firstdrift.causes.mixture.row_sums import renormalised

LOGITS = torch.tensor(numbers(24, 6))


def chosen(k=2, divided=True, scores="softmax", sparse=False, factor=1.0):
    """The weights of the k best experts of every token."""
    given = LOGITS.softmax(-1) if scores == "softmax" else LOGITS.sigmoid()
    values, order = given.topk(k)
    values = factor * (values / values.sum(-1, keepdim=True) if divided else values)
    return (torch.zeros_like(given).scatter(-1, order, values) if sparse else values).numpy()


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("scores", ["softmax", "sigmoid"])
@pytest.mark.parametrize(("k", "factor"), [(2, 1.0), (3, 1.0), (3, 2.5)])
@pytest.mark.parametrize("lost", [True, False])
def test_renormalising_on_one_side_only_is_told(lost, k, factor, scores, sparse):
    divided, raw = (chosen(k, one, scores, sparse, factor) for one in (True, False))
    said = cause(divided, raw) if lost else cause(raw, divided)
    assert said.label == "router-renorm", said
    assert said.parameters["sum"] == pytest.approx(factor, rel=1e-4)
    assert said.parameters["renormalised"] is not lost


def test_sequences_of_tokens_are_read_token_by_token():
    divided, raw = (chosen(2, one).reshape(2, 12, 2) for one in (True, False))
    assert cause(divided, raw).label == "router-renorm"


@pytest.mark.parametrize(
    ("expected", "found"),
    [
        pytest.param(LOGITS.softmax(-1).numpy(), (LOGITS.exp() / (1 + LOGITS.exp().sum(-1, keepdim=True))).numpy(),
                     id="a softmax with one more term"),
        pytest.param(LOGITS.softmax(-1).numpy(), LOGITS.exp().numpy(), id="a softmax without its sum"),
        pytest.param(chosen(2), 0.5 * chosen(2), id="one factor for all"),
        pytest.param(chosen(2), chosen(2) * (1 + 0.3 * numbers(24, 2, seed=3) ** 2), id="factors of their own"),
        pytest.param(chosen(3, divided=False), chosen(3, divided=False) * (1 + 0.3 * numbers(24, 1, seed=3) ** 2),
                     id="rows scaled, with no sum alike"),
        pytest.param(np.tril(np.ones((24, 24))) / np.arange(1, 25)[:, None], np.tril(np.ones((24, 24))),
                     id="causal means"),
    ],
)  # fmt: skip
def test_other_factors_of_rows_are_not_called_so(expected, found):
    assert list(renormalised(drift(expected, found))) == []


def test_masked_attention_is_no_choice_of_experts():
    scores = torch.tensor(numbers(24, 24)).masked_fill(
        (torch.arange(24)[:, None] - torch.arange(24)[None]).remainder(24) > 3, -torch.inf
    )
    kept = scores[3:].exp()
    probabilities = kept / kept.sum(-1, keepdim=True)
    other = kept / (1 + kept.sum(-1, keepdim=True))
    assert list(renormalised(drift(probabilities.numpy(), other.numpy()))) == []
