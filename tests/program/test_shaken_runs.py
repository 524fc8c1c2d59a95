"""The spread of shaken runs is the noise of a cut: what rounding does to these numbers, forward and backward."""

import numpy as np
import pytest
import torch
from tests.program.by_hand import LEAVES, X, program_of, step, whole, written
from tests.program.replaying import record
from tests.program.test_cuts import cuts_of
from torch import nn

import firstdrift as fd
from firstdrift.kernels import noises
from firstdrift.program.interpreter import Interpreter
from firstdrift.program.process_settings import as_recorded
from firstdrift.program.running import rounding
from firstdrift.program.running.rounding import Rounding, rounded_once
from firstdrift.program.running.shaking import Shake, Unmoved

SEEDS = range(8)
FACTOR = 8


class Softmax(nn.Module):
    def forward(self, x):
        return (x / 2).softmax(-1)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(64), nn.Linear(64, 128), nn.Linear(128, 64)

    def forward(self, x):
        y = self.norm(x)
        weights = (y @ y.transpose(-2, -1) / 8).softmax(-1)
        return x + self.down(nn.functional.gelu(self.up(weights @ y)))


MODELS = {
    "matmul": lambda: nn.Linear(64, 96, bias=False),
    "layer norm": lambda: nn.LayerNorm(64),
    "softmax": Softmax,
    "a cut of several calls": Block,
    "convolution": lambda: nn.Sequential(nn.Conv2d(4, 8, 3, padding=1)),
}


def recorded(path, model, dtype=torch.float32):
    """A step whose interior nobody recorded: each cut goes from the inputs of the model to its output and back."""
    torch.manual_seed(0)
    model = model().to(dtype)
    shape = (4, 16, 64) if not isinstance(model, nn.Sequential) else (2, 4, 6, 16)
    x, weight = torch.randn(shape).to(dtype).requires_grad_(), None

    def run():
        nonlocal weight
        out = model(x)
        weight = torch.randn(out.shape).to(dtype)
        (out * weight).sum().backward()

    return record(path, model, run)


