"""What the adversary has found: every class of failure as a small case of its own."""

import copy

import numpy as np
import pytest

import firstdrift as fd

torch = pytest.importorskip("torch")
ml_dtypes = pytest.importorskip("ml_dtypes")
from torch import nn  # noqa: E402

BF16 = ml_dtypes.bfloat16


def traced(model, path, *inputs, loss=False):
    with fd.trace(model, path, program=True):
        out = model(*inputs)
        if loss:
            out.square().mean().backward()


def rewritten(source, path, change):
    """A trace with its tensors as `change` gives them, by site, without the program."""
    trace = fd.open_trace(source)
    with fd.Writer(path) as writer:
        for record in trace.lines:
            site, array = record.site, np.array(trace.array(record))
            where = {"port": site.port, "step": site.step, "call": site.call}
            writer.put(site.name, site.phase, change(site, array), **where)
    return path


def in_bf16(array):
    return array.astype(BF16) if array.dtype == np.float32 else array


class Pooled(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.pool = nn.Conv2d(3, 4, 3, padding=1), nn.MaxPool2d(2)

    def forward(self, x):
        return self.pool(self.conv(x))


def pooled(tmp_path, change=lambda site, array: array):
    """A max-pool of float32 against the same in bfloat16, exactly as it follows from what was recorded."""
    torch.manual_seed(0)
    traced(Pooled().bfloat16().float(), tmp_path / "ref", torch.randn(3, 3, 8, 8).bfloat16().float())
    values = {}

    def stored(site, array):
        kept = in_bf16(array)
        if (site.name, site.port) == ("conv", "out"):
            values["conv"] = kept
        if site.name in ("pool", "") and site.port == "out":
            kept = values["conv"].reshape(3, 4, 4, 2, 4, 2).max(axis=(3, 5))
            kept = change(site, kept)
        return values["conv"] if (site.name, site.port) == ("pool", "in.0") else kept

    return fd.diff(tmp_path / "ref", rewritten(tmp_path / "ref", tmp_path / "cand", stored))


def test_the_largest_of_four_is_no_decision_that_may_fall_otherwise(tmp_path):
    """It is computed from what was recorded, to the last digit that was: a rounding of what came in moves it as far."""

    def off(site, array):
        array = array.copy()
        array[1, 2, 3, 0] = BF16(np.float32(array[1, 2, 3, 0]) * 1.04)
        return array

    assert pooled(tmp_path, off).exit_code == 1


def test_the_largest_of_four_in_a_shorter_format_is_noise(tmp_path):
    assert pooled(tmp_path).exit_code == 0


class Routed(nn.Module):
    """Each row goes to one expert, whose weight among the chosen ones is always 1."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(12, 4, bias=False)
        self.experts = nn.ModuleList(nn.Linear(12, 12) for _ in range(4))

    def forward(self, x):
        chosen, scores = torch.softmax(self.router(x), -1).max(-1)[::-1]
        outs = torch.stack([one(x) for one in self.experts], -2)
        taken = outs.gather(-2, chosen[:, None, None].expand(-1, 1, 12)).squeeze(-2)
        return taken * (scores / scores)[:, None]


def test_a_weight_that_only_decisions_read_is_no_gauge_because_none_fell_otherwise(tmp_path):
    torch.manual_seed(0)
    model, x = Routed(), torch.randn(6, 12)
    traced(model, tmp_path / "ref", x)
    other = copy.deepcopy(model)
    other.router.weight.data[:, 3] += 1e-5 * torch.randn(4)
    traced(other, tmp_path / "cand", x)
    result = fd.diff(tmp_path / "ref", tmp_path / "cand")
    assert (result.exit_code, result.first_drift.name) == (1, "router")


def test_one_number_is_held_against_its_own_size(tmp_path):
    """A loss in float16 that is three roundings off, where nothing says how it was made."""
    for name, value in (("ref", 1.9), ("cand", 1.9 * (1 + 3 * 2.0**-11))):
        with fd.Writer(tmp_path / name) as writer:
            writer.put("model", "fwd", np.ones((4, 6), np.float16))
            writer.put("loss", "loss", np.asarray(value, np.float16))
    assert fd.diff(tmp_path / "ref", tmp_path / "cand").exit_code == 2


class Gated(nn.Module):
    def __init__(self, bias):
        super().__init__()
        self.first, self.act, self.head = nn.Linear(48, 33), nn.GELU(), nn.Linear(33, 8)
        nn.init.constant_(self.first.bias, bias)

    def forward(self, x):
        return self.head(self.act(self.first(x)))


@pytest.mark.parametrize("bias", [-3.0, -0.5, 0.0])
def test_two_runs_of_the_same_kernel_of_a_gelu_are_noise(tmp_path, bias):
    """It approximates its error function: further off than any rounding, and to the same side on both sides."""
    torch.manual_seed(0)
    model, x = Gated(bias), 0.2 * torch.randn(64, 48)
    traced(model, tmp_path / "ref", x, loss=True)
    other, order = copy.deepcopy(model), torch.randperm(48)
    other.zero_grad()
    other.first.forward = lambda x: x[:, order] @ other.first.weight[:, order].t() + other.first.bias
    traced(other, tmp_path / "cand", x, loss=True)
    assert fd.diff(tmp_path / "ref", tmp_path / "cand").exit_code == 0


@pytest.mark.parametrize("bias", [-3.0, 0.0])
def test_the_other_formula_of_a_gelu_is_a_drift(tmp_path, bias):
    torch.manual_seed(0)
    model, x = Gated(bias), 0.2 * torch.randn(64, 48)
    traced(model, tmp_path / "ref", x)
    other = copy.deepcopy(model)
    other.act = nn.GELU(approximate="tanh")
    traced(other, tmp_path / "cand", x)
    result = fd.diff(tmp_path / "ref", tmp_path / "cand")
    assert (result.exit_code, result.first_drift.name) == (1, "act")


def overwritten(path, name, off):
    """One output of a trace, off by so much in every number."""
    trace = fd.open_trace(path)
    record = next(one for one in trace if (one.site.phase, one.site.name, one.site.port) == ("fwd", name, "out"))
    numbers = np.array(trace.array(record)) * (1 + off).astype(np.float32)
    with (path / f"data-{record.at[0]:05}.bin").open("r+b") as data:
        data.seek(record.at[1])
        data.write(numbers.tobytes())


@pytest.mark.parametrize(("roundings", "code"), [(2.2, 0), (400.0, 2)])
def test_a_reference_that_is_off_itself_blames_nobody_for_as_much(tmp_path, roundings, code):
    """Next to what draws explain, its kernel is what it is, and right; far beyond it, nobody knows what noise is."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(32, 32)), torch.randn(64, 32)
    noise = np.random.default_rng(1).standard_normal((64, 32)) * roundings * 2.0**-24
    for name, share in (("ref", 1.0), ("cand", 0.8)):
        traced(model, tmp_path / name, x)
        for site in ("0", ""):
            overwritten(tmp_path / name, site, share * noise)
    assert fd.diff(tmp_path / "ref", tmp_path / "cand").exit_code == code


def test_a_gradient_that_comes_to_nothing_is_no_drift_because_its_rounding_is_another(tmp_path):
    """Rounding is all that is left of the gradient of a router whose one choice always weighs 1."""
    rng = np.random.default_rng(0)
    x, grad = rng.standard_normal((6, 12)).astype(BF16), rng.standard_normal((6, 12)).astype(BF16)
    left = rng.standard_normal((4, 12)) * 1e-4
    for name, router in (("ref", left), ("cand", left * 1e-12)):
        with fd.Writer(tmp_path / name) as writer:
            writer.put("experts", "fwd", x, port="in.0")
            writer.put("experts", "fwd", x * BF16(2.0))
            writer.put("experts", "agrad", grad)
            writer.put("experts", "grad", router.astype(BF16), port="router")
    assert fd.diff(tmp_path / "ref", tmp_path / "cand").exit_code == 2


def two_steps(path, learning_rate=0.1, noise=0.0, element=0.0):
    """Weights and gradients of two steps, and nothing of what a step leaves."""
    rng = np.random.default_rng(0)
    weight, grad = (rng.standard_normal((8, 8)).astype(np.float32) for _ in range(2))
    grad = (grad * (1 + noise * np.random.default_rng(1).standard_normal((8, 8)))).astype(np.float32)
    after = weight - np.float32(learning_rate) * grad
    after[3, 4] += np.float32(element)
    with fd.Writer(path) as writer:
        for step, one in enumerate((weight, after)):
            writer.put("w", "weight", one, port="weight", step=step)
            writer.put("w", "grad", grad, port="weight", step=step)


def test_weights_of_the_next_step_may_differ_as_their_gradients_do(tmp_path):
    two_steps(tmp_path / "ref")
    two_steps(tmp_path / "cand", noise=1e-7)
    assert fd.diff(tmp_path / "ref", tmp_path / "cand", phases=["weight"]).exit_code == 0


@pytest.mark.parametrize("wrong", [{"learning_rate": 0.1001}, {"element": 1.0}])
def test_weights_of_the_next_step_that_were_updated_otherwise_are_a_drift(tmp_path, wrong):
    two_steps(tmp_path / "ref")
    two_steps(tmp_path / "cand", noise=1e-7, **wrong)
    result = fd.diff(tmp_path / "ref", tmp_path / "cand", phases=["weight"])
    assert result.exit_code == 1
    assert result.first_drift.introduced_by == "the updates between steps 0 and 1"


def test_one_number_of_the_next_step_s_weights_that_is_off_is_not_green(tmp_path):
    two_steps(tmp_path / "ref")
    two_steps(tmp_path / "cand", noise=1e-7, element=1e-5)
    assert fd.diff(tmp_path / "ref", tmp_path / "cand", phases=["weight"]).exit_code


@pytest.mark.parametrize("dtype", [ml_dtypes.float8_e4m3fn, BF16])
def test_what_a_relu_cuts_off_is_no_rounding_of_what_stands_beside_it(tmp_path, dtype):
    """A leaky one of a short format, whose small numbers are within a rounding of the large ones around them."""
    x = (np.random.default_rng(0).standard_normal((4, 8, 6, 6)) * 2).astype(dtype)
    slope = 0.01 if dtype is not BF16 else 5e-4
    numbers = x.astype(np.float32)
    outs = {"ref": np.maximum(numbers, 0), "cand": np.where(numbers > 0, numbers, slope * numbers)}
    for name, out in outs.items():
        with fd.Writer(tmp_path / name) as writer:
            writer.put("act", "fwd", x, port="in.0")
            writer.put(
                "act", "fwd", out.astype(dtype), op="ReLU", producers=[fd.Site(0, "fwd", "act", "in.0", 0, None)]
            )
    assert fd.diff(tmp_path / "ref", tmp_path / "cand").exit_code == 1


def test_a_norm_without_its_weights_is_no_sum_that_may_cancel(tmp_path):
    """An eps of 0 where 1e-6 was meant, on rows of some size: six roundings of everything, and none is legal."""
    x = np.random.default_rng(0).standard_normal((20, 32))
    for name, eps in (("ref", 1e-6), ("cand", 0.0)):
        with fd.Writer(tmp_path / name) as writer:
            writer.put("norm", "fwd", x.astype(np.float32), port="in.0")
            out = x.astype(np.float32) / np.sqrt(np.mean(x.astype(np.float32) ** 2, -1, keepdims=True) + eps)
            writer.put("norm", "fwd", (out * 1.1).astype(np.float32), op="RMSNorm")
    assert fd.diff(tmp_path / "ref", tmp_path / "cand").exit_code
