"""What no hypothesis knows is named by changing one thing in the reference's own code."""

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

import firstdrift as fd
from firstdrift.live import explaining
from firstdrift.live.rewriting import program, search
from firstdrift.live.rewriting.expansions import EXPANSIONS


@pytest.fixture(autouse=True)
def _no_other_hypothesis(monkeypatch):
    """Nothing but rewriting explains anything here."""
    monkeypatch.setattr(explaining, "TABLE", ())


class Block(nn.Module):
    """Attention with everything between its projections and its output, in code that no formula describes: the
    probabilities are bent at the end."""

    def __init__(self, **settings):
        super().__init__()
        self.q, self.k, self.v, self.o = nn.Linear(32, 32), nn.Linear(32, 16), nn.Linear(32, 16), nn.Linear(32, 32)
        self.slopes = nn.Parameter(torch.tensor([0.5, 0.25, 0.125, 0.0625]))
        self.set = {
            "theta": 1e4, "eps": 1e-6, "scale": 8**-0.5, "cap": 20.0, "window": 5, "tiled": False, "first": 0,
            "halves": True, "slope": 1.0, "unmasked": False, "mixed": False,
        } | settings  # fmt: skip

    def normed(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.set["eps"])

    def turned(self, x):
        pos = torch.arange(x.shape[2]) + self.set["first"]
        f = torch.outer(pos.float(), self.set["theta"] ** (-torch.arange(0, 8, 2).float() / 8))
        cos, sin = f.cos(), f.sin()
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def forward(self, x):
        n, t, _ = x.shape
        q, k, v = self.q(x).view(n, t, -1, 8), self.k(x).view(n, t, -1, 8), self.v(x).view(n, t, -1, 8)
        if self.set["mixed"]:  # heads and features of queries and keys
            q, k = self.q(x).view(n, t, 8, -1).mT, self.k(x).view(n, t, 8, -1).mT
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        if not self.set["halves"]:  # pairs are neighbours
            q, k = (torch.cat([one[..., ::2], one[..., 1::2]], -1) for one in (q, k))
        q, k = self.turned(self.normed(q)), self.turned(self.normed(k))
        k, v = (one.repeat(1, 2, 1, 1) if self.set["tiled"] else one.repeat_interleave(2, 1) for one in (k, v))
        scores = self.set["cap"] * torch.tanh(q @ k.mT * self.set["scale"] / self.set["cap"])
        i, j = torch.arange(t)[:, None], torch.arange(t)[None]
        scores = scores - self.set["slope"] * self.slopes[:, None, None] * (i - j).abs()
        seen = (j <= i) & (i - j < self.set["window"])
        scores = scores if self.set["unmasked"] else scores.masked_fill(~seen, float("-inf"))
        weights = scores.softmax(-1) ** 1.5
        return self.o((weights @ v).transpose(1, 2).reshape(n, t, 32))


def checked(reference, candidate, *shape, **options):
    torch.manual_seed(1)
    candidate.load_state_dict(reference.state_dict())
    return fd.check(reference=reference, candidate=candidate, inputs=torch.randn(*shape), **options)


@pytest.mark.parametrize(
    ("settings", "label", "said"),
    [
        ({"tiled": True}, "gqa-order", "repeated"),
        ({"scale": 0.5}, "attention-scale", "0.5 instead of 0.353553"),
        ({"cap": 30.0}, "softcap", "30 instead of 20"),
        ({"window": 4}, "window-off-by-one", "4 instead of 5"),
        ({"theta": 5e5}, "rope-theta", "500000 instead of 10000"),
        ({"eps": 1e-3}, "norm-eps", "0.001 instead of 1e-06"),
        ({"halves": False}, "rope-interleave", ""),
        ({"slope": 3.0}, "alibi-slope", "3 instead of 1"),
        ({"mixed": True}, "head-permutation", "and 1 more"),
        ({"unmasked": True}, "mask-missing", "not applied"),
    ],
)
def test_one_change_inside_an_unknown_attention_is_named(settings, label, said):
    cause = checked(Block(), Block(**settings), 2, 9, 32).first_drift.cause
    assert cause.label == label
    assert said in cause.sentence


