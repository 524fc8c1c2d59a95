"""Results are kept: finished cases are not run again, and a changed command, file or option starts anew."""

import functools
import json
import os
import signal
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sweeping.two_sides import handing_out, prerecord, record, reference

import firstdrift as fd
from firstdrift.core.strict_json import decode_object, encode
from firstdrift.errors import TraceExistsError, TraceInUseError
from firstdrift.sweeping.case_rows import Finding, Growth, Loss, Row, SiteRow
from firstdrift.sweeping.ledger import identity_of, open_ledger


@pytest.fixture
def counting(tmp_path):
    """Two commands, of which the candidate leaves a mark every time it is run."""
    traces = prerecord(tmp_path / "traces", range(4))
    ref, cand = handing_out(traces)
    marks = tmp_path / "marks"
    marks.mkdir()
    counted = f'sh -c "mktemp -p {marks} {{start}}-XXXXXX > {os.devnull}; {cand}"'
    return ref, counted, lambda: sorted(path.name.split("-")[0] for path in marks.iterdir())


def test_finished_cases_are_not_run_again(counting, tmp_path):
    ref, cand, runs = counting
    first = fd.sweep("start=0:2", ref, cand, out=tmp_path / "out")
    again = fd.sweep("start=0:2", ref, cand, out=tmp_path / "out")
    assert runs() == ["0", "1"]
    assert (first.reused, again.reused) == (0, 2)
    assert again.rows == first.rows
    more = fd.sweep("start=0:4", ref, cand, out=tmp_path / "out")
    assert runs() == ["0", "1", "2", "3"]
    assert len(more.rows) == 4
    assert len(fd.sweep("start=1:3", ref, cand, out=tmp_path / "out").rows) == 2
    assert runs() == ["0", "1", "2", "3"]


def test_failed_cases_are_run_again(tmp_path):
    traces = prerecord(tmp_path / "traces", range(2))
    ref, cand = handing_out(traces)
    (traces / "1").rename(tmp_path / "away")
    first = fd.sweep("start=0:2", ref, cand, out=tmp_path / "out")
    assert [row.verdict for row in first.rows] == ["noise", "failed"]
    (tmp_path / "away").rename(traces / "1")
    again = fd.sweep("start=0:2", ref, cand, out=tmp_path / "out")
    assert [row.verdict for row in again.rows] == ["noise", "noise"]
    assert again.reused == 1


def test_a_changed_command_starts_anew_and_says_so(counting, tmp_path):
    ref, cand, runs = counting
    fd.sweep("start=0:2", ref, cand, out=tmp_path / "out")
    result = fd.sweep("start=0:2", ref, cand.replace("cp -r", "cp -R"), out=tmp_path / "out")
    assert runs() == ["0", "0", "1", "1"]
    (note,) = result.notes
    assert note == "started anew, because the candidate changed; the results of before are in results.old.jsonl"
    assert (tmp_path / "out" / "results.old.jsonl").is_file()


def test_a_changed_option_starts_anew_and_says_so(counting, tmp_path):
    ref, cand, runs = counting
    fd.sweep("start=0:2", ref, cand, out=tmp_path / "out")
    result = fd.sweep("start=0:2", ref, cand, out=tmp_path / "out", phases=["fwd"])
    assert runs() == ["0", "0", "1", "1"]
    assert "options changed (phases)" in result.notes[0]


def test_a_port_that_was_built_again_is_another_one(tmp_path):
    traces = prerecord(tmp_path / "traces", range(2))
    ref, _ = handing_out(traces)
    port = tmp_path / "port.sh"
    port.write_text(f"#!/bin/sh\ncp -r {traces}/$1/candidate/. $2\n")
    port.chmod(0o755)
    run = f"{port} {{start}} {{out}}"
    assert fd.sweep("start=0:2", ref, run, out=tmp_path / "out").exit_code == 0
    port.write_text(f"#!/bin/sh\n# better\ncp -r {traces}/$1/candidate/. $2\n")
    result = fd.sweep("start=0:2", ref, run, out=tmp_path / "out")
    assert result.reused == 0
    assert "port.sh, which the candidate uses, changed" in result.notes[0]


