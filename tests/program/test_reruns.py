"""A cut that is run once is run again with something changed, and only what depends on the change is computed."""

import numpy as np
import pytest
import torch
from torch import nn

import firstdrift as fd
from firstdrift.core.sites import Site
from firstdrift.program.cuts import Cuts
from firstdrift.program.edits import Fragment, local, made_by
from firstdrift.program.reruns import Piece, Rerun, rerun_of
from firstdrift.program.written.read_program import read_program


class Net(nn.Module):
    """Five calls, one of which is larger than the others."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(6)
        self.last = nn.Identity()

    def forward(self, x):
        return self.last(torch.tanh(self.norm(x) * 3.0) + x)


SITE = Site(0, "fwd", "last", "in.0", 0, None)


@pytest.fixture
def ran(tmp_path):
    torch.manual_seed(0)
    model, x = Net(), torch.randn(4, 6)
    with fd.trace(model, tmp_path / "t"), torch.no_grad():
        model(x)
    trace = fd.open_trace(tmp_path / "t")
    step = read_program(trace).steps[0]
    cut = Cuts(step, lambda site: site.phase in ("input", "weight")).at(SITE)
    return Rerun(step, cut, trace, None), trace, step, cut, x


def number_of(rerun, op):
    return next(number for number, call in rerun.calls.items() if call.op.split(".")[1] == op)


def test_it_holds_what_was_recorded(ran):
    rerun, trace, *_ = ran
    assert np.allclose(rerun.array(rerun.target), trace.array(SITE), atol=1e-6)


def test_another_number_gives_another_tensor(ran):
    rerun, _, _, _, x = ran
    number = number_of(rerun, "mul")
    source = rerun.calls[number].args[0]
    made = rerun.run({number: Fragment((made_by("mul.Tensor", source, 5.0),))})
    normed = nn.functional.layer_norm(x.double(), (6,))
    assert np.allclose(made, (torch.tanh(normed * 5) + x).numpy())


def test_a_change_that_changes_nothing_gives_nothing(ran):
    rerun = ran[0]
    number = number_of(rerun, "tanh")
    assert rerun.run({number: Fragment((rerun.calls[number],))}) is None


def test_a_change_that_cannot_be_made_gives_nothing(ran):
    rerun = ran[0]
    number = number_of(rerun, "tanh")
    source = rerun.calls[number].args[0]
    assert rerun.run({number: Fragment((made_by("mm.default", source, source),))}) is None


def test_only_what_follows_is_computed(ran):
    rerun = ran[0]
    rerun.run(
        {number_of(rerun, "add"): Fragment((made_by("neg.default", rerun.calls[number_of(rerun, "add")].args[0]),))}
    )
    late, rerun.spent = rerun.spent, 0.0
    number = number_of(rerun, "mul")
    rerun.run({number: Fragment((rerun.calls[number], made_by("neg.default", local(0))))})
    assert 0 < late < rerun.spent


def test_a_larger_call_is_opened_to_smaller_ones(ran):
    rerun, *_, x = ran
    opened = rerun.opened()
    assert "native_layer_norm" not in {call.op.split(".")[1] for call in opened.calls.values()}
    assert np.allclose(opened.array(opened.target), rerun.array(rerun.target))
    number = number_of(opened, "rsqrt")
    made = opened.run({number: Fragment((made_by("ones_like.default", opened.calls[number].args[0]),))})
    centred = x.double() - x.double().mean(-1, keepdim=True)
    assert np.allclose(made, (torch.tanh(centred * 3) + x).numpy())


def test_some_samples_are_a_part_of_all(ran):
    rerun, trace, step, cut, _ = ran
    piece = Piece(1, 2)
    part = rerun_of(step, cut, trace, None, kept=frozenset(), exact=True, piece=piece)
    assert np.allclose(part.array(part.target), piece.taken(rerun.array(rerun.target), part.axis))
