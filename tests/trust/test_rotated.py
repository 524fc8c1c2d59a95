"""A rotation's frequencies, as engines derive them in float32."""

import numpy as np
import pytest

import firstdrift as fd

pytest.importorskip("torch")
F = np.float32
TOKENS, HEADS, SIZE, THETA = 96, 3, 256, 1e5


def frequencies(theta):
    """Each as a power of its own."""
    return (1 / F(theta) ** (np.arange(0, SIZE, 2, dtype=F) / F(SIZE))).astype(F)


def multiplied(theta):
    """Each from the one before it, as llama.cpp has them."""
    step, found = F(theta) ** F(-2 / SIZE), [F(1)]
    while len(found) < SIZE // 2:
        found.append(F(found[-1] * step))
    return np.array(found, F)


def rotated(path, table):
    x = np.random.default_rng(0).standard_normal((1, TOKENS, HEADS, SIZE)).astype(F)
    x[..., 3::8] *= 40  # as queries have them, which dominate what they are turned into
    angles = np.arange(TOKENS, dtype=F)[:, None] * table
    cos, sin = (np.concatenate([one, one], -1).astype(F)[:, None] for one in (np.cos(angles), np.sin(angles)))
    turned = np.concatenate([-x[..., SIZE // 2 :], x[..., : SIZE // 2]], -1)
    with fd.Writer(path) as writer:
        writer.put("rope", "fwd", x, port="in.0")
        made = fd.Site(0, "fwd", "rope", "in.0", 0, None)
        writer.put(
            "rope", "fwd", (x * cos + turned * sin).astype(F), op="RoPE", attrs={"theta": THETA}, producers=[made]
        )
    return path


@pytest.mark.parametrize("table", [frequencies, multiplied])
def test_frequencies_may_be_multiplied_one_from_the_other(tmp_path, table):
    result = fd.diff(rotated(tmp_path / "ref", frequencies(THETA)), rotated(tmp_path / "cand", table(THETA)))
    assert result.exit_code == 0, result.sentence


@pytest.mark.parametrize("table", [frequencies(1.001 * THETA), frequencies(THETA) * F(1 + 1e-5)])
def test_other_frequencies_are_a_drift(tmp_path, table):
    assert fd.diff(rotated(tmp_path / "ref", frequencies(THETA)), rotated(tmp_path / "cand", table)).exit_code == 1
