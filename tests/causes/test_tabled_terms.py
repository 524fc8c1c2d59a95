"""A table that a module gave, added to scores or left out, is named, however its axes lie."""

import numpy as np
import pytest
from blame import FLOAT32, Run, cause, numbers

from firstdrift.sites import Site

BATCH, HEADS, QUERIES, KEYS = 3, 2, 5, 7
HERE = Site(0, "fwd", "decoder.cross", "in.2")
TABLE = Site(0, "fwd", "relative", "out")
STATES = Site(0, "fwd", "encoder", "out")
REL = numbers(KEYS, KEYS, HEADS, seed=1)
HIDDEN = np.broadcast_to(np.arange(KEYS) >= np.array([7, 5, 6])[:, None, None, None], (BATCH, HEADS, QUERIES, KEYS))
STATE = numbers(BATCH, KEYS, 8, seed=2)


def masked(x, fill=-np.inf):
    return np.where(HIDDEN, fill, x)


def named(expected, found, noise=FLOAT32, run=None, **known):
    around = Run(run or {STATES: STATE, TABLE: REL, HERE: expected}, {HERE: found})
    return cause(expected, found, noise, HERE, around=around, **known)


FORMS = {
    "beginning": REL.transpose(2, 0, 1)[:, :QUERIES],
    "end": REL.transpose(2, 0, 1)[:, KEYS - QUERIES :],
    "turned": REL.transpose(2, 1, 0)[:, :QUERIES],
}


@pytest.mark.parametrize("fill", [-np.inf, -1e9])
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("scores", [np.zeros((BATCH, HEADS, QUERIES, KEYS)), numbers(BATCH, HEADS, QUERIES, KEYS)])
def test_a_table_that_is_added_beside_a_mask_is_an_extra_term(scores, form, fill):
    said = named(masked(scores, fill), masked(scores + form, fill))
    assert (said.label, said.parameters.get("term")) == ("missing-term", "relative"), said
    assert "which the reference does not do" in said.sentence


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_table_that_is_left_out_is_a_missing_term(form):
    scores = numbers(BATCH, HEADS, QUERIES, KEYS)
    said = named(masked(scores + form), masked(scores))
    assert (said.label, said.parameters.get("term")) == ("missing-term", "relative"), said
    assert "not added" in said.sentence


def test_it_is_named_where_nothing_is_hidden_too():
    scores = numbers(BATCH, HEADS, QUERIES, KEYS)
    assert named(scores, scores + FORMS["beginning"]).label == "missing-term"


CONFUSABLES = {
    "doubled": lambda x: x + 2 * FORMS["beginning"],
    "of other numbers": lambda x: x + numbers(HEADS, QUERIES, KEYS, seed=8),
    "shuffled": lambda x: x + FORMS["beginning"][:, :, ::-1],
    "instead": lambda x: np.broadcast_to(FORMS["beginning"], x.shape).copy(),
}


@pytest.mark.parametrize("change", CONFUSABLES.values(), ids=CONFUSABLES)
def test_what_is_no_such_sum_is_not_called_one(change):
    scores = numbers(BATCH, HEADS, QUERIES, KEYS)
    assert "relative" not in str(named(masked(scores), masked(change(scores))).parameters.get("term"))


def test_a_term_that_the_reference_has_and_that_counts_twice_is_no_extra_one():
    scores, form = numbers(1, HEADS, KEYS, KEYS), numbers(1, HEADS, KEYS, KEYS, seed=4)
    run = {STATES: STATE, TABLE: form, HERE: scores + form}
    said = named(scores + form, scores + 2 * form, run=run, inputs={"relative": form, "qk": scores})
    assert "as well" not in said.sentence


def test_a_table_of_one_number_is_recognised_by_nothing():
    scores = numbers(BATCH, HEADS, QUERIES, KEYS)
    run = {STATES: STATE, TABLE: np.full((KEYS, KEYS, HEADS), 0.5), HERE: scores}
    assert named(scores, scores + 0.5, run=run).label == "offset"