def noise_and_error(found, cut):
    """The root mean square of shaken runs, and of the working precision, about float64: one a row."""
    exact = Interpreter(found.step, found.trace, exact=True).array_of(cut)
    working = Interpreter(found.step, found.trace).array_of(cut)
    runs = [Interpreter(found.step, found.trace, exact=True, shaken=Shake(seed)).array_of(cut) for seed in SEEDS]
    width = exact.shape[-1] if exact.ndim > 1 and exact.shape[-1] > 8 else exact.size
    spread = np.mean([np.square(one - exact).reshape(-1, width).mean(-1) for one in runs], axis=0)
    return np.sqrt(spread), np.sqrt(np.square(working - exact).reshape(-1, width).mean(-1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_shaken_runs_spread_as_far_as_rounding_does(tmp_path, name, dtype):
    found = recorded(tmp_path / "t", MODELS[name], dtype)
    phases = set()
    with as_recorded(found.program.header):
        for _, site, cut in cuts_of(found, lambda site: site.name in ("", "input", "loss") or site.phase == "weight"):
            if site.phase == "loss":
                continue  # one number, whose error may be any
            spread, error = noise_and_error(found, cut)
            if dtype == torch.float64:  # where the unshaken run rounds as the working precision does
                unit = np.abs(Interpreter(found.step, found.trace).array_of(cut)).max() * 2.0**-53
                assert 0 < spread.max() < 1000 * unit, site
                continue
            large = error > 0.25 * error.max()  # a row may be lucky
            assert (spread[large] < FACTOR * error[large]).all() or not spread.any(), (site, spread, error)
            assert (spread >= error / FACTOR).all(), (site, spread, error)  # none, of what is exact
            phases.add(site.phase)
    assert dtype == torch.float64 or "fwd" in phases
    assert dtype == torch.float64 or name == "softmax" or "grad" in phases


def test_a_seed_gives_the_same_numbers_everywhere_and_another_seed_others(tmp_path):
    found = by_hand(tmp_path / "t", [call(2, "div.Tensor", '[{"%":0},3]', 0)])
    first, again, other = (shaken(found, seed)[2] for seed in (3, 3, 4))
    assert first.tobytes() == again.tobytes()
    exact = X.astype(np.float64) / 3
    assert first[X % 3 == 0].tolist() == exact[X % 3 == 0].tolist()  # which float32 holds
    assert (first != other)[X % 3 != 0].all()
    moved = (first / np.where(exact == 0, 1, exact) - 1)[X % 3 != 0] * 2**24
    assert np.abs(moved).max() <= 1  # half a step
    assert moved.round(3).tolist() == [0.183, 0.334, -0.523, -0.196]


def test_a_number_of_memory_that_is_looked_at_twice_is_moved_once():
    for dtype in (torch.float64, torch.complex128):
        column = torch.randn(4, 1, 2, dtype=dtype)
        moved = rounded_once(column.expand(4, 3, 2), 2.0**-24, 1)
        assert (moved != column).all()
        assert moved.is_contiguous()
        assert torch.equal(moved, rounded_once(column, 2.0**-24, 1).expand(4, 3, 2))


def test_the_order_of_memory_does_not_matter():
    tensor = torch.randn(4, 3, dtype=torch.float64)
    assert torch.equal(rounded_once(tensor.t(), 2.0**-24, 1), rounded_once(tensor.t().contiguous(), 2.0**-24, 1))


def test_one_rounding_is_0_42_of_a_unit_in_the_root_mean_square():
    sizes = 2.0 ** torch.linspace(-3, 3, 1 << 16, dtype=torch.float64)
    for unit in (2.0**-24, 2.0**-8):
        off = (rounded_once(sizes, unit, 1) / sizes - 1) / unit
        assert float(off.square().mean().sqrt()) == pytest.approx(0.42, rel=0.02)


def test_a_gradient_that_is_not_asked_for_makes_no_others_exact():
    """The first layer of a network asks for its parameters' gradients alone: their sums are rounded all the same."""
    torch.manual_seed(0)
    x, gradient, gain = torch.randn(64, 32), torch.randn(64, 32), torch.ones(32)
    x, gradient, gain = (one.double() for one in (x, gradient, gain))
    _, mean, scale = torch.native_layer_norm(x, [32], gain, gain, 1e-5)
    func, unit = torch.ops.aten.native_layer_norm_backward.default, 2.0**-24

    def off(asked):
        given = gradient, x, [32], mean, scale, gain, gain, asked
        with Rounding(func, unit, unit, unit, False, lambda at: noises.key_of(1, at)):
            drawn = func(*given)[2]
        return float((drawn - gradient.sum(0)).norm() / gradient.sum(0).norm() / unit)

    assert off([True, True, True]) > 1.5
    assert off([False, True, True]) == pytest.approx(off([True, True, True]), rel=0.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_runs_that_share_their_sums_are_those_that_do_not(tmp_path, monkeypatch, name, dtype):
    found, sums = recorded(tmp_path / "t", MODELS[name], dtype), []
    added_up = rounding.added_up
    monkeypatch.setattr(rounding, "added_up", lambda *args: sums.append(args[0]) or added_up(*args))
    counts = [0, 0]
    with as_recorded(found.program.header):
        for _, _, cut in cuts_of(found, lambda site: site.name in ("", "input", "loss") or site.phase == "weight"):
            unmoved = Unmoved(found.step)
            for seed in SEEDS:
                runs = []
                for at, shared in enumerate((unmoved, None)):
                    sums.clear()
                    shake = Shake(seed, steady=frozenset(cut.given), unmoved=shared)
                    runs.append(Interpreter(found.step, found.trace, exact=True, shaken=shake).array_of(cut))
                    counts[at] += len(sums)
                assert runs[0].tobytes() == runs[1].tobytes()
    assert counts[0] < counts[1] or name == "softmax"  # which adds up what it has rounded


def test_runs_that_share_read_what_they_start_from_once(tmp_path):
    found, read = recorded(tmp_path / "t", Block), []
    with as_recorded(found.program.header):
        for _, _, cut in cuts_of(found, lambda site: site.name in ("", "input", "loss") or site.phase == "weight"):
            unmoved = Unmoved(found.step)
            for seed in SEEDS:
                shake = Shake(seed, steady=frozenset(cut.given), unmoved=unmoved)
                tensors = lambda site: read.append(site)  # noqa: E731
                Interpreter(found.step, found.trace, tensors=tensors, exact=True, shaken=shake).array_of(cut)
            again = [site for site in cut.given.values() if read.count(site) > 1]
            assert set(cut.given.values()) <= set(read)
            assert not again
            read.clear()


def by_hand(path, lines):
    written(path)
    definitions = ['{"type":[0,"f32",[2,3]]}', '{"type":[1,"f32",[3,3]]}', '{"type":[2,"bf16",[2,3]]}',
                   '{"type":[3,"i64",[2,3]]}', '{"type":[4,"f32",[3,2],[1,3]]}', '{"type":[5,"bool",[2,3]]}',
                   '{"type":[6,"i64",[1]]}', '{"type":[7,"f32",[1]]}', '{"type":[8,"bf16",[1]]}',
                   '{"type":[9,"f32",[1,3]]}']  # fmt: skip
    return program_of(path, whole(step([*LEAVES, *lines]), definitions=definitions)).steps[0], fd.open_trace(path)


def shaken(found, seed):
    interpreter = Interpreter(*found, exact=True, shaken=Shake(seed))
    return {number: values[0].numpy() for number, values in interpreter.run()}


def call(number, op, args, out, **kwargs):
    return f'{{"n":{number},"op":"aten.{op}","args":{args},"kwargs":{str(kwargs)!s},"out":[{out}]}}'.replace("'", '"')


EXACT = [
    call(2, "t.default", '[{"%":0}]', 4), call(2, "clone.default", '[{"%":0}]', 0),
    call(2, "relu.default", '[{"%":0}]', 0).replace("relu", "alias"),
    call(2, "slice.Tensor", '[{"%":0},0,0,2]', 0), call(2, "cat.default", '[[{"%":0}]]', 0),
    call(2, "_to_copy.default", '[{"%":0}]', 0), call(2, "zeros_like.default", '[{"%":0}]', 0),
    call(2, "copy_.default", '[{"%":0},{"%":0}]', 0), call(2, "gt.Scalar", '[{"%":0},2]', 5),
    '{"n":2,"op":"aten._to_copy.default","args":[{"%":0}],"kwargs":{"dtype":{"dtype":"i64"}},"out":[3]}',
]  # fmt: skip


@pytest.mark.parametrize("line", EXACT)
def test_what_only_moves_numbers_or_gives_whole_ones_shakes_nothing(tmp_path, line):
    found = by_hand(tmp_path / "t", [line])
    exact = {number: values[0].numpy() for number, values in Interpreter(*found, exact=True).run()}
    assert shaken(found, 0)[2].tobytes() == exact[2].tobytes()


@pytest.mark.parametrize("adds", [True, False])
def test_writing_that_adds_up_is_shaken_and_writing_that_replaces_is_not(tmp_path, adds):
    lines = ['{"n":2,"type":6,"value":[1]}', call(3, "slice.Tensor", '[{"%":0},0,1,2]', 9),
             call(4, "index_put.default", '[{"%":0},[{"%":2}],{"%":3},true]', 0)]  # fmt: skip
    found = shaken(by_hand(tmp_path / "t", [line if adds else line.replace("true", "false") for line in lines]), 0)
    expected = X * [[1], [1 + adds]]
    assert np.abs(found[4] - expected).max() < 1e-5
    assert (found[4] != expected).any() == adds


def test_a_cast_rounds_what_the_shorter_dtype_has_not_and_nothing_else(tmp_path):
    def cast(number, value, to, out):
        return (f'{{"n":{number},"op":"aten._to_copy.default","args":[{{"%":{value}}}],'
                f'"kwargs":{{"dtype":{{"dtype":"{to}"}}}},"out":[{out}]}}')  # fmt: skip

    lines = [cast(2, 0, "bf16", 2), '{"n":3,"type":6,"value":[1]}', cast(4, 3, "bf16", 8),
             '{"n":5,"type":6,"value":[1001]}', cast(6, 5, "bf16", 8),
             call(7, "div.Tensor", '[{"%":0},3]', 0), cast(8, 7, "bf16", 2), cast(9, 8, "f32", 0)]  # fmt: skip
    found = shaken(by_hand(tmp_path / "t", lines), 0)
    assert found[2].tolist() == X.tolist()  # which bfloat16 has
    assert found[4].tolist() == [1.0]
    assert found[6].tolist() != [1001.0]  # which it has not
    moved = np.abs(found[8] - found[7])[X % 3 != 0] / X[X % 3 != 0]
    assert 2.0**-16 < moved.max() <= 2.0**-8
    assert found[9].tobytes() == found[8].tobytes()


def test_a_decision_is_never_shaken_over_its_edge(tmp_path):
    """All of x lies on a step of floor; a number below one would fall to the step below."""

    class Steps(nn.Module):
        def forward(self, x):
            y = x * 3.0
            return y.floor() + (y >= 3.0) + y.to(torch.int64) + torch.div(y, 3.0, rounding_mode="floor")

    x = torch.ones(4, 4)
    found = record(tmp_path / "t", model := Steps(), lambda: model(x))
    (cut,) = [cut for _, site, cut in cuts_of(found) if site.port == "out"]
    for seed in SEEDS:
        spread = Interpreter(found.step, found.trace, exact=True, shaken=Shake(seed)).array_of(cut)
        assert np.abs(spread - 8).max() < 1e-5


def test_a_seed_without_float64_is_refused(tmp_path):
    found = by_hand(tmp_path / "t", [])
    with pytest.raises(ValueError, match="pass exact=True"):
        Interpreter(*found, shaken=Shake(1))
