"""`fd.compare_pairs`: a row for every pair, with the words of training-step comparators and all measurements."""

import math

import numpy as np
import pytest

import firstdrift as fd
from firstdrift.judge.measure.pair_rows import TIERS

A = np.array([[1.0, -2.0], [4.0, 0.5]], np.float32)
PHASES = ["input", "weight", "fwd", "loss", "lossgrad", "agrad", "grad", "grad_scaled", "weight_after"]


def record(path, **changed):
    """A trace with one site a phase, of which some have other numbers."""
    with fd.Writer(path, producer="test") as writer:
        for phase in PHASES:
            name = "loss" if phase.startswith("loss") else phase if phase == "input" else "fc"
            writer.put(name, phase, changed.get(phase, A), port="x" if phase == "input" else None)
    return path


def rows(tmp_path, **changed):
    found = fd.compare_pairs(record(tmp_path / "r"), record(tmp_path / "c", **changed))
    assert [row.phase for row in sorted(found, key=lambda row: PHASES.index(row.phase))] == PHASES
    return {row.phase: row for row in found}


def test_a_row_has_probe_phase_tier_and_the_two_largest_differences(tmp_path):
    row = rows(tmp_path, grad=A + np.array([[0, 0.5], [0, 0.25]], np.float32))["grad"]
    assert (row.probe, row.phase, row.tier, row.max_abs, row.max_rel) == ("fc", "grad", 3, 0.5, 0.5)
    assert row.site == fd.Site(0, "grad", "fc", "weight")
    assert (row.measurement.max_abs_index, row.measurement.differing) == (1, 2)


def test_tiers_are_those_of_training_step_traces(tmp_path):
    found = rows(tmp_path)
    assert {phase: row.tier for phase, row in found.items() if row.tier < 7} == TIERS
    assert sorted(TIERS.values()) == list(range(7))
    assert found["input"].tier == found["loss"].tier == 7


def test_equal_pairs_have_rows_of_zeros(tmp_path):
    assert {(row.max_abs, row.max_rel) for row in rows(tmp_path).values()} == {(0.0, 0.0)}


def test_the_relative_difference_is_by_the_references_element_and_never_by_less_than_1e_12(tmp_path):
    ours = record(tmp_path / "r", fwd=np.array([0.0, 8.0]))
    theirs = record(tmp_path / "c", fwd=np.array([1e-6, 4.0]))
    row = next(row for row in fd.compare_pairs(ours, theirs) if row.phase == "fwd")
    assert (row.max_abs, row.max_rel) == (4.0, pytest.approx(1e6))


def test_other_shapes_are_infinitely_far_apart_and_the_row_says_why(tmp_path):
    row = rows(tmp_path, agrad=np.zeros((3, 2), np.float32))["agrad"]
    assert (row.max_abs, row.max_rel, row.measurement) == (math.inf, math.inf, None)
    assert "shape [2, 2] in the reference, [3, 2] in the candidate" in row.problem


def test_what_is_absent_has_a_row_without_numbers(tmp_path):
    for name in ("r", "c"):
        with fd.Writer(tmp_path / name) as writer:
            writer.put("fc", "fwd", A)
            writer.put_absent("fc", "agrad", "no gradient")
    (row,) = [row for row in fd.compare_pairs(tmp_path / "r", tmp_path / "c") if row.phase == "agrad"]
    assert (row.max_abs, row.max_rel, row.measurement, row.problem) == (None, None, None, None)


def test_rows_are_flat_and_have_the_same_keys_whatever_was_measured(tmp_path):
    found = rows(tmp_path, fwd=A + 1, agrad=np.zeros(3, np.float32))
    tables = {phase: row.to_dict() for phase, row in found.items()}
    assert len({tuple(table) for table in tables.values()}) == 1
    assert {"probe", "phase", "tier", "max_abs", "max_rel", "rel_l2", "cosine", "max_over_std", "max_ulp"} <= set(
        tables["fwd"]
    )
    assert all(value is None or isinstance(value, int | float | str) for value in tables["fwd"].values())
    assert (tables["fwd"]["max_abs"], tables["agrad"]["max_abs"], tables["agrad"]["rel_l2"]) == (1.0, math.inf, None)


def test_pairs_without_a_counterpart_have_no_row(tmp_path):
    record(tmp_path / "r")
    with fd.Writer(tmp_path / "c") as writer:
        writer.put("fc", "fwd", A)
    assert [row.phase for row in fd.compare_pairs(tmp_path / "r", tmp_path / "c")] == ["fwd"]
