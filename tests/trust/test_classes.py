"""One more example of every class in which a wrong candidate was called right: none of them may be green."""

import copy

import numpy as np
import pytest

import firstdrift as fd

torch = pytest.importorskip("torch")
ml_dtypes = pytest.importorskip("ml_dtypes")
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from firstdrift.aprt import write_stage_file  # noqa: E402
from firstdrift.judge.stage_values import diff_stage_files  # noqa: E402

BF16 = ml_dtypes.bfloat16
F8 = ml_dtypes.float8_e4m3fn


def normal(*shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def code(tmp_path, ours, theirs, header=None, **options):
    """The exit code for two sides, each {"phase name:port": array or (array, details)}."""
    for name, sites in (("ours", ours), ("theirs", theirs)):
        with fd.Writer(tmp_path / name, overwrite=True, **(header or {}).get(name, {})) as writer:
            for key, value in sites.items():
                phase, _, rest = key.partition(" ")
                step, phase = phase.split("/") if "/" in phase else (0, phase)
                name_, _, port = rest.partition(":")
                where = {"step": int(step), **({"port": port} if port else {})}
                if value is None:
                    writer.put_absent(name_, phase, "no gradient", **where)
                elif isinstance(value, tuple):
                    writer.put(name_, phase, value[0], **where, **value[1])
                else:
                    writer.put(name_, phase, value, **where)
    return fd.diff(tmp_path / "ours", tmp_path / "theirs", **options)


def check(reference, change, *inputs, **options):
    """fd.check of a model against a copy that `change` was made to."""
    candidate = copy.deepcopy(reference)
    candidate = change(candidate) or candidate
    return fd.check(reference=reference, candidate=candidate, inputs=inputs, **options)


def seeded(seed=0):
    torch.manual_seed(seed)
    return torch.Generator().manual_seed(seed)


def named(result, name):
    """Exit code 1, at that name."""
    assert result.exit_code == 1, result.sentence
    assert result.first_drift.name == name, result.sentence


def with_forward(model, forward):
    model.forward = forward.__get__(model)


# A: large values are no fills


def test_a_penalty_of_other_size_is_seen_beside_a_matrix_product(tmp_path):
    x, w = normal(16, 32), normal(8, 32, seed=1)
    w[3] = -np.abs(w[3]) * 500
    x = np.abs(x)
    ours = {"fwd p:in.0": x, "weight p": w, "fwd p": (x @ w.T, {"op": "Linear"})}
    theirs = {**ours, "fwd p": ((x @ w.T) * np.where(np.arange(8) == 3, 2, 1).astype(np.float32), {"op": "Linear"})}
    assert code(tmp_path, ours, theirs).exit_code


def test_a_penalty_of_other_size_is_seen_by_check():
    seeded()
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    with torch.no_grad():
        model[1].bias[2] = -30_000.0
    assert check(model, lambda one: one[1].bias.data.__setitem__(2, -60_000.0), torch.randn(4, 8)).exit_code == 1


# B: integers vouch for nothing


class Sampler(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(8, 8), nn.Linear(8, 5)

    def forward(self, x):
        return self.head(torch.relu(self.inner(x))).topk(2).indices


def test_ranks_do_not_vouch_for_scores_that_are_off(tmp_path):
    seeded()
    x, model = torch.randn(16, 8), Sampler()
    other = copy.deepcopy(model)
    other.head.weight.data *= 1.25
    other.head.bias.data *= 1.25
    for name, one in (("a", model), ("b", other)):
        with fd.trace(one, tmp_path / name, program=True):
            one(x)
    assert fd.diff(tmp_path / "a", tmp_path / "b").exit_code == 1
    assert fd.check(reference=model, candidate=other, inputs=(x,)).exit_code == 1


# C: an update that rounding hides


def test_an_update_of_a_scale_in_16_bits_is_not_vouched_for(tmp_path):
    before = np.ones(64, BF16)
    grad = normal(64).astype(BF16)
    ours = {
        "weight n": before,
        "grad n": grad,
        "weight_after n": (before - 1e-4 * grad.astype(np.float32)).astype(BF16),
    }
    after = before.copy()
    after[7] = np.float32(before[7]) * -3
    assert code(tmp_path, ours, {**ours, "weight_after n": after}).exit_code == 1


# D: weights that nothing compared depends on


class Late(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.unused = nn.Linear(8, 8), nn.LayerNorm(8)

    def forward(self, x):
        return self.body(x)


def test_a_norm_that_is_never_called_has_the_right_gain_or_not(tmp_path):
    seeded()
    x, model = torch.randn(4, 8), Late()
    other = copy.deepcopy(model)
    other.unused.weight.data[5] = 3.0
    for name, one in (("a", model), ("b", other)):
        with fd.trace(one, tmp_path / name, program=True):
            one(x)
    assert fd.diff(tmp_path / "a", tmp_path / "b").exit_code == 1
    assert fd.check(reference=model, candidate=other, inputs=(x,)).exit_code == 1


def test_rows_of_a_table_that_no_position_uses_count(tmp_path):
    seeded()
    model = nn.Sequential(nn.Embedding(32, 8), nn.Linear(8, 4))
    assert check(model, lambda one: one[0].weight.data.__setitem__(31, 7.0), torch.tensor([[1, 2, 3]])).exit_code == 1


# E: inputs and weights, element by element


@pytest.mark.parametrize("kind", ["row", "element", "sign"])
def test_a_part_of_a_weight_is_seen(tmp_path, kind):
    weight = normal(512, 512).astype(F8 if kind == "sign" else BF16)
    other = weight.copy()
    if kind == "row":
        other[:, 100] = (other[:, 100].astype(np.float32) * 1.25).astype(BF16)
    elif kind == "element":
        other[5, 6] = BF16(2.0)
    else:
        other[9, :64] = -other[9, :64]
    assert code(tmp_path, {"weight w": weight}, {"weight w": other}).exit_code == 1


def test_one_pixel_of_an_input_is_seen(tmp_path):
    x = normal(2, 3, 64, 64)
    y = x.copy()
    y[1, 2, 10, 11] += 0.01
    assert code(tmp_path, {"input input:x": x}, {"input input:x": y}).exit_code == 1


# F: one large value hides nothing


def test_a_sink_token_hides_no_other_tokens(tmp_path):
    x = normal(64, 256)
    x[0] *= 3e4
    y = x.copy()
    y[1:] = normal(63, 256, seed=9)
    for dtype in (np.float32, BF16):
        ours, theirs = {"fwd block": x.astype(dtype)}, {"fwd block": y.astype(dtype)}
        assert code(tmp_path, ours, theirs).exit_code


def test_a_loud_channel_hides_no_quiet_ones_in_check():
    seeded()

    class Loud(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.factor = nn.Linear(16, 64), 1.0

        def forward(self, x):
            y = self.first(x)
            return torch.cat([y[:, :1] * 1e6, y[:, 1:9], y[:, 9:] * self.factor], 1)

    assert check(Loud(), lambda one: setattr(one, "factor", 1.01), torch.randn(8, 16)).exit_code == 1


# G: NaN on both sides


def test_a_row_of_nan_on_both_sides_is_not_green(tmp_path):
    x = normal(8, 8)
    x[3] = np.nan
    assert code(tmp_path, {"fwd a": x}, {"fwd a": x}).exit_code == 2


def test_a_stage_that_is_partly_nan_on_both_sides_is_not_green(tmp_path):
    values = np.array([1, np.nan, 3], np.float32)
    paths = [write_stage_file(tmp_path / side, 0, "ffn_out", values) for side in "ab"]
    assert diff_stage_files(*paths).exit_code == 2


def test_check_tells_of_nan_on_both_sides():
    seeded()
    model = nn.Linear(4, 4)
    x = torch.randn(3, 4)
    x[1, 2] = float("nan")
    assert check(model, lambda one: None, x).exit_code == 2


# H: nothing was decided otherwise where the forward is the same


def test_gradients_that_are_dropped_at_a_clamp_are_no_flip(tmp_path):
    x = normal(32, 16)
    x[:4] = 0.0
    flow = normal(32, 16, seed=1)
    back = flow * (x >= 0)
    other = flow * (x > 0)
    ours = {"fwd c:in.0": x, "fwd c": (np.maximum(x, 0), {"op": "ReLU"}), "agrad c": flow, "agrad before": back}
    assert code(tmp_path, ours, {**ours, "agrad before": other}).exit_code


# I: a limit of 1 or more


def test_an_attention_in_eight_bits_that_is_negated_is_not_green(tmp_path):
    x = normal(4, 64).astype(F8)
    ours = {"fwd attn": (x, {"op": "SelfAttention"})}
    assert code(tmp_path, ours, {"fwd attn": (-x, {"op": "SelfAttention"})}).exit_code


# J: amplified noise


def test_a_gradient_is_not_off_by_a_half_because_its_logits_are_one_ulp_off(tmp_path):
    logits = normal(16, 10)
    near = np.nextafter(logits, np.inf, dtype=np.float32)
    shifted = np.exp(logits - logits.max(1, keepdims=True))
    grad = (shifted / shifted.sum(1, keepdims=True) - np.eye(10, dtype=np.float32)[np.arange(16) % 10]) / 16
    wrong = grad.copy()
    wrong[3] *= 0.6
    ours = {"fwd head": logits, "lossgrad loss": (grad, {"producers": [fd.Site(0, "fwd", "head", "out")]})}
    theirs = {"fwd head": near, "lossgrad loss": (wrong, {"producers": [fd.Site(0, "fwd", "head", "out")]})}
    assert code(tmp_path, ours, theirs).exit_code


def test_check_does_not_call_half_a_gradient_amplified():
    seeded()

    class Halved(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * (1 + 2**-23)

        @staticmethod
        def backward(ctx, grad):
            return grad * 0.5

    def change(model):
        first = model[0]
        with_forward(first, lambda self, x: Halved.apply(functional.linear(x, self.weight, self.bias)))

    result = check(
        nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3)), change, torch.randn(8, 6),
        loss_fn=nn.functional.cross_entropy, target=torch.randint(0, 3, (8,)),
    )  # fmt: skip
    assert result.exit_code == 1


# K: the scale of a predecessor


@pytest.mark.parametrize("op", ["Flatten", "AvgPool1d", "Dropout", "Concat"])
def test_a_small_tensor_behind_a_large_one_has_its_own_size(tmp_path, op):
    before = normal(16, 16) * np.float32(1e6)
    y = normal(16, 16, seed=3)
    details = {"op": op, "producers": [fd.Site(0, "fwd", "a", "out")]}
    ours = {"fwd a": before, "fwd b": (y, details)}
    assert code(tmp_path, ours, {**ours, "fwd b": (y * np.float32(1.1), details)}).exit_code


def test_zero_on_one_side_and_two_on_the_other(tmp_path):
    before = normal(8, 8) * np.float32(1e5)
    ours = {"fwd a": before, "fwd b": (np.zeros((8, 8), np.float32), {"op": "Identity"})}
    theirs = {"fwd a": before, "fwd b": (np.full((8, 8), 2, np.float32), {"op": "Identity"})}
    assert code(tmp_path, ours, theirs).exit_code


# L: updates that are off


@pytest.mark.parametrize(("dtype", "rate"), [(BF16, 0.02), (np.float32, 1e-6)])
def test_a_rate_that_is_a_third_too_large_is_not_green(tmp_path, dtype, rate):
    before, grad = normal(256, 256).astype(dtype), normal(256, 256, seed=1).astype(dtype)
    after = [
        (before.astype(np.float64) - factor * rate * grad.astype(np.float64)).astype(dtype) for factor in (1.0, 1.33)
    ]
    ours = {"weight w": before, "grad w": grad, "weight_after w": after[0]}
    assert code(tmp_path, ours, {**ours, "weight_after w": after[1]}).exit_code


# M: single elements in short formats


@pytest.mark.parametrize("dtype", [BF16, np.float16, F8])
def test_one_element_of_a_short_format_is_seen(tmp_path, dtype):
    x = normal(256, 256).astype(dtype)
    y = x.copy()
    y[100, 200] = dtype(np.float32(y[100, 200]) + (8 if dtype is F8 else 2))
    details = {"op": "LayerNorm"}
    assert code(tmp_path, {"fwd n": (x, details)}, {"fwd n": (y, details)}).exit_code


# N: coverage


def test_a_gradient_where_the_reference_says_there_is_none(tmp_path):
    x = normal(4, 4)
    ours = {"fwd a": x, "grad a": x, "grad b": None}
    assert code(tmp_path, ours, {"fwd a": x, "grad a": x, "grad b": x}).exit_code == 1


def test_a_module_that_is_skipped_on_one_side(tmp_path):
    x = normal(4, 4)
    assert code(tmp_path, {"fwd a": x, "fwd b": x, "fwd c": x}, {"fwd a": x, "fwd c": x}).exit_code == 2


# O: another shape of the same rows


@pytest.mark.parametrize("shape", [(64, 512), (1, 64, 512), (4, 16, 512), (2, 2, 16, 512)])
def test_an_eps_is_seen_in_rows_of_any_rank(tmp_path, shape):
    x = normal(*shape) * np.float32(0.3)
    x64 = x.astype(np.float64)
    centred = x64 - x64.mean(-1, keepdims=True)
    sides = [(centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps)).astype(np.float32) for eps in (1e-5, 2e-5)]
    ours, theirs = ({"fwd n:in.0": x, "fwd n": (y, {"op": "LayerNorm", "attrs": {"axes": 1}})} for y in sides)
    assert code(tmp_path, ours, theirs).exit_code


# P: settings


@pytest.mark.parametrize(("op", "key", "values"), [
    ("Softmax", "dim", (1, 0)), ("LeakyReLU", "negative_slope", (0.01, 0.0100001)), ("Linear", "softcap", (30.0, 50.0)),
])  # fmt: skip
def test_another_setting_is_not_green_although_the_bits_are_equal(tmp_path, op, key, values):
    x = np.abs(normal(4, 4))
    y = np.full((4, 4), 0.25, np.float32) if op == "Softmax" else x
    x = np.zeros_like(x) if op == "Softmax" else x
    sides = ({"fwd n:in.0": x, "fwd n": (y, {"op": op, "attrs": {key: value}})} for value in values)
    assert code(tmp_path, *sides).exit_code


def test_another_train_flag_of_a_batch_norm_is_not_green():
    seeded()
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8, momentum=0.1))
    result = check(model, lambda one: setattr(one[1], "momentum", 0.1001), torch.randn(64, 8), train=True)
    assert result.exit_code == 1


