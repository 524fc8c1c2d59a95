"""Commands with placeholders: what they become, and what is refused before anything runs."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import firstdrift as fd
from firstdrift.sweeping.case_sides import Command

CASES = [{"start": 0, "name": "a b"}]
GOOD = "run {start} {name} {out}"


def filled(text, case=CASES[0]):
    from firstdrift.sweeping import templates

    return templates.fill(Command(text, "candidate").words, case, Path("here"), "candidate")


def test_a_value_stays_within_its_word():
    assert filled("run --n={name} {out}") == ["run", "--n=a b", "here"]
    assert filled("run '{name} x' {out}", {"name": "; rm -rf *"}) == ["run", "; rm -rf * x", "here"]


def test_formats_and_braces():
    assert filled("run {start:04d} {{start}} '{{{start}}}' {out}") == ["run", "0000", "{start}", "{0}", "here"]
    assert filled("awk '{print $1}' {out}") == ["awk", "{print $1}", "here"]


@given(st.text())
def test_no_value_is_read_as_a_command_or_a_placeholder(value):
    assert filled("run {name}", {"name": value}) == ["run", value]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("run {strat} {out}", "--candidate: there is no placeholder {strat}; use one of {start}, {name}, {out}"),
        ("run", "has no placeholder at all, so its trace could not be found; write --out {out}"),
        ("run {start}", "has no {out}, so its trace could not be found"),
        ("run '{out}", "cannot be split into words (No closing quotation); close the quote"),
        ("", "the command is empty"),
        ("run {name:04d} {out}", "the format '04d' does not fit 'a b'"),
    ],
)
def test_a_command_that_cannot_work_is_refused(text, complaint):
    with pytest.raises(fd.SelectionError) as refused:
        Command(text, "candidate").check(CASES)
    assert complaint in str(refused.value)


def test_variables_that_nobody_uses_are_refused(tmp_path):
    with pytest.raises(fd.SelectionError, match="the cases have 'name', which neither side uses"):
        fd.sweep(CASES, "run {start} {out}", "run {out}")
    with pytest.raises(fd.SelectionError, match="the cases have 'start', which neither side uses"):
        fd.sweep("start=0:4", "run {out}", "run {out}")


def test_a_side_may_do_without_variables_that_the_other_has(tmp_path):
    result = fd.sweep("start=0", "no-such-program {out}", "no-such-program {start} {out}", out=tmp_path / "s")
    assert "the reference 'no-such-program' cannot be run (No such file or directory)" in result.sentence
    assert result.exit_code == 2


def test_functions_are_checked_as_commands_are():
    with pytest.raises(
        fd.SelectionError, match="the reference function needs 'begin', and a case has case, out, start"
    ):
        fd.sweep("start=0:4", lambda begin, out: None, lambda start, out: None)
    with pytest.raises(fd.SelectionError, match="the cases have 'start', which neither side uses"):
        fd.sweep("start=0:4", lambda out: None, lambda out: None)


@pytest.mark.parametrize("sides", [("run {start} {out}", None), (None, "run {start} {out}")])
def test_one_side_alone_is_refused(sides):
    with pytest.raises(fd.SelectionError, match="there is no (reference|candidate); give two commands"):
        fd.sweep("start=0:4", *sides)
