"""The benchmark of real bugs: its own machinery, with releases made here; nothing is downloaded."""

import re
import subprocess
import sys
import textwrap
import zipfile
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from driftbench.asking import Answer  # noqa: E402
from driftbench.case import Place  # noqa: E402
from realbugs import fetching, running  # noqa: E402
from realbugs.case import Case, Truth, at, normal  # noqa: E402
from realbugs.cases import all_cases  # noqa: E402
from realbugs.changing import changed_lines, names_a_changed_line  # noqa: E402
from realbugs.fetching import FetchError, fetch  # noqa: E402
from realbugs.loading import Release  # noqa: E402
from realbugs.scoring import is_cause, score, totals  # noqa: E402
from realbugs.verifying import is_what_it_says  # noqa: E402

from firstdrift.explain.labels import LABELS  # noqa: E402

LAYER = """
    import torch
    from scaled.numbers import FACTOR

    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 3)
        def forward(self, x):
            return self.linear(x) * FACTOR
"""


def release(folder, factor, layer=LAYER):
    """A package of two modules, one of which imports the other by its full name."""
    package = folder / "scaled"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from scaled.layer import Scaled\n")
    (package / "layer.py").write_text(textwrap.dedent(layer))
    (package / "numbers.py").write_text(f"FACTOR = {factor}\n")
    return folder


def made(release):
    return release.find("scaled:Scaled")()


TRUTH = Truth((at("", "out*"),), ("scale",), "the output is multiplied by 2")
CASE = Case("twice", "scaled", "1", "2", made, lambda: (normal(5, 4),), TRUTH)


