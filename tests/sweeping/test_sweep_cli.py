"""`firstdrift sweep`, as people and CI see it."""

import inspect
import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner
from tests.sweeping.two_sides import handing_out, prerecord

from firstdrift.cli.commands.sweep import command
from firstdrift.cli.main import cli
from firstdrift.compare import comparison

REST = ("--candidate", "cp {out}", "--cases", "start=1")


def run(*arguments, code=0):
    result = CliRunner().invoke(cli, ["sweep", *map(str, arguments)])
    assert result.exit_code == code, (result.output, result.exception)
    return result


@pytest.fixture
def commands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    prerecord(Path("traces"), range(4), at3={"scale": 1.5})
    reference, candidate = handing_out("traces")
    return "--reference", reference, "--candidate", candidate


def test_a_clean_sweep_exits_with_0_and_a_drift_with_1(commands):
    assert run(*commands, "--cases", "start=0:3").stdout.startswith("noise: all 3 cases are the same up to float noise")
    said = run(*commands, "--cases", "start=0:4", code=1).stdout
    assert said.startswith("drift: the first drift is grad fc, introduced by fc's backward, in 1 of 4 (5-70 %)")
    assert "; 3 were done before" in said


def test_a_failed_case_exits_with_2(commands):
    said = run(*commands, "--cases", "start=2,9", code=2).stdout
    assert "start=9: the reference ended with exit code 1: cp: cannot stat 'traces/9/reference/.'" in said


def test_json_is_one_strict_object(commands):
    said = json.loads(run(*commands, "--cases", "start=0:4", "--json", code=1).stdout)
    assert (said["schema"], said["verdict"], said["exit_code"]) == ("firstdrift-sweep-v1", "drift", 1)
    assert said["counts"] == {
        "cases": 4, "done": 4, "reused": 0, "failed": 0, "left": 0, "verdicts": {"noise": 3, "drift": 1},
    }  # fmt: skip


def test_quiet_prints_one_line(commands):
    assert run(*commands, "--cases", "start=0:2", "--quiet").stdout.count("\n") == 1


def test_a_directory_of_pairs_needs_no_commands(commands):
    assert "pair=3" in run("traces", code=1).stdout


