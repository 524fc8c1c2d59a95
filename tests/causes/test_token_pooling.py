"""A vector made of all tokens: what the candidate made of them otherwise is named."""

import numpy as np
import pytest
from blame import BF16, FLOAT32, SITE, Run, blurred, cause, numbers

from firstdrift.sites import Site

IN = SITE._replace(name="head", port="in.0")
X = numbers(5, 9, 16)
LENGTHS = np.array([9, 4, 6, 1, 8])
KEEP = np.arange(9) < LENGTHS[:, None]
MASK = Site(0, "input", "input", "mask")


def masked_mean(x):
    return (x * KEEP[..., None]).sum(1) / LENGTHS[:, None]


def masked_max(x):
    return np.where(KEEP[..., None], x, -np.inf).max(1)


def last_kept(x):
    return x[np.arange(5), LENGTHS - 1]


def diluted(x):
    return (x * KEEP[..., None]).sum(1) / 9


def named(reference, candidate, noise=FLOAT32, mask=KEEP, x=X):
    theirs = blurred(x, noise, 3)
    known = {"inputs": {"encoder": x}, "candidate_inputs": {"encoder": theirs}}
    around = Run({MASK: mask.astype(np.int64)}) if mask is not None else None
    return cause(reference(x), candidate(theirs), noise, IN, **known, **({"around": around} if around else {}))


@pytest.mark.parametrize("noise", [FLOAT32, BF16])
@pytest.mark.parametrize(
    ("reference", "candidate", "label"),
    [
        (masked_mean, lambda x: x.mean(1), "mask-missing"),
        (masked_max, lambda x: x.max(1), "mask-missing"),
        (last_kept, lambda x: x[:, -1], "mask-missing"),
        (masked_mean, diluted, "pool-count-pad"),
        (masked_mean, masked_max, "pool-mode"),
        (masked_mean, lambda x: x[:, 0], "pool-mode"),
        (lambda x: x[:, 0], last_kept, "index-shift"),
    ],
)
def test_another_way_to_pool_tokens_is_named(reference, candidate, label, noise):
    said = named(reference, candidate, noise)
    assert said.label == label, said


@pytest.mark.parametrize("candidate", [lambda x: x.max(1), lambda x: x[:, -1]])
def test_no_mask_is_needed_where_there_is_none(candidate):
    assert named(lambda x: x.mean(1), candidate, mask=None).label == "pool-mode"


def test_a_mask_of_what_is_padding_is_read_the_other_way_round():
    assert named(masked_mean, lambda x: x.mean(1), mask=~KEEP).label == "mask-missing"


def test_the_places_of_an_image_are_pooled_too():
    x = numbers(3, 16, 4, 5)
    said = named(lambda x: x.mean((2, 3)), lambda x: x.max((2, 3)), mask=None, x=x)
    assert said.label == "pool-mode", said


def test_another_cause_behind_a_pool_is_not_taken_for_one():
    said = named(masked_mean, lambda x: 1.25 * masked_mean(x))
    assert said.label == "scale", said
    assert named(masked_mean, lambda x: numbers(5, 16, seed=9)).label == "unknown"