@pytest.fixture
def offline(tmp_path, monkeypatch):
    """A cache that holds two releases, and no pip."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(subprocess, "run", lambda *given, **options: pytest.fail(f"{given} was run"))
    for version, factor in (("1", 2.0), ("2", 1.0), ("3", 1.0)):
        release(tmp_path / "firstdrift" / "realbugs" / "scaled" / version, factor)


def test_two_releases_have_modules_of_their_own(tmp_path):
    one, two = Release(release(tmp_path / "one", 1)), Release(release(tmp_path / "two", 2))
    first, second = one.find("scaled:Scaled"), two.find("scaled:Scaled")
    assert first is not second
    assert one.find("scaled.numbers:FACTOR") == 1
    assert two.find("scaled.numbers:FACTOR") == 2
    assert one.find("scaled:Scaled") is first


def test_nothing_of_a_release_is_left_where_others_import(tmp_path, monkeypatch):
    installed = ModuleType("scaled")
    monkeypatch.setitem(sys.modules, "scaled", installed)
    path = list(sys.path)
    Release(release(tmp_path / "one", 1)).find("scaled:Scaled")
    assert sys.modules["scaled"] is installed
    assert "scaled.numbers" not in sys.modules
    assert sys.path == path


def test_a_failed_import_leaves_nothing(tmp_path):
    broken = Release(release(tmp_path / "one", 1, "import no_such_module_anywhere\n"))
    path = list(sys.path)
    with pytest.raises(ModuleNotFoundError, match="no_such_module_anywhere"):
        broken.find("scaled:Scaled")
    assert "scaled" not in sys.modules
    assert sys.path == path


def test_a_module_stands_in_for_what_is_not_installed(tmp_path):
    folder = release(tmp_path / "one", 1, "from no_such_module_anywhere.kernels import fast\nScaled = 7\n")
    found = Release(folder, ("no_such_module_anywhere", "no_such_module_anywhere.kernels"))
    assert found.find("scaled:Scaled") == 7
    assert "no_such_module_anywhere" not in sys.modules


def test_what_is_cached_is_not_downloaded(offline):
    assert (fetch("scaled", "1") / "scaled" / "numbers.py").read_text() == "FACTOR = 2.0\n"


def test_a_wheel_is_downloaded_without_its_dependencies_and_unpacked(tmp_path, monkeypatch):
    asked = []

    def pip(command, **options):
        asked.extend(command)
        folder = Path(command[command.index("--dest") + 1])
        with zipfile.ZipFile(folder / "scaled-1-py3-none-any.whl", "w") as wheel:
            wheel.writestr("scaled/__init__.py", "FACTOR = 3\n")
        return SimpleNamespace(returncode=0, stderr="")

    monkeypatch.setattr(subprocess, "run", pip)
    folder = fetch("scaled", "1", tmp_path)
    assert Release(folder).find("scaled:FACTOR") == 3
    assert {"download", "--no-deps", "scaled==1"} <= set(asked)
    assert [entry.name for entry in (tmp_path / "scaled").iterdir()] == ["1"]


def test_a_release_that_cannot_be_had_is_named(tmp_path, monkeypatch):
    said = SimpleNamespace(returncode=1, stderr="warning\nERROR: No matching distribution\n")
    monkeypatch.setattr(subprocess, "run", lambda *given, **options: said)
    with pytest.raises(FetchError, match=r"scaled==9: .* ERROR: No matching distribution"):
        fetch("scaled", "9", tmp_path)
    assert not (tmp_path / "scaled" / "9").exists()


@pytest.mark.parametrize("mode", ["check", "traces"])
def test_a_bug_between_two_releases_is_asked_about_and_scored(offline, mode):
    (found,) = running.run_case(CASE, [mode])
    assert (found.verdict, found.site, found.cause, found.failed) == ("drift", True, True, False)


def test_a_rewrite_is_clean(offline):
    (found,) = running.run_case(replace(CASE, buggy="3", truth=None), ["check"])
    assert (found.verdict, found.false_alarm, found.undecided) == ("same", False, False)


def test_what_raises_is_scored_as_failed(offline):
    (found,) = running.run_case(replace(CASE, make=lambda release: release.find("scaled:Missing")()), ["check"])
    assert found.failed
    assert "Missing" in found.said


def test_a_case_that_is_none_is_found_out(offline):
    bug, rewrite = CASE, replace(CASE, truth=None)
    assert is_what_it_says(bug, running.built(bug))
    assert not is_what_it_says(rewrite, running.built(rewrite))
    assert not is_what_it_says(replace(bug, buggy="3"), running.built(replace(bug, buggy="3")))


def answer(verdict="drift", label="scale", sentence="", place=("fwd", "", "out"), exit_code=1):
    return Answer(verdict, Place(*place), label=label, sentence=sentence, exit_code=exit_code)


def test_a_cause_is_right_by_label_by_its_words_or_by_the_line():
    truth = Truth((), ("scale",), "", (r"\btwice\b",))
    assert is_cause(truth, answer(), at_change=False)
    assert is_cause(truth, answer(label="softcap", sentence="it is added twice"), at_change=False)
    assert is_cause(truth, answer(label="softcap"), at_change=True)
    assert not is_cause(truth, answer(label="softcap", sentence="it is added once"), at_change=False)


def test_an_unknown_cause_is_none_whatever_it_says():
    truth = Truth((), (), "", ("twice",))
    assert not is_cause(truth, answer(label="unknown", sentence="added twice"), at_change=True)


def test_the_name_of_a_site_says_nothing_of_the_cause():
    truth = Truth((), (), "", ("momentum",))
    here = "the first drift is optim 0:weight.momentum; scale: found is "
    assert not is_cause(truth, answer(sentence=f"{here}3 times expected"), at_change=False)
    assert is_cause(truth, answer(sentence=f"{here}the momentum"), at_change=False)


@pytest.mark.parametrize(
    ("place", "right"),
    [
        (("fwd", "", "out"), True),
        (("fwd", "", "out.1"), True),
        (("fwd", "", "in.0"), False),
        (("fwd", "linear", "out"), False),
        (("agrad", "", "out"), False),
    ],
)
def test_a_site_is_right_by_phase_module_and_port(place, right):
    assert score(CASE, "check", answer(place=place), at_change=False, seconds=0.0).site is right


def test_a_rewrite_called_a_drift_is_a_false_alarm_and_one_left_open_is_not():
    rewrite = replace(CASE, truth=None)
    alarm = score(rewrite, "check", answer(), at_change=False, seconds=0.0)
    left_open = score(rewrite, "check", answer("same", None, exit_code=2), at_change=False, seconds=0.0)
    bug = score(CASE, "check", answer(label="softcap"), at_change=False, seconds=0.0)
    assert totals([alarm, left_open, bug]) == {
        "bugs": 1, "right site": 1, "right cause": 0, "wrong cause": 1,
        "rewrites": 2, "false alarms": 1, "undecided": 1, "failed": 0,
    }  # fmt: skip


def test_changed_lines_are_those_of_the_new_text():
    before, after = ["a", "b", "c", "d"], ["a", "B", "c", "new", "d"]
    assert changed_lines(before, after) == {2, 4}
    assert changed_lines(["a", "gone", "b"], ["a", "b"]) == {2}
    assert changed_lines(before, before) == set()


def test_a_sentence_names_a_changed_line(tmp_path):
    buggy, fixed = release(tmp_path / "buggy", 2), release(tmp_path / "fixed", 1)
    assert names_a_changed_line("changed at mul (numbers.py:1): 1 for 2", fixed, buggy)
    assert not names_a_changed_line("changed at mul (layer.py:10): 1 for 2", fixed, buggy)
    assert not names_a_changed_line("no line is named", fixed, buggy)


def test_there_are_enough_cases_and_each_is_well_formed():
    cases = all_cases()
    bugs = [case for case in cases if case.truth is not None]
    assert len({case.name for case in cases}) == len(cases)
    assert len(bugs) >= 40
    assert len({case.package for case in bugs}) >= 6
    assert len(cases) - len(bugs) >= 20
    assert not {case.package for case in cases} & {"transformers", "diffusers"}
    for case in bugs:
        assert set(case.truth.labels) <= LABELS.keys(), case.name
        assert case.truth.where, case.name
        assert case.truth.labels or case.truth.says, case.name
        assert all(re.compile(one) for one in case.truth.says)


def test_the_cache_is_below_the_users(monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert fetching.cache() == Path.home() / ".cache" / "firstdrift" / "realbugs"