def test_the_sentence_names_the_line_of_the_reference():
    cause = checked(Block(), Block(cap=30.0), 2, 9, 32).first_drift.cause
    lines = Path(__file__).read_text("utf-8").splitlines()
    line = next(n for n, text in enumerate(lines, 1) if "torch.tanh(q @" in text)
    assert f"test_rewriting.py:{line}" in cause.sentence


def test_a_change_that_no_rewrite_makes_stays_unknown():
    class Other(Block):
        def normed(self, x):
            return super().normed(x) + 0.1 * torch.sin(3 * x.cumsum(-1))

    assert checked(Block(), Other(), 2, 9, 32).first_drift.cause.label == "unknown"


def test_of_a_long_program_the_end_is_kept(monkeypatch):
    """Both blocks make 510 kB; what is kept holds one."""
    monkeypatch.setattr(program, "MOST_KEPT", 350_000)
    reference = nn.Sequential(Block(), Block())
    candidate = nn.Sequential(Block(), Block(cap=30.0))
    first_drift = checked(reference, candidate, 2, 9, 32).first_drift
    assert (first_drift.name, first_drift.cause.label) == ("1.o", "softcap")


def test_a_large_tensor_is_not_searched_and_a_smaller_batch_proposed(monkeypatch):
    monkeypatch.setattr(search, "LARGE", 100)
    monkeypatch.setattr(explaining, "LARGE", 100)
    cause = checked(Block(), Block(cap=30.0), 2, 9, 32).first_drift.cause
    assert cause.label == "unknown"
    assert "check a smaller batch" in cause.confirm


class Made(nn.Module):
    """A module of one function."""

    def __init__(self, function):
        super().__init__()
        self.first = nn.Linear(16, 16)
        self.function = function
        self.last = nn.Linear(16, 16)
        self.gain = nn.Parameter(torch.rand(16) + 0.5)
        self.bias = nn.Parameter(torch.randn(16))

    def forward(self, x):
        return self.last(self.function(self, self.first(x)))


def gated(a, b):
    return torch.cat([a.exp() * b, a + b], -1)


def _written_to(m, x, factor):
    out = torch.zeros_like(x)
    out[:, :8] = x[:, :8] * factor
    out[:, 8:] = x[:, 8:].tanh()
    out += m.bias
    return out


def _read_and_written_to(m, x, factor):
    out = x.exp()
    read = (out * factor).log1p()
    out += m.bias
    return read * out


@pytest.mark.parametrize(
    ("reference", "candidate", "label"),
    [
        (lambda m, x: x.tanh() + m.bias, lambda m, x: x.tanh(), "missing-bias"),
        (lambda m, x: x.tanh() + m.bias, lambda m, x: x.tanh() + 2 * m.bias, "double-bias"),
        (lambda m, x: F.silu(x).sin() * m.gain, lambda m, x: F.gelu(x).sin() * m.gain, "activation-variant"),
        (lambda m, x: x.sin() * m.gain, lambda m, x: x.sin() * (1 + m.gain), "norm-plus-one"),
        (lambda m, x: F.layer_norm(x, (16,), m.gain).sin(), lambda m, x: F.rms_norm(x, (16,), m.gain, 1e-5).sin(),
         "rms-vs-layernorm"),
        (lambda m, x: F.layer_norm(x, (16,)).sin(), lambda m, x: F.layer_norm(x, (16,), eps=1e-2).sin(), "norm-eps"),
        (lambda m, x: F.layer_norm(x, (16,)).sin(), lambda m, x: x.sin(), "norm-missing"),
        (lambda m, x: F.layer_norm(x, (16,), m.gain).sin(),
         lambda m, x: (F.layer_norm(x.view(-1, 4, 4), (4,)).view(-1, 16) * m.gain).sin(), "norm-axis"),
        (lambda m, x: gated(*x.chunk(2, -1)), lambda m, x: gated(*x.chunk(2, -1)[::-1]), "swapped-halves"),
        (lambda m, x: x.view(-1, 4, 4).transpose(1, 2).reshape(-1, 16).sin(), lambda m, x: x.sin(), "axis-order"),
        (lambda m, x: (x.round() * 3).sin(), lambda m, x: (x.floor() * 3).sin(), "rounding-mode"),
        (lambda m, x: x.clamp(-1, 1).sin(), lambda m, x: x.clamp(-0.5, 1).sin(), "clamp"),
        (lambda m, x: (x.exp() / x.exp().sum(-1, keepdim=True)).sin(), lambda m, x: (x.exp() / x.exp().sum(0)).sin(),
         "norm-axis"),
        (lambda m, x: (x * x.var(-1, keepdim=True)).sin(), lambda m, x: (x * x.var(-1, False, keepdim=True)).sin(),
         "batchnorm-unbiased"),
        (lambda m, x: (x.sin() * 3).exp().log1p(), lambda m, x: (x.half().sin().to(x.dtype) * 3).exp().log1p(),
         "dtype-rounding"),
        (lambda m, x: x.relu().mul(2).add(1).sin(), lambda m, x: x.mul(2).relu().add(3).sin(), "offset"),
        (lambda m, x: (x > 0.1) * x.exp(), lambda m, x: (x > -0.1) * x.exp(), "offset"),
        (lambda m, x: _written_to(m, x, 2), lambda m, x: _written_to(m, x, 3), "scale"),
        (lambda m, x: _read_and_written_to(m, x, 2), lambda m, x: _read_and_written_to(m, x, 3), "scale"),
        (lambda m, x: x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * m.gain,
         lambda m, x: F.rms_norm(x.view(-1, 4, 4), (4,), eps=1e-6).view(-1, 16) * m.gain, "norm-axis"),
    ],
)  # fmt: skip
def test_one_change_of_one_call_is_named(reference, candidate, label):
    cause = checked(Made(reference), Made(candidate), 24, 16).first_drift.cause
    assert cause.label == label, cause.sentence


