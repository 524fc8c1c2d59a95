"""A trace is read whole when it is whole; what is not is named, and lies are refused."""

import json
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import firstdrift as fd
from firstdrift.store.reader import verify

LINE = {"step": 0, "phase": "fwd", "name": "x", "port": "out", "call": 0, "sample": None,
        "dtype": "f32", "shape": [4], "at": [0, 0, 16]}  # fmt: skip


@pytest.fixture
def path(tmp_path):
    with fd.Writer(tmp_path / "t", checksum=True) as writer:
        for step in range(3):
            writer.put("x", "fwd", np.full(100, step, np.float32), step=step)
    return tmp_path / "t"


def index(path):
    return (path / "index.jsonl").read_bytes()


def rewrite(path, *objects):
    (path / "index.jsonl").write_text("".join((o if isinstance(o, str) else json.dumps(o)) + "\n" for o in objects))


def edited(**changes):
    return {key: item for key, item in (LINE | changes).items() if item is not ...}


def test_a_trace_cut_anywhere_is_read_up_to_there(path):
    whole = index(path)
    ends = [i for i, byte in enumerate(whole) if byte == ord("\n")]
    for cut in range(len(whole) + 1):
        (path / "index.jsonl").write_bytes(whole[:cut])
        trace = fd.open_trace(path)
        # A line is there once its closing brace is; the newline adds nothing.
        assert len(trace) == min(3, sum(end <= cut for end in ends))
        assert trace.complete == (cut >= ends[-1])
        torn = cut and cut not in [end + extra for end in ends for extra in (0, 1)]
        assert any("torn" in problem for problem in trace.problems) == bool(torn), cut
        assert [float(trace.array(r)[99]) for r in trace] == [0.0, 1.0, 2.0][: len(trace)]


def test_missing_bytes_are_named_and_the_rest_is_read(path):
    os.truncate(path / "data-00000.bin", 1000)
    trace = fd.open_trace(path)
    assert [record.site.step for record in trace] == [0, 1]
    assert trace.problems == ("fwd x:out step 2 is not whole: it ends at byte 1296 of data-00000.bin, which has 1000",)


def test_a_missing_data_file_is_named(path):
    (path / "data-00000.bin").unlink()
    trace = fd.open_trace(path)
    assert len(trace) == 0
    assert trace.problems[0].endswith("of data-00000.bin, which is missing")


def test_a_missing_index_or_header_is_named(path):
    (path / "trace.json").unlink()
    trace = fd.open_trace(path)
    assert (len(trace), trace.problems) == (3, ("trace.json is missing, so nothing is known about the run",))
    with fd.Writer(path.parent / "u"):
        pass
    (path.parent / "u" / "index.jsonl").unlink()
    assert "stopped before its first tensor" in fd.open_trace(path.parent / "u").problems[0]


def test_lost_lines_are_noticed_by_the_end_line(path):
    lines = index(path).splitlines(keepends=True)
    (path / "index.jsonl").write_bytes(b"".join([lines[0], *lines[2:]]))
    assert fd.open_trace(path).problems == (
        "index.jsonl has 2 lines but its end line counts 3; lines were lost or added",
    )


def test_checksums_are_checked_on_demand_and_on_unfinished_traces(path):
    data = bytearray((path / "data-00000.bin").read_bytes())
    data[450] ^= 1
    (path / "data-00000.bin").write_bytes(data)
    trace = fd.open_trace(path)
    assert trace.complete
    (problem,) = verify(trace)
    assert problem.startswith("fwd x:out step 1: its bytes have crc32")
    (path / "index.jsonl").write_bytes(index(path).replace(b'{"end":3}\n', b""))
    assert problem in fd.open_trace(path).problems


def test_a_newer_major_version_is_refused_and_a_newer_minor_one_is_not(path):
    header = json.loads((path / "trace.json").read_text())
    for version, fine in [(1, True), ("1.7", True), (1.3, True), (2, False), ("2.0", False), (99, False)]:
        (path / "trace.json").write_text(json.dumps(header | {"version": version}))
        if fine:
            assert fd.open_trace(path).complete
        else:
            with pytest.raises(fd.VersionError, match=f"format version {version}, but this firstdrift reads up to 1"):
                fd.open_trace(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it is not a JSON object"),
        ("[]", "it is JSON but a list"),
        ('{"format": "other", "version": 1}', "'format' is 'other', not 'firstdrift-trace'"),
        ('{"version": 1}', "'format' is None"),
        ('{"format": "firstdrift-trace"}', "'version' is None"),
        ('{"format": "firstdrift-trace", "version": true}', "'version' is True"),
        ('{"format": "firstdrift-trace", "version": 1, "ranks": -1}', "'ranks' is -1"),
        ('{"format": "firstdrift-trace", "version": 1', "it is not JSON"),
        ('{"format": "firstdrift-trace", "version": 1, "x": NaN}', "NaN is not JSON"),
        ('{"a":' * 100_000, "it is not JSON"),
    ],
)
def test_a_damaged_header_is_refused_by_name(path, text, message):
    (path / "trace.json").write_text(text)
    with pytest.raises(fd.FormatError, match="trace.json") as caught:
        fd.open_trace(path)
    assert message in str(caught.value)


