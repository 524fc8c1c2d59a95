"""Where other tensors would have steered a run elsewhere, a replay says so: never a stale answer, never a crash."""

import numpy as np
import pytest
import torch
from tests.program.replaying import Body, batch, mlp, record
from tests.program.test_cuts import cuts_of
from torch import nn

import firstdrift as fd
from firstdrift.program.interpreter import ControlDiffersError, Interpreter, NotReplayableError

LIFTED = fd.Site(0, "fwd", "lift", "out")


def steered(path, body, **attributes):
    """A model whose body reads numbers out of what `lift` gives: rows of 6, all positive."""
    model = Body(body, **attributes)
    nn.init.constant_(model.lift.weight, 0.25)
    nn.init.constant_(model.lift.bias, 2.0)
    x = torch.linspace(0.5, 1.5, 20).reshape(5, 4)
    return record(path, model, lambda: model(x).square().mean().backward())


def cut_of(found, phase, name, port="out"):
    starts = {"", "lift", "input", "loss", "head"}
    return next(
        cut for _, site, cut in cuts_of(found, lambda site: site.name in starts)
        if (site.phase, site.name, site.port) == (phase, name, port)
    )  # fmt: skip


def replayed(found, cut, lifted, *, exact=True):
    tensors = {LIFTED: lifted.astype(np.float32)}
    return Interpreter(found.step, found.trace, tensors=tensors.get, exact=exact).array_of(cut)


def branch(self, x):
    return x * 2 if (x > 2.2).all() else x * 3


def a_whole_number(self, x):
    count = int((x > 2.2).sum())
    return x * count


def a_list(self, x):
    first, second = (x[:, 0] > 2.2).sum(), (x[:, 0] <= 2.2).sum()
    sizes = torch.stack([first, second]).tolist()
    return torch.cat([x.split(sizes)[0] * 2, x.split(sizes)[1]])


def a_float(self, x):
    return x / x.max().item()


def an_array(self, x):
    return x * float(x.detach().numpy().mean() > 2.2)


def a_shape(self, x):
    return x[x[:, 0] > 2.2]


def an_index(self, x):
    return x[(x[:, 0] > 2.2).nonzero().flatten()]


def a_comparison(self, x):
    return x * 2 if torch.equal(x > 2.2, torch.ones_like(x, dtype=torch.bool)) else x


BODIES = [branch, a_whole_number, a_list, a_float, an_array, a_shape, an_index, a_comparison]


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("body", BODIES)
def test_a_number_that_would_be_another_is_named_with_its_line(tmp_path, body, exact):
    found = steered(tmp_path / "t", body)
    own = found.trace.array(LIFTED)
    cut = cut_of(found, "fwd", "head", "in.0")
    assert np.isfinite(replayed(found, cut, own, exact=exact)).all()
    other = own.copy()
    other[1] = 1.0
    other *= 1.5 if body is a_float else 1.0
    with pytest.raises(
        ControlDiffersError, match=r"control differs at .*test_control.py, line \d+: .* from these"
    ) as error:
        replayed(found, cut, other, exact=exact)
    line = int(str(error.value).split("line ")[1].split(":")[0])
    assert body.__code__.co_firstlineno <= line <= body.__code__.co_firstlineno + 3
    assert isinstance(error.value, NotReplayableError)


def test_both_numbers_are_named(tmp_path):
    found = steered(tmp_path / "t", a_whole_number)
    other = found.trace.array(LIFTED).copy()
    other[1] = 1.0
    with pytest.raises(
        ControlDiffersError, match="the run read 30 there, and from these tensors it is 24; other calls"
    ):
        replayed(found, cut_of(found, "fwd", "head", "in.0"), other)


def test_a_float_may_differ_by_noise_and_no_more(tmp_path):
    found = steered(tmp_path / "t", a_float)
    own, cut = found.trace.array(LIFTED), cut_of(found, "fwd", "head", "in.0")
    assert replayed(found, cut, own * np.float32(1 + 4 * 2.0**-24)).shape == (5, 6)
    with pytest.raises(ControlDiffersError):
        replayed(found, cut, own * np.float32(1 + 64 * 2.0**-24))


