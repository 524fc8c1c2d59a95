"""Whatever goes wrong while writing, what was recorded stays, and a trace with a gap says so."""

import json
import random
import resource
import shutil
import signal
import subprocess

import numpy as np
import pytest
from tests.c_header.compiling import C99, CLOSE, IO, OK, absent, opening, put, run

import firstdrift as fd


@pytest.fixture(scope="module")
def full_disk(compiled, tmp_path_factory):
    """Runs full_disk.c: the codes it closed with, and where the traces lie."""

    def play(mode, attempts):
        directory = tmp_path_factory.mktemp(mode)
        done = subprocess.run([compiled("full_disk.c"), directory, mode, str(attempts)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return directory, [int(code) for code in done.stdout.split()]

    return play


def test_a_disk_that_is_full_at_any_byte_leaves_a_trace_that_opens_and_is_unfinished(full_disk):
    directory, codes = full_disk("bytes", 700)
    total = codes.index(OK)
    assert 500 < total < 700
    assert codes == [IO] * total + [OK] * (700 - total)
    whole = (directory / str(total) / "index.jsonl").read_bytes()
    header = (directory / str(total) / "trace.json").stat().st_size
    seen = set()
    for room in range(total):
        path = directory / str(room)
        if room < header:  # it never became a trace, and left nothing
            assert list(path.iterdir()) == []
            continue
        trace = fd.open_trace(path)
        seen.add(len(trace))
        assert len(trace.records) >= (path / "index.jsonl").read_bytes().count(b"\n") - (room == total - 1)
        for record in trace:
            if record.at is not None:
                assert trace.array(record).reshape(-1)[:3].tolist() == [1, 2, 3]
        # Without its last line feed, and only then, everything is there all the same.
        lacks_nothing = (path / "index.jsonl").read_bytes() == whole[:-1]
        assert trace.complete == lacks_nothing == (room == total - 1), room
    assert seen == {0, 1, 2, 3}
    assert fd.open_trace(directory / str(total)).complete


def test_a_disk_that_is_full_at_any_byte_leaves_whole_npy_files_only(full_disk):
    directory, codes = full_disk("npy", 400)
    total = codes.index(OK)
    assert codes == [IO] * total + [OK] * (400 - total)
    for room in range(total + 1):
        for file in (directory / str(room)).rglob("*.npy"):
            assert np.load(file).reshape(-1)[:3].tolist() == [1, 2, 3]
        assert not list((directory / str(room)).rglob("*.partial"))
        said = directory / str(room) / "gradient_of.json"
        assert not said.exists() or json.loads(said.read_text()) == {"reduction": "sum", "batch": 4}
        listed = (directory / str(room) / "probes.txt").is_file()
        assert listed == (room >= len("conv1\nrelu1\n"))
    assert fd.open_trace(directory / str(total)).complete


def test_a_process_that_dies_at_any_byte_leaves_a_trace_that_opens_and_is_unfinished(full_disk):
    directory, codes = full_disk("killed", 700)
    total = codes.index(OK)
    assert codes == [9] * total + [OK] * (700 - total)
    for room in range(total):
        trace = fd.open_trace(directory / str(room))
        assert trace.complete == (room == total - 1), room  # which lacks the last line feed, and nothing else
        for record in trace:
            if record.at is not None:
                assert trace.array(record).reshape(-1)[:3].tolist() == [1, 2, 3]


def test_a_process_that_dies_at_any_byte_leaves_whole_npy_files_only(full_disk):
    directory, codes = full_disk("npy killed", 400)
    total = codes.index(OK)
    for room in range(total + 1):
        path = directory / str(room)
        for file in path.rglob("*.npy"):
            assert np.load(file).reshape(-1)[:3].tolist() == [1, 2, 3]
        assert (path / "probes.txt").exists() == (room >= len("conv1\nrelu1\n"))
    trace = fd.open_trace(directory / str(total - 1))
    assert (len(trace), trace.complete) == (1, False)  # the list has promised what is missing


def test_a_process_that_dies_while_writing_over_a_trace_never_leaves_a_line_without_its_bytes(full_disk):
    directory, codes = full_disk("over", 40)
    total = codes.index(OK)
    assert 10 < total < 40
    seen = set()
    for calls in range(total):
        trace = fd.open_trace(directory / str(calls))
        seen.add((len(trace), trace.complete))
        assert all("no end line" in problem for problem in trace.problems), trace.problems
    assert seen == {(3, True), (0, False), (1, False), (2, False), (3, False)}


def test_an_old_trace_whose_replacement_fails_at_once_is_empty_and_unfinished(compiled, tmp_path):
    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    program = compiled("driver.c", C99)
    run(program, opening(tmp_path / "t"), put(), CLOSE)
    opened = run(program, opening(tmp_path / "t", overwrite=1), preexec_fn=limit, restore_signals=False)[0]
    assert opened[0] == IO
    assert {file.name for file in (tmp_path / "t").iterdir()} == {"trace.json", "index.jsonl"}
    trace = fd.open_trace(tmp_path / "t")
    assert (len(trace), trace.complete) == (0, False)


def test_a_file_that_will_not_close_leaves_no_end_line(full_disk):
    directory, codes = full_disk("closing", 4)
    assert codes == [IO, IO, IO, OK]  # trace.json, the data file, the index
    assert list((directory / "0").iterdir()) == []
    assert b"end" not in (directory / "1" / "index.jsonl").read_bytes()
    assert len(fd.open_trace(directory / "1")) == 3
    assert fd.open_trace(directory / "3").complete


@pytest.mark.parametrize("most", [0, 100, 200, 3000, 70_000])
def test_a_write_that_the_system_cuts_short_is_noticed(compiled, tmp_path, most):
    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))

    data = b"\1" * 50_000
    puts = [put(step=step, data=data, dtype="u8", shape=(50_000,)) for step in range(3)]
    replies = run(
        compiled("driver.c", C99), opening(tmp_path / "t"), *puts, CLOSE, preexec_fn=limit, restore_signals=False
    )
    taken = [code == OK for code, _ in replies]
    assert taken == [True] * taken.index(False) + [False] * (5 - taken.index(False))
    assert "(File too large); free some space, or choose a directory that you may write; what was" in replies[-1][1]
    assert replies[-1][0] == IO
    if not taken[0]:  # not even trace.json fitted
        assert most <= 100
        assert list((tmp_path / "t").iterdir()) == []
        return
    trace = fd.open_trace(tmp_path / "t")
    assert len(trace) == max(sum(taken) - 1, 0)
    assert not trace.complete