def test_a_header_that_is_not_text_is_refused(path):
    (path / "trace.json").write_bytes(b'{"format": "\xff"}')
    with pytest.raises(fd.FormatError, match="is not UTF-8 at byte 12"):
        fd.open_trace(path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (edited(dtype="f31"), "dtype 'f31' is not one of f64, f32"),
        (edited(dtype=None), "has no 'dtype'"),
        (edited(dtype=["f32"]), "dtype ['f32']"),
        (edited(shape=[5]), "take 20 bytes but 'at' claims 16"),
        (edited(shape=[4.0]), "dimension 4.0"),
        (edited(shape=[True, 4]), "dimension True"),
        (edited(shape=[-1]), "dimension -1"),
        (edited(shape="4"), "shape '4' is not a list"),
        (edited(shape=[1] * 65), "beyond 64 dimensions"),
        (edited(shape=[2**62, 2**62, 0], at=[0, 0, 0]), "beyond 64 dimensions or 2**63 bytes"),
        (edited(at=[0, 0]), "is not [file number, offset, bytes]"),
        (edited(at=[0, -1, 16]), "is not [file number, offset, bytes]"),
        (edited(at=[0, 0, 16.0]), "is not [file number, offset, bytes]"),
        (edited(at=["0", 0, 16]), "is not [file number, offset, bytes]"),
        (edited(at=None), "no data, no statistics and no 'absent'"),
        (edited(phase="forward"), "phase 'forward' is not one of"),
        (edited(phase=["fwd"]), "phase ['fwd'] is not one of"),
        (edited(name=...), "it has no 'name'"),
        (edited(phase=...), "it has no 'phase'"),
        (edited(name="../x"), "'..' component"),
        (edited(port="a/.."), "'..' component"),
        (edited(name=7), "name 7 is a int"),
        (edited(step=-1), "step -1"),
        (edited(step=False), "step False"),
        (edited(call="0"), "call '0'"),
        (edited(sample=1.0), "sample 1.0"),
        (edited(step=2**64), "step 18446744073709551616"),
        (edited(absent="why"), "is absent ('why') and yet has data"),
        (edited(absent=3, at=None), "'absent' is 3"),
        (edited(crc32="00"), "crc32 '00'"),
        (edited(**{"from": "conv1"}), "'from' is 'conv1'"),
        (edited(**{"from": ["conv1"]}), "producer 'conv1' in 'from' is not an object"),
        (edited(**{"from": [{"name": "../y"}]}), "'..' component"),
        (edited(aliases=["a", 3]), "alias 3"),
        (edited(attrs=[]), "'attrs' is []"),
        (edited(order=-1), "order -1"),
        ({"end": -1}, "the end line counts -1"),
        ({"end": "3"}, "the end line counts '3'"),
        ([1], "it is JSON but a list"),
        ("{", "it is not JSON"),
        ('{"name": "\\ud800", "phase": "fwd"}', "lone surrogate"),
        ('{"step": NaN}', "NaN is not JSON"),
        ('{"step": 1} {"step": 2}', "text follows the object"),
        ("\x00", "it is not a JSON object"),
    ],
)
def test_a_line_that_lies_is_refused_with_its_number(path, line, message):
    rewrite(path, edited(name="before"), line, edited(name="after"), {"end": 3})
    with pytest.raises(fd.FormatError, match="line 2") as caught:
        fd.open_trace(path)
    assert message in str(caught.value)


def test_what_has_a_default_may_be_left_out(path):
    rewrite(path, {"phase": "fwd", "name": "x", "dtype": "f32", "shape": [4], "at": [0, 0, 16]},
            {"phase": "grad", "name": "x", "dtype": "f32", "shape": [4], "at": [0, 0, 16]}, {"end": 2})  # fmt: skip
    assert [record.site for record in fd.open_trace(path)] == [
        fd.Site(0, "fwd", "x", "out"), fd.Site(0, "grad", "x", "weight"),
    ]  # fmt: skip


def test_the_same_site_on_two_lines_is_refused_with_both_numbers(path):
    rewrite(path, edited(), edited(name="y"), edited(), {"end": 3})
    with pytest.raises(fd.FormatError, match="lines 1 and 3: both are fwd x:out step 0"):
        fd.open_trace(path)


def test_lines_after_the_end_line_are_refused(path):
    rewrite(path, edited(), {"end": 1}, edited(name="y"))
    with pytest.raises(fd.FormatError, match="line 3: it follows the end line; two runs"):
        fd.open_trace(path)


