"""Cases that go well, and cases that do not: each is one row, and none is the end."""

import contextlib
import os
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest
from tests.sweeping.two_sides import PYTHON, candidate, handing_out, prerecord, record, reference, script, wrong

import firstdrift as fd


def verdicts(result):
    return [row.verdict for row in result.rows]


def test_commands_are_run_for_every_case(tmp_path):
    traces = prerecord(tmp_path / "traces", range(3), at1={"scale": 1.5})
    result = fd.sweep("start=0:3", *handing_out(traces), out=tmp_path / "out")
    assert verdicts(result) == ["noise", "drift", "noise"]
    assert result.exit_code == 1
    assert result.rows[1].first_drift.place == ("grad", "fc", "weight")
    assert result.rows[0].losses[0].reference == pytest.approx(result.rows[0].losses[0].candidate, rel=1e-5)


def test_functions_are_run_for_every_case():
    result = fd.sweep({"start": range(4)}, reference, candidate)
    assert verdicts(result) == ["noise"] * 4
    assert result.exit_code == 0
    assert result.directory is None


def test_a_function_gets_what_it_names(tmp_path):
    def whole(case, out):
        record(out, start=case["start"])

    def anything(**given):
        assert set(given) == {"start", "case", "out"}
        record(given["out"], start=given["start"])

    assert fd.sweep("start=0:2", whole, anything).exit_code == 0
    assert fd.sweep(range(2), lambda case, out: record(out, start=case), lambda case, out: record(out, start=case)).rows


def test_a_function_may_say_where_its_trace_is(tmp_path):
    def elsewhere(start):
        record(tmp_path / f"mine-{start}", start=start)
        return tmp_path / f"mine-{start}"

    assert fd.sweep("start=0:2", elsewhere, candidate).exit_code == 0


class Inline(Executor):
    """Any executor will do."""

    def submit(self, call, /, *args, **kwargs):
        future = Future()
        future.set_result(call(*args, **kwargs))
        return future


@pytest.mark.parametrize("make", [lambda: ThreadPoolExecutor(2), lambda: ProcessPoolExecutor(2), Inline])
def test_any_executor_runs_them(make, tmp_path):
    with make() as executor:
        result = fd.sweep("start=0:4", reference, wrong, executor)
        assert verdicts(result) == ["drift"] * 4
        traces = prerecord(tmp_path / "traces", range(2))
        assert fd.sweep("start=0:2", *handing_out(traces), executor).exit_code == 0


def test_several_jobs_give_what_one_gives(tmp_path):
    local = []  # a closure cannot be pickled, and need not be

    def mine(start, out):
        assert not local
        record(out, start=start, side="candidate", scale=1.5 if start == 2 else 1.0)

    one, two = (fd.sweep("start=0:5", reference, mine, jobs=jobs).to_json() for jobs in (1, 2))
    for result in (one, two):
        for case in result["cases"]:
            del case["seconds"]
    assert one == two


def test_an_executor_that_cannot_take_a_function_makes_failed_rows():
    with ProcessPoolExecutor(1) as executor:
        result = fd.sweep("start=0:2", lambda start, out: None, candidate, executor)
    assert verdicts(result) == ["failed", "failed"]
    assert "the executor could not run it" in result.rows[0].sentence


def test_a_function_on_somebody_elses_executor_cannot_have_a_timeout():
    with ThreadPoolExecutor(1) as executor, pytest.raises(fd.SelectionError, match="cannot be killed"):
        fd.sweep("start=0:2", reference, candidate, executor, timeout=1)


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize(
    ("program", "sentence"),
    [
        ("import sys\nprint('bad weights')\nsys.exit(3)", "the candidate ended with exit code 3: bad weights"),
        (
            "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)",
            "the candidate was killed by SIGSEGV and said nothing",
        ),
        ("pass", "the candidate ended well and wrote no trace; let it write to {out}"),
        ("import sys\nopen(sys.argv[2] + '/trace.json', 'w').write('{')", "trace.json"),
    ],
)
def test_a_candidate_that_fails_is_one_row(program, sentence, jobs, tmp_path):
    traces = prerecord(tmp_path / "traces", range(3))
    good, _ = handing_out(traces)
    works = f"shutil.copytree('{traces}/' + sys.argv[1] + '/candidate', sys.argv[2], dirs_exist_ok=True)"
    lines = ["import sys, shutil", "if sys.argv[1] != '1':", f"    {works}", "    sys.exit()", program]
    fails = script(tmp_path / "port.py", "\n".join(lines))
    result = fd.sweep("start=0:3", good, fails + " {start} {out}", out=tmp_path / "out", jobs=jobs)
    assert verdicts(result) == ["noise", "failed", "noise"]
    assert sentence in result.rows[1].sentence
    assert result.exit_code == 2
    assert result.verdict == "inconclusive"
    assert "1 of 3 cases failed, first start=1" in result.sentence


