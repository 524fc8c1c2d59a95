"""Sites come in the order in which a run computes them, whatever order they were written in."""

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

import firstdrift as fd
from firstdrift.core.causality import causal_order, forward_names
from firstdrift.core.records import Record


def made(*said):
    """Records from short forms: (phase, name[, port[, call[, sample[, order]]]])."""
    lines = []
    for phase, name, *rest in said:
        port, call, sample, order = (*rest, *(None,) * (4 - len(rest)))
        default = "weight" if "weight" in phase or "grad" in phase[:4] else "out"
        site = fd.Site(0, phase, name, port or default, call or 0, sample)
        lines.append(Record(site, "f32", (1,), (0, 0, 4), {} if order is None else {"order": order}))
    return lines


def ordered(*said):
    return [(record.site.phase, record.site.name) for record in causal_order(made(*said))]


def test_phases_come_in_causal_order_whatever_the_lines_say():
    shuffled = ["weight_after", "optim", "grad_scaled", "grad", "agrad", "lossgrad", "loss", "fwd", "weight", "input"]
    assert [phase for phase, _ in ordered(*((phase, "x") for phase in shuffled))] == shuffled[::-1]


def test_steps_come_before_phases():
    lines = [
        Record(fd.Site(step, phase, "x", "out"), "f32", (1,), (0, 0, 4)) for phase in ("grad", "fwd") for step in (1, 0)
    ]
    assert [(r.site.step, r.site.phase) for r in causal_order(lines)] == [
        (0, "fwd"),
        (0, "grad"),
        (1, "fwd"),
        (1, "grad"),
    ]


def test_gradients_run_through_the_forward_order_in_reverse():
    forward = [("fwd", name) for name in ("conv", "norm", "fc")]
    for phase in ("agrad", "grad", "grad_scaled"):
        written_forward = [(phase, name) for name in ("conv", "norm", "fc")]
        assert ordered(*forward, *written_forward)[3:] == written_forward[::-1]
        assert ordered(*forward, *written_forward[::-1])[3:] == written_forward[::-1]


def test_parameters_follow_the_forward_order():
    assert ordered(("weight", "fc"), ("weight", "conv"), ("fwd", "conv"), ("fwd", "fc"))[:2] == [
        ("weight", "conv"), ("weight", "fc"),
    ]  # fmt: skip


def test_a_stated_order_wins_over_the_lines():
    assert ordered(("fwd", "b", "out", 0, None, 2), ("fwd", "a", "out", 0, None, 1)) == [("fwd", "a"), ("fwd", "b")]
    gradients = [("grad", "a", "weight", 0, None, 1), ("grad", "b", "weight", 0, None, 2)]
    assert ordered(*gradients) == [("grad", "b"), ("grad", "a")]


def test_children_come_before_the_container_that_returns_after_them():
    lines = [("fwd", "block", "in.0"), ("fwd", "block.fc", "in.0"), ("fwd", "block.fc"), ("fwd", "block"),
             ("agrad", "block.fc", "out"), ("agrad", "block", "out")]  # fmt: skip
    assert ordered(*lines) == [
        ("fwd", "block"), ("fwd", "block.fc"), ("fwd", "block.fc"), ("fwd", "block"),
        ("agrad", "block"), ("agrad", "block.fc"),
    ]  # fmt: skip


def test_calls_of_a_module_have_their_own_place_going_back():
    lines = [("fwd", "cell", "out", 0), ("fwd", "mid"), ("fwd", "cell", "out", 1)]
    back = [("agrad", "cell", "out", 0), ("agrad", "mid", "out"), ("agrad", "cell", "out", 1)]
    order = [(r.site.name, r.site.call) for r in causal_order(made(*lines, *back))[3:]]
    assert order == [("cell", 1), ("mid", 0), ("cell", 0)]


def test_a_parameter_used_by_several_calls_is_complete_at_its_first():
    lines = [("fwd", "cell", "out", 0), ("fwd", "fc"), ("fwd", "cell", "out", 1), ("grad", "cell"), ("grad", "fc")]
    assert ordered(*lines)[3:] == [("grad", "fc"), ("grad", "cell")]


def test_modules_without_forward_lines_stand_behind_their_neighbour():
    lines = [
        ("fwd", "a"),
        ("fwd", "c"),
        ("weight", "a"),
        ("weight", "b"),
        ("weight", "c"),
        ("grad", "a"),
        ("grad", "b"),
        ("grad", "c"),
    ]
    assert forward_names(made(*lines)) == ["a", "b", "c"]
    assert [name for phase, name in ordered(*lines) if phase == "grad"] == ["c", "b", "a"]


def test_gradients_alone_are_read_as_layers_stand_and_activation_gradients_as_they_flow():
    assert ordered(("grad", "a"), ("grad", "b")) == [("grad", "b"), ("grad", "a")]
    assert ordered(("agrad", "b", "out"), ("agrad", "a", "out")) == [("agrad", "b"), ("agrad", "a")]


def test_samples_of_one_place_come_in_their_order():
    lines = [("fwd", "a", "out", 0, s, 0) for s in (2, 0, 1)] + [("fwd", "b", "out", 0, s, 1) for s in (1, 0)]
    assert [(r.site.name, r.site.sample) for r in causal_order(made(*lines))] == [
        ("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1),
    ]  # fmt: skip


SITES = st.lists(
    st.tuples(
        st.sampled_from(["input", "weight", "fwd", "loss", "agrad", "grad", "optim", "weight_after"]),
        st.sampled_from(["a", "b", "a.b", "c"]),
        st.sampled_from(["out", "in.0", "weight"]),
        st.integers(0, 2),
        st.sampled_from([None, 0, 1]),
        st.none() | st.integers(0, 5),
    ),
    unique_by=lambda said: said[:5],
)


@given(SITES)
def test_ordering_loses_nothing(said):
    lines = made(*said)
    assert sorted(causal_order(lines), key=str) == sorted(lines, key=str)


@given(SITES, st.sets(st.sampled_from(["a", "b", "a.b", "c"]), min_size=1))
@example([("fwd", "a", "out", 0, 0, None), ("fwd", "a", "out", 1, None, None)], {"a"})
@example([("fwd", name, port, 0, None, None) for name, port in (("a", "out"), ("b", "out"), ("a", "in"))], {"a", "b"})
def test_a_selection_keeps_the_order_of_the_whole(tmp_path_factory, said, names):
    path = tmp_path_factory.mktemp("selection") / "t"
    with fd.Writer(path) as writer:
        for record in made(*said):
            step, phase, name, port, call, sample = record.site
            writer.put(name, phase, np.zeros(1), port=port, step=step, call=call, sample=sample, **record.details)
    trace = fd.open_trace(path)
    wanted = [record.site for record in trace if record.site.name in names]
    if wanted:
        assert [record.site for record in trace.select(only=sorted(names))] == wanted
