"""`fd.check` blames one place: what follows from it, or only looks otherwise, is no drift."""

import copy
from collections import namedtuple
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import firstdrift as fd


def drifts(result):
    return [(p.site.phase, p.site.name, p.site.port) for p in result.pairs if p.verdict in ("drift", "precision")]


def verdict(result, name, port="out", phase="fwd"):
    (found,) = (str(p.verdict) for p in result.pairs if (p.site.phase, p.site.name, p.site.port) == (phase, name, port))
    return found


def checked(reference, candidate, x, **options):
    return fd.check(reference=reference, candidate=candidate, inputs=(x,), load="reference", **options)


Pair = namedtuple("Pair", "first second")


@dataclass
class Record:
    first: torch.Tensor
    second: torch.Tensor


FORMS = {
    "a dict": lambda x, y: {"first": x, "second": y}, "a list": lambda x, y: [x, y], "a tuple": lambda x, y: (x, y),
    "a named tuple": Pair, "a dataclass": Record,
}  # fmt: skip


class Returning(nn.Module):
    """Returns two tensors in a structure, of which the second may be wrong."""

    def __init__(self, form, factor):
        super().__init__()
        self.mix = nn.Linear(6, 6)
        self.form, self.factor = form, factor

    def forward(self, x):
        y = self.mix(x)
        return self.form(torch.sin(y), self.factor * torch.cos(y))


class Taking(nn.Module):
    def __init__(self, form, factor=1.0):
        super().__init__()
        self.inner = Returning(form, factor)

    def forward(self, x):
        found = self.inner(x)
        if isinstance(found, dict):
            found = Pair(**found)
        first, second = (found.first, found.second) if isinstance(found, Record) else found
        return first * second + x


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_what_follows_from_a_wrong_tensor_in_a_structure_is_inherited(form):
    torch.manual_seed(0)
    result = checked(Taking(form), Taking(form, 1.01), torch.randn(5, 6))
    (found,) = drifts(result)
    assert found[:2] == ("fwd", "inner")
    assert found[2] in ("out.1", "out.second")
    assert verdict(result, "") == "inherited"


class Beside(nn.Module):
    """Returns what it makes, and what it was handed."""

    def __init__(self, factor=1.0):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return self.factor * torch.sin(x), x


class TakingBoth(nn.Module):
    def __init__(self, factor=1.0):
        super().__init__()
        self.mix, self.inner = nn.Linear(6, 6), Beside(factor)

    def forward(self, x):
        first, second = self.inner(self.mix(x))
        return first * second


def test_what_follows_from_a_wrong_tensor_beside_one_that_is_handed_on_is_inherited():
    torch.manual_seed(0)
    result = checked(TakingBoth(), TakingBoth(1.01), torch.randn(5, 6))
    assert drifts(result) == [("fwd", "inner", "out.0")]


class InPlace(nn.Module):
    def __init__(self, factor=1.0):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return x.relu_().mul_(self.factor)


class Around(nn.Module):
    def __init__(self, factor=1.0):
        super().__init__()
        self.mix, self.act = nn.Linear(6, 6), InPlace(factor)

    def forward(self, x):
        return x + self.act(self.mix(x))


def test_what_follows_from_a_tensor_that_was_written_over_wrongly_is_inherited():
    torch.manual_seed(0)
    result = checked(Around(), Around(1.01), torch.randn(5, 6))
    assert drifts(result) == [("fwd", "act", "out")]
    assert verdict(result, "") == "inherited"


def test_different_inputs_are_blamed_once():
    torch.manual_seed(0)
    x = torch.randn(5, 6)
    result = checked(Around(), Around(), x, candidate_inputs=(x + 1,))
    assert drifts(result) == [("input", "input", "x")]
    assert verdict(result, "", "in.0") == "inherited"


class _Halved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return 0.5 * gradient


class HalfHeard(nn.Linear):
    """A linear layer whose weight gets half its gradient."""

    def forward(self, x):
        return F.linear(x, _Halved.apply(self.weight), self.bias)


