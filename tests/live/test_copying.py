"""A model that `copy.deepcopy` refuses can be checked all the same, and is left as it was."""

import threading

import pytest

torch = pytest.importorskip("torch")

import firstdrift as fd  # noqa: E402
from firstdrift.errors import CaptureError  # noqa: E402
from firstdrift.live.copying import copied_model  # noqa: E402

X = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))


def doubled(x):
    return 2 * x


class Holding(torch.nn.Module):
    """A model that holds something, in a list, as models do."""

    def __init__(self, held, bias=0.0):
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)
        self.held = [held]
        self.bias = bias

    def forward(self, x):
        return self.linear(x) + self.bias


def pair(held, bias):
    torch.manual_seed(0)
    ours, theirs = Holding(held), Holding(held, bias)
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


@pytest.mark.parametrize("held", [staticmethod(doubled), threading.Lock(), (n for n in range(3))])
def test_what_has_no_copy_is_shared(held):
    ours, theirs = pair(held, 0.0)
    assert copied_model(ours).held[0] is held
    assert fd.check(reference=ours, candidate=theirs, inputs=(X,)).exit_code == 0


def test_a_drift_is_found_in_what_could_not_be_copied():
    ours, theirs = pair(threading.Lock(), 0.5)
    result = fd.check(reference=ours, candidate=theirs, inputs=(X,))
    assert str(result.verdict) == "drift"
    assert result.first_drift.name == ""


def test_a_tensor_with_a_graph_is_copied_by_value():
    held = torch.ones(2, requires_grad=True) * 3
    model = Holding(held)
    copied = copied_model(model).held[0]
    assert torch.equal(copied, held)
    assert copied is not held
    assert copied.grad_fn is None
    assert model.held[0].grad_fn is not None


def test_weights_are_never_shared():
    model = Holding(threading.Lock())
    copied = copied_model(model)
    with torch.no_grad():
        copied.linear.weight.zero_()
    assert model.linear.weight.abs().sum() > 0


class Stubborn(torch.nn.Linear):
    def __deepcopy__(self, memo):
        raise RuntimeError("there is only one of me")


def test_a_model_that_cannot_be_copied_at_all_is_named():
    with pytest.raises(CaptureError, match=r"the Stubborn cannot be copied \(RuntimeError: there is only one of me\)"):
        fd.check(reference=Stubborn(4, 3), candidate=torch.nn.Linear(4, 3), inputs=(X,))
