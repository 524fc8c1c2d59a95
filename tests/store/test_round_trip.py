"""What is put is what is read, bit for bit."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.extra import numpy as hnp

import firstdrift as fd
from firstdrift.core.dtypes import ITEMSIZE, numpy_dtype

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=20).filter(lambda name: ".." not in name)


def read_back(path, **options):
    trace = fd.open_trace(path, **options)
    assert trace.complete, trace.problems
    return trace


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("dtype", ITEMSIZE)
def test_every_bit_pattern_of_every_dtype_survives(tmp_path, dtype, background):
    raw = np.random.default_rng(0).integers(0, 256, 64 * ITEMSIZE[dtype], dtype=np.uint8)
    if dtype == "bool":
        raw &= 1
    array = raw.view(numpy_dtype(dtype)).reshape(4, 16)
    with fd.Writer(tmp_path / "t", background=background) as writer:
        writer.put("x", "fwd", array)
    trace = read_back(tmp_path / "t")
    assert trace.records[0].dtype == dtype
    assert trace.array(trace.records[0]).dtype == array.dtype
    assert trace.array(trace.records[0]).tobytes() == array.tobytes()


@pytest.mark.parametrize("bits", [0x7F800001, 0xFFC12345, 0x80000000, 0x7F800000, 0xFF800000, 1])
def test_special_floats_keep_their_bits(tmp_path, bits):
    with fd.Writer(tmp_path / "t") as writer:
        writer.put("x", "fwd", np.array([bits], np.uint32).view(np.float32))
    trace = read_back(tmp_path / "t")
    assert trace.array(trace.records[0]).view(np.uint32)[0] == bits


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize(
    "array",
    [
        np.array(3.5, np.float32),
        np.zeros((0, 3), np.float64),
        np.zeros((2, 0, 4), np.int8),
        np.arange(24, dtype=np.float32).reshape(2, 3, 4).transpose(2, 0, 1),
        np.arange(10, dtype=np.int32)[::-2],
        np.broadcast_to(np.float32(7), (3, 4)),
        np.arange(6, dtype=">f8").reshape(2, 3),
        np.arange(6, dtype=">c8"),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    ],
    ids=[
        "0-d",
        "empty",
        "empty-3d",
        "transposed",
        "reversed",
        "broadcast",
        "big-endian",
        "big-endian-complex",
        "fortran",
    ],
)
def test_odd_arrays_are_stored_by_value(tmp_path, array, background):
    with fd.Writer(tmp_path / "t", background=background, checksum=True) as writer:
        writer.put("x", "fwd", array)
    trace = read_back(tmp_path / "t")
    stored = trace.array(trace.records[0])
    assert stored.shape == array.shape
    np.testing.assert_array_equal(stored, array)
    assert stored.dtype == array.dtype.newbyteorder("<")


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(
        st.tuples(
            NAMES,
            st.sampled_from(["input", "weight", "fwd", "loss", "agrad", "grad", "optim", "weight_after"]),
            NAMES,
            st.integers(0, 2**63 - 1),
            st.integers(0, 5),
            st.none() | st.integers(0, 2**63 - 1),
            hnp.arrays(np.float32, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)),
        ),
        unique_by=lambda row: row[:6],
        max_size=8,
    ),
    note=st.text(st.characters(exclude_categories=["Cs"])),
)
def test_any_sites_come_back_with_their_tensors(tmp_path_factory, rows, note):
    path = tmp_path_factory.mktemp("any") / "t"
    with fd.Writer(path) as writer:
        for name, phase, port, step, call, sample, array in rows:
            writer.put(name, phase, array, port=port, step=step, call=call, sample=sample, note=note)
    trace = read_back(path)
    assert len(trace) == len(rows)
    for name, phase, port, step, call, sample, array in rows:
        record = trace[fd.Site(step, phase, name, port, call, sample)]
        assert record.details["note"] == note
        assert trace.array(record).tobytes() == array.tobytes()


def test_details_come_back(tmp_path):
    with fd.Writer(tmp_path / "t", model="m", gradient_of={"reduction": "mean", "batch": 4}, custom=[1]) as writer:
        writer.put("a", "fwd", np.zeros(2), op="Linear", attrs={"eps": 1e-5, "cap": float("inf"), "n": np.int64(3)})
        writer.put("b", "fwd", np.zeros(2), producers=["a", fd.Site(0, "weight", "b", "weight")], layer=3, order=9)
        writer.put("b", "weight", np.zeros(2), aliases=["head.weight"], dims=["out"], unheard_of={"kept": True})
        writer.put_absent("b", "grad", "no gradient", port="bias")
        writer.put_stats("c", "fwd", {"mean": float("nan"), "count": 6}, dtype="bf16", shape=(2, 3))
    trace = read_back(tmp_path / "t")
    assert (trace.header["model"], trace.header["custom"]) == ("m", [1])
    assert trace.header["gradient_of"] == {"reduction": "mean", "batch": 4}
    a, b = trace[fd.Site(0, "fwd", "a", "out")], trace[fd.Site(0, "fwd", "b", "out")]
    assert (a.op, a.attrs, a.producers) == ("Linear", {"eps": 1e-5, "cap": float("inf"), "n": 3}, None)
    assert b.producers == (fd.Site(0, "fwd", "a", "out"), fd.Site(0, "weight", "b", "weight"))
    assert (b.layer, b.order) == (3, 9)
    weight = trace[fd.Site(0, "weight", "b", "weight")]
    assert (weight.aliases, weight.details["unheard_of"]) == (("head.weight",), {"kept": True})
    assert trace[fd.Site(0, "grad", "b", "bias")].absent == "no gradient"
    stats = trace[fd.Site(0, "fwd", "c", "out")]
    assert (stats.dtype, stats.shape, stats.at, stats.stats["count"]) == ("bf16", (2, 3), None, 6)
    assert np.isnan(stats.stats["mean"])


def test_values_of_a_site_without_values_are_refused_with_the_reason(tmp_path):
    with fd.Writer(tmp_path / "t") as writer:
        writer.put_absent("b", "grad", "no gradient")
        writer.put_stats("c", "fwd", {"mean": 0}, dtype="f32", shape=(2,))
    trace = read_back(tmp_path / "t")
    for record, why in zip(trace, ["statistics only", "absent: no gradient"], strict=True):
        with pytest.raises(fd.SelectionError, match=why):
            trace.array(record)


def test_arrays_are_mapped_and_read_only(tmp_path):
    with fd.Writer(tmp_path / "t") as writer:
        writer.put("x", "fwd", np.ones(4))
    trace = read_back(tmp_path / "t")
    array = trace.array(trace.records[0])
    assert not array.flags.writeable
    assert not array.flags.owndata


def test_tensors_are_aligned_and_roll_into_new_files(tmp_path, monkeypatch):
    monkeypatch.setattr("firstdrift.store.files.DATA_FILE_BYTES", 1000)
    with fd.Writer(tmp_path / "t") as writer:
        for step in range(20):
            writer.put("x", "fwd", np.full(37, step, np.float32), step=step)
    trace = read_back(tmp_path / "t")
    assert all(record.at[1] % 64 == 0 for record in trace)
    assert [len({r.site for r in trace if r.at[0] == number}) for number in range(4)] == [6, 6, 6, 2]
    assert [float(trace.array(record)[36]) for record in trace] == list(range(20))


def test_equal_runs_leave_equal_bytes(tmp_path):
    for name in ("a", "b"):
        with fd.Writer(tmp_path / name, seed=1, checksum=True) as writer:
            writer.put("x", "fwd", np.arange(5.0))
    for file in ("trace.json", "index.jsonl", "data-00000.bin"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_the_stored_value_is_the_one_at_the_time_of_put(tmp_path):
    array = np.zeros(1000)
    with fd.Writer(tmp_path / "t", background=True) as writer:
        for step in range(50):
            array[:] = step
            writer.put("x", "fwd", array, step=step)
    trace = read_back(tmp_path / "t")
    assert [set(trace.array(record).tolist()) for record in trace] == [{float(step)} for step in range(50)]
