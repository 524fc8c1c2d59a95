"""Causes in losses and their gradients, on losses that torch really computed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from firstdrift.causes.evidence import Evidence, Nowhere
from firstdrift.causes.hypotheses import explain
from firstdrift.causes.loss import losses
from firstdrift.causes.loss.loss_formulas import OF_CLASSES, POINTWISE
from firstdrift.causes.loss.loss_readings import Batch, Reading
from firstdrift.sites import Site

torch.manual_seed(0)
LOGITS = torch.randn(12, 7, dtype=torch.float64)
TARGET = torch.randint(0, 7, (12,))
TEXT = torch.randn(3, 9, 11, dtype=torch.float64)
WORDS = torch.randint(1, 11, (3, 9))
PADDED = WORDS.clone()
PADDED[0, 6:] = -100
PADDED[2, 4:] = -100
ZERO_PADDED = PADDED.clamp(min=0)
NUMBERS = torch.randn(12, 5, dtype=torch.float64)
WANTED = torch.randn(12, 5, dtype=torch.float64)
CHANCES = torch.softmax(torch.randn(12, 5, dtype=torch.float64), -1)


class Around(Nowhere):
    def __init__(self, facts, tensors=()):
        self.facts = facts
        self.tensors = dict(tensors)

    def sites(self, phase):
        return [site for site in self.tensors if site.phase == phase]

    def reference(self, site):
        return self.tensors[site][0]

    def candidate(self, site):
        return self.tensors[site][1]


def both(loss, logits):
    """A loss and its gradient, as torch computes them."""
    leaf = logits.clone().requires_grad_()
    value = loss(leaf)
    value.sum().backward()
    return value.detach().numpy(), leaf.grad.numpy()


def evidence_of(
    phase, reference, candidate, logits, target, candidate_target=None, noise=1e-9, known=True, beside=True
):
    """A drift of a loss or of its gradient, the other one recorded beside it or not."""
    rng = np.random.default_rng(3)
    ours = both(reference, logits)
    theirs = [x * (1 + noise * rng.uniform(-1, 1, x.shape)) for x in both(candidate, logits)]
    facts = {"target": target.numpy()} if known else {}
    if candidate_target is not None:
        facts["candidate_target"] = candidate_target.numpy()
    other = Site(0, "lossgrad", "loss", "logits") if phase == "loss" else Site(0, "loss", "loss", "out")
    index = 0 if phase == "loss" else 1
    around = Around(facts, {other: (ours[1 - index], theirs[1 - index])} if beside else {})
    inputs = {"logits": logits.numpy()}
    return Evidence(
        Site(0, phase, "loss", "out"), ours[index], theirs[index], noise, inputs=inputs, candidate_inputs=inputs,
        around=around,
    )  # fmt: skip


def shifted(by, target=WORDS, **more):
    """Cross entropy of position t with the label of t + by."""
    end = target.shape[1]
    return lambda z: F.cross_entropy(z[:, : end - by].reshape(-1, 11), target[:, by:].reshape(-1), **more)


def ce(**more):
    return lambda z: F.cross_entropy(z, TARGET, **more)


def text(target=PADDED, **more):
    return lambda z: F.cross_entropy(z.reshape(-1, 11), target.reshape(-1), **more)


CASES = [
    ("reduction-scale", ce(), ce(reduction="sum"), LOGITS, TARGET),
    ("reduction-scale", ce(reduction="sum"), ce(), LOGITS, TARGET),
    ("reduction-scale", ce(), lambda z: ce()(z) / 12, LOGITS, TARGET),
    ("reduction-scale", text(), lambda z: text(reduction="sum")(z) / PADDED.numel(), TEXT, PADDED),
    ("reduction-scale", text(), lambda z: text(reduction="sum")(z) / 3, TEXT, PADDED),
    ("reduction-scale", lambda z: F.mse_loss(z, WANTED),
     lambda z: F.mse_loss(z, WANTED, reduction="sum"), NUMBERS, WANTED),
    ("loss-formula", ce(), ce(label_smoothing=0.1), LOGITS, TARGET),
    ("loss-formula", ce(label_smoothing=0.1), ce(), LOGITS, TARGET),
    ("loss-formula", ce(), lambda z: F.cross_entropy(torch.softmax(z, -1), TARGET), LOGITS, TARGET),
    ("loss-formula", ce(), lambda z: F.nll_loss(z, TARGET), LOGITS, TARGET),
    ("loss-formula", ce(), lambda z: F.nll_loss(torch.softmax(z, -1), TARGET), LOGITS, TARGET),
    ("loss-formula", ce(), lambda z: ce()(z) + 1e-4 * torch.logsumexp(z, -1).square().mean(), LOGITS, TARGET),
    ("loss-formula", text(ZERO_PADDED, ignore_index=0), text(ZERO_PADDED), TEXT, ZERO_PADDED),
    ("loss-formula", text(ZERO_PADDED), text(ZERO_PADDED, ignore_index=0), TEXT, ZERO_PADDED),
    ("loss-formula", lambda z: F.mse_loss(z, WANTED), lambda z: F.l1_loss(z, WANTED), NUMBERS, WANTED),
    ("loss-formula", lambda z: F.mse_loss(z, WANTED), lambda z: F.smooth_l1_loss(z, WANTED), NUMBERS, WANTED),
    ("loss-formula", lambda z: F.binary_cross_entropy_with_logits(z, CHANCES),
     lambda z: F.mse_loss(z, CHANCES), NUMBERS, CHANCES),
    ("loss-formula", lambda z: F.kl_div(F.log_softmax(z, -1), CHANCES, reduction="batchmean"),
     lambda z: F.kl_div(CHANCES.log(), F.log_softmax(z, -1).exp(), reduction="batchmean"), NUMBERS, CHANCES),
    ("label-shift", shifted(1), shifted(2), TEXT, WORDS),
    ("label-shift", shifted(1), shifted(0), TEXT, WORDS),
    ("label-shift", shifted(0), shifted(1), TEXT, WORDS),
    ("label-shift", ce(), lambda z: F.cross_entropy(z[:-1], TARGET[1:]), LOGITS, TARGET),
    ("label-shift", lambda z: F.cross_entropy(z, TARGET % 6),
     lambda z: F.cross_entropy(z, TARGET % 6 + 1), LOGITS, TARGET % 6),
]  # fmt: skip
NAMES = [f"{label}-{number}" for number, (label, *_) in enumerate(CASES)]
cases = pytest.mark.parametrize(("label", "reference", "candidate", "logits", "target"), CASES, ids=NAMES)


@pytest.mark.parametrize("beside", [True, False], ids=["both", "alone"])
@pytest.mark.parametrize("noise", [1e-9, 1e-7])
@pytest.mark.parametrize("phase", ["loss", "lossgrad"])
@cases
def test_a_changed_loss_is_named(label, reference, candidate, logits, target, phase, noise, beside):
    evidence = evidence_of(phase, reference, candidate, logits, target, noise=noise, beside=beside)
    cause = explain(evidence, losses.HYPOTHESES)
    assert cause.label == label, cause


@cases
def test_a_changed_gradient_is_named_through_the_noise_of_bfloat16_or_left_alone(
    label, reference, candidate, logits, target
):
    cause = explain(evidence_of("lossgrad", reference, candidate, logits, target, noise=3e-3), losses.HYPOTHESES)
    assert cause.label in (label, "unknown"), cause


@cases
def test_one_number_in_much_noise_proves_no_formula(label, reference, candidate, logits, target):
    evidence = evidence_of("loss", reference, candidate, logits, target, noise=3e-3, beside=False)
    assert explain(evidence, losses.HYPOTHESES).label == "unknown"


@pytest.mark.parametrize("phase", ["loss", "lossgrad"])
def test_labels_are_read_off_the_gradient_where_nobody_recorded_them(phase):
    for candidate, label in ((shifted(2), "label-shift"), (shifted(1, label_smoothing=0.1), "loss-formula")):
        evidence = evidence_of(phase, shifted(1), candidate, TEXT, WORDS, known=False)
        assert explain(evidence, losses.HYPOTHESES).label == label


@pytest.mark.parametrize("phase", ["loss", "lossgrad"])
def test_other_labels_are_another_input(phase):
    other = torch.randint(0, 7, (12,))
    evidence = evidence_of(phase, ce(), lambda z: F.cross_entropy(z, other), LOGITS, TARGET, candidate_target=other)
    assert explain(evidence, losses.HYPOTHESES).label == "different-input"
    rolled = torch.roll(TARGET, -1)
    evidence = evidence_of(phase, ce(), lambda z: F.cross_entropy(z, rolled), LOGITS, TARGET, candidate_target=rolled)
    assert explain(evidence, losses.HYPOTHESES).label == "label-shift"


@pytest.mark.parametrize("by", [1, -1])
def test_labels_off_by_one_are_named_where_samples_were_recorded_one_by_one(by):
    """The loss is that of a batch; gradients are those of a sum, sample after sample, and nobody recorded labels."""
    other = (TARGET + by) % 7
    chances, ours, theirs = torch.softmax(LOGITS, -1).numpy(), np.eye(7)[TARGET.numpy()], np.eye(7)[other.numpy()]
    tensors = {}
    for sample in range(len(TARGET)):
        here = slice(sample, sample + 1)
        pair = chances[here] - ours[here], chances[here] - theirs[here]
        tensors[Site(0, "lossgrad", "loss", "out", sample=sample)] = pair
    inputs = {"logits": LOGITS.numpy()}
    losses_of = [np.asarray(F.cross_entropy(LOGITS, one).item()) for one in (TARGET, other)]
    evidence = Evidence(
        Site(0, "loss", "loss", "out"), *losses_of, 1e-9, inputs=inputs, candidate_inputs=inputs,
        around=Recorded(tensors),
    )  # fmt: skip
    cause = explain(evidence, losses.HYPOTHESES)
    assert cause.label == "label-shift", cause


class Recorded(Nowhere):
    def __init__(self, tensors):
        self.tensors = tensors

    def sites(self, phase):
        return [site for site in self.tensors if site.phase == phase]

    def reference(self, site):
        return self.tensors[site][0]

    def candidate(self, site):
        return self.tensors[site][1]


def test_weights_of_classes_are_named():
    weights = torch.tensor([1.0, 2.0, 0.5, 1.0, 3.0, 1.0, 0.1], dtype=torch.float64)
    logits, target = torch.randn(40, 7, dtype=torch.float64), torch.randint(0, 7, (40,))
    evidence = evidence_of(
        "lossgrad", lambda z: F.cross_entropy(z, target), lambda z: F.cross_entropy(z, target, weights), logits, target
    )
    assert explain(evidence, losses.HYPOTHESES).label == "loss-formula"


@pytest.mark.parametrize(
    "wrong", [lambda p, y: p, lambda p, y: -(p - y), lambda p, y: p * ((p - y) - ((p - y) * p).sum(1, keepdims=True))]
)
def test_a_wrong_gradient_of_a_right_loss_is_a_gradient_formula(wrong):
    evidence = evidence_of("lossgrad", ce(), ce(), LOGITS, TARGET)
    found = wrong(torch.softmax(LOGITS, -1).numpy(), np.eye(7)[TARGET.numpy()]) / 12
    cause = explain(
        Evidence(**{f: getattr(evidence, f) for f in evidence.__slots__} | {"found": found}), losses.HYPOTHESES
    )
    assert cause.label == "gradient-formula", cause


@pytest.mark.parametrize("phase", ["loss", "lossgrad"])
@pytest.mark.parametrize(
    "candidate",
    [
        lambda z: F.cross_entropy(z * 1.3, TARGET),
        lambda z: F.cross_entropy(z, TARGET) + 0.01 * (z**2).sum(),
        lambda z: F.cross_entropy(z, TARGET) * float("nan"),
    ],
)
def test_what_no_formula_explains_stays_unknown(phase, candidate):
    assert explain(evidence_of(phase, ce(), candidate, LOGITS, TARGET), losses.HYPOTHESES).label == "unknown"


@pytest.mark.parametrize("formula", OF_CLASSES, ids=lambda formula: formula.name)
def test_the_gradient_of_every_loss_of_classes_is_its_derivative(formula):
    batch = Batch(LOGITS.numpy(), TARGET.numpy())
    check_gradient(Reading(formula), batch)


@pytest.mark.parametrize("formula", POINTWISE, ids=lambda formula: formula.name)
def test_the_gradient_of_every_pointwise_loss_is_its_derivative(formula):
    logits = CHANCES.flip(0).numpy() if formula.name.endswith("of probabilities") else NUMBERS.numpy()
    check_gradient(Reading(formula), Batch(logits, CHANCES.numpy()))


def check_gradient(reading, batch):
    gradient, numeric = reading.gradient(batch), np.zeros_like(batch.logits)
    for at in np.ndindex(3, batch.logits.shape[1]):
        step = np.zeros_like(batch.logits)
        step[at] = 1e-6
        up, down = (reading.value(Batch(batch.logits + s, batch.target), ()) for s in (step, -step))
        numeric[at] = (up - down) / 2e-6
    np.testing.assert_allclose(numeric[:3], gradient[:3], atol=1e-8)


@pytest.mark.parametrize("phase", ["loss", "lossgrad"])
def test_a_large_vocabulary_is_explained(phase):
    logits, target = torch.randn(200, 50_000, dtype=torch.float64), torch.randint(0, 50_000, (200,))
    evidence = evidence_of(
        phase,
        lambda z: F.cross_entropy(z, target),
        lambda z: F.cross_entropy(z, target, label_smoothing=0.1),
        logits,
        target,
    )
    assert explain(evidence, losses.HYPOTHESES).label == "loss-formula"


@pytest.mark.parametrize(
    ("reference", "candidate"),
    [
        (lambda z: F.mse_loss(z, WANTED), lambda z: F.l1_loss(z, WANTED)),
        (lambda z: F.mse_loss(z, WANTED, reduction="sum"), lambda z: F.smooth_l1_loss(z, WANTED, reduction="sum")),
        (lambda z: F.binary_cross_entropy_with_logits(z, CHANCES), lambda z: F.mse_loss(z, CHANCES)),
    ],
)
def test_numbers_that_nobody_recorded_are_read_from_the_gradient(reference, candidate):
    said = explain(evidence_of("loss", reference, candidate, NUMBERS, WANTED, known=False), losses.HYPOTHESES)
    assert said.label == "loss-formula", said


def test_numbers_read_from_a_gradient_alone_explain_nothing():
    drift = evidence_of(
        "lossgrad", lambda z: F.mse_loss(z, WANTED), lambda z: F.l1_loss(z, WANTED), NUMBERS, WANTED, known=False,
        beside=False,
    )  # fmt: skip
    assert explain(drift, losses.HYPOTHESES).label == "unknown"


@pytest.mark.parametrize("factor", [4.0, 0.5, 1 / 12, 12.0, 84.0])
@pytest.mark.parametrize("beside", [True, False])
def test_a_factor_of_the_gradient_of_a_right_loss_is_no_divisor_of_the_loss(factor, beside):
    evidence = evidence_of("lossgrad", ce(), ce(), LOGITS, TARGET, beside=beside)
    cause = explain(replace(evidence, found=evidence.found * factor), losses.HYPOTHESES)
    assert cause.label == ("gradient-scale" if beside else "reduction-scale"), cause


@pytest.mark.parametrize("factor", [4.0, 12.0])
def test_a_factor_of_a_loss_and_its_gradient_is_its_divisor(factor):
    cause = explain(evidence_of("lossgrad", ce(), lambda z: factor * ce()(z), LOGITS, TARGET), losses.HYPOTHESES)
    assert cause.label == "reduction-scale", cause


def means(sizes, target=None, items=None):
    """The mean of the means of parts of a batch."""

    def loss(z):
        each = items(z) if items else F.cross_entropy(z.transpose(1, 2), target, reduction="none")
        counted = torch.ones_like(each) if target is None else (target != -100).to(each.dtype)
        parts = zip(each.split(sizes), counted.split(sizes), strict=True)
        return sum(a.sum() / b.sum() for a, b in parts) / len(each.split(sizes))

    return loss


def squares(z):
    return (z - WANTED) ** 2


UNEVEN = [
    (means([1, 2], PADDED), text(), TEXT, PADDED),
    (means([1, 1, 1], PADDED), text(), TEXT, PADDED),
    (means([5, 5, 2], items=squares), lambda z: F.mse_loss(z, WANTED), NUMBERS, WANTED),
    (means([8, 4], items=squares), lambda z: F.mse_loss(z, WANTED), NUMBERS, WANTED),
]


@pytest.mark.parametrize("phase", ["loss", "lossgrad"])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize(("parts", "everything", "logits", "target"), UNEVEN)
def test_a_mean_of_means_of_uneven_parts_is_another_divisor(parts, everything, logits, target, swapped, known, phase):
    sides = (parts, everything) if swapped else (everything, parts)
    said = explain(evidence_of(phase, *sides, logits, target, known=known), losses.HYPOTHESES)
    assert (said.label, "mean of the means" in said.sentence) == ("reduction-scale", True), said


@pytest.mark.parametrize(
    "weights",
    [
        torch.tensor([1.0, 1.0, 1.0, 1.0, 2.5, 2.5, 2.5, 2.5, 0.5, 0.5, 0.5, 0.5]),
        torch.linspace(0.5, 1.5, 12),
        torch.tensor([12 / 14.0] * 7 + [12 / 10.0] * 5) * 1.01,
    ],
)
def test_other_weights_of_samples_are_no_mean_of_means(weights):
    weighted = lambda z: (squares(z) * weights.double()[:, None]).mean()  # noqa: E731
    said = explain(evidence_of("loss", lambda z: F.mse_loss(z, WANTED), weighted, NUMBERS, WANTED), losses.HYPOTHESES)
    assert "mean of the means" not in said.sentence


def test_balanced_weights_of_sorted_classes_are_no_mean_of_means():
    target = torch.tensor([0] * 8 + [1] * 4)
    weight = torch.tensor([12 / 16, 12 / 8, *[1.0] * 5], dtype=torch.float64)
    balanced = lambda z: F.cross_entropy(z, target, weight, reduction="sum") / 12  # noqa: E731
    said = explain(
        evidence_of("lossgrad", lambda z: F.cross_entropy(z, target), balanced, LOGITS, target), losses.HYPOTHESES
    )
    assert "mean of the means" not in said.sentence


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("brought", [True, False])
def test_labels_shifted_twice_are_named_though_fewer_positions_count(known, brought):
    """A comparison may have brought the reference's gradient to the candidate's divisor."""
    evidence = evidence_of("loss", shifted(1), shifted(2), TEXT, WORDS, known=known)
    if brought:
        ((site, (ours, theirs)),) = evidence.around.tensors.items()
        evidence = replace(evidence, around=Around(evidence.around.facts, {site: (ours * 8 / 7, theirs)}))
    said = explain(evidence, losses.HYPOTHESES)
    assert said.label == "label-shift", said


@pytest.mark.parametrize(("reference", "candidate", "ahead"), [(1, 2, "t+1"), (0, 1, "t+1")])
def test_labels_that_only_gradients_tell_are_shifted_against_the_reference_not_the_text(reference, candidate, ahead):
    evidence = evidence_of("loss", shifted(reference), shifted(candidate), TEXT, WORDS, known=False)
    said = explain(evidence, losses.HYPOTHESES)
    assert said.label == "label-shift", said
    assert f"the label that the reference compares {ahead} with" in said.sentence


def test_labels_that_are_known_are_shifted_against_the_text():
    said = explain(evidence_of("loss", shifted(1), shifted(2), TEXT, WORDS), losses.HYPOTHESES)
    assert "the label of t+2 instead of t+1" in said.sentence