def test_functions_of_a_file_are_sides(commands, tmp_path):
    (tmp_path / "mine.py").write_text(
        "import shutil\n\ndef candidate(start, out):\n"
        "    shutil.copytree(f'traces/{start}/candidate', out, dirs_exist_ok=True)\n"
    )
    said = run(*commands[:2], "--candidate", "mine.py:candidate", "--cases", "start=0:3", "--jobs", 2).stdout
    assert said.startswith("noise: all 3 cases")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "give --reference, --candidate and --cases, or a directory of finished pairs"),
        (["traces", "--cases", "start=0:2"], "PAIRS are finished, so there is nothing to run"),
        (["--reference", "cp {out}"], "there are no cases; give some, for example --cases start=0:320:32"),
        (["--reference", "cp {start} {out}", "--cases", "start=0:2"], "there is no candidate"),
        (
            ["--reference", "cp {s} {out}", "--candidate", "cp {out}", "--cases", "start=1"],
            "there is no placeholder {s}",
        ),
        (
            ["--reference", "cp", "--candidate", "cp {out}", "--cases", "start=1"],
            "--reference: has no placeholder at all",
        ),
        (
            ["--reference", "gone.py:f", "--candidate", "cp {out}", "--cases", "start=1"],
            "gone.py: there is no such file",
        ),
        (["nowhere"], "nowhere: there is no such directory"),
        (["--timeout", "0", "traces"], "--timeout"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_2(commands, arguments, sentence):
    assert sentence in run(*arguments, code=2).stderr
    assert not Path("sweep-results").exists()


def test_an_output_directory_of_other_things_is_refused(commands):
    assert (
        "which no sweep made; choose another --out" in run(*commands, "--cases", "start=1", "--out", ".", code=2).stderr
    )


def test_sort_and_unfold_reach_the_report(commands, monkeypatch):
    asked = {}
    monkeypatch.setattr("firstdrift.sweeping.sweep_text.render", lambda result, **options: asked.update(options) or "")
    run(*commands, "--cases", "start=0:2")
    assert (asked["sort"], asked["unfold"]) == ("error", False)
    run(*commands, "--cases", "start=0:2", "--sort", "abs", "--unfold")
    assert (asked["sort"], asked["unfold"]) == ("abs", True)
    assert (
        "'size' is not one of 'error', 'abs'" in run(*commands, "--cases", "start=1", "--sort", "size", code=2).stderr
    )


def test_every_option_of_a_comparison_is_one_of_the_comparison():
    named = set(inspect.signature(comparison.diff).parameters)
    ours = {
        "pairs",
        "cases",
        "candidate",
        "reference",
        "truth",
        "out",
        "jobs",
        "timeout",
        "force",
        "sort",
        "unfold",
        "limit",
        "quiet",
        "as_json",
    }
    passed = {parameter.name for parameter in command.params} - ours - {"debug", "help"}
    assert {{"map_file": "map", "phase": "phases"}.get(name, name) for name in passed} <= named


def waiting(arguments, cwd):
    """The command as a process of its own, once its first row is there."""
    environment = os.environ | {"COLUMNS": "100"}
    program = [str(Path(sys.executable).with_name("firstdrift")), "sweep", *arguments]
    process = subprocess.Popen(
        program, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip  # whoever runs the tests in the background has it ignored
    results = Path(cwd, "sweep-results", "results.jsonl")
    deadline = time.monotonic() + 60
    while (not results.is_file() or results.read_bytes().count(b"\n") < 2) and time.monotonic() < deadline:
        time.sleep(0.05)
    return process


def sleepers(mark):
    return [one for one in psutil.process_iter(["cmdline"]) if mark in (one.info["cmdline"] or [])]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_an_interruption_leaves_what_is_done_and_says_so(commands, tmp_path, jobs, number):
    stop = tmp_path / "stop"
    stop.touch()
    nap = f"{sys.executable} -S -c 'import time; time.sleep(600)' {stop}"
    slow = f'sh -c "test {{start}} != 0 -a -e {stop} && {nap}; {commands[3]}"'
    asked = [*commands[:3], slow, "--cases", "start=0:3", "--jobs", jobs]
    process = waiting(asked, tmp_path)
    time.sleep(0.5)
    process.send_signal(number)
    said, errors = process.communicate(timeout=60)
    assert process.returncode == 2, (said, errors)
    assert "interrupted; what is done is kept, and the same command goes on from there" in " ".join(said.split())
    assert "2 of 3 cases were not run" in " ".join(said.split())
    deadline = time.monotonic() + 5
    while sleepers(str(stop)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not sleepers(str(stop))
    stop.unlink()
    assert "1 were done before" in run(*asked).stdout


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_second_interruption_changes_nothing(commands, tmp_path, jobs):
    slow = f'sh -c "test {{start}} = 0 || sleep 600; {commands[3]}"'
    process = waiting([*commands[:3], slow, "--cases", "start=0:3", "--jobs", jobs], tmp_path)
    for _ in range(3):
        process.send_signal(signal.SIGINT)
        time.sleep(0.03)
    said, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (2, "")
    assert "2 of 3 cases were not run" in " ".join(said.split())


@pytest.mark.parametrize("side", ["command", "function"])
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_sweep_that_was_killed_goes_on(commands, tmp_path, jobs, side):
    """What it had started is gone or harmless, and nothing of it holds the directory."""
    stop = tmp_path / "stop"
    stop.touch()
    slow = f'sh -c "while test {{start}} != 0 -a -e {stop}; do sleep 0.1; done; {commands[3]}"'
    (tmp_path / "mine.py").write_text(
        "import shutil, time\nfrom pathlib import Path\n\ndef candidate(start, out):\n"
        f"    while start and Path({str(stop)!r}).exists():\n        time.sleep(0.1)\n"
        "    shutil.copytree(f'traces/{start}/candidate', out, dirs_exist_ok=True)\n"
    )
    port = slow if side == "command" else "mine.py:candidate"
    asked = [*commands[:3], port, "--cases", "start=0:3", "--jobs", jobs]
    process = waiting(asked, tmp_path)
    started = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.communicate(timeout=60)
    if (jobs, side) != ("1", "command"):
        assert not psutil.wait_procs(started, timeout=20)[1]
    stop.unlink()
    said = run(*asked).stdout
    assert said.startswith("noise: all 3 cases")
    assert "; 1 were done before" in said
    assert not list(Path("sweep-results", "cases").iterdir())


def test_a_terminal_is_shown_how_much_is_left(commands, tmp_path):
    main, end = pty.openpty()
    program = [str(Path(sys.executable).with_name("firstdrift")), "sweep", *commands, "--cases", "start=0:3"]
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "100"}
    with subprocess.Popen(program, cwd=tmp_path, stdout=subprocess.PIPE, stderr=end, env=environment) as process:
        os.close(end)
        shown = b""
        while True:
            try:
                part = os.read(main, 4096)
            except OSError:
                break
            if not part:
                break
            shown += part
        assert process.stdout.read().startswith(b"noise: all 3 cases")
    os.close(main)
    assert b"3/3" in shown
    assert b"left" in shown