class Image(nn.Module):
    """A module that works on images."""

    def __init__(self, function):
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.function = function
        self.last = nn.Conv2d(4, 2, 1)

    def forward(self, x):
        return self.last(self.function(self.first(x)))


@pytest.mark.parametrize(
    ("reference", "candidate", "label"),
    [
        (lambda x: F.interpolate(x, size=(5, 5), mode="bilinear", antialias=True).sin(),
         lambda x: F.interpolate(x, size=(5, 5), mode="bilinear").sin(), "interpolation"),
        (lambda x: F.pad(x, (0, 1, 0, 1)).sin(), lambda x: F.pad(x, (1, 0, 1, 0)).sin(), "padding"),
        (lambda x: F.pad(x, (1, 1, 0, 0), mode="reflect").sin(), lambda x: F.pad(x, (1, 1, 0, 0)).sin(), "padding"),
        (lambda x: F.avg_pool2d(x, 3, 2, 1).sin(), lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False).sin(),
         "pool-count-pad"),
        (lambda x: F.group_norm(x, 2).sin(), lambda x: F.group_norm(x, 4).sin(), "norm-axis"),
    ],
)  # fmt: skip
def test_images_treated_otherwise_are_named(reference, candidate, label):
    assert checked(Image(reference), Image(candidate), 2, 3, 8, 8).first_drift.cause.label == label


