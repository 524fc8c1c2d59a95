"""npz archives, ours and those of others."""

from __future__ import annotations

import json
import tracemalloc
import zipfile

import ml_dtypes
import numpy as np
import pytest

import firstdrift as fd
from firstdrift.store.formats import npz
from firstdrift.testing import memory_trace
from firstdrift.weights.open_checkpoint import open_checkpoint

SITE = fd.Site(0, "fwd", "a", "out")


def export(tensors, path):
    npz.write(memory_trace(tensors), path, overwrite=False, advance=lambda n: None)
    return path


def rewritten(path, change, method=zipfile.ZIP_STORED):
    """The archive again, after `change` had its members as a dict of bytes."""
    with zipfile.ZipFile(path) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    change(members)
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def edited_index(path, change):
    def edit(members):
        index = json.loads(members[npz.INDEX])
        change(index)
        members[npz.INDEX] = json.dumps(index).encode()

    return rewritten(path, edit)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_what_numpy_saved_is_read_by_its_keys(tmp_path, save):
    arrays = {"conv1.fwd": np.arange(3.0), "conv1.weight": np.asfortranarray(np.eye(2)[:1]), "x": np.array(7, ">i4")}
    save(tmp_path / "a.npz", **arrays)
    trace = fd.open_trace(tmp_path / "a.npz")
    found = {str(record.site): trace.array(record).tolist() for record in trace}
    assert found == {
        "weight conv1:weight step 0": [[1.0, 0.0]],
        "fwd conv1:out step 0": [0.0, 1.0, 2.0],
        "fwd x:out step 0": 7,
    }


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_bfloat16_lies_there_as_integers_in_either_byte_order(tmp_path, method):
    array = np.array([1.5, -0.0, np.nan], ml_dtypes.bfloat16)
    path = export({SITE: array}, tmp_path / "a.npz")
    np.testing.assert_array_equal(np.load(path)["a.fwd"], array.view(np.uint16))

    def swap(members):
        members["a.fwd.npy"] = (
            members["a.fwd.npy"].replace(b"<u2", b">u2")[:-6] + array.view("<u2").astype(">u2").tobytes()
        )

    trace = fd.open_trace(rewritten(path, swap, method))
    assert trace.array(SITE).dtype == array.dtype
    assert trace.array(SITE).tobytes() == array.tobytes()


def test_sites_whose_keys_would_be_equal_get_keys_of_their_own(tmp_path):
    sites = [
        fd.Site(0, "fwd", "a", "c1"), fd.Site(0, "fwd", "a", "out", 1), fd.Site(0, "weight", "a.fwd", "c1"),
        fd.Site(0, "weight", "", "a.b"), fd.Site(0, "weight", "a", "b"), fd.Site(0, "weight", "", "__metadata__"),
        fd.Site(0, "fwd", "nul\0", "out"), fd.Site(0, "fwd", "x" * 4096, "out"),
    ]  # fmt: skip
    tensors = {site: np.array(float(number)) for number, site in enumerate(sites)}
    trace = fd.open_trace(export(tensors, tmp_path / "a.npz"))
    assert {record.site: trace.array(record) for record in trace} == tensors


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda index: index.update(version=2), fd.VersionError, "version 2, but this firstdrift reads up to 1"),
        (lambda index: index.update(version="x"), fd.FormatError, "version 'x' is not a number"),
        (lambda index: index.pop("sites"), fd.FormatError, "lacks 'header' or 'sites'"),
        (lambda index: index.update(sites=[7]), fd.FormatError, "7 is not an object"),
        (lambda index: index["sites"].append(index["sites"][0]), fd.FormatError, "gives the tensor 'a.fwd' to two"),
        (lambda index: index["sites"][0].update(key="b"), fd.FormatError, "names the tensor 'b', which is not there"),
        (lambda index: index["sites"][0].update(key=["b"]), fd.FormatError, "which is not there"),
        (lambda index: index["sites"][0].update(dtype="f64"), fd.FormatError, r"f64\[3\] in the index and f32\[3\]"),
        (lambda index: index["sites"][0].update(dtype="u32"), fd.FormatError, "in the index and"),
        (lambda index: index["sites"][0].update(dtype=["f32"]), fd.FormatError, "in the index and"),
        (lambda index: index["sites"][0].update(shape=[1 << 40]), fd.FormatError, "in the index and"),
        (lambda index: index["sites"][0].update(name="../x"), fd.SiteError, "would leave the directory"),
        (lambda index: index["sites"][0].update(phase="later"), fd.SiteError, "phase 'later' is not one of"),
    ],
    ids=range(13),
)
def test_an_index_that_lies_is_refused(tmp_path, change, error, words):
    path = edited_index(export({SITE: np.float32([1, 2, 3])}, tmp_path / "a.npz"), change)
    with pytest.raises(error, match=rf"a\.npz: its firstdrift index: .*{words}"):
        fd.open_trace(path)


def test_an_array_added_later_is_named(tmp_path):
    path = export({SITE: np.float32([1])}, tmp_path / "a.npz")
    rewritten(path, lambda members: members.update({"b.npy": members["a.fwd.npy"]}))
    trace = fd.open_trace(path)
    assert [record.site for record in trace] == [SITE]
    assert trace.problems == ("'b' is not in the firstdrift index; it was added later",)


