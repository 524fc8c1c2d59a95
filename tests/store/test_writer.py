"""What a writer promises: order, locks, overwriting, ranks, threads, and honesty about failure."""

import errno
import io
import json
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import firstdrift as fd
from firstdrift.store import files
from firstdrift.store.background import BackgroundQueue
from firstdrift.store.files import AppendFiles

ONE = np.ones(3, np.float32)


def lines(path):
    return [json.loads(line) for line in (path / "index.jsonl").read_text().splitlines()]


def test_a_line_has_the_documented_shape(tmp_path):
    with fd.Writer(tmp_path / "t") as writer:
        writer.put("layers.3.attn", "fwd", np.zeros((2, 8), np.float32))
    assert (tmp_path / "t" / "index.jsonl").read_text().splitlines() == [
        '{"step":0,"phase":"fwd","name":"layers.3.attn","port":"out","call":0,"sample":null,'
        '"dtype":"f32","shape":[2,8],"at":[0,0,64]}',
        '{"end":1}',
    ]


def test_the_header_is_there_before_the_first_tensor(tmp_path):
    writer = fd.Writer(tmp_path / "t", model="m", batch=3)
    header = json.loads((tmp_path / "t" / "trace.json").read_text())
    assert {k: header[k] for k in ("format", "version", "model", "batch", "rank", "ranks")} == {
        "format": "firstdrift-trace", "version": 1, "model": "m", "batch": 3, "rank": 0, "ranks": 1,
    }  # fmt: skip
    writer.close()


def test_data_is_written_before_its_line(tmp_path, monkeypatch):
    sizes = []
    real = AppendFiles.append_line

    def spy(self, line):
        sizes.append((tmp_path / "t" / "data-00000.bin").stat().st_size)
        real(self, line)

    monkeypatch.setattr(AppendFiles, "append_line", spy)
    with fd.Writer(tmp_path / "t") as writer:
        writer.put("x", "fwd", ONE)
        writer.put("y", "fwd", ONE)
    assert sizes[:2] == [12, 76]


def test_every_put_is_readable_at_once(tmp_path):
    writer = fd.Writer(tmp_path / "t")
    for step in range(3):
        writer.put("x", "fwd", ONE * step, step=step)
        trace = fd.open_trace(tmp_path / "t")
        assert [float(trace.array(r)[0]) for r in trace] == [float(s) for s in range(step + 1)]
        assert trace.problems == (f"index.jsonl has no end line: its writer is still running; sites there: {step + 1}",)
    writer.close()


def test_a_block_that_raises_leaves_a_readable_unfinished_trace(tmp_path):
    with pytest.raises(ZeroDivisionError), fd.Writer(tmp_path / "t") as writer:
        writer.put("x", "fwd", ONE)
        raise ZeroDivisionError
    trace = fd.open_trace(tmp_path / "t")
    assert len(trace) == 1
    assert "writer was stopped" in trace.problems[0]


def test_the_same_site_twice_is_refused_and_harms_nothing(tmp_path):
    with fd.Writer(tmp_path / "t") as writer:
        writer.put("x", "fwd", ONE)
        with pytest.raises(fd.SiteError, match=r"fwd x:out step 0 was put twice; give the second one its own call"):
            writer.put("x", "fwd", ONE)
        writer.put("x", "fwd", ONE, call=1)
    assert len(fd.open_trace(tmp_path / "t")) == 2