def test_a_tensor_that_several_modules_around_are_handed_is_followed_to_where_it_was_made():
    class Inner(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(16)

        def forward(self, x):
            return self.norm(x)

    class Outer(nn.Module):
        def __init__(self, factor):
            super().__init__()
            self.inner, self.first, self.factor = Inner(), nn.Linear(16, 16), factor

        def forward(self, x):
            return self.inner((self.first(x).sin() * self.factor + 1).cos())

    result = checked(Outer(2.0), Outer(3.0), 24, 16)
    assert (result.first_drift.name, result.first_drift.port) == ("inner.norm", "in.0")
    assert result.first_drift.cause.label == "scale"


def test_one_number_is_not_fitted_to_one_number():
    """A factor explains any scalar: it says nothing."""

    def other_loss(output):
        return (output.abs() ** 1.3).mean()

    made = Made(lambda m, x: x)
    result = fd.check(
        reference=made, candidate=made, inputs=torch.randn(24, 16), loss_fn=lambda out: out.pow(2).mean(),
        candidate_loss_fn=other_loss,
    )  # fmt: skip
    assert result.first_drift.phase == "loss"
    assert result.first_drift.cause.label not in ("scale", "reduction-scale", "offset")


def test_a_mean_that_is_a_sum_is_the_divisor_of_a_loss():
    made = Made(lambda m, x: x)
    result = fd.check(
        reference=made, candidate=made, inputs=torch.randn(24, 16), loss_fn=lambda out: out.pow(2).mean(-1).mean(0),
        candidate_loss_fn=lambda out: out.pow(2).mean(-1).sum(0),
    )  # fmt: skip
    assert result.first_drift.cause.label == "reduction-scale"


def test_nan_is_not_explained_by_a_change_that_spoils_everything():
    seen = torch.ones(16, 16, dtype=torch.bool).tril()

    def attended(m, x):
        return (x @ x.mT).masked_fill(~seen, float("-inf")).softmax(-1) ** 1.5

    reference, candidate = Made(attended), Made(lambda m, x: attended(m, x) * float("nan"))
    assert checked(reference, candidate, 16, 16).first_drift.cause.label == "nan-origin"


def test_a_change_that_makes_some_of_it_nan_is_named():
    reference, candidate = Made(lambda m, x: (x.abs() + 0.5).sqrt()), Made(lambda m, x: (x + 0.5).sqrt())
    assert checked(reference, candidate, 24, 16).first_drift.cause.label == "skipped-op"


def test_looking_for_a_change_leaves_threads_and_random_numbers_alone():
    reference = Made(lambda m, x: F.dropout(x, 0.5).exp() * 2)
    candidate = Made(lambda m, x: F.dropout(x, 0.5).exp() * 3)
    candidate.load_state_dict(reference.state_dict())
    inputs, threads = torch.randn(24, 16), torch.get_num_threads()
    before = torch.get_rng_state()
    torch.set_num_threads(2)
    try:
        result = fd.check(reference=reference, candidate=candidate, inputs=inputs, train=True)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert result.first_drift.cause.label == "scale"
    assert torch.equal(torch.get_rng_state(), before)


_SPREAD = torch.Generator().manual_seed(5)


def _numbers(*shape):
    return torch.randn(*shape, generator=_SPREAD, dtype=torch.float64)


@pytest.mark.parametrize(
    ("name", "function", "given"),
    [
        ("layer_norm", F.layer_norm, (_numbers(4, 3, 8), (3, 8), _numbers(3, 8), _numbers(3, 8), 1e-3)),
        ("rms_norm", F.rms_norm, (_numbers(4, 8), (8,), _numbers(8))),
        ("group_norm", F.group_norm, (_numbers(2, 6, 5, 5), 3, _numbers(6), _numbers(6))),
        ("batch_norm", F.batch_norm, (_numbers(4, 3, 5), _numbers(3), _numbers(3).abs(), _numbers(3), _numbers(3))),
        ("batch_norm", F.batch_norm, (_numbers(4, 3, 5), None, None, None, None, True)),
        ("linear", F.linear, (_numbers(4, 8), _numbers(3, 8), _numbers(3))),
        ("normalize", F.normalize, (_numbers(4, 8),)),
        ("normalize", F.normalize, (_numbers(4, 8), 1.0, 0)),
        ("silu", F.silu, (_numbers(4, 8),)),
        ("cross_entropy", F.cross_entropy, (_numbers(4, 8), torch.tensor([1, 7, -100, 2]))),
        ("scaled_dot_product_attention", F.scaled_dot_product_attention,
         (_numbers(2, 4, 5, 8), _numbers(2, 4, 5, 8), _numbers(2, 4, 5, 8), None, 0.0, True)),
        ("scaled_dot_product_attention", F.scaled_dot_product_attention,
         (_numbers(2, 4, 5, 8), _numbers(2, 4, 6, 8), _numbers(2, 4, 6, 8), _numbers(5, 6))),
    ],
)  # fmt: skip
def test_what_an_operation_consists_of_computes_the_same(name, function, given):
    torch.testing.assert_close(EXPANSIONS[name](*given), function(*given), rtol=1e-12, atol=1e-12)


def test_grouped_attention_consists_of_repeated_heads():
    q, k, v = _numbers(2, 4, 5, 8), _numbers(2, 2, 5, 8), _numbers(2, 2, 5, 8)
    expected = F.scaled_dot_product_attention(q, k, v, enable_gqa=True, scale=0.2)
    found = EXPANSIONS["scaled_dot_product_attention"](q, k, v, enable_gqa=True, scale=0.2)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert math.isfinite(float(found.sum()))
