"""What a writer can be told later: that bytes are a further site's, that they were not final, more of its header."""

import json
import os
import zlib

import ml_dtypes
import numpy as np
import pytest

import firstdrift as fd
from firstdrift.store import files, writer
from firstdrift.store.background import BackgroundQueue

ONE = np.arange(6, dtype=np.float32).reshape(2, 3)


def lines(path):
    return [json.loads(line) for line in (path / "index.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("checksum", [False, True])
def test_a_site_put_again_holds_the_same_bytes_and_takes_none(background, checksum, tmp_path):
    with fd.Writer(tmp_path / "t", background=background, checksum=checksum) as w:
        stored = w.put("fc", "fwd", ONE, op="Linear")
        w.put_again("relu", "fwd", stored, port="in.0", step=2, call=3, sample=4, order=7, producers=["fc"])
        w.put("relu", "fwd", ONE + 1)
    first, again, _, end = lines(tmp_path / "t")
    assert end == {"end": 3}
    assert again["at"] == first["at"] == [0, 0, 24]
    assert (again["dtype"], again["shape"], again["port"]) == ("f32", [2, 3], "in.0")
    assert (again["step"], again["call"], again["sample"], again["order"]) == (2, 3, 4, 7)
    assert "op" not in again
    assert again.get("crc32") == first.get("crc32") == (zlib.crc32(ONE.tobytes()) if checksum else None)
    trace = fd.open_trace(tmp_path / "t")
    assert trace.complete
    assert np.array_equal(trace.array(fd.Site(2, "fwd", "relu", "in.0", 3, 4)), ONE)
    assert (tmp_path / "t" / "data-00000.bin").stat().st_size == 64 + 24


def test_a_background_queue_writes_the_line_after_its_bytes_and_in_the_order_of_the_calls(tmp_path, monkeypatch):
    waiting = []
    real = BackgroundQueue.submit
    monkeypatch.setattr(BackgroundQueue, "submit", lambda self, *job: waiting.append((self, job)))
    w = fd.Writer(tmp_path / "t", background=True)
    stored = w.put("a", "fwd", ONE)
    w.put_again("b", "fwd", stored)
    w.put_absent("c", "fwd", "none")
    w.put_again("d", "fwd", w.put("e", "fwd", ONE))
    assert stored.at is None  # nothing is written yet
    assert lines(tmp_path / "t") == []
    for queue, job in waiting:
        real(queue, *job)
    w.close()
    assert [line.get("name") for line in lines(tmp_path / "t")] == ["a", "b", "c", "e", "d", None]
    assert [line["at"] for line in lines(tmp_path / "t")[:2]] == [[0, 0, 24]] * 2


@pytest.mark.parametrize("background", [False, True])
def test_a_site_may_be_put_again_once_and_not_after_the_end(background, tmp_path):
    with fd.Writer(tmp_path / "t", background=background) as w:
        stored = w.put("a", "fwd", ONE)
        for refused in ("a", "b"):
            if refused == "b":
                w.put_again("b", "fwd", stored)
            with pytest.raises(fd.SiteError, match=f"fwd {refused}:out step 0 was put twice"):
                w.put_again(refused, "fwd", stored)
        for wrong in ({"crc32": 3}, {"absent": "no"}):
            with pytest.raises(fd.SiteError, match="is not absent, and its crc32 is ours"):
                w.put_again("c", "fwd", stored, **wrong)
        with pytest.raises(fd.SiteError, match="phase 'forward' is not one of"):
            w.put_again("c", "forward", stored)
    with pytest.raises(fd.SiteError, match="after the trace was closed"):
        w.put_again("c", "fwd", stored)
    assert fd.open_trace(tmp_path / "t").complete
    assert len(lines(tmp_path / "t")) == 3


def test_stored_bytes_are_no_part_of_the_trace_until_a_line_names_them(tmp_path):
    with fd.Writer(tmp_path / "t") as w:
        stored = w.store(ONE, "grad fc")
        never = w.store(ONE * 2, "grad never")
        assert lines(tmp_path / "t") == []
        w.put("x", "fwd", ONE * 3)
        w.put_again("fc", "grad", stored)
    assert [line.get("name") for line in lines(tmp_path / "t")] == ["x", "fc", None]
    assert (stored.at, never.at) == ((0, 0, 24), (0, 64, 24))
    trace = fd.open_trace(tmp_path / "t")
    assert np.array_equal(trace.array(fd.Site(0, "grad", "fc", "weight")), ONE)
    assert np.array_equal(trace.array(fd.Site(0, "fwd", "x", "out")), ONE * 3)


@pytest.mark.parametrize("checksum", [False, True])
@pytest.mark.parametrize(
    ("first", "second", "in_place"),
    [
        (ONE, ONE * 7, True),
        (ONE, (ONE * 7).T, True),  # other strides, other shape, as many bytes
        (ONE, ONE.astype(">f4"), True),
        (ONE, ONE.view(np.int32), True),
        (ONE, ONE.astype(np.float64), False),
        (ONE, ONE[:1], False),
        (ONE, np.zeros((0, 3), np.float32), False),
        (ONE.astype(ml_dtypes.bfloat16), ONE.astype(ml_dtypes.bfloat16) + 1, True),
    ],
)
def test_a_tensor_written_over_another_is_the_one_that_counts(first, second, in_place, checksum, tmp_path):
    with fd.Writer(tmp_path / "t", checksum=checksum) as w:
        before = w.put("before", "fwd", ONE)
        stored = w.store(first, "grad fc")
        w.put("between", "fwd", ONE + 1)
        again = w.store(second, "grad fc", stored)
        w.put("after", "fwd", ONE + 2)
        w.put_again("fc", "grad", again)
    assert (again.at == stored.at) is in_place
    trace = fd.open_trace(tmp_path / "t")
    found = trace.array(fd.Site(0, "grad", "fc", "weight"))
    assert found.shape == second.shape
    assert found.dtype == second.dtype.newbyteorder("=")
    assert found.tobytes() == np.ascontiguousarray(second).astype(second.dtype.newbyteorder("=")).tobytes()
    for name, values in {"before": ONE, "between": ONE + 1, "after": ONE + 2}.items():
        assert np.array_equal(trace.array(fd.Site(0, "fwd", name, "out")), values)
    assert before.at == (0, 0, 24)
    line = lines(tmp_path / "t")[-2]
    assert line.get("crc32") == (zlib.crc32(found.tobytes()) if checksum else None)


def test_bytes_can_be_rewritten_in_a_data_file_that_is_full(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "DATA_FILE_BYTES", 100)
    with fd.Writer(tmp_path / "t", checksum=True) as w:
        stored = [w.store(ONE + number, f"grad {number}") for number in range(5)]
        again = [w.store(ONE * (number + 2), f"grad {number}", one) for number, one in enumerate(stored)]
        new = w.store(ONE, "grad new")
        for number, one in enumerate(again):
            w.put_again(str(number), "grad", one)
        w.put_again("new", "grad", new)
    assert [one.at[0] for one in again] == [0, 0, 0, 1, 1]
    assert new.at == (1, 128, 24)
    trace = fd.open_trace(tmp_path / "t")
    assert trace.complete
    for number in range(5):
        assert np.array_equal(trace.array(fd.Site(0, "grad", str(number), "weight")), ONE * (number + 2))


def test_a_writer_with_a_queue_cannot_store_ahead_and_says_so(tmp_path):
    with fd.Writer(tmp_path / "t", background=True) as w:
        with pytest.raises(fd.SiteError, match="grad fc: a writer with a background queue cannot store ahead"):
            w.store(ONE, "grad fc")
        w.put("x", "fwd", ONE)
    assert fd.open_trace(tmp_path / "t").complete


def test_what_cannot_be_stored_is_refused_by_its_place_and_harms_nothing(tmp_path):
    with fd.Writer(tmp_path / "t") as w:
        with pytest.raises(fd.SiteError, match="grad fc: an array of dtype object"):
            w.store(np.array([None]), "grad fc")
        w.put("x", "fwd", ONE)
    with pytest.raises(fd.SiteError, match="grad fc was stored after the trace was closed"):
        w.store(ONE, "grad fc")
    assert fd.open_trace(tmp_path / "t").complete


@pytest.mark.parametrize("over", [False, True])
def test_a_full_disk_while_storing_breaks_the_trace_and_says_where(over, tmp_path, monkeypatch):
    with pytest.raises(fd.StorageError, match="cannot write grad fc .No space left"), fd.Writer(tmp_path / "t") as w:
        stored = w.store(ONE, "grad fc")

        def full(*_):
            raise OSError(28, os.strerror(28))

        monkeypatch.setattr(files, "_write_all", full)
        w.store(ONE, "grad fc", stored if over else None)
    monkeypatch.undo()
    with pytest.raises(fd.SiteError):
        w.put("x", "fwd", ONE)
    assert not fd.open_trace(tmp_path / "t").complete


def test_a_header_is_added_to_and_stays_what_it_was(tmp_path):
    with fd.Writer(tmp_path / "t", model="m", options={"a": 1}, environment={"torch": "9"}) as w:
        before = json.loads((tmp_path / "t" / "trace.json").read_text())
        w.put("x", "fwd", ONE)
        w.describe(batch=3)
        w.describe(gradient_of={"reduction": "mean", "batch": 3}, batch=4, environment={"threads": 2})
    after = fd.open_trace(tmp_path / "t").header
    said = {"batch": 4, "gradient_of": {"reduction": "mean", "batch": 3}}
    assert {key: item for key, item in after.items() if key != "environment"} == {
        key: item for key, item in (before | said).items() if key != "environment"
    }
    assert before["environment"].items() >= {"torch": "9"}.items()
    assert {"python", "numpy", "threads"} <= after["environment"].keys()
    assert (len(fd.open_trace(tmp_path / "t")), fd.open_trace(tmp_path / "t").complete) == (1, True)


def test_a_header_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    w = fd.Writer(tmp_path / "t", model="m")
    before = (tmp_path / "t" / "trace.json").read_bytes()
    with pytest.raises(fd.SiteError, match="'rank' in the header is set by the writer itself"):
        w.describe(rank=3)
    w.describe(batch=1)  # what was refused is not remembered
    described = (tmp_path / "t" / "trace.json").read_bytes()
    assert b'"batch":1' in described
    assert described != before

    def full(*_):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "replace", full)
    monkeypatch.setattr("pathlib.Path.replace", full)
    with pytest.raises(fd.StorageError, match="write its header"):
        w.describe(batch=2)
    monkeypatch.undo()
    assert (tmp_path / "t" / "trace.json").read_bytes() == described
    w.put("x", "fwd", ONE)
    w.close()
    assert fd.open_trace(tmp_path / "t").complete
    assert sorted(path.name for path in (tmp_path / "t").iterdir()) == ["data-00000.bin", "index.jsonl", "trace.json"]


def test_a_header_of_another_rank_is_described_in_its_own_directory(tmp_path):
    for rank in (0, 1):
        with fd.Writer(tmp_path / "t", rank=rank, ranks=2) as w:
            w.describe(batch=rank + 5)
    assert fd.open_trace(tmp_path / "t").header["batch"] == 5
    header = fd.open_trace(tmp_path / "t" / "rank-0001").header
    assert (header["batch"], header["rank"], header["ranks"]) == (6, 1, 2)


def test_what_was_put_is_told_by_type_and_shape(tmp_path):
    with fd.Writer(tmp_path / "t") as w:
        stored = w.put("x", "fwd", ONE)
    assert isinstance(stored, writer.Stored)
    assert (stored.dtype, stored.shape, stored.at, stored.crc32) == ("f32", (2, 3), (0, 0, 24), None)
