"""What an operation may add: by its dtype, its kind, the terms it sums and the elements it makes."""

import numpy as np
import pytest
from tests.judge.rounding import bf16, f16, product, tf32

import firstdrift as fd
from firstdrift.judge.apriori import ladder

UNIT = {"f32": 2.0**-24, "f64": 2.0**-53}


def allowed(dtype="f32", length=64, kind="linear", count=10**6):
    """What an operation may add, in units of roundoff."""
    return ladder.local_limit(UNIT[dtype], length, kind, count) / UNIT[dtype]


def test_attention_and_long_sums_may_err_twice_as_much():
    assert allowed(kind="attention") == 2 * allowed()
    assert allowed(length=8193) == pytest.approx(2 * allowed(length=8192), rel=1e-3)


def test_no_sum_is_so_long_that_tf32_passes_for_float32():
    assert allowed(length=1 << 30) == allowed(length=1 << 16)
    assert allowed(length=1 << 30) * UNIT["f32"] < 0.59 * 2.0**-11  # what a product of rounded operands is off by


def test_few_elements_may_scatter_and_float64_may_be_far_from_its_roundoff():
    assert allowed(count=5) > allowed(count=500) > allowed(count=5000) == allowed()
    assert allowed("f64") > 10 * allowed()


def network(path, rounding=lambda a: a):
    """Two products of the same input, an activation each, and a product of their sum."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((96, 64)).astype(np.float32)
    wa, wb, wc = ((rng.standard_normal((80, n)) / np.sqrt(n)).astype(np.float32) for n in (64, 64, 80))
    with fd.Writer(path) as t:
        t.put("input", "input", x, port="x")
        outs = []
        for name, w in (("a", wa), ("b", wb)):
            h = product(rounding(x), rounding(w))
            t.put(f"fc_{name}", "weight", w)
            t.put(f"fc_{name}", "fwd", h, op="Linear", producers=[fd.Site(0, "input", "input", "x")])
            outs.append(np.maximum(h, 0))
            t.put(f"act_{name}", "fwd", outs[-1], op="ReLU", producers=[f"fc_{name}"])
        s = outs[0] + outs[1]
        t.put("fc_c", "weight", wc)
        t.put("fc_c", "fwd", product(rounding(s), rounding(wc)), op="Linear", producers=["act_a", "act_b"])
    return path


@pytest.mark.parametrize(("rounding", "word"), [(tf32, "f16"), (f16, "f16"), (bf16, "bf16")])
def test_products_in_a_coarser_format_are_named_as_such(tmp_path, rounding, word):
    result = fd.diff(network(tmp_path / "r"), network(tmp_path / "c", rounding))
    assert (result.first_drift.name, result.first_drift.cause.label, result.exit_code) == ("fc_a", "dtype-rounding", 1)
    assert word in result.first_drift.sentence.replace("bfloat16", "bf16").replace("float16", "f16")