@pytest.mark.parametrize(
    ("name", "phase", "options", "message"),
    [
        ("x", "forward", {}, "phase 'forward' is not one of input, weight, fwd"),
        ("../x", "fwd", {}, "'..' component"),
        ("a/../x", "fwd", {}, "'..' component"),
        ("a\\..", "fwd", {}, "'..' component"),
        ("x", "fwd", {"port": "../out"}, "'..' component"),
        ("x" * 5000, "fwd", {}, "has 5000 characters"),
        ("\ud800", "fwd", {}, "lone surrogate"),
        (3, "fwd", {}, "name 3 is a int"),
        ("x", 3, {}, "phase 3 is a int"),
        ("x", "fwd", {"step": -1}, "step -1 is not a whole number"),
        ("x", "fwd", {"step": True}, "step True is not a whole number"),
        ("x", "fwd", {"call": 1.5}, "call 1.5 is not a whole number"),
        ("x", "fwd", {"sample": "0"}, "sample '0' is not a whole number"),
        ("x", "fwd", {"step": 2**63}, "is not a whole number"),
        ("x", "fwd", {"op": 3}, "'op' is 3; it must be text"),
        ("x", "fwd", {"producers": [{"name": "y"}]}, "producer"),
        ("x", "fwd", {"attrs": {"f": object()}}, "which JSON cannot hold"),
        ("x", "fwd", {"dtype": "f32"}, "dtype is the format's own"),
        ("x", "fwd", {"order": -3}, "order -3"),
        ("x", "fwd", {"end": 5}, "end is the format's own"),
        ("x", "fwd", {"dims": ["a", 3]}, "it must be a list of axis names"),
        ("x", "optim", {}, "optimizer state needs a port"),
    ],
)
def test_a_bad_site_is_refused_with_both_values_and_nothing_is_written(tmp_path, name, phase, options, message):
    with fd.Writer(tmp_path / "t") as writer:
        with pytest.raises(fd.FirstdriftError, match=".*") as caught:
            writer.put(name, phase, ONE, **options)
        assert message in str(caught.value)
        writer.put("good", "fwd", ONE)
    assert [record.site.name for record in fd.open_trace(tmp_path / "t")] == ["good"]


@pytest.mark.parametrize(
    "array", [np.array(["text"]), np.array([object()]), np.zeros(2, "M8[s]"), np.zeros(2, np.longdouble), [[1], [2, 3]]]
)
def test_an_array_that_no_trace_can_hold_is_refused(tmp_path, array):
    with fd.Writer(tmp_path / "t") as writer, pytest.raises((fd.SiteError, ValueError)):
        writer.put("x", "fwd", array)


def test_an_existing_trace_is_kept_unless_overwriting_is_asked_for(tmp_path):
    with fd.Writer(tmp_path / "t") as writer:
        writer.put("old", "fwd", ONE)
    before = fd.open_trace(tmp_path / "t")
    mapped = before.array(before.records[0])
    with pytest.raises(fd.TraceExistsError, match="holds a trace already; choose another path, or overwrite"):
        fd.Writer(tmp_path / "t")
    with fd.Writer(tmp_path / "t", overwrite=True) as writer:
        writer.put("new", "fwd", ONE * 2)
    assert [record.site.name for record in fd.open_trace(tmp_path / "t")] == ["new"]
    assert mapped.tolist() == [1, 1, 1]  # whoever has the old one mapped keeps it


def test_overwriting_removes_data_files_of_the_larger_run_before(tmp_path, monkeypatch):
    monkeypatch.setattr("firstdrift.store.files.DATA_FILE_BYTES", 10)
    with fd.Writer(tmp_path / "t") as writer:
        for step in range(4):
            writer.put("x", "fwd", ONE, step=step)
    with fd.Writer(tmp_path / "t", overwrite=True) as writer:
        writer.put("x", "fwd", ONE)
    assert sorted(p.name for p in (tmp_path / "t").iterdir()) == ["data-00000.bin", "index.jsonl", "trace.json"]


def test_two_writers_cannot_share_a_trace(tmp_path):
    with fd.Writer(tmp_path / "t") as writer:
        writer.put("x", "fwd", ONE)
        with pytest.raises(fd.TraceInUseError, match="another writer has this trace open"):
            fd.Writer(tmp_path / "t", overwrite=True)
        writer.put("y", "fwd", ONE)
    assert fd.open_trace(tmp_path / "t").complete


def test_a_lock_is_seen_across_processes_and_dies_with_its_process(tmp_path):
    script = "import firstdrift as fd, sys, time; w = fd.Writer(sys.argv[1]); print('open', flush=True); time.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", script, tmp_path / "t"], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout.readline() == "open\n"
        with pytest.raises(fd.TraceInUseError):
            fd.Writer(tmp_path / "t", overwrite=True)
        assert "still running" in fd.open_trace(tmp_path / "t").problems[0]
    finally:
        child.kill()
        child.communicate()
    assert "was stopped" in fd.open_trace(tmp_path / "t").problems[0]
    fd.Writer(tmp_path / "t", overwrite=True).close()


def test_a_forked_child_neither_ends_nor_locks_the_trace(tmp_path):
    writer = fd.Writer(tmp_path / "t")
    writer.put("x", "fwd", ONE)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            writer.close()  # must not write the end line: the parent goes on
            try:
                writer.put("y", "fwd", ONE)
            except fd.SiteError:
                status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    writer.put("z", "fwd", ONE)
    writer.close()
    trace = fd.open_trace(tmp_path / "t")
    assert trace.complete
    assert [record.site.name for record in trace] == ["x", "z"]


