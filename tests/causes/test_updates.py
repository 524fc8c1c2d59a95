"""A state that a module updates again and again: one update left out is told from an old buffer."""

import pytest
from blame import BF16, FLOAT32, Run, cause, numbers

from firstdrift.sites import Site

STEPS = 4


def at(name, call=0, port="out"):
    return Site(0, "fwd", name, port, call)


def loop(keep, weights, skip=None):
    """A state and its updates, all recorded; where one is skipped the state stays as it is."""
    state, tensors, states = numbers(2, 9, 16), {}, []
    for call, weight in enumerate(weights):
        states.append(state)
        term = numbers(2, 9, 16, seed=10 + call) + 0.2 * state
        tensors[at("norm", call, "in.0")] = state
        tensors[at("part", call)] = term
        state = state if call == skip else keep * state + weight * term
    return tensors, [*states, state]


@pytest.mark.parametrize("noise", [FLOAT32, BF16])
@pytest.mark.parametrize("keep", [1.0, 0.9])
@pytest.mark.parametrize("weights", [(0.5, 0.3, 0.2, 0.1), (1.0, 1.0, 1.0, 1.0)])
def test_a_state_from_before_the_last_update_is_a_skipped_operation(weights, keep, noise):
    tensors, states = loop(keep, weights)
    last = at("head", port="in.0")
    said = cause(states[-1], states[-2], noise, last, around=Run({**tensors, last: states[-1]}))
    assert said.label in (("skipped-op", "missing-term") if keep == weights[-1] == 1 else ("skipped-op",)), said


def test_a_state_that_enters_the_next_call_unchanged_is_a_skipped_operation():
    tensors, states = loop(1.0, (0.5, 0.3, 0.2, 0.1))
    entered = at("norm", 2, "in.0")
    kept = {site: value for site, value in tensors.items() if site.call < 2}
    said = cause(states[2], states[1], site=entered, around=Run({**kept, entered: states[2]}))
    assert said.label == "skipped-op", said
    assert "part of call 1" in said.sentence


def test_an_output_that_repeats_its_own_earlier_call_is_a_stale_buffer():
    tensors, _ = loop(1.0, (0.5, 0.3, 0.2, 0.1))
    now = at("part", 3)
    said = cause(tensors[now], tensors[at("part", 2)], site=now, around=Run(tensors))
    assert said.label == "stale-buffer", said


@pytest.mark.parametrize("back", [3, 4])
def test_a_state_from_further_back_is_not_said_to_lack_one_update(back):
    tensors, states = loop(1.0, (0.5, 0.3, 0.2, 0.1))
    last = at("head", port="in.0")
    said = cause(states[-1], states[-back], site=last, around=Run({**tensors, last: states[-1]}))
    assert said.label not in ("skipped-op", "missing-term"), said


def test_a_module_that_is_called_once_updates_nothing_again():
    state, term = numbers(2, 9, 16), numbers(2, 9, 16, seed=3)
    last = at("head", port="in.0")
    around = Run({at("norm", 0, "in.0"): state, at("part", 0): term, last: 0.7 * state + 0.4 * term})
    assert cause(0.7 * state + 0.4 * term, state, site=last, around=around).label != "skipped-op"
