"""Every built-in format, in every shape it comes in, keeps the claims of the conformance suite."""

from __future__ import annotations

import json
import struct
import zipfile
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from firstdrift.core.sites import Site
from firstdrift.core.stages import STAGES
from firstdrift.store.formats import aprt_stages, native_format, npy_steps, npz, safetensors_trace
from firstdrift.testing import FormatConformance, memory_trace
from firstdrift.testing.strategies import plain_names

NPY_DTYPES = ("f32", "f64", "f16", "c64", "c128", "i64", "i32", "i16", "i8", "u64", "u32", "u16", "u8", "bool")


class TestTrace(FormatConformance):
    format = native_format
    slack = ("data-*.bin",)  # a writer that was killed leaves bytes there that no line speaks of

    def lying_files(self, directory):
        path = directory / "liar"
        native_format.write(memory_trace({}), path, overwrite=False, advance=lambda n: None)
        line = {"phase": "fwd", "name": "a", "dtype": "f32", "shape": [1 << 32], "at": [0, 0, 1 << 34]}
        (path / "index.jsonl").write_text(json.dumps(line) + '\n{"end": 1}\n')
        (path / "data-00000.bin").write_bytes(b"\0" * 8)
        return [path]


class TestAprt(FormatConformance):
    format = aprt_stages
    dtypes = ("f32",)
    phases = ("fwd",)
    names = ("layer-0.embedding", "layer-0.moe_router", "layer-0.post_ffn_residual", "layer-1.ffn_gate", "lm_head")
    ports = steps = calls = samples = shapes = details = False

    def name_strategy(self):
        layers = st.integers(0, 0xFFFFFFFE).map("layer-{}.".format) | st.just("")
        return st.tuples(layers, st.sampled_from(STAGES) | st.text(min_size=1, max_size=8)).map("".join)

    def lying_files(self, directory):
        path = directory / "ffn_gate.bin"
        path.write_bytes(struct.pack("<4sII", b"APRT", 3, 0xFFFFFFFF))
        return [path]


class TestNpySteps(FormatConformance):
    format = npy_steps
    dtypes = NPY_DTYPES
    names = ("embed", "ln1", "fc", "softmax")
    calls = details = False

    def name_strategy(self):
        return plain_names() | st.text(min_size=1, max_size=8)

    def lying_files(self, directory):
        step = directory / "step000"
        step.mkdir()
        (step / "a.fwd.npy").write_bytes(npy_header((1 << 32,)))
        longest = directory / "step001"
        longest.mkdir()
        (longest / "a.fwd.npy").write_bytes(b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + b" " * 16)
        return [step, longest]


class TestNpz(FormatConformance):
    format = npz
    suffix = ".npz"

    def lying_files(self, directory):
        stored, deflated = directory / "stored.npz", directory / "deflated.npz"
        for path, method in ((stored, zipfile.ZIP_STORED), (deflated, zipfile.ZIP_DEFLATED)):
            with zipfile.ZipFile(path, "w", method) as archive:
                archive.writestr("a.npy", npy_header((1 << 32,)))
        grown = directory / "grown.npz"
        size = stored.read_bytes().rindex(b"PK\x01\x02") + 24
        data = bytearray(stored.read_bytes())
        data[size : size + 4] = b"\xf0\xff\xff\xff"  # the directory's own claim about the member's size
        grown.write_bytes(data)
        return [stored, deflated, grown]


class Recompressed:
    """What `numpy.savez_compressed` or a zip tool makes of an archive of ours."""

    NAME = npz.NAME
    recognise = staticmethod(npz.recognise)
    read = staticmethod(npz.read)

    @staticmethod
    def write(trace, path, *, overwrite, advance):
        said = npz.write(trace, path, overwrite=overwrite, advance=advance)
        with zipfile.ZipFile(path) as archive:
            members = [(info.filename, archive.read(info)) for info in archive.infolist()]
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in members:
                archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
        return said


class TestCompressedNpz(TestNpz):
    format = Recompressed


class TestSafetensors(FormatConformance):
    format = safetensors_trace
    suffix = ".safetensors"
    dtypes = ("f32", *(name for name in safetensors_trace.DTYPES.values() if name != "f32"))

    def lying_files(self, directory):
        return [
            safetensors_claiming(directory / "tensor.safetensors", shape=[1 << 32], end=1 << 34),
            safetensors_claiming(directory / "header.safetensors", shape=[2], end=8, header_bytes=1 << 34),
        ]


class Sharded:
    """A checkpoint as hubs keep it: a directory of shards and the index that names them."""

    NAME = safetensors_trace.NAME
    recognise = staticmethod(safetensors_trace.recognise)
    read = staticmethod(safetensors_trace.read)

    @staticmethod
    def write(trace, path, *, overwrite, advance):
        from firstdrift.errors import TraceExistsError

        if path.exists() and not overwrite:
            raise TraceExistsError(f"{path}: exists")
        for stale in path.glob("*") if path.is_dir() else ():
            stale.unlink()
        path.mkdir(exist_ok=True)
        weight_map = {}
        for number, record in enumerate(trace):
            shard = path / f"model-{number + 1:05d}-of-{len(trace):05d}.safetensors"
            part = memory_trace({record.site: trace.array(record)} if record.at else {})
            safetensors_trace.write(part, shard, overwrite=False, advance=advance)
            if record.at:
                weight_map[safetensors_trace.keys_of([record.site])[record.site]] = shard.name
        (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
        return ["an index of shards has no room for the rest"] if len(weight_map) < len(trace.lines) else []


class TestShardedSafetensors(TestSafetensors):
    format = Sharded
    suffix = ""
    phases = ("weight",)
    ports = calls = samples = details = order = False

    def name_strategy(self):
        return plain_names()


def npy_header(shape: tuple[int, ...], descr: str = "<f4") -> bytes:
    text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def safetensors_claiming(path: Path, *, shape: list[int], end: int, header_bytes: int | None = None) -> Path:
    header = json.dumps({"a": {"dtype": "F32", "shape": shape, "data_offsets": [0, end]}}).encode()
    path.write_bytes(struct.pack("<Q", header_bytes or len(header)) + header + b"\0" * 8)
    return path


def test_the_index_is_not_needed_to_load_an_export_with_numpy(tmp_path):
    site = Site(0, "weight", "fc", "weight")
    npz.write(memory_trace({site: np.arange(3.0)}), tmp_path / "a.npz", overwrite=False, advance=lambda n: None)
    assert np.load(tmp_path / "a.npz")["fc.weight"].tolist() == [0, 1, 2]