def test_what_an_optimizer_makes_of_a_wrong_gradient_is_inherited():
    torch.manual_seed(0)
    reference = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))
    candidate = copy.deepcopy(reference)
    candidate[0].__class__ = HalfHeard
    result = checked(
        reference, candidate, torch.randn(5, 6), loss_fn=lambda y: y.square().mean(), train=True,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
    )  # fmt: skip
    assert drifts(result) == [("grad", "0", "weight")]
    assert verdict(result, "0", "weight", "weight_after") == "inherited"


def clipping(norm):
    def make(model):
        def clip(*said):
            nn.utils.clip_grad_norm_(model.parameters(), norm)

        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        optimizer.register_step_pre_hook(clip)
        return optimizer

    return make


def test_what_an_optimizer_makes_of_gradients_that_were_clipped_wrongly_is_inherited():
    torch.manual_seed(0)
    reference = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))
    result = checked(
        reference, copy.deepcopy(reference), torch.randn(5, 6), loss_fn=lambda y: y.square().sum(), train=True,
        optimizer=clipping(1.0), candidate_optimizer=clipping(0.5),
    )  # fmt: skip
    assert {phase for phase, _, _ in drifts(result)} == {"grad_scaled"}, result.sentence
    assert verdict(result, "0", "weight", "weight_after") == "inherited"


class Later(nn.Module):
    """A norm that takes another eps from its second call on."""

    def __init__(self, eps=1e-5):
        super().__init__()
        self.eps, self.calls = eps, 0

    def forward(self, x):
        self.calls += 1
        return F.layer_norm(x, x.shape[-1:], eps=self.eps if self.calls > 1 else 1e-5)


def test_a_mistake_of_a_later_step_that_only_float64_shows_is_found_there():
    torch.manual_seed(0)
    reference, candidate = (nn.Sequential(nn.Linear(6, 6), Later(eps), nn.Linear(6, 3)) for eps in (1e-5, 3e-5))
    options = {
        "loss_fn": lambda y: y.square().mean(), "train": True, "steps": 2,
        "optimizer": lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    }  # fmt: skip
    x = torch.randn(5, 6).bfloat16()
    result = checked(reference.bfloat16(), candidate.bfloat16(), x, **options)
    first = result.first_drift
    assert (first.step, first.phase, first.name) == (1, "fwd", "1"), result.sentence


class Chosen(nn.Module):
    """A choice, as whole numbers or as floats."""

    def __init__(self, dtype, shift=0):
        super().__init__()
        self.dtype, self.shift = dtype, shift

    def forward(self, x):
        return ((x.argmax(-1) + self.shift) % x.shape[-1]).to(self.dtype or x.dtype)


@pytest.mark.parametrize("dtypes", [(torch.int64, None), (None, torch.int64)], ids=["floats for integers", "the other"])
def test_integers_and_floats_are_not_comparable_however_they_differ(dtypes):
    torch.manual_seed(0)
    reference, candidate = (
        nn.Sequential(nn.Linear(6, 6), Chosen(dtype, shift)) for dtype, shift in zip(dtypes, (0, 1), strict=True)
    )
    result = checked(reference, candidate, torch.randn(5, 6))
    assert verdict(result, "1") == "not comparable"
    assert (drifts(result), result.exit_code) == ([], 2)


class Block(nn.Module):
    """Two products and an activation, of which the second may be taken in two parts, as products of bfloat16 do to
    make up for their precision."""

    def __init__(self, *, parts=False):
        super().__init__()
        self.up, self.act, self.down = nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 6, bias=False)
        self.parts = parts

    def forward(self, x):
        h = self.act(self.up(x))
        if not self.parts:
            return x + self.down(h)
        first = h.bfloat16().to(h.dtype)
        return x + (self.down(first) + self.down(h - first))


@pytest.mark.xfail(reason="a second call of a module that the reference calls once is not replayed for what reads both")
def test_a_rounding_that_something_makes_up_for_is_no_drift():
    torch.manual_seed(0)
    result = checked(nn.Sequential(Block(), Block()), nn.Sequential(Block(), Block(parts=True)), torch.randn(9, 6))
    assert drifts(result) == [], result.sentence
    assert (result.exit_code, result.cause.label) == (0, "layout-equivalent"), result.sentence