def test_a_float_that_cancels_is_as_noisy_as_its_tensor(tmp_path):
    """Its magnitude says nothing of its noise: the shaken spread does."""
    found = steered(tmp_path / "t", lambda self, x: x * 2 if (x - 3 * x / 3 + x * 1e-6).sum().item() > 0 else x * 3)
    own, cut = found.trace.array(LIFTED), cut_of(found, "fwd", "head", "in.0")
    assert replayed(found, cut, own * np.float32(1 + 2.0**-23)).shape == (5, 6)


def test_the_backward_depends_on_what_was_read_before_its_forward_call(tmp_path):
    found = steered(tmp_path / "t", branch)
    cut = cut_of(found, "agrad", "lift")
    other = found.trace.array(LIFTED).copy()
    other[1] = 1.0
    with pytest.raises(ControlDiffersError):
        replayed(found, cut, other)


def test_a_logged_loss_steers_neither_the_backward_nor_the_optimizer(tmp_path):
    torch.manual_seed(0)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    logged = []

    def run():
        loss = model(batch()[0]).square().mean()
        logged.append(loss.item())
        loss.backward()
        logged.append(loss.item())
        optimizer.step()

    found = record(tmp_path / "t", model, run, optimizer=optimizer)
    assert found.calls("aten._local_scalar_dense")
    moved = ("fwd", "loss", "agrad", "grad")
    others = {site: found.trace.array(site) * 3 for site in found.step.sites if site.phase in moved}
    phases = set()
    for step, site, cut in cuts_of(found):
        Interpreter(step, found.trace, tensors=others.get).value_of(cut)
        phases.add(site.phase)
    assert {"fwd", "loss", "agrad", "grad", "weight_after"} <= phases


def test_what_a_neighbour_reads_matters_only_where_its_number_is_used(tmp_path):
    class Reader(nn.Module):
        def forward(self, x):
            self.count = int((x > 2.2).sum())
            return x * 1.0

    def uses(self, x):
        return self.after(self.reader(x)) * (self.reader.count if self.used else 1.5)

    for used in (False, True):
        found = steered(tmp_path / str(used), uses, reader=Reader(), after=nn.Tanh(), used=used)
        other = found.trace.array(LIFTED).copy()
        other[1] = 1.0
        cuts = {site: cut for _, site, cut in cuts_of(found, lambda site: site.name in ("lift", "after"))}
        cut = cuts[fd.Site(0, "fwd", "head", "in.0")]
        assert fd.Site(0, "fwd", "after", "out") in cut.given.values()
        if used:
            with pytest.raises(ControlDiffersError):
                replayed(found, cut, other)
        else:
            assert replayed(found, cut, other).shape == (5, 6)


def test_calls_nested_in_a_function_belong_to_the_module_that_called_it(tmp_path):
    class Inner(nn.Module):
        def forward(self, x):
            return x.sum(-1, keepdim=True) if (x > 2.2).all() else x.mean(-1, keepdim=True)

    found = steered(tmp_path / "t", lambda self, x: self.inner(x).expand(-1, 6), inner=Inner())
    other = found.trace.array(LIFTED).copy()
    other[1] = 1.0
    with pytest.raises(ControlDiffersError):
        replayed(found, cut_of(found, "fwd", "inner"), other)


def test_a_number_read_after_a_call_cannot_have_steered_it(tmp_path):
    found = steered(tmp_path / "t", branch)
    cut = cut_of(found, "fwd", "lift")
    assert cut.control == ()


def test_on_its_own_tensors_a_run_reads_its_own_numbers_again(tmp_path):
    found = steered(tmp_path / "t", a_list)
    cut = cut_of(found, "fwd", "head", "in.0")
    own = Interpreter(found.step, found.trace, tensors=found.trace.array).array_of(cut)
    assert own.tobytes() == Interpreter(found.step, found.trace).array_of(cut).tobytes()
    assert len(cut.control) == 1