def test_a_changed_function_starts_anew(tmp_path):
    def first(start, out):
        record(out, start=start)

    def second(start, out):
        record(out, start=start, side="candidate")

    second.__qualname__, second.__name__ = first.__qualname__, first.__name__
    assert fd.sweep("start=0:2", reference, first, out=tmp_path / "out").reused == 0
    assert fd.sweep("start=0:2", reference, first, out=tmp_path / "out").reused == 2
    assert fd.sweep("start=0:2", reference, second, out=tmp_path / "out").reused == 0


def typed(code, **known):
    """A function that was typed into a session: no file tells that it has changed."""
    known |= {"record": record}
    exec(compile(f"def side(start, out):\n    {code}", "<session>", "exec"), known)
    return known["side"]


class Scaled:
    def __init__(self, scale):
        self.scale = scale

    def __call__(self, start, out):
        record(out, start=start, scale=self.scale)

    def method(self, start, out):
        self(start, out)


def scaled(start, out, scale):
    record(out, start=start, scale=scale)


def closing_over(scale):
    return lambda start, out: record(out, start=start, scale=scale)


def with_default(scale):
    def side(start, out, more=(scale,)):
        record(out, start=start, scale=more[0])

    return side


@pytest.mark.parametrize(
    "make",
    [
        lambda scale: typed(f"record(out, start=start, scale={scale})"),
        lambda scale: typed("record(out, start=start, scale=SCALE)", SCALE=scale),
        lambda scale: typed("record(out, start=start, scale=scale())", scale=eval(f"lambda: {scale}")),
        lambda scale: functools.partial(scaled, scale=scale),
        lambda scale: functools.partial(functools.partial(scaled, scale=1), scale=scale),
        lambda scale: Scaled(scale),
        lambda scale: Scaled(scale).method,
        closing_over,
        with_default,
    ],
    ids=["constant", "global", "helper", "partial", "partial of a partial", "object", "method", "closure", "default"],
)  # fmt: skip
def test_a_function_with_another_value_in_it_is_another_one(make, tmp_path):
    assert fd.sweep("start=0:1", reference, make(1.0), out=tmp_path / "out").exit_code == 0
    assert fd.sweep("start=0:1", reference, make(1.0), out=tmp_path / "out").reused == 1
    changed = fd.sweep("start=0:1", reference, make(1.5), out=tmp_path / "out")
    assert (changed.reused, changed.exit_code) == (0, 1)


def test_a_function_is_the_same_one_in_another_process(tmp_path):
    code = "def side(start, out):\n    return out in {'b', 'a', 'c'} and (lambda: start in {'p', 'q', 'r'})\n"
    show = "from firstdrift.sweeping.ledger import identity_of; print(identity_of(side))"
    said = {
        subprocess.check_output([sys.executable, "-c", code + show], env=os.environ | {"PYTHONHASHSEED": seed})
        for seed in "123"
    }
    assert len(said) == 1


def test_a_function_that_refers_to_itself_has_an_identity():
    one = typed("return side(start, out)")
    assert identity_of(one) == identity_of(typed("return side(start, out)"))


def test_force_runs_everything_again(counting, tmp_path):
    ref, cand, runs = counting
    for _ in range(2):
        fd.sweep("start=0:2", ref, cand, out=tmp_path / "out", force=True)
    assert runs() == ["0", "0", "1", "1"]


def test_a_row_that_was_cut_off_is_made_again(counting, tmp_path):
    ref, cand, runs = counting
    fd.sweep("start=0:2", ref, cand, out=tmp_path / "out")
    results = tmp_path / "out" / "results.jsonl"
    results.write_bytes(results.read_bytes()[:-30])
    result = fd.sweep("start=0:2", ref, cand, out=tmp_path / "out")
    assert runs() == ["0", "1", "1"]
    assert "cut off" in result.notes[0]
    assert len(results.read_text().splitlines()) == 3
    for line in results.read_text().splitlines():
        json.loads(line)


