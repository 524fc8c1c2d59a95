"""The ladder's numbers are those that real arithmetic shows, and an error is named only where it sits on a rung."""

import numpy as np
import pytest

import firstdrift as fd
from firstdrift.judge.apriori import ladder

from .rounding import accumulated, bf16, e4m3, error, f16, grid, product, tf32

LENGTHS = (64, 256, 1024, 4096)


def operands(length, kind="normal", seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((96, length)).astype(np.float32)
    x = {"normal": x, "after a relu": np.maximum(x, 0), "pixels": np.abs(x) / 3}[kind]
    return x, (rng.standard_normal((80, length)) / np.sqrt(length)).astype(np.float32)


both = "normal", "after a relu", "pixels"


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("kind", both)
@pytest.mark.parametrize(
    ("rounding", "name"),
    [
        (tf32, "TF32 or float16 operands"), (f16, "TF32 or float16 operands"), (bf16, "bfloat16 operands"),
        (e4m3, "float8 (e4m3) operands"),
    ],
)  # fmt: skip
def test_rounded_operands_sit_on_the_rung_of_their_format(length, kind, rounding, name):
    x, w = operands(length, kind)
    found = error(product(rounding(x), rounding(w)), product(x, w))
    assert str(ladder.rung(found, length, "f32")) in (name, f"one {name[:-1]}")  # whose bands overlap


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize(
    ("rounding", "name"), [(grid(127), "int8 weights"), (grid(7, 32), "int4 weights in groups of 32")]
)
def test_weights_on_a_grid_sit_on_its_rung(length, rounding, name):
    x, w = operands(length)
    found = ladder.rung(error(product(x, rounding(w)), product(x, w)), length, "f32")
    assert (found.name, found.label) == (name, "quantisation")


@pytest.mark.parametrize("chunk", [1, 16])
@pytest.mark.parametrize(("rounding", "word"), [(f16, "float16 accumulator"), (bf16, "bfloat16 accumulator")])
def test_a_short_accumulator_is_claimed_from_the_growth_of_its_error_alone(rounding, word, chunk):
    lengths = (64, 256, 1024)
    pairs = [operands(length) for length in lengths]
    errors = [error(accumulated(x, w, rounding, chunk), product(x, w)) for x, w in pairs]
    found = ladder.rung(errors, lengths, "f32")
    assert (found.name.startswith(word), found.label) == (True, "accumulator-precision")
    assert all((one := ladder.rung(e, n, "f32")) is None or not one.grows for e, n in zip(errors, lengths, strict=True))


def test_several_sites_must_all_sit_on_the_rung():
    assert ladder.rung([2.9e-4, 3.0e-4], [64, 4096], "f32").name == "TF32 or float16 operands"
    assert ladder.rung([2.9e-4, 1e-7], [64, 64], "f32") is None
    assert ladder.rung([2.9e-4, 2.3e-3], [64, 64], "f32") is None


@pytest.mark.parametrize(
    ("found", "dtype"),
    [(1e-6, "f32"), (3e-5, "f32"), (8e-4, "f32"), (2.9e-4, "f16"), (2.3e-3, "bf16"), (0.3, "f32"), (0.0, "f32"),
     (float("nan"), "f32"), (float("inf"), "f32"), (2.9e-4, "i64")],
)  # fmt: skip
def test_between_rungs_and_below_the_declared_one_nothing_is_named(found, dtype):
    assert ladder.rung(found, 256, dtype) is None


def test_float64_that_was_computed_in_float32_is_named():
    x, w = (a.astype(np.float64) for a in operands(256))
    found = error((x.astype(np.float32) @ w.T.astype(np.float32)).astype(np.float64), x @ w.T)
    assert ladder.rung(found, 256, "f64").name == "float32 arithmetic"


def test_the_numbers_of_one_rounding_follow_from_each_other():
    assert pytest.approx(ladder.STORE * 2**0.5, rel=0.02) == ladder.OPERANDS
    assert pytest.approx(ladder.STORE / 2**0.5, rel=0.05) == ladder.ACCUMULATED
    values = np.random.default_rng(0).standard_normal(100_000).astype(np.float32)
    assert error(bf16(values), values) == pytest.approx(ladder.stored(2.0**-8), rel=0.05)


@pytest.mark.parametrize("kind", ladder.LONG_FLOOR)
@pytest.mark.parametrize("unit", [2.0**-24, 2.0**-8])
def test_limits_leave_clean_floors_room(kind, unit):
    assert 2.4 * ladder.floor(kind, unit) <= ladder.local_limit(unit, 1, kind, 10_000)


# The same in a comparison.


def network(path, rounding=lambda a: a, act=lambda a: np.maximum(a, 0), tamper=lambda h: h, cells=("a", "b")):
    """Two products of the same input, an activation each, and a product of their sum."""
    x, wa = operands(64)
    wb, wc = operands(64, seed=1)[1], operands(80, seed=2)[1][:32]
    with fd.Writer(path) as t:
        t.put("input", "input", x, port="x")
        outs = []
        for name, w in zip(cells, (wa, wb), strict=True):
            h = tamper(product(rounding(x), rounding(w)))
            t.put(f"fc_{name}", "weight", w)
            t.put(f"fc_{name}", "fwd", h, op="Linear", producers=[fd.Site(0, "input", "input", "x")])
            outs.append(act(h))
            t.put(f"act_{name}", "fwd", outs[-1], op="ReLU", producers=[f"fc_{name}"])
        s = outs[0] + outs[1]
        t.put("fc_c", "weight", wc)
        t.put("fc_c", "fwd", product(rounding(s), rounding(wc)), op="Linear", producers=["act_a", "act_b"])
    return path


def compared(tmp_path, **candidate):
    return fd.diff(network(tmp_path / "r"), network(tmp_path / "c", **candidate))


@pytest.mark.parametrize(
    ("rounding", "word"), [(tf32, "TF32 or float16"), (f16, "TF32 or float16"), (bf16, "bfloat16")]
)
def test_products_in_a_coarser_format_are_a_matter_of_precision(tmp_path, rounding, word):
    result = compared(tmp_path, rounding=rounding)
    verdicts = {pair.site.name: str(pair.verdict) for pair in result.pairs if pair.site.phase == "fwd"}
    assert verdicts == {
        "fc_a": "precision", "fc_b": "drift", "act_a": "inherited", "act_b": "inherited", "fc_c": "inherited",
    }  # fmt: skip
    assert (result.first_drift.name, result.first_drift.cause.label, result.exit_code) == ("fc_a", "dtype-rounding", 1)
    assert f"{word} operand" in result.first_drift.sentence
    assert "though declared f32" in result.first_drift.sentence


def size_of_tf32():
    """The error of a TF32 product of this network, which other mistakes are made as large as."""
    x, w = operands(64)
    exact = product(x, w)
    return error(product(tf32(x), tf32(w)), exact), float(np.sqrt(np.mean(exact**2)))


@pytest.mark.parametrize("mistake", ["scale", "missing bias", "one row", "a scale a channel", "offset", "one channel"])
def test_other_mistakes_of_the_size_of_a_rung_are_drifts(tmp_path, mistake):
    size, rms = size_of_tf32()
    rng = np.random.default_rng(3)

    def tamper(h):
        n, m = h.shape
        change = {
            "scale": h * size,
            "missing bias": np.broadcast_to(rng.standard_normal(m) * size * rms, h.shape),
            "one row": np.where(np.arange(n)[:, None] == 3, rng.standard_normal(m) * size * rms * n**0.5, 0),
            "a scale a channel": h * rng.standard_normal(m) * size,
            "offset": np.full(h.shape, size * rms),
            "one channel": np.where(np.arange(m) == 5, rng.standard_normal((n, 1)) * size * rms * m**0.5, 0),
        }[mistake]
        return (h + change).astype(np.float32)

    result = compared(tmp_path, tamper=tamper)
    (pair,) = (pair for pair in result.pairs if (pair.site.phase, pair.site.name) == ("fwd", "fc_a"))
    assert (str(pair.verdict), ladder.rung(pair.error, 64, "f32").dtype) == ("drift", "f16")


def test_one_product_of_several_on_a_rung_is_a_drift(tmp_path):
    calls = iter(range(10))
    result = compared(tmp_path, rounding=lambda a: tf32(a) if next(calls) < 2 else a)
    assert [str(pair.verdict) for pair in result.pairs if pair.site.name == "fc_a"] == ["same", "drift"]


def test_an_activation_that_went_wrong_too_leaves_precision_unclaimed(tmp_path):
    x = np.random.default_rng(5).standard_normal((96, 64)).astype(np.float32)
    for side, rounding, slope in (("r", lambda a: a, 0.0), ("c", tf32, 1e-3)):
        w = operands(64)[1]
        with fd.Writer(tmp_path / side) as t:
            t.put("input", "input", x, port="x")
            t.put("act", "fwd", np.where(x > 0, x, slope * x).astype(np.float32), op="LeakyReLU",
                  producers=[fd.Site(0, "input", "input", "x")])  # fmt: skip
            t.put("fc", "fwd", product(rounding(x), rounding(w)), op="Linear",
                  producers=[fd.Site(0, "input", "input", "x")])  # fmt: skip
    result = fd.diff(tmp_path / "r", tmp_path / "c")
    assert [str(pair.verdict) for pair in result.pairs] == ["same", "drift", "drift"]


UNIT = {"f32": 2.0**-24, "f64": 2.0**-53}


def allowed(dtype="f32", length=64, kind="linear", count=10**6):
    """What an operation may add, in units of roundoff."""
    return ladder.local_limit(UNIT[dtype], length, kind, count) / UNIT[dtype]


def test_attention_and_long_sums_may_err_twice_as_much():
    assert allowed(kind="attention") == 2 * allowed()
    assert allowed(length=8193) == pytest.approx(2 * allowed(length=8192), rel=1e-3)


def test_no_sum_is_so_long_that_tf32_passes_for_float32():
    assert allowed(length=1 << 30) == allowed(length=1 << 16)
    assert allowed(length=1 << 30) * UNIT["f32"] < ladder.RUNGS[1].error(1)  # that of TF32


def test_few_elements_may_scatter_and_float64_may_be_far_from_its_roundoff():
    assert allowed(count=5) > allowed(count=500) > allowed(count=5000) == allowed()
    assert allowed("f64") > 10 * allowed()


@pytest.mark.parametrize("times", [0.65, 1.35])
def test_an_error_beside_a_rung_is_not_named(times):
    coarsest = max(one.error(1024) for one in ladder.ATTENTION_RUNGS)
    assert ladder.rung(coarsest, 1024, "f32", ladder.ATTENTION_RUNGS) is not None
    assert ladder.rung(times * coarsest, 1024, "f32", ladder.ATTENTION_RUNGS) is None
