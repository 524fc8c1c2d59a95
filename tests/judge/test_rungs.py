"""When products are said to be computed in another precision, and when they are not."""

import numpy as np
import pytest

import firstdrift as fd

from .rounding import accumulated, bf16, e4m3, f16, grid, product, tf32

X = fd.Site(0, "input", "input", "x")


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def diffed(tmp_path, ours, theirs, op="Linear", lengths=None):
    """Two runs of one kind of operation, every output computed from the same input."""
    for side, outs in (("r", ours), ("c", theirs)):
        with fd.Writer(tmp_path / side) as writer:
            writer.put("input", "input", normal(96, 64), port="x")
            for number, out in enumerate(outs):
                if lengths is not None:
                    writer.put(f"op{number}", "weight", normal(80, lengths[number]))
                writer.put(f"op{number}", "fwd", normal(96, 64), port="in.0", op=op, producers=[X])
                writer.put(f"op{number}", "fwd", out, op=op, producers=[X])
    result = fd.diff(tmp_path / "r", tmp_path / "c")
    return result, [str(pair.verdict) for pair in result.pairs if (pair.site.phase, pair.site.port) == ("fwd", "out")]


def products(count, rounding=lambda x: x, weights=None, length=64):
    pairs = [(normal(96, length), normal(80, length, seed=n + 1) / np.float32(length**0.5)) for n in range(count)]
    return [product(rounding(x), (weights or rounding)(w)) for x, w in pairs]


@pytest.mark.parametrize(
    ("rounding", "verdict"), [(tf32, "precision"), (bf16, "precision"), (e4m3, "drift")], ids=["tf32", "bf16", "e4m3"]
)
def test_one_product_is_enough_only_where_nothing_else_comes_near_its_rung(tmp_path, rounding, verdict):
    assert diffed(tmp_path, products(1), products(1, rounding))[1] == [verdict]


def test_two_products_of_eight_bits_agree_on_their_rung(tmp_path):
    result, verdicts = diffed(tmp_path, products(2), products(2, e4m3))
    assert verdicts == ["precision", "drift"]  # of the first alone is asked
    assert "float8 (e4m3) operand" in result.first_drift.sentence


@pytest.mark.parametrize(("count", "verdict"), [(1, "drift"), (2, "precision")])
def test_two_attentions_must_agree_on_their_own_rung(tmp_path, count, verdict):
    ours = [normal(96, 64, seed=n + 1) for n in range(count)]
    theirs = [a * (1 + 1.15 * 2**-11 * normal(96, 64, seed=n + 9)) for n, a in enumerate(ours)]
    result, verdicts = diffed(tmp_path, ours, [a.astype(np.float32) for a in theirs], op="MultiheadAttention")
    assert verdicts == [verdict, "drift"][:count]  # of the first alone is asked
    assert verdict == "drift" or "TF32 or float16 arithmetic" in result.first_drift.sentence


@pytest.mark.parametrize("op", ["LSTM", "LayerNorm", "Embedding", "GELU"])
def test_what_is_no_product_has_no_rung(tmp_path, op):
    assert diffed(tmp_path, products(2), products(2, tf32), op=op)[1] == ["drift", "drift"]


def test_what_goes_into_products_has_no_rung(tmp_path):
    for side, size in (("r", 0.0), ("c", 0.59 * 2**-11)):
        with fd.Writer(tmp_path / side) as writer:
            for number in range(2):
                x = normal(96, 64, seed=number) * (1 + size * normal(96, 64, seed=9 + number))
                writer.put(f"op{number}", "fwd", x.astype(np.float32), port="in.0", op="Linear", producers=[])
    result = fd.diff(tmp_path / "r", tmp_path / "c")
    assert [str(pair.verdict) for pair in result.pairs] == ["drift", "drift"]


def test_weights_on_a_grid_are_quantised_and_no_matter_of_arithmetic(tmp_path):
    result, verdicts = diffed(tmp_path, products(2), products(2, weights=grid(127)))
    assert verdicts == ["drift", "drift"]
    assert "though declared" not in result.first_drift.sentence


@pytest.mark.parametrize(("stored", "verdict"), [(np.float32, "precision"), (np.float16, "drift")])
def test_sums_in_float16_are_a_matter_of_precision_only_where_a_longer_format_is_declared(tmp_path, stored, verdict):
    lengths = (256, 1024)
    pairs = [(normal(96, n), normal(80, n, seed=n) / np.float32(n**0.5)) for n in lengths]
    ours = [product(x, w) for x, w in pairs]
    # With bits of their own below, so that the numbers lie on no grid.
    theirs = [accumulated(x, w, f16, 1) * (1 + 1e-5 * normal(96, 80, seed=7)) for x, w in pairs]
    result, verdicts = diffed(tmp_path, ours, [a.astype(stored) for a in theirs], lengths=lengths)
    assert verdicts[0] == verdict
    assert verdict == "drift" or "float16 accumulator" in result.first_drift.sentence