@pytest.mark.parametrize("in_background", [False, True])
def test_many_threads_write_one_trace(tmp_path, in_background):
    with fd.Writer(tmp_path / "t", background=in_background, checksum=True) as writer:

        def work(thread):
            for step in range(200):
                writer.put(f"thread{thread}", "fwd", np.full(100, thread * 1000 + step, np.int64), step=step)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    trace = fd.open_trace(tmp_path / "t")
    assert trace.complete
    assert len(trace) == 1600
    for record in trace:
        value = int(record.site.name.removeprefix("thread")) * 1000 + record.site.step
        assert set(trace.array(record).tolist()) == {value}


def test_the_queue_is_bounded_and_makes_the_producer_wait(tmp_path, monkeypatch):
    monkeypatch.setattr("firstdrift.store.writer.QUEUE_BYTES", 10_000)
    gate, most = threading.Event(), []
    real = AppendFiles.append
    monkeypatch.setattr(AppendFiles, "append", lambda self, data: (gate.wait(), real(self, data))[1])
    writer = fd.Writer(tmp_path / "t", background=True)
    done = []

    def produce():
        for step in range(20):
            writer.put("x", "fwd", np.zeros(250), step=step)
            done.append(step)
            most.append(writer._queue._held)

    producer = threading.Thread(target=produce)
    producer.start()
    while len(done) < 3:  # 2000 bytes and a job's weight each
        time.sleep(0.001)
    producer.join(0.05)
    assert producer.is_alive()
    assert len(done) == 3
    gate.set()
    producer.join()
    writer.close()
    assert max(most) <= 10_000
    assert len(fd.open_trace(tmp_path / "t")) == 20


def test_a_tensor_larger_than_the_queue_goes_alone(tmp_path, monkeypatch):
    monkeypatch.setattr("firstdrift.store.writer.QUEUE_BYTES", 100)
    with fd.Writer(tmp_path / "t", background=True) as writer:
        for step in range(5):
            writer.put("x", "fwd", np.zeros(1000), step=step)
    assert len(fd.open_trace(tmp_path / "t")) == 5


def fill_disk(monkeypatch, after):
    """From now on the disk takes `after` more bytes."""
    left = [after]

    class Full(io.FileIO):
        def write(self, data):
            view = memoryview(data).cast("B")
            if left[0] <= 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            part = view[: left[0]]
            left[0] -= len(part)
            return super().write(part)

    monkeypatch.setattr("firstdrift.store.files.io.FileIO", Full)


@pytest.mark.parametrize("in_background", [False, True])
@pytest.mark.parametrize("room", [100, 300, 1000, 4200, 4300, 5000])
def test_a_full_disk_loses_nothing_that_was_written(tmp_path, monkeypatch, room, in_background):
    fill_disk(monkeypatch, room)
    with pytest.raises(fd.StorageError, match="No space left on device") as caught:
        writer = fd.Writer(tmp_path / "t", background=in_background)
        for step in range(50):
            writer.put("x", "fwd", np.full(100, step, np.float32), step=step)
        writer.close()
    assert "stays readable" in str(caught.value)
    monkeypatch.undo()
    with pytest.raises(fd.StorageError):
        writer.put("later", "fwd", ONE)  # a gap would be silent
    writer.abort()
    trace = fd.open_trace(tmp_path / "t")
    assert not trace.complete
    assert [int(trace.array(record)[99]) for record in trace] == list(range(len(trace)))
    used = sum(p.stat().st_size for p in (tmp_path / "t").iterdir() if p.name != "trace.json")
    assert used <= room + 63 * 50
    assert len(trace) >= (room - 600) // 600