@pytest.mark.parametrize("line", ["{}", '{"case": 1}', "nonsense", "[1]"])
def test_a_line_that_is_no_result_is_left_out_and_named(line, counting, tmp_path):
    ref, cand, _ = counting
    fd.sweep("start=0:2", ref, cand, out=tmp_path / "out")
    with (tmp_path / "out" / "results.jsonl").open("a") as file:
        file.write(line + "\n")
    result = fd.sweep("start=0:2", ref, cand, out=tmp_path / "out")
    assert result.reused == 2
    assert "line 4 of results.jsonl is no result" in result.notes[0]


def test_a_directory_of_other_things_is_refused_and_stays(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(TraceExistsError, match="holds 'thesis.tex', which no sweep made; choose another --out"):
        fd.sweep("start=0:2", reference, reference, out=tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "results.jsonl").write_text("mine\n")
    with pytest.raises(fd.FormatError, match="does not begin as the results of a sweep do"):
        fd.sweep("start=0:2", reference, reference, out=tmp_path / "out")
    assert (tmp_path / "out" / "results.jsonl").read_text() == "mine\n"


def test_a_directory_that_another_sweep_uses_is_refused(tmp_path):
    code = "\n".join([
        "from firstdrift.sweeping.ledger import open_ledger", "from pathlib import Path",
        f"with open_ledger(Path({str(tmp_path / 'out')!r}), {{}}):", "    print('ready', flush=True)", "    input()",
    ])  # fmt: skip
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"ready\n"
        with pytest.raises(TraceInUseError, match="another sweep is writing there"), open_ledger(tmp_path / "out", {}):
            pass
        other.communicate(b"\n")
    with open_ledger(tmp_path / "out", {}):
        pass


def holding(directory):
    """The code of a process that forks a child like a worker, which watches for its end, and is killed at once."""
    return "\n".join([
        "import multiprocessing, os, signal, time", "from pathlib import Path",
        "from firstdrift.sweeping.ledger import open_ledger",
        "from firstdrift.sweeping.templates import leave_with_parent",
        "def work(late):", "    time.sleep(late)", "    leave_with_parent(lambda: os._exit(1))", "    time.sleep(600)",
        f"with open_ledger(Path({str(directory)!r}), {{}}):", "    context = multiprocessing.get_context('fork')",
        "    for late in (0, 0.3):", "        context.Process(target=work, args=(late,)).start()",
        "    os.kill(os.getpid(), signal.SIGKILL)",
    ])  # fmt: skip


def test_a_sweep_waits_for_what_a_killed_one_had_started(tmp_path):
    """Workers hold the lock that they were forked with until they see that nobody waits for them, late ones too."""
    assert subprocess.run([sys.executable, "-c", holding(tmp_path / "out")]).returncode == -signal.SIGKILL
    with open_ledger(tmp_path / "out", {}):
        pass


def test_a_place_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(fd.StorageError, match="cannot make the directory of results"):
        fd.sweep("start=0:2", reference, reference, out=tmp_path / "file" / "out")


numbers = st.floats() | st.none()
names = st.text(max_size=5)
sites = st.builds(
    SiteRow,
    st.integers(0, 9),
    names,
    names,
    names,
    st.sampled_from(["drift", "noise"]),
    st.integers(0, 9),
    numbers,
    numbers,
)
findings = st.builds(
    Finding,
    st.integers(0, 9),
    names,
    names,
    names,
    st.just(0),
    st.none() | st.integers(0, 9),
    names,
    st.none() | names,
    names,
)
losses = st.builds(Loss, st.integers(0, 9), st.floats(), st.floats())
curves = st.lists(st.floats(0), max_size=3).map(tuple)
growths = st.builds(Growth, names, st.lists(st.integers(0, 9), max_size=3).map(tuple), curves, st.none() | curves)
rows = st.builds(
    Row, st.dictionaries(names, st.integers() | names), names, st.integers(0, 3), names, st.none() | findings,
    losses=st.lists(losses, max_size=3).map(tuple), sites=st.lists(sites, max_size=3).map(tuple),
    missing=st.lists(st.tuples(names, names, names), max_size=2).map(tuple), growth=st.none() | growths,
)  # fmt: skip


@given(rows)
def test_a_row_survives_its_line(row):
    again = Row.from_json(decode_object(encode(row.to_json())))
    assert repr(again) == repr(row)  # NaN is not equal to itself
