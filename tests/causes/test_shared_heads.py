"""Key and value heads that are written out for every query head between modules."""

import numpy as np
import pytest
from blame import BF16, FLOAT32, Run, cause, numbers

from firstdrift.causes.layout import packing
from firstdrift.sites import Site

SITE = Site(0, "fwd", "layers.1.attn.core", "in.1")
SHARES = [(2, 2), (2, 3), (3, 2), (4, 2), (2, 4), (8, 4), (5, 3)]


def shared(heads, times, layout):
    """The same heads each repeated and all tiled, and what they were made of."""
    kv = numbers(2, heads, 7, 6, seed=heads + times)
    both = [np.repeat(kv, times, 1), np.tile(kv, (1, times, 1, 1))]
    if layout == "tokens first":
        kv, both = kv.swapaxes(1, 2), [one.swapaxes(1, 2) for one in both]
    if layout == "merged":
        kv, both = (kv.swapaxes(1, 2).reshape(2, 7, -1), [one.swapaxes(1, 2).reshape(2, 7, -1) for one in both])
    return kv, *both


@pytest.mark.parametrize("noise", [FLOAT32, BF16])
@pytest.mark.parametrize("layout", ["heads first", "tokens first", "merged"])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("heads", "times"), SHARES)
def test_heads_tiled_instead_of_repeated_or_the_reverse_are_named(heads, times, reverse, layout, noise):
    kv, repeated, tiled = shared(heads, times, layout)
    expected, found = (tiled, repeated) if reverse else (repeated, tiled)
    said = cause(expected, found, noise, SITE, inputs={"layers.1.attn.k_proj": kv})
    assert said.label == "gqa-order", said
    assert (said.parameters["kv_heads"], said.parameters["repeats"]) == (heads, times)
    assert said.parameters["order"] == ("repeated" if reverse else "tiled")


def test_heads_that_are_tiled_are_not_a_concatenation_with_the_tensor_that_they_were_made_of():
    kv, repeated, tiled = shared(2, 2, "heads first")
    assert cause(repeated, tiled, site=SITE, inputs={"rope": kv}, table=packing.HYPOTHESES).label == "unknown"


def test_heads_that_are_all_different_and_read_by_columns_are_not_shared_ones():
    expected = numbers(2, 6, 7, 6)
    found = expected.reshape(2, 2, 3, 7, 6).swapaxes(1, 2).reshape(expected.shape)
    assert cause(expected, found, site=SITE, inputs={"layers.1.attn.k_proj": expected}).label != "gqa-order"


def test_frames_of_an_image_that_are_tiled_instead_of_repeated_are_no_heads():
    image = numbers(2, 3, 8, 8)
    made = Site(0, "fwd", "up.conv", "out")
    site = Site(0, "fwd", "up.next", "in.0")
    around = Run({made: image}, ops={"up.conv": "Conv2d"}, producers={site: [made]})
    said = cause(
        np.repeat(image, 2, 2), np.tile(image, (1, 1, 2, 1)), site=site, inputs={"up.conv": image}, around=around
    )
    assert said.label != "gqa-order"


def test_samples_of_beams_that_are_tiled_instead_of_repeated_are_no_heads():
    sample = numbers(3, 4, 7, 6)
    found = np.tile(sample, (2, 1, 1, 1))
    said = cause(np.repeat(sample, 2, 0), found, site=SITE, inputs={"layers.1.attn.k_proj": sample})
    assert said.label != "gqa-order"


def test_shared_heads_of_which_two_are_exchanged_are_not_called_tiled():
    repeated = np.repeat(numbers(2, 4, 7, 6), 2, 1)
    found = repeated[:, [0, 0, 1, 1, 3, 3, 2, 2]]
    assert cause(repeated, found, site=SITE, inputs={}).label != "gqa-order"


def test_a_concatenation_with_a_part_in_another_place_stays_one():
    part, rest = numbers(2, 4, 7, 6), numbers(2, 2, 7, 6, seed=5)
    expected, found = np.concatenate([part, rest], 1), np.concatenate([rest, part], 1)
    said = cause(expected, found, site=SITE, inputs={"layers.1.attn.past": part})
    assert said.label == "concat-order", said


MISREAD = {
    "repeated between tokens": lambda kv, r: np.repeat(kv.swapaxes(1, 2), r, 1),  # (b, t, h, d) taken for (b, h, t, d)
    "repeated between tokens of a head": lambda kv, r: np.repeat(kv, r, 2),
    "repeated rightly, read with heads first": lambda kv, r: np.repeat(kv.swapaxes(1, 2), r, 2),
}


def misread(kv, times, which):
    batch, heads, tokens, width = kv.shape
    return MISREAD[which](kv, times).reshape(batch, heads * times, tokens, width)


@pytest.mark.parametrize("noise", [FLOAT32, BF16])
@pytest.mark.parametrize("tokens_first", [False, True])
@pytest.mark.parametrize("which", MISREAD)
@pytest.mark.parametrize(("heads", "times"), SHARES)
def test_heads_that_are_repeated_along_another_axis_are_told(heads, times, which, tokens_first, noise):
    kv = numbers(2, heads, 7, 6)
    expected, found = np.repeat(kv, times, 1), misread(kv, times, which)
    if tokens_first:
        expected, found = expected.swapaxes(1, 2), found.swapaxes(1, 2)
    said = cause(expected, found, noise, SITE, inputs={"layers.1.attn.k_proj": kv})
    assert said.label == "axis-order", said


def attended(q, k, v):
    scores = q @ k.swapaxes(2, 3) / np.sqrt(q.shape[-1])
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    return scores / scores.sum(-1, keepdims=True) @ v


@pytest.mark.parametrize("which", [*MISREAD, ""])
@pytest.mark.parametrize(("heads", "times"), [(2, 2), (2, 3), (4, 2), (1, 4)])
def test_the_same_is_told_inside_an_attention(heads, times, which):
    q, k, v = numbers(2, heads * times, 12, 8), numbers(2, heads, 12, 8, seed=1), numbers(2, heads, 12, 8, seed=2)
    expected = attended(q, np.repeat(k, times, 1), np.repeat(v, times, 1))
    if which:
        found = attended(q, misread(k, times, which), misread(v, times, which))
    else:
        found = attended(q, np.repeat(k, times, 1), np.repeat(v[:, :, ::-1], times, 1))
    inputs = {"in.0": q, "in.1": k, "in.2": v}
    site = Site(0, "fwd", "layers.1.attn.core", "out")
    said = cause(expected, found, site=site, inputs=inputs, op="Attention", attrs={"heads": heads * times})
    assert (said.label == "axis-order" and "written out" in said.sentence) == bool(which), said