def test_a_wrong_activation_of_units_in_another_order_is_a_drift():
    torch.manual_seed(0)
    reference = nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 3))
    candidate = copy.deepcopy(reference)
    candidate[2] = nn.GELU("tanh")
    order = torch.randperm(16, generator=torch.Generator().manual_seed(4))
    with torch.no_grad():
        candidate[1].weight.copy_(candidate[1].weight[order])
        candidate[1].bias.copy_(candidate[1].bias[order])
        candidate[3].weight.copy_(candidate[3].weight[:, order])
    result = fd.check(
        reference=reference, candidate=candidate, inputs=(torch.randn(9, 6),), loss_fn=lambda y: y.square().mean()
    )
    assert (result.exit_code, result.verdict) == (1, "drift"), result.sentence


class Scaled(nn.Linear):
    factor = 1.0

    def forward(self, x):
        return self.factor * super().forward(x)


def test_the_cause_of_an_error_next_to_float32_noise_is_told_from_float64():
    torch.manual_seed(0)
    reference = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), Scaled(16, 6))
    candidate = copy.deepcopy(reference)
    candidate[2].factor = 1 + 3e-6
    cause = checked(reference, candidate, torch.randn(9, 6)).first_drift.cause
    assert cause.label == "scale"
    assert any(value == pytest.approx(1 + 3e-6, abs=1e-9) for value in cause.parameters.values()), cause.parameters
    assert cause.confidence > 0.9  # half of it would be noise in float32


def test_an_operation_that_a_norm_takes_back_altogether_is_the_same_function_and_else_a_drift():
    torch.manual_seed(0)
    for eps, expected in ((1e-15, []), (1e-3, [("fwd", "0.0", "out")])):
        reference = nn.Sequential(nn.Sequential(Scaled(6, 6), nn.LayerNorm(6, eps=eps)), nn.Linear(6, 3))
        candidate = copy.deepcopy(reference)
        candidate[0][0].factor = 2.0
        result = checked(reference, candidate, torch.randn(9, 6))
        assert drifts(result)[:1] == expected, result.sentence
        why = {str(pair.why) for pair in result.pairs if pair.site.name == "0.0" and pair.site.port == "out"}
        assert (why == {"same-function"}) is (expected == [])


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x):
        scores = self.query(x) @ self.key(x).transpose(-1, -2)
        return scores.softmax(-1) @ self.value(x)


@pytest.mark.parametrize(("part", "found"), [("key", []), ("query", [("weight", "0.query", "bias")])])
def test_a_bias_that_a_softmax_does_not_see_is_no_drift(part, found):
    torch.manual_seed(0)
    reference = nn.Sequential(Attention(), nn.Linear(6, 3))
    candidate = copy.deepcopy(reference)
    with torch.no_grad():
        getattr(candidate[0], part).bias += 0.1
    assert drifts(fd.check(reference=reference, candidate=candidate, inputs=(torch.randn(2, 5, 6),))) == found


class Turned(nn.Module):
    """A part whose units may run in another order, and may be wrong as they are run, but not in float64."""

    def __init__(self, turned=False, wrong=False):
        super().__init__()
        self.up, self.act, self.down = nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 6)
        self.turned, self.wrong = turned, wrong

    def forward(self, x):
        h = self.up(x)
        h = self.act(h.flip(-1)).flip(-1) if self.turned else self.act(h)
        return x + self.down(1.01 * h if self.wrong and x.dtype == torch.float32 else h)


def test_activations_in_another_order_that_is_undone_are_no_drift():
    torch.manual_seed(0)
    result = checked(nn.Sequential(Turned(), Turned()), nn.Sequential(Turned(), Turned(True)), torch.randn(9, 6))
    assert drifts(result) == [], result.sentence


def test_what_is_wrong_only_as_it_is_run_is_not_hidden_by_another_layout():
    torch.manual_seed(0)
    result = checked(nn.Sequential(Turned(), Turned()), nn.Sequential(Turned(), Turned(True, True)), torch.randn(9, 6))
    assert result.exit_code == 1, result.sentence