def test_a_far_file_number_costs_nothing(path):
    rewrite(path, edited(at=[2**62, 2**62, 16]), {"end": 1})
    assert "which is missing" in fd.open_trace(path).problems[0]


def test_an_endless_line_is_refused_without_reading_it_all(path):
    with open(path / "index.jsonl", "wb") as file:
        file.truncate(1 << 33)
    with pytest.raises(fd.FormatError, match="a line longer than"):
        fd.open_trace(path)


def test_reading_a_file_that_shrank_after_opening_is_refused(path):
    trace = fd.open_trace(path)
    os.truncate(path / "data-00000.bin", 100)
    with pytest.raises(fd.FormatError, match="was changed since \\(it has 100\\)"):
        trace.array(trace.records[2])


@pytest.mark.parametrize("make", ["missing", "empty", "other", "file", "pickle"])
def test_what_is_not_a_trace_is_told_apart(tmp_path, make):
    path = tmp_path / {"file": "x.txt", "pickle": "model.pt"}.get(make, "dir")
    if make in ("file", "pickle"):
        path.write_bytes(b"\x80\x04 something")
    elif make != "missing":
        path.mkdir()
    if make == "other":
        (path / "readme.md").write_text("hello")
    words = {
        "missing": "No such file or directory",
        "empty": "the directory is empty",
        "other": "the directory holds no trace",
        "file": "not a trace; expected a trace directory",
        "pickle": "pickles are never loaded",
    }[make]
    with pytest.raises(fd.FirstdriftError, match=words) as caught:
        fd.open_trace(path)
    assert str(path) in str(caught.value)


def test_an_unreadable_file_is_named(path):
    (path / "index.jsonl").unlink()
    (path / "index.jsonl").symlink_to("index.jsonl")
    with pytest.raises(fd.FirstdriftError, match=r"index\.jsonl"):
        trace = fd.open_trace(path)
        raise fd.FormatError(" ".join(trace.problems))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
LINES = st.fixed_dictionaries(
    {
        "step": st.sampled_from([0, 1, 7]) | JSON,
        "phase": st.sampled_from(["fwd", "grad", "weight"]) | JSON,
        "name": st.sampled_from(["a", "b.c", "é", "../x", "a..b"]) | JSON,
        "port": st.sampled_from(["out", "in.0"]) | JSON,
        "call": st.sampled_from([0, 1, True]) | JSON,
        "sample": st.sampled_from([None, 0, 3]) | JSON,
        "dtype": st.sampled_from(["f32", "bf16", "c128", "f33"]) | JSON,
        "shape": st.sampled_from([[], [4], [2, 2], [0, 3], [4.0], [True]]) | JSON,
        "at": st.sampled_from([[0, 0, 16], [0, 64, 8], [0, 0, 0], [0, 0, 16.0], None, [1, 2, 4]]) | JSON,
    },
    optional={
        "op": st.just("Linear") | JSON,
        "absent": st.just("no gradient") | JSON,
        "stats": st.just({"mean": "nan"}) | JSON,
        "from": st.just([{"name": "a"}]) | JSON,
        "crc32": st.just(7) | JSON,
        "order": st.just(3) | JSON,
        "end": JSON,
        "other": JSON,
    },
)


@settings(max_examples=400, deadline=None)
@given(st.lists(LINES, min_size=1, max_size=4))
def test_an_index_of_any_lines_is_read_or_refused(tmp_path_factory, lines):
    path = tmp_path_factory.mktemp("lines")
    (path / "index.jsonl").write_bytes(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
    try:
        records = fd.open_trace(path).lines
    except fd.FirstdriftError as error:
        assert "index.jsonl" in str(error)
    else:
        assert [type(n) for r in records for n in (*(r.shape or ()), *(r.at or ()))].count(int) == sum(
            len(r.shape or ()) + len(r.at or ()) for r in records
        )


@settings(max_examples=300, deadline=None)
@given(
    where=st.sampled_from(["trace.json", "index.jsonl", "data-00000.bin"]),
    cut=st.integers(0, 400), inserted=st.binary(max_size=6), dropped=st.integers(0, 40),
)  # fmt: skip
def test_only_our_own_errors_come_out_of_a_mutated_trace(tmp_path_factory, where, cut, inserted, dropped):
    path = tmp_path_factory.mktemp("mutated") / "t"
    with fd.Writer(path, checksum=True, model="m") as writer:
        writer.put("x", "fwd", np.arange(20.0), attrs={"eps": 1e-5}, producers=["y"])
        writer.put("y", "grad", np.arange(5), aliases=["z.weight"])
    data = (path / where).read_bytes()
    (path / where).write_bytes(data[:cut] + inserted + data[cut + dropped :])
    try:
        trace = fd.open_trace(path)
        for record in trace:
            trace.array(record)
            assert record.producers is None or record.producers
        verify(trace)
    except fd.FirstdriftError as error:
        assert str(path) in str(error) or "x" in str(error)
