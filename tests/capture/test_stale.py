"""Stale buffers: consecutive outputs of modules with weights that are the same bytes."""

import numpy as np
import pytest

import firstdrift as fd
from firstdrift.capture.stale import repeated_outputs

X = np.arange(6, dtype=np.float32)


def found(path):
    return [(str(first), str(second)) for first, second in repeated_outputs(fd.open_trace(path))]


def write(path, outputs, weighted="abcd", **where):
    with fd.Writer(path) as w:
        for name in weighted:
            w.put(name, "weight", X)
        for name, value in outputs:
            w.put(name, "fwd", value, **where)


def test_an_output_that_repeats_the_one_before_is_named_with_it(tmp_path):
    write(tmp_path / "t", [("a", X), ("b", X), ("c", X + 1), ("d", X + 1)])
    assert found(tmp_path / "t") == [
        ("fwd a:out step 0", "fwd b:out step 0"), ("fwd c:out step 0", "fwd d:out step 0")
    ]  # fmt: skip


@pytest.mark.parametrize(
    "outputs",
    [
        [("a", X), ("b", X + 1), ("c", X)],  # not consecutive
        [("a", X), ("b", X.astype(np.float64))],  # another type
        [("a", X), ("b", X.reshape(2, 3))],  # another shape
        [("a", X), ("b", X.view(np.int32))],
        [("a", np.zeros(3)), ("b", np.zeros(3))],  # a constant proves nothing
        [("a", np.zeros(0)), ("b", np.zeros(0))],
        [("a", X), ("unweighted", X)],  # dropout in evaluation may well pass on what it got
        [("unweighted", X), ("another", X)],
    ],
)
def test_outputs_that_prove_nothing_are_not_named(outputs, tmp_path):
    write(tmp_path / "t", outputs)
    assert found(tmp_path / "t") == []


def test_equal_values_in_other_bits_are_not_repeated(tmp_path):
    write(tmp_path / "t", [("a", np.array([0.0, 1.0])), ("b", np.array([-0.0, 1.0]))])
    assert found(tmp_path / "t") == []
    write(tmp_path / "nan", [("a", np.array([np.nan, 1.0])), ("b", np.array([np.nan, 1.0]))])
    assert len(found(tmp_path / "nan")) == 1


def test_modules_without_weights_between_are_looked_past(tmp_path):
    write(tmp_path / "t", [("a", X), ("relu", X * 2), ("b", X)])
    assert found(tmp_path / "t") == [("fwd a:out step 0", "fwd b:out step 0")]


def test_inputs_other_phases_and_statistics_are_not_outputs(tmp_path):
    with fd.Writer(tmp_path / "t") as w:
        for name in "abc":
            w.put(name, "weight", X)
        w.put("a", "fwd", X)
        w.put("b", "fwd", X, port="in.0")
        w.put("b", "agrad", X)
        w.put_stats("b", "fwd", {"mean": 1.0}, dtype="f32", shape=(6,))
        w.put_absent("c", "fwd", "raised")
    assert found(tmp_path / "t") == []


@pytest.mark.parametrize("phase", ["weight", "grad", "weight_after"])
def test_any_line_of_a_parameter_says_that_a_module_has_weights(phase, tmp_path):
    with fd.Writer(tmp_path / "t") as w:
        for name in "ab":
            w.put(name, phase, X)
            w.put(name, "fwd", X)
    assert len(found(tmp_path / "t")) == 1


def test_calls_of_one_module_steps_and_samples_are_told_apart(tmp_path):
    with fd.Writer(tmp_path / "t") as w:
        for name in "ab":
            w.put(name, "weight", X)
        w.put("a", "fwd", X)
        w.put("a", "fwd", X, call=1)  # the same module again, of the same input
        w.put("b", "fwd", X, step=1)
        w.put("b", "fwd", X, sample=0)
    assert found(tmp_path / "t") == []