def test_a_real_full_disk_loses_nothing_that_was_written(tmp_path):
    """RLIMIT_FSIZE makes the kernel itself refuse; the trace is written by a process of its own."""
    script = """
import resource, signal, sys
import numpy as np, firstdrift as fd
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
w = fd.Writer(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    for step in range(100):
        w.put("x", "fwd", np.full(1000, step, np.float32), step=step)
except fd.StorageError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script, tmp_path / "t"], capture_output=True, text=True, check=True)
    assert "cannot write fwd x:out step 24 (File too large)" in done.stdout
    trace = fd.open_trace(tmp_path / "t")
    assert [int(trace.array(record)[999]) for record in trace] == list(range(24))


def test_an_unwritable_place_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(fd.StorageError, match="file.*cannot write a trace here"):
        fd.Writer(tmp_path / "file" / "t")
    with pytest.raises(fd.StorageError, match="cannot write a trace here"):
        fd.Writer(tmp_path / "file")


def test_a_put_after_close_is_refused(tmp_path):
    writer = fd.Writer(tmp_path / "t")
    writer.close()
    writer.close()
    with pytest.raises(fd.SiteError, match="put after the trace was closed"):
        writer.put("x", "fwd", ONE)


def test_ranks_write_beside_each_other(tmp_path):
    for rank in range(3):
        with fd.Writer(tmp_path / "t", rank=rank, ranks=3) as writer:
            writer.put("x", "fwd", ONE * rank)
    root = fd.open_trace(tmp_path / "t")
    assert root.complete
    second = fd.open_trace(tmp_path / "t" / "rank-0002")
    assert (second.header["rank"], float(second.array(second.records[0])[0])) == (2, 2.0)


def test_a_missing_rank_is_a_problem(tmp_path):
    with fd.Writer(tmp_path / "t", rank=0, ranks=4) as writer:
        writer.put("x", "fwd", ONE)
    with fd.Writer(tmp_path / "t", rank=2, ranks=4) as writer:
        writer.put("x", "fwd", ONE)
    assert fd.open_trace(tmp_path / "t").problems == ("2 of 4 ranks left no trace in this run: 1, 3",)


def test_ranks_of_an_earlier_larger_run_are_forgotten(tmp_path):
    for rank in range(3):
        fd.Writer(tmp_path / "t", rank=rank, ranks=3).close()
    fd.Writer(tmp_path / "t", overwrite=True).close()
    assert fd.open_trace(tmp_path / "t").complete
    with pytest.raises(fd.NotATraceError):
        fd.open_trace(tmp_path / "t" / "rank-0001")


@pytest.mark.parametrize(("rank", "ranks"), [(1, 1), (-1, 2), (0, 0), (0, 10**6)])
def test_impossible_ranks_are_refused(tmp_path, rank, ranks):
    with pytest.raises(fd.SiteError, match=f"rank {rank} of {ranks} ranks is impossible"):
        fd.Writer(tmp_path / "t", rank=rank, ranks=ranks)


def test_the_writer_sets_its_own_header_keys(tmp_path):
    with pytest.raises(fd.SiteError, match="'version' in the header is set by the writer itself"):
        fd.Writer(tmp_path / "t", version=7)
    assert not (tmp_path / "t").exists()


def test_background_failure_reaches_the_next_put_or_close(tmp_path, monkeypatch):
    def fail(self, data):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(AppendFiles, "append", fail)
    writer = fd.Writer(tmp_path / "t", background=True)
    writer.put("x", "fwd", ONE)
    with pytest.raises(fd.StorageError, match="Input/output error"):
        writer.close()
    assert not fd.open_trace(tmp_path / "t").complete


def test_interrupting_a_write_never_tears_a_line_in_the_middle(tmp_path, monkeypatch):
    writer = fd.Writer(tmp_path / "t")
    writer.put("x", "fwd", ONE)

    def interrupted(file, data):
        file.write(data[:20])
        raise KeyboardInterrupt

    monkeypatch.setattr("firstdrift.store.files._write_all", interrupted)
    for name in ("y", "z"):  # and nothing may follow the gap
        with pytest.raises(KeyboardInterrupt):
            writer.put(name, "fwd", ONE)
        monkeypatch.undo()
    writer.abort()
    assert [record.site.name for record in fd.open_trace(tmp_path / "t")] == ["x"]
    assert lines(tmp_path / "t")[0]["name"] == "x"


def test_an_index_line_that_did_not_fit_is_taken_back(tmp_path, monkeypatch):
    writer = fd.Writer(tmp_path / "t")
    writer.put("x", "fwd", ONE)
    real = files._write_all
    monkeypatch.setattr(files, "_write_all", lambda file, data: cut(real, file, data))
    with pytest.raises(fd.StorageError):
        writer.put("y", "fwd", ONE)
    assert len((tmp_path / "t" / "index.jsonl").read_text().splitlines()) == 1
    writer.abort()


def cut(real, file, data):
    """Data fits, a line does not."""
    if bytes(data[:1]) != b"{":
        return real(file, data)
    file.write(data[:20])
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_relative_path_means_what_it_meant_at_the_start(tmp_path, monkeypatch):
    (tmp_path / "other" / "run").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    writer = fd.Writer("run")
    monkeypatch.chdir(tmp_path / "other")
    writer.put("x", "fwd", ONE)
    writer.close()
    assert fd.open_trace(tmp_path / "run").complete
    with fd.Writer("run") as other:
        other.put("x", "fwd", ONE * 100)
    monkeypatch.chdir(tmp_path)
    trace = fd.open_trace("run")
    monkeypatch.chdir(tmp_path / "other")
    assert trace.array(trace.records[0]).tolist() == [1, 1, 1]


def test_another_ranks_trace_is_not_taken_away_without_asking(tmp_path):
    with fd.Writer(tmp_path / "t", rank=1, ranks=2) as writer:
        writer.put("x", "fwd", ONE)
        with pytest.raises(fd.TraceInUseError):
            fd.Writer(tmp_path / "t", overwrite=True)
        assert sorted(path.name for path in (tmp_path / "t").iterdir()) == ["rank-0001"]
    with pytest.raises(fd.TraceExistsError, match="rank-0001: holds a trace already"):
        fd.Writer(tmp_path / "t")
    assert len(fd.open_trace(tmp_path / "t" / "rank-0001")) == 1


def test_a_put_under_way_is_waited_for_by_close(tmp_path, monkeypatch):
    arrived, go_on = threading.Event(), threading.Event()
    real = BackgroundQueue.submit

    def late(self, job, weight):
        arrived.set()
        go_on.wait()
        real(self, job, weight)

    monkeypatch.setattr(BackgroundQueue, "submit", late)
    writer = fd.Writer(tmp_path / "t", background=True)
    putting = threading.Thread(target=writer.put, args=("x", "fwd", ONE))
    putting.start()
    arrived.wait()
    closing = threading.Thread(target=writer.close)
    closing.start()
    while not writer._queue._closed:
        time.sleep(0.001)
    closing.join(0.05)  # it has no reason to end, as long as a tensor is on its way
    go_on.set()
    putting.join()
    closing.join()
    assert len(fd.open_trace(tmp_path / "t")) == 1


@pytest.mark.parametrize(
    "details",
    [{"absent": "no"}, {"crc32": 5}, {"producers": "conv1"}, {"note": "x" * (9 << 20)}, {"extra": 10**5000}],
    ids=["absent", "crc32", "producers", "too long", "too large"],
)
def test_a_writer_refuses_what_its_reader_would(tmp_path, details):
    with fd.Writer(tmp_path / "t") as writer:
        with pytest.raises(fd.FirstdriftError):
            writer.put("x", "fwd", ONE, **details)
        writer.put("y", "fwd", ONE)
    assert len(fd.open_trace(tmp_path / "t")) == 1


def test_numbers_and_text_of_numpy_are_numbers_and_text(tmp_path):
    with fd.Writer(tmp_path / "t") as writer:
        writer.put(np.str_("x"), "fwd", ONE, step=np.int64(3), sample=np.uint8(2), call=np.int32(1))
        writer.put("far", "fwd", ONE, step=0)
        writer.put("far", "fwd", ONE, step=2**61 - 1)  # hashes like 0
    assert fd.Site(3, "fwd", "x", "out", 1, 2) in fd.open_trace(tmp_path / "t")


@pytest.mark.parametrize(
    "name", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float16", "float32", "int64", "bool", "complex64"]
)
def test_torch_tensors_are_recorded_by_their_bits(tmp_path, name):
    import torch

    tensor = torch.arange(6).to(getattr(torch, name)).reshape(2, 3)
    wanted = tensor.contiguous().view(torch.uint8).numpy().tobytes()
    if tensor.is_floating_point():
        tensor = tensor.requires_grad_(name.startswith("float32"))
    with fd.Writer(tmp_path / "t") as writer:
        writer.put("x", "fwd", tensor)
        writer.put("one", "fwd", tensor[0, 0])
    trace = fd.open_trace(tmp_path / "t")
    assert trace.array(trace.records[0]).tobytes() == wanted


def test_a_missing_path_is_a_file_not_found_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="No such file"):
        fd.open_trace(tmp_path / "nope")
    with pytest.raises(fd.StorageError, match="no NUL byte"):
        fd.open_trace("a\0b")