def test_half_a_trace_is_never_green(tmp_path):
    def half(start, out):
        record(out, start=start, side="candidate")
        index = out / "index.jsonl"
        lines = index.read_bytes().splitlines(keepends=True)
        index.write_bytes(b"".join(lines[:-3]) + lines[-3][:20])

    result = fd.sweep("start=0:2", reference, half)
    assert result.exit_code == 2
    assert all(row.problems for row in result.rows)
    assert result.rows[0].missing


@pytest.mark.parametrize(
    ("dies", "sentence"),
    [
        (lambda: os.kill(os.getpid(), 9), "the candidate was killed by SIGKILL"),
        (lambda: os._exit(7), "the candidate ended with exit code 7"),
        (lambda: 1 / 0, "the candidate raised ZeroDivisionError: division by zero"),
        (lambda: 5, "the candidate returned a int; return nothing, or the path of the trace"),
    ],
)
def test_a_function_that_dies_is_one_row(dies, sentence):
    def port(start, out):
        if start == 1:
            return dies()
        return candidate(start, out)

    result = fd.sweep("start=0:3", reference, port)
    assert verdicts(result) == ["noise", "failed", "noise"]
    assert sentence in result.rows[1].sentence


def sleepers(mark):
    return [one for one in psutil.process_iter(["cmdline"]) if mark in (one.info["cmdline"] or [])]


