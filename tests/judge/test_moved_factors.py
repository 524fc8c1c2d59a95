"""A factor that is applied in another place, or that a norm takes away, is no drift; one that is lost is."""

import pytest
import torch
from torch import nn

import firstdrift as fd
from firstdrift.judge.measure.result import Why

SCALE = 2.5


class Adapted(nn.Module):
    """A linear layer with a low-rank adapter, whose scale stands somewhere; the layer may be no module of its own."""

    def __init__(self, before=1.0, between=1.0, after=1.0, own=True, finish=lambda x: x):
        super().__init__()
        self.down, self.up = nn.Linear(8, 3, bias=False), nn.Linear(3, 12, bias=False)
        self.base = nn.Linear(8, 12) if own else None
        self.weight = None if own else nn.Parameter(torch.randn(12, 8))
        self.before, self.between, self.after, self.finish = before, between, after, finish

    def forward(self, x):
        added = self.up(self.down(x * self.before) * self.between) * self.after
        base = nn.functional.linear(x, self.weight) if self.base is None else self.base(x)
        return self.finish(base + added)


class Alone(Adapted):
    """The adapter alone, and what a norm in the same module makes of it."""

    def forward(self, x):
        return self.finish(self.up(self.down(x * self.before) * self.between) * self.after)


class Model(nn.Module):
    def __init__(self, adapted):
        super().__init__()
        self.first, self.adapted, self.last = nn.Linear(8, 8), adapted, nn.Linear(12, 4)

    def forward(self, x):
        return self.last(self.adapted(self.first(x)).tanh())


@pytest.fixture(autouse=True)
def _weights():
    torch.manual_seed(1)  # of which the adapted layer's output is clean without anybody asking how it was made


def said(tmp_path, reference, candidate, loss=lambda made, side: made.square().mean()):
    torch.manual_seed(0)
    candidate.load_state_dict(reference.state_dict())
    x = torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(1))
    for name, model in (("ref", reference), ("cand", candidate)):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with fd.trace(model, tmp_path / name, optimizer=optimizer):
            loss(model(x), name).backward()
            optimizer.step()
    return fd.diff(tmp_path / "ref", tmp_path / "cand")


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("places", [{"between": SCALE}, {"before": SCALE}, {"before": SCALE**0.5, "after": SCALE**0.5}])
def test_a_scale_that_is_applied_earlier_is_no_drift(tmp_path, own, places):
    result = said(tmp_path, Model(Adapted(after=SCALE, own=own)), Model(Adapted(**places, own=own)))
    assert (result.verdict, result.exit_code) == ("noise", 0), result.sentence
    assert result.cause.label == "layout-equivalent"


def test_a_factor_of_all_that_a_module_makes_may_stand_before_a_product(tmp_path):
    result = said(tmp_path, Model(Alone(after=SCALE)), Model(Alone(between=SCALE)))
    assert (result.verdict, result.exit_code) == ("noise", 0), result.sentence


@pytest.mark.parametrize("places", [{"between": 2 * SCALE}, {}, {"between": SCALE, "after": SCALE}])
def test_another_scale_is_a_drift(tmp_path, places):
    result = said(tmp_path, Model(Adapted(after=SCALE)), Model(Adapted(**places)))
    assert result.verdict == "drift"


def test_a_scale_elsewhere_that_is_not_quite_the_same_is_a_drift_as_stated(tmp_path):
    theirs = Model(Adapted(between=SCALE * (1 + 3e-7), own=False))
    result = said(tmp_path, Model(Adapted(after=SCALE, own=False)), theirs)
    assert result.exit_code == 1, result.sentence


@pytest.mark.parametrize(
    "norm",
    [
        lambda x: nn.functional.layer_norm(x, (12,), torch.linspace(0.5, 2, 12), torch.linspace(-1, 1, 12), 1e-12),
        lambda x: nn.functional.normalize(x, dim=-1),
        lambda x: (x - x.mean((0, 1))) / x.std((0, 1)),
    ],
)
def test_a_factor_that_a_norm_hides_is_the_same_function(tmp_path, norm):
    result = said(tmp_path, Model(Alone(between=SCALE, finish=norm)), Model(Alone(finish=norm)))
    assert (result.exit_code, result.cause.label) == (0, "layout-equivalent"), result.sentence
    proven = [pair.chain[-1].facts for pair in result.pairs if pair.why is Why.SAME_FUNCTION]
    assert proven
    assert {facts["proof"] for facts in proven} == {"replayed"}


def test_a_factor_that_a_norm_hides_but_for_its_epsilon_is_a_drift(tmp_path):
    def norm(x):
        return nn.functional.layer_norm(x, (12,), eps=1e-2)

    result = said(tmp_path, Model(Alone(between=SCALE, finish=norm)), Model(Alone(finish=norm)))
    assert result.exit_code == 1, result.sentence


def test_a_wrong_gradient_behind_a_moved_factor_is_found(tmp_path):
    class Halved(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient / 2

    def loss(made, side):
        return (Halved.apply(made) if side == "cand" else made).square().mean()

    result = said(tmp_path, Model(Adapted(after=SCALE)), Model(Adapted(between=SCALE)), loss)
    assert result.verdict == "drift"
    assert result.first_drift.phase in ("lossgrad", "agrad")
    assert not result.first_drift.name.startswith("adapted")
