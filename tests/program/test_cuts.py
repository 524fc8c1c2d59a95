"""A recorded tensor comes out of the tensors recorded before it, in the precision it had and in float64."""

import numpy as np
import pytest
import torch
from tests.program.replaying import Body, batch, mlp, record, train
from torch import nn

import firstdrift as fd
from firstdrift.program.calls import Call
from firstdrift.program.cuts import Cuts
from firstdrift.program.interpreter import Interpreter, NotReplayableError
from firstdrift.program.process_settings import as_recorded


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.norm, self.drop = nn.Linear(8, 24), nn.LayerNorm(8), nn.Dropout(0.2)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        mask = torch.full((x.shape[1],) * 2, torch.finfo(x.dtype).min).triu(1)
        weights = (q @ k.transpose(-2, -1) / 8**0.5 + mask).softmax(-1)
        return x + self.drop(weights) @ v


def attention(path):
    torch.manual_seed(0)
    model, x = nn.Sequential(Attention(), Attention()), torch.randn(2, 5, 8)
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        model(x).square().mean().backward()
        optimizer.step()

    return record(path, model, step, optimizer=optimizer)


def convolutions(path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Conv2d(4, 2, 3))
    model = model.to(memory_format=torch.channels_last)
    x = torch.randn(2, 3, 9, 9).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)

    def step():
        model(x).square().mean().backward()
        optimizer.step()

    return record(path, model, step, optimizer=optimizer)


def in_bfloat16(path):
    model = mlp()

    def step():
        with torch.autocast("cpu", torch.bfloat16):
            out = model(batch()[0])
        out.float().square().mean().backward()

    return record(path, model, step)


def two_steps(path):
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters())
    return record(path, model, lambda: train(model, optimizer, steps=2), optimizer=optimizer)


RUNS = [attention, convolutions, in_bfloat16, two_steps]


def cuts_of(found, starts=lambda site: True):
    for step in found.program.steps.values():
        cuts = Cuts(step, lambda site: found.trace[site].at is not None and starts(site))
        for site in step.sites:
            cut = cuts.at(site)
            if any(isinstance(step.nodes[number], Call) for number in cut.nodes):
                yield step, site, cut


@pytest.mark.parametrize("run", RUNS)
def test_every_tensor_comes_out_of_those_recorded_before_it_bit_for_bit(tmp_path, run):
    found = run(tmp_path / "t")
    phases = set()
    with as_recorded(found.program.header):
        for step, site, cut in cuts_of(found):
            value = Interpreter(step, found.trace).value_of(cut).contiguous()
            if value.dtype == torch.bfloat16:
                value = value.view(torch.int16)
            assert value.numpy().tobytes() == found.trace.array(site).tobytes(), site
            phases.add(site.phase)
    assert {"fwd", "agrad", "grad"} <= phases
    if "optim" in {site.phase for site in found.step.sites}:
        assert {"optim", "weight_after"} <= phases


@pytest.mark.parametrize("run", RUNS)
def test_in_float64_every_tensor_is_within_noise_of_what_was_recorded(tmp_path, run):
    found = run(tmp_path / "t")
    for step, site, cut in cuts_of(found):
        exact = Interpreter(step, found.trace, exact=True).array_of(cut)
        recorded = np.asarray(found.trace.array(site), exact.dtype)
        assert exact.dtype in (np.float64, np.int64)
        limit = 0.05 if run is in_bfloat16 else 1e-5
        assert np.abs(exact - recorded).max(initial=0) <= limit * max(np.abs(recorded).max(initial=0), 1e-3), site


def test_a_cut_starts_from_what_is_nearest_and_holds_nothing_before_it(tmp_path):
    found = attention(tmp_path / "t")
    sites = {site: cut for _, site, cut in cuts_of(found)}
    cut = sites[fd.Site(0, "fwd", "1.qkv", "out")]
    assert fd.Site(0, "fwd", "1.qkv", "in.0") in cut.given.values()
    assert len(cut.nodes) <= 4  # a view, the transposed weight, the product, a view
    assert {site.phase for site in cut.given.values()} == {"fwd", "weight"}


def test_what_may_not_be_started_from_is_computed_as_well(tmp_path):
    found = attention(tmp_path / "t")
    far = {site: cut for _, site, cut in cuts_of(found, lambda site: not site.name.startswith("1"))}
    cut = far[fd.Site(0, "fwd", "1", "out")]
    assert {site.name for site in cut.given.values() if site.phase == "fwd"} == {"0"}
    value = Interpreter(found.step, found.trace).value_of(cut)
    assert value.numpy().tobytes() == found.trace.array(fd.Site(0, "fwd", "1", "out")).tobytes()


def test_somebody_elses_tensors_take_the_place_of_the_traces_own(tmp_path):
    found = record(tmp_path / "t", model := mlp(), lambda: model(batch()[0]))
    site = fd.Site(0, "fwd", "2", "out")
    cut = next(cut for _, one, cut in cuts_of(found) if one == site)
    other = np.full((5, 8), 2.0, np.float32)
    tensors = {fd.Site(0, "fwd", "2", "in.0"): other}
    value = Interpreter(found.step, found.trace, tensors=tensors.get).value_of(cut)
    assert value.numpy().tobytes() == model[2](torch.from_numpy(other)).detach().numpy().tobytes()


def test_tensors_of_another_shape_are_refused_by_a_sentence(tmp_path):
    found = record(tmp_path / "t", model := mlp(), lambda: model(batch()[0]))
    cut = next(cut for _, one, cut in cuts_of(found) if one == fd.Site(0, "fwd", "2", "out"))
    with pytest.raises(NotReplayableError, match=r"has the shape \[3\], which the program does not expect"):
        Interpreter(found.step, found.trace, tensors=lambda site: np.zeros(3, np.float32)).value_of(cut)


def test_a_result_that_was_recorded_is_given_and_its_neighbours_are_computed(tmp_path):
    """A norm's backward reads its mean and scale, which nobody recorded, beside its output, which somebody did."""
    model = Body(lambda self, x: self.norm(x), norm=nn.LayerNorm(6))
    found = record(tmp_path / "t", model, lambda: model(batch()[0]).sum().backward())
    assert [site for _, site, _ in cuts_of(found) if site.phase == "agrad" and site.name == "lift"]
    for step, site, cut in cuts_of(found):
        value = Interpreter(step, found.trace).value_of(cut).contiguous()
        assert value.numpy().tobytes() == found.trace.array(site).tobytes(), site


def test_a_site_that_nothing_computed_is_what_was_recorded(tmp_path):
    found = record(tmp_path / "t", model := mlp(), lambda: model(batch()[0]))
    site = fd.Site(0, "weight", "0", "weight")
    cut = Cuts(found.step, lambda site: True).at(site)
    assert cut.is_empty
    assert Interpreter(found.step, found.trace).array_of(cut).tolist() == found.trace.array(site).tolist()
