"""From two traces: modules that are run in another order, where that makes no difference and where it does."""

import copy

import pytest
import torch
from torch import nn

import firstdrift as fd
from firstdrift.judge.measure.result import Why


class Unit(nn.Module):
    """A norm without a gain."""

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-12)


class Turn(nn.Module):
    """A rotation of pairs of channels by the position."""

    def forward(self, x):
        angle = torch.arange(x.shape[1], dtype=x.dtype)[:, None] * torch.tensor([1.0, 0.3, 0.1, 0.03], dtype=x.dtype)
        a, b = x.chunk(2, -1)
        return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)


class Times(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return x * self.factor


class Plus(nn.Module):
    def forward(self, x):
        return x + 1.0


class Net(nn.Module):
    """Modules between two linear layers, in an order that can be turned round, and perhaps one behind them."""

    def __init__(self, first, second, between=None, behind=None):
        super().__init__()
        torch.manual_seed(0)
        self.up, self.first, self.second, self.head = nn.Linear(6, 8), first, second, nn.Linear(8, 5)
        self.between, self.behind = between, behind
        self.turned, self.hidden, self.factor = False, False, 1.0

    def forward(self, x):
        parts = [self.first, self.between, self.second]
        h = self.up(x)
        for part in (*(reversed(parts) if self.turned else parts), self.behind):
            h = h if part is None else part(h)
        h = nn.functional.layer_norm(h, (8,)) if self.hidden else h
        return self.head(h) * self.factor


def turned(model):
    other = copy.deepcopy(model)
    other.turned = True
    return other


@pytest.fixture
def compare(tmp_path):
    def compared(reference, candidate, loss=False, dtype=torch.float32):
        x = torch.randn(3, 7, 6, generator=torch.Generator().manual_seed(1)).to(dtype)
        for side, model in (("r", reference), ("c", candidate)):
            model = model.to(dtype).eval()
            with fd.trace(model, tmp_path / side), torch.set_grad_enabled(loss):
                y = model(x)
                if loss:
                    y.square().mean().backward()
        return fd.diff(tmp_path / "r", tmp_path / "c")

    return compared


COMMUTING = {
    "a norm and a rotation": lambda: Net(Unit(), Turn()),
    "a factor and a ReLU": lambda: Net(Times(3.0), nn.ReLU()),
    "a pool and a ReLU": lambda: Net(nn.Sequential(nn.MaxPool1d(2), nn.Upsample(scale_factor=2)), nn.ReLU()),
}


@pytest.mark.parametrize("name", COMMUTING)
def test_an_order_that_makes_no_difference_is_no_drift(compare, name):
    model = COMMUTING[name]()
    result = compare(model, turned(model))
    assert (str(result.verdict), result.cause.label) == ("noise", "layout-equivalent"), result.sentence


def test_an_order_that_makes_no_difference_makes_none_to_gradients(compare):
    model = Net(Unit(), Turn())
    result = compare(model, turned(model), loss=True)
    assert (str(result.verdict), result.cause.label) == ("noise", "layout-equivalent"), result.sentence


def test_an_order_that_makes_no_difference_is_no_drift_in_bfloat16(compare):
    model = Net(Unit(), Turn())
    assert str(compare(model, turned(model), dtype=torch.bfloat16).verdict) == "noise"


def test_what_is_wrong_behind_such_an_order_is_the_drift(compare):
    model = Net(Unit(), Turn())
    other = turned(model)
    other.factor = 1.01
    result = compare(model, other)
    assert str(result.verdict) == "drift"
    assert result.first_drift.name == ""


def test_a_wrong_module_in_such_an_order_is_a_drift(compare):
    model = Net(Times(3.0), nn.ReLU())
    other = turned(model)
    other.first.factor = 3.03
    assert str(compare(model, other).verdict) == "drift"


def hidden_by_a_norm():
    return Net(Times(3.0), Plus(), behind=nn.LayerNorm(8, elementwise_affine=False))


def hidden_by_a_function():
    model = Net(Times(3.0), Plus())
    model.hidden = True
    return model


def hidden_by_dead_units():
    model = Net(Times(3.0), Plus())
    nn.init.zeros_(model.head.weight)
    return model


@pytest.mark.parametrize("made", [lambda: Net(Times(3.0), Plus()), hidden_by_dead_units], ids=["seen", "dead units"])
def test_an_order_that_makes_a_difference_is_a_drift_even_where_weights_of_zero_hide_it(compare, made):
    model = made()
    result = compare(model, turned(model))
    assert str(result.verdict) == "drift"
    assert result.first_drift.name in ("first", "second")


@pytest.mark.parametrize("made", [hidden_by_a_norm, hidden_by_a_function])
def test_an_order_that_a_norm_makes_the_same_of_for_any_input_is_the_same_function(compare, made):
    model = made()
    result = compare(model, turned(model))
    assert (str(result.verdict), result.cause.label) == ("noise", "layout-equivalent"), result.sentence
    assert any(pair.why is Why.SAME_FUNCTION for pair in result.pairs)


@pytest.mark.parametrize(("behind", "code"), [(Unit(), 0), (nn.Tanh(), 1)], ids=["a norm", "no norm"])
def test_a_factor_is_none_only_where_what_reads_it_takes_it_away(compare, behind, code):
    model = Net(Times(3.0), behind)
    other = copy.deepcopy(model)
    other.first.factor = 6.0
    assert compare(model, other).exit_code == code


@pytest.mark.parametrize("made", [lambda: Net(nn.Dropout(0.5), Unit()), lambda: Net(Unit(), Turn(), nn.Dropout(0.5))])
def test_a_module_that_does_nothing_here_may_stand_anywhere(compare, made):
    model = made()
    result = compare(model, turned(model))
    assert (str(result.verdict), result.cause.label) == ("noise", "layout-equivalent"), result.sentence


class Scored(nn.Module):
    """Queries and keys through two modules each, one of which they share, and attention that nobody records."""

    def __init__(self, own, shared):
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k, self.v, self.out = (nn.Linear(6, 8) for _ in range(4))
        self.own_q, self.own_k, self.shared = own(), own(), shared
        self.out, self.turned = nn.Linear(8, 5), False

    def forward(self, x):
        q, k = self.q(x), self.k(x)
        if self.turned:
            q, k = self.own_q(self.shared(q)), self.own_k(self.shared(k))
        else:
            q, k = self.shared(self.own_q(q)), self.shared(self.own_k(k))
        return self.out(nn.functional.scaled_dot_product_attention(q, k, self.v(x)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_order_before_attention_that_nobody_recorded_makes_no_difference(compare, dtype):
    model = Scored(Unit, Turn())
    result = compare(model, turned(model), dtype=dtype)
    assert (str(result.verdict), result.cause.label) == ("noise", "layout-equivalent"), result.sentence


def test_an_order_before_attention_that_makes_a_difference_is_a_drift(compare):
    model = Scored(Plus, Turn())
    assert str(compare(model, turned(model)).verdict) == "drift"


def test_a_difference_that_attention_takes_away_is_the_same_function(compare):
    """What is added to all keys alike changes no weight of theirs."""
    model = Scored(Plus, Times(3.0))
    other = turned(model)
    other.own_q = model.own_q = Times(2.0)
    result = compare(model, other)
    assert (str(result.verdict), result.cause.label) == ("noise", "layout-equivalent"), result.sentence