# Q: acquittals


class Container(nn.Module):
    def __init__(self, wrong=False):
        super().__init__()
        self.up, self.down, self.wrong = nn.Linear(8, 16), nn.Linear(16, 8), wrong

    def forward(self, x):
        y = torch.relu(self.up(x))
        y = y * 1.01 if self.wrong else y
        return self.down(y)


@pytest.fixture
def contained(tmp_path):
    for name, wrong in (("a", False), ("b", True)):
        seeded()
        model = nn.Sequential(Container(wrong), nn.Linear(8, 4))
        with fd.trace(model, tmp_path / name, program=True):
            model(torch.randn(16, 8, generator=seeded(3)))
    return tmp_path


def test_a_container_whose_parts_are_right_is_not_acquitted(contained):
    from firstdrift.compare.comparison import align_traces
    from firstdrift.judge.isolation import isolate

    opened = align_traces(contained / "a", contained / "b")
    assert isolate(opened.reference, opened.candidate, opened.alignment, "0").exit_code == 1
    assert fd.diff(contained / "a", contained / "b").exit_code == 1


def test_power_refuses_what_isolate_blames(contained):
    with pytest.raises(fd.SelectionError, match="differ beyond noise"):
        fd.power(contained / "a", contained / "b")


def test_a_table_that_nothing_compared_was_computed_with_is_not_acquitted(tmp_path):
    table = (1e4 ** (-np.arange(16) / 16)).astype(np.float32)
    x = normal(4, 4)
    ours = {"weight rotary:inv_freq": table, "fwd a": x}
    assert code(tmp_path, ours, {**ours, "weight rotary:inv_freq": table * np.float32(0.9)}).exit_code == 1


# R: sampled steps


def test_a_wrong_update_between_sampled_steps_is_blamed_on_the_updates(tmp_path):
    first, later = normal(8, 8), normal(8, 8, seed=1)
    ours = {"0/weight w": first, "50/weight w": later}
    result = code(tmp_path, ours, {**ours, "50/weight w": later * np.float32(0.99)})
    assert result.exit_code == 1
    assert result.first_drift.introduced_by == "the updates between steps 0 and 50"


# S: maps that load and are wrong


def test_no_map_is_suggested_that_guesses_by_shapes(tmp_path):
    seeded()
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
    given = {
        f"layer{n}.{port}": normal(*shape, seed=n) for n in (0, 1) for port, shape in (("kernel", (6, 6)), ("b", (6,)))
    }
    with pytest.raises(fd.FirstdriftError) as told:
        fd.load_weights(model, given)
    text = str(told.value)
    assert "0.weight: layer1" not in text
    assert "2.weight: layer0" not in text
