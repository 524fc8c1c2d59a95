"""Traces that hold no program, written by 0.1 before there were any, compare as they did."""

import json
from pathlib import Path

import pytest

import firstdrift as fd
from firstdrift.program.written.read_program import read_program

STORED = Path(__file__).parent / "stored"  # `reference`, four candidates, and what 0.1 said of them
EXPECTED = json.loads((STORED / "expected.json").read_text())


@pytest.mark.parametrize("name", EXPECTED)
def test_traces_of_0_1_get_the_verdict_that_they_got_or_a_less_decided_one(name):
    result = fd.diff(STORED / "reference", STORED / name)
    assert result.verdict.value in (EXPECTED[name]["verdict"], "inconclusive")
    if result.first_drift is not None:
        assert [result.first_drift.phase, result.first_drift.name, result.first_drift.port] == EXPECTED[name]["first"]


def test_traces_of_0_1_have_no_program():
    assert read_program(fd.open_trace(STORED / "reference")) is None