def gone(mark):
    deadline = time.monotonic() + 5
    while sleepers(mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not sleepers(mark)


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_command_that_hangs_is_killed_with_all_that_it_started(jobs, tmp_path):
    traces = prerecord(tmp_path / "traces", range(2))
    mark = f"{tmp_path}/mark"
    nap = f"{PYTHON} -S -c 'import time; time.sleep(600)' {mark}"
    good, cand = handing_out(traces)
    hangs = f'sh -c "if [ {{start}} = 1 ]; then {nap} & {nap}; else {cand}; fi"'
    start = time.monotonic()
    result = fd.sweep("start=0:2", good, hangs, out=tmp_path / "out", timeout=2, jobs=jobs)
    assert time.monotonic() - start < 60
    assert verdicts(result) == ["noise", "failed"]
    assert "the candidate was killed after 2 s (--timeout)" in result.rows[1].sentence
    assert gone(mark)


def test_a_function_that_hangs_is_killed():
    def hangs(start, out):
        if start == 0:
            time.sleep(600)
        candidate(start, out)

    result = fd.sweep("start=0:2", reference, hangs, timeout=2)
    assert verdicts(result) == ["failed", "noise"]
    assert "was killed after 2 s" in result.rows[0].sentence


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nobody says who started whom")
@pytest.mark.parametrize("kind", ["command", "function"])
def test_what_moved_to_a_session_of_its_own_is_killed_too(kind, tmp_path):
    """As the workers of launchers do."""
    mark = f"{tmp_path}/mark"
    nap = [PYTHON, "-S", "-c", "import time; time.sleep(600)", mark]

    def launches(start, out):
        subprocess.Popen(nap, start_new_session=True).wait()

    lines = ["import subprocess", f"subprocess.Popen({nap!r}, start_new_session=True).wait()"]
    port = script(tmp_path / "port.py", "\n".join(lines)) + " {start} {out}" if kind == "command" else launches
    result = fd.sweep("start=0:1", reference, port, timeout=2)
    assert "was killed after 2 s" in result.rows[0].sentence
    assert gone(mark)


def test_a_thread_that_outlives_its_function_does_not_hold_up_the_sweep():
    def forgets(start, out):
        candidate(start, out)
        threading.Thread(target=time.sleep, args=(600,)).start()

    start = time.monotonic()
    assert verdicts(fd.sweep("start=0:1", reference, forgets)) == ["noise"]
    assert time.monotonic() - start < 60


def test_a_function_that_dies_is_one_row_though_its_children_live_on(tmp_path):
    mark = f"{tmp_path}/mark"

    def leaves(start, out):
        if os.fork() == 0:
            os.execv(PYTHON, [PYTHON, "-S", "-c", "import time; time.sleep(600)", mark])
        os._exit(5)

    start = time.monotonic()
    result = fd.sweep("start=0:1", reference, leaves)
    assert "the candidate ended with exit code 5" in result.rows[0].sentence
    assert time.monotonic() - start < 60
    assert gone(mark)


def test_stale_output_never_leaks_into_a_case(tmp_path):
    """A run that writes nothing must not be compared by what an earlier one left."""
    traces = prerecord(tmp_path / "traces", range(2), at0={"scale": 1.5})
    good, cand = handing_out(traces)
    switch = tmp_path / "switch"
    once = f'sh -c "test -e {switch} || {cand}"'
    assert fd.sweep("start=0:2", good, once, out=tmp_path / "out").exit_code == 1
    assert (tmp_path / "out" / "cases" / "start=0" / "candidate" / "trace.json").is_file()
    switch.touch()
    again = fd.sweep("start=0:2", good, once, out=tmp_path / "out", force=True)
    assert verdicts(again) == ["failed", "failed"]
    assert "wrote no trace" in again.rows[0].sentence


def test_what_a_failed_run_left_is_gone_when_its_case_is_run_again(tmp_path):
    traces = prerecord(tmp_path / "traces", range(2))
    good, cand = handing_out(traces)
    switch = tmp_path / "switch"
    first = f'sh -c "test -e {switch} && exit 0; {cand}; exit 1"'
    assert verdicts(fd.sweep("start=0:2", good, first, out=tmp_path / "out")) == ["failed", "failed"]
    assert (tmp_path / "out" / "cases" / "start=0" / "candidate" / "trace.json").is_file()
    switch.touch()
    again = fd.sweep("start=0:2", good, first, out=tmp_path / "out")
    assert ["wrote no trace" in row.sentence for row in again.rows] == [True, True]


def test_a_run_that_outlives_its_sweep_cannot_write_into_the_next_one(tmp_path):
    """A sweep that is killed leaves its runs alive, and they know where they were to write."""
    traces = prerecord(tmp_path / "traces", range(1), at0={"scale": 1.5})
    seen = tmp_path / "seen"
    noting = f'sh -c "echo {{out}} >> {seen}; cp -r {traces}/{{start}}/reference/. {{out}}"'
    told = []
    for _ in range(2):
        assert fd.sweep("start=0:1", noting, noting, out=tmp_path / "out", force=True).exit_code == 0
        told.append(set(seen.read_text().split()))
    assert len(told[1]) == 4
    first = Path(sorted(told[0])[0])
    first.parent.mkdir(parents=True)  # as if it had been killed in the middle, and a run still wrote there
    shutil.copytree(traces / "0" / "candidate", first)
    again = fd.sweep("start=0:1", noting, noting, out=tmp_path / "out", force=True)
    assert verdicts(again) == ["same"]
    assert not first.exists()


def test_a_side_finds_an_empty_directory_of_its_own(tmp_path):
    seen = tmp_path / "seen"

    def looks(start, out):
        assert out.is_dir()
        assert not list(out.iterdir())
        with seen.open("a") as file:
            file.write(f"{out}\n")
        record(out, start=start)

    result = fd.sweep("start=0:3", looks, looks)
    assert result.exit_code == 0
    assert len(set(seen.read_text().split())) == 6


def test_one_file_instead_of_a_directory_is_found(tmp_path):
    def inside(start, out):
        np.savez(out / "anything.npz", fc=np.arange(4.0) + start)

    def beside(start, out):
        np.savez(f"{out}.npz", fc=np.arange(4.0) + start)

    result = fd.sweep("start=0:2", inside, beside)
    assert verdicts(result) == ["same", "same"], result.sentence


def test_traces_of_clean_cases_are_removed_and_of_each_kind_one_is_kept(tmp_path):
    traces = prerecord(tmp_path / "traces", range(5), at1={"scale": 1.5}, at2={"scale": 1.5}, at3={"spoil": True})
    result = fd.sweep("start=0:5", *handing_out(traces), out=tmp_path / "out")
    assert [row.traces is not None for row in result.rows] == [False, True, False, True, False]
    assert sorted(path.name for path in (tmp_path / "out" / "cases").iterdir()) == ["start=1", "start=3"]


def test_a_row_is_told_as_soon_as_it_is_there():
    told = []
    fd.sweep("start=0:3", reference, candidate, done=lambda row: told.append(row.case["start"]))
    assert told == [0, 1, 2]


def test_losses_that_were_only_printed_are_checked_too(tmp_path):
    def quiet(start, out):
        record(out, start=start, without=("loss",))
        sys.stdout.write(f"note: nothing\nmean_loss={1.5 + start}\n")

    def nan(start, out):
        record(out, start=start, without=("loss",))
        sys.stdout.write("mean_loss=nan\n")

    def floods(start, out):
        quiet(start, out)
        for _ in range(64):
            sys.stdout.write("." * 100_000)
        sys.stdout.write(f"\nmean_loss={start}\n")

    assert [loss.reference for loss in fd.sweep("start=0:1", floods, floods).rows[0].losses] == [1.5, 0.0]
    result = fd.sweep("start=0:2", quiet, nan)
    assert [row.losses[0].reference for row in result.rows] == [1.5, 2.5]
    assert np.isnan(result.rows[0].losses[0].candidate)


def test_nothing_that_compares_outlives_its_sweep(tmp_path, monkeypatch):
    pytest.importorskip("torch")  # a worker forked from it compares in a process of its own
    for case in range(4):
        for side in ("reference", "candidate"):
            with fd.Writer(tmp_path / "pairs" / str(case) / side) as writer:
                writer.put("fc", "fwd", np.ones(8, np.float32))
    monkeypatch.setenv("WHOSE", str(tmp_path))
    assert fd.sweep(tmp_path / "pairs", jobs=2).exit_code == 0
    assert not started_with("WHOSE", str(tmp_path))


def started_with(name, value):
    """Processes alive whose environment has a variable."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(name) == value:
                found.append(process)
    return found
