"""`firstdrift explain`."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from firstdrift.cli.main import cli
from firstdrift.explain.labels import LABELS, link


def run(*arguments, width=100):
    return CliRunner().invoke(cli, ["explain", *arguments], env={"COLUMNS": str(width)})


def one_line(text):
    return " ".join(text.split())


@pytest.mark.parametrize("name", list(LABELS))
def test_a_label_is_explained_with_everything_known_of_it(name):
    done = run(name)
    label, printed = LABELS[name], one_line(done.output)
    assert done.exit_code == 0
    for text in (name, label.meaning, label.recognised, label.confirm, *label.cases, *map(link, label.cases)):
        assert one_line(text) in printed


def test_without_a_label_all_are_listed():
    done = run(width=200)
    assert done.exit_code == 0
    for name, label in LABELS.items():
        assert any(line.split()[:1] == [name] and label.meaning in line for line in done.output.splitlines()), name


@pytest.mark.parametrize("width", [40, 80, 200])
def test_no_line_is_wider_than_the_terminal_or_ends_in_spaces(width):
    for done in (run(width=width), run("scale", width=width)):
        for line in done.output.splitlines():
            assert len(line) <= width or "https://" in line
            assert line == line.rstrip()


def test_json_says_the_same():
    said = json.loads(run("label-shift", "--json").output)
    assert said["schema"] == "firstdrift-explain-v1"
    assert said["label"] == "label-shift"
    assert said["recognised"] == LABELS["label-shift"].recognised
    assert [case["link"] for case in said["cases"]] == [link(case) for case in LABELS["label-shift"].cases]
    listed = json.loads(run("--json").output)
    assert [one["label"] for one in listed["labels"]] == list(LABELS)


@pytest.mark.parametrize(
    ("name", "hint"),
    [("gqa-ordr", "near it: gqa-order"), ("zzz", "`firstdrift explain` lists all"), ("a\x1b[31m", "\\x1b")],
)
def test_an_unknown_label_is_a_usage_error_that_names_the_nearest(name, hint):
    done = run(name)
    assert done.exit_code == 2
    assert hint in done.stderr
    assert done.stdout == ""