def test_an_index_that_is_full_ends_the_recording_and_every_later_put_says_so(compiled, tmp_path):
    (tmp_path / "index.jsonl").symlink_to("/dev/full")
    program = compiled("driver.c")
    replies = run(program, opening(tmp_path, overwrite=1), put(), put(step=1), absent("grad", "x", "none"), CLOSE)
    why = (
        f"{tmp_path}: fwd conv1:out step 0: cannot write it (No space left on device); free some space, or choose a "
        "directory that you may write; what was recorded before stays readable"
    )
    assert replies == [(OK, "")] + [(IO, why)] * 4


@pytest.mark.parametrize("bad", ["a file in its place", "a file above it", "no permission"])
def test_a_directory_that_cannot_be_written_is_named_with_the_reason(compiled, tmp_path, bad):
    (tmp_path / "file").write_text("kept")
    path = {"a file in its place": "file", "a file above it": "file/t", "no permission": "/proc/fd-test"}[bad]
    reason = {"no permission": "No such file or directory"}.get(bad, "Not a directory")
    opened = run(compiled("driver.c"), opening(path), cwd=tmp_path)[0]
    assert opened[0] == IO
    assert opened[1].startswith(
        f"{path}/index.jsonl: cannot write it ({reason}); free some space, or choose a directory"
    )
    assert (tmp_path / "file").read_text() == "kept"


def test_a_failed_write_counts_for_more_than_an_earlier_refusal(compiled, tmp_path):
    (tmp_path / "index.jsonl").symlink_to("/dev/full")
    replies = run(compiled("driver.c"), opening(tmp_path, overwrite=1), put(name="../x"), put(), CLOSE)
    assert "'..' component" in replies[1][1]
    assert [code for code, _ in replies[2:]] == [IO, IO]
    assert "No space left on device" in replies[3][1]


@pytest.mark.parametrize("attempt", range(20))
def test_killing_a_writer_loses_at_most_the_tensor_in_flight(compiled, tmp_path, attempt):
    chance = random.Random(attempt)
    child = subprocess.Popen([compiled("killed.c", C99, "-O2"), tmp_path / "t"], stdout=subprocess.PIPE)
    said = len(child.stdout.read(chance.randrange(1, 200)))
    try:
        child.wait(chance.random() * 0.01)
    except subprocess.TimeoutExpired:
        child.send_signal(signal.SIGKILL)
    said += len(child.communicate()[0])
    assert child.returncode == -signal.SIGKILL
    trace = fd.open_trace(tmp_path / "t")
    assert said <= len(trace) <= said + 1
    assert not trace.complete
    for record in trace:
        array = trace.array(record)
        assert len(array) == {"small": 10, "middle": 5000, "large": 300000}[record.site.name]
        assert (array[0], array[-1]) == (record.site.step, record.site.step)
    shutil.rmtree(tmp_path / "t")


@pytest.mark.parametrize("attempt", range(10))
def test_killing_a_writer_while_it_starts_leaves_nothing_or_a_trace(compiled, tmp_path, attempt):
    path = tmp_path / "t"
    child = subprocess.Popen([compiled("killed.c", C99, "-O2"), path], stdout=subprocess.DEVNULL)
    while not path.exists():
        pass
    for _ in range(attempt * 20):
        path.exists()
    child.kill()
    child.wait()
    try:
        trace = fd.open_trace(path)
    except fd.NotATraceError as error:
        assert "the directory is empty" in str(error) or "holds no trace" in str(error)
    else:
        assert not trace.complete
    assert run(compiled("driver.c"), opening(path, overwrite=1), put(), CLOSE) == [(OK, "")] * 3
    assert fd.open_trace(path).complete