@pytest.mark.parametrize(
    ("members", "words"),
    [
        (["a.npy", "a.npy"], "is there twice"),
        (["a.txt"], r"member 'a\.txt': is not a \.npy file"),
        (["a.fwd.npy", "a.fwd.out.npy"], "two of its tensors are fwd a:out step 0"),
        (["../x.npy"], "name '../x' has a '..' component"),
        (["a/../../x.fwd.npy"], "would leave the directory"),
    ],
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_bad_members_are_refused(tmp_path, members, words):
    np.save(tmp_path / "x.npy", np.zeros(2))
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        for member in members:
            archive.write(tmp_path / "x.npy", member)
    with pytest.raises((fd.FormatError, fd.SiteError), match=rf"a\.npz.*{words}"):
        fd.open_trace(tmp_path / "a.npz")


def test_pickled_members_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.array([{}]))
    with pytest.raises(fd.FormatError, match=r"member 'x\.npy': holds pickled Python objects, which are never loaded"):
        fd.open_trace(tmp_path / "a.npz")


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", b"not a zip", b"PK\x05\x06" + bytes(17)])
def test_what_is_no_archive_is_refused(tmp_path, data):
    (tmp_path / "a.npz").write_bytes(data)
    with pytest.raises(fd.FormatError, match=r"a\.npz: not a readable npz archive"):
        fd.open_trace(tmp_path / "a.npz")


def test_a_stored_member_that_claims_more_than_it_stores_is_refused(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, x=np.zeros(4), y=np.ones(100))
    data = bytearray(path.read_bytes())
    at = data.index(b"PK\x01\x02") + 24  # uncompressed size, in the directory
    data[at : at + 4] = (int.from_bytes(data[at : at + 4], "little") + 8).to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(fd.FormatError, match="is stored, and claims"):
        fd.open_trace(path)


def test_a_damaged_compressed_member_is_an_error_and_not_numbers(tmp_path):
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x=np.random.default_rng(0).standard_normal(1000))
    data = bytearray(path.read_bytes())
    data[4000] ^= 0xFF
    path.write_bytes(data)
    trace = fd.open_trace(path)
    with pytest.raises(fd.FormatError, match=r"member 'x\.npy': cannot be read"):
        trace.array(trace.records[0])


def test_joined_archives_are_refused(tmp_path):
    path = export({SITE: np.float32([1])}, tmp_path / "a.npz")
    path.write_bytes(path.read_bytes() * 2)
    with pytest.raises(fd.FormatError, match="bytes stand before the archive, as if files were joined"):
        fd.open_trace(path)


def test_an_encrypted_member_is_refused(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, x=np.zeros(4))
    data = bytearray(path.read_bytes())
    data[data.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(data)
    with pytest.raises(fd.FormatError, match="is encrypted"):
        fd.open_trace(path)


def test_a_compressed_member_that_claims_to_grow_beyond_what_deflate_can_is_refused(tmp_path):
    path, claimed = tmp_path / "a.npz", (4 << 30) - 2
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        header = b"{'descr': '|u1', 'fortran_order': False, 'shape': (%d,)}" % (claimed - 10 - 65)
        archive.writestr("x.npy", b"\x93NUMPY\x01\x00" + (65).to_bytes(2, "little") + header.ljust(65))
    data = bytearray(path.read_bytes())
    at = data.index(b"PK\x01\x02") + 24  # uncompressed size, in the directory: what the npy header says, too
    data[at : at + 4] = claimed.to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(fd.FormatError, match=r"member 'x\.npy': claims to grow from \d+ to 4294967294 bytes"):
        fd.open_trace(path)


def of_zeros(path, method, count):
    """An archive with one member that holds `count` bytes of zeros, small when compressed."""
    np.save(path.with_suffix(".npy"), np.zeros(count, np.uint8))
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.write(path.with_suffix(".npy"), "x.npy")
    return path


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
@pytest.mark.parametrize("count", [1000, 64 << 20])
def test_a_member_that_would_inflate_beyond_what_is_asked_for_is_refused_before(tmp_path, method, count):
    path = of_zeros(tmp_path / "a.npz", method, count)
    tracemalloc.start()
    try:
        with pytest.raises(fd.FormatError, match=r"member 'x\.npy': (is compressed by method|claims to grow from)"):
            fd.open_trace(path)
        with pytest.raises(fd.FormatError, match=r"member 'x\.npy': (is compressed by method|claims to grow from)"):
            open_checkpoint(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_an_index_that_would_inflate_beyond_its_archive_is_refused_before(tmp_path):
    path = export({SITE: np.float32([1, 2, 3])}, tmp_path / "a.npz")
    rewritten(path, lambda members: members.update({npz.INDEX: b" " * (64 << 20)}), zipfile.ZIP_DEFLATED)
    tracemalloc.start()
    try:
        with pytest.raises(
            fd.FormatError, match=r"would grow to 67108864 bytes in an archive of \d+, which no index does"
        ):
            fd.open_trace(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_an_index_that_somebody_compressed_is_read(tmp_path):
    path = export({SITE: np.float32([1, 2, 3])}, tmp_path / "a.npz")
    trace = fd.open_trace(rewritten(path, lambda members: None, zipfile.ZIP_DEFLATED))
    assert trace.array(SITE).tolist() == [1, 2, 3]


def test_a_compressed_member_is_read_without_a_second_copy_in_memory(tmp_path):
    path = of_zeros(tmp_path / "a.npz", zipfile.ZIP_DEFLATED, 48 << 20)
    trace = fd.open_trace(path)
    tracemalloc.start()
    try:
        array = trace.array(trace.records[0])
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    assert array.nbytes == 48 << 20
    assert not array.any()
    assert not array.flags.writeable
