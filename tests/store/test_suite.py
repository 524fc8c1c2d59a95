"""The conformance suite itself: a sound little format passes it, and each defect makes the claim about it fail."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from firstdrift.compare import open_trace
from firstdrift.core.atomic import replacing
from firstdrift.core.dtypes import ITEMSIZE, numpy_dtype
from firstdrift.core.records import Record, parse_record
from firstdrift.core.strict_json import decode_object, encode
from firstdrift.core.traces import Trace
from firstdrift.errors import FormatError, NotATraceError, TraceExistsError, storage
from firstdrift.testing import FormatConformance, bits

MAGIC = b"TOY1"


class Toy:
    """A sound format: magic, length of an index, the index as JSON, the tensors. Each defect overrides one part."""

    NAME = "toy"

    def recognise(self, path: Path) -> bool:
        try:
            return path.is_file() and path.read_bytes()[:4] == MAGIC
        except (OSError, ValueError):
            return False

    def write(self, trace, path, *, overwrite, advance):
        self.refuse(path, overwrite)
        sites, tensors = [], []
        for record in trace:
            data = b"" if record.at is None else self.encode(trace.array(record))
            sites.append({**record.to_json(), "at": None if record.at is None else [0, 0, len(data)]})
            tensors.append(data)
            advance(record.nbytes)
        index = encode({"header": dict(trace.header), "sites": sites}).encode()
        with storage(path, "write it", "make room"), self.opened(path) as file:
            file.write(MAGIC + len(index).to_bytes(8, "little") + index + b"".join(tensors))
        return []

    def refuse(self, path, overwrite):
        if path.exists() and not overwrite:
            raise TraceExistsError(f"{path}: exists")

    def opened(self, path):
        return replacing(path)

    def encode(self, array):
        return bits(array)

    def read(self, path: Path) -> Trace:
        with storage(path, "read it", "check it"):
            data = path.read_bytes()
        if data[:4] != MAGIC or len(data) < 12:
            raise NotATraceError(f"{path}: not a toy")
        length = int.from_bytes(data[4:12], "little")
        try:
            index = decode_object(self.index_text(data, length))
            lines, end = [], 12 + length
            for site in index["sites"]:
                record = parse_record(site)
                if record.at is not None:
                    record = record._replace(at=(0, end, record.nbytes))
                    end += record.nbytes
                lines.append(record)
            self.check_end(end, data)
        except (ValueError, KeyError, TypeError, AttributeError, LookupError) as error:
            raise FormatError(f"{path}: damaged ({error})") from None
        lines = self.arrange(lines)
        special = {r.site: (lambda r=r: self.decode(path, r)) for r in lines if r.at is not None}
        return Trace(path, self.NAME, lines, lambda number: path, header=index["header"], special=special)

    def index_text(self, data, length):
        return data[12 : 12 + length].decode()

    def check_end(self, end, data):
        if end != len(data):
            raise FormatError(f"{len(data)} bytes, {end} expected")

    def arrange(self, lines):
        return lines

    def decode(self, path: Path, record: Record):
        with storage(path, "read it", "check it"), open(path, "rb") as file:
            file.seek(record.at[1])
            return np.frombuffer(file.read(record.nbytes), numpy_dtype(record.dtype)).reshape(record.shape)


class ToyConformance(FormatConformance):
    suffix = ".toy"

    @pytest.fixture(autouse=True)
    def _installed(self, monkeypatch):
        point = type("Point", (), {"name": "toy", "value": "toy", "load": lambda _: self.format})()
        monkeypatch.setattr(open_trace, "_third_party", lambda: {"toy": point})

    def lying_files(self, directory):
        path = directory / "liar.toy"
        site = {"phase": "fwd", "name": "a", "dtype": "u8", "shape": [1 << 34], "at": [0, 0, 1 << 34]}
        index = json.dumps({"header": {}, "sites": [site]}).encode()
        path.write_bytes(MAGIC + len(index).to_bytes(8, "little") + index)
        return [path]


class TestToy(ToyConformance):
    format = Toy()


class QuietsNans(Toy):
    def encode(self, array):
        with np.errstate(all="ignore"):
            return bits(array + array.dtype.type(0)) if array.dtype == np.float32 else bits(array)


class WidensBfloat(Toy):
    def encode(self, array):
        return bits(array.astype(np.float16)) if array.dtype == numpy_dtype("bf16") else bits(array)


class MakesScalarsVectors(Toy):
    def decode(self, path, record):
        return super().decode(path, record).reshape(record.shape or (1,))


class WritesFortranBytes(Toy):
    def encode(self, array):
        return array.tobytes(order="A") if array.dtype.byteorder != ">" else bits(array)


class HandsOutWritable(Toy):
    def decode(self, path, record):
        return super().decode(path, record).copy()


class LosesOrder(Toy):
    def arrange(self, lines):
        return sorted(lines, key=lambda record: record.site.name)


class DropsCalls(Toy):
    def arrange(self, lines):
        return list({r.site._replace(call=0): r._replace(site=r.site._replace(call=0)) for r in lines}.values())


class DropsDetails(Toy):
    def arrange(self, lines):
        return [record._replace(details={}) if record.at else record for record in lines]


class StampsTime(Toy):
    count = 0

    def write(self, trace, path, **options):
        StampsTime.count += 1
        trace = Trace(
            trace.path, "x", trace.lines, trace._files, header={"at": StampsTime.count}, special=trace._special
        )
        return super().write(trace, path, **options)


class Overwrites(Toy):
    def refuse(self, path, overwrite):
        pass


class WritesInPlace(Toy):
    def opened(self, path):
        return open(path, "wb")


class BelievesTheEnd(Toy):
    def check_end(self, end, data):
        if end > len(data):
            raise FormatError("too short")


class PadsWithZeros(Toy):
    def check_end(self, end, data):
        pass

    def decode(self, path, record):
        data = path.read_bytes()[record.at[1] :][: record.nbytes].ljust(record.nbytes, b"\0")
        return np.frombuffer(data, numpy_dtype(record.dtype)).reshape(record.shape)


class Allocates(Toy):
    def check_end(self, end, data):
        bytearray(min(end, 64 << 20))  # a real one would take all of it
        super().check_end(end, data)


class LeaksErrors(Toy):
    def index_text(self, data, length):
        try:
            return super().index_text(data, length)
        except UnicodeDecodeError:
            raise RuntimeError("not text") from None


class NamesNoFile(Toy):
    def read(self, path):
        try:
            return super().read(path)
        except FormatError:
            raise FormatError("damaged") from None


class RecognisesAll(Toy):
    def recognise(self, path):
        return True


class RaisesOnLooking(Toy):
    def recognise(self, path):
        return path.read_bytes()[:4] == MAGIC


class ReportsNoProgress(Toy):
    def write(self, trace, path, *, overwrite, advance):
        return super().write(trace, path, overwrite=overwrite, advance=lambda nbytes: None)


DEFECTS = {
    QuietsNans: "every_bit_of_every_dtype",
    WidensBfloat: "every_bit_of_every_dtype",
    MakesScalarsVectors: "empty_scalar_and_odd_shapes",
    WritesFortranBytes: "strided_fortran_and_big_endian",
    HandsOutWritable: "arrays_are_read_only",
    LosesOrder: "sites_survive_in_causal_order",
    DropsCalls: "sites_survive_in_causal_order",
    DropsDetails: "optional_keys",
    StampsTime: "writing_twice",
    Overwrites: "existing_target_is_refused",
    WritesInPlace: "full_disk",
    BelievesTheEnd: "trailing_bytes",
    PadsWithZeros: "truncation",
    Allocates: "huge_claim",
    LeaksErrors: "damaged_files",
    NamesNoFile: "truncation",
    RecognisesAll: "recognise_is_false_for_other",
    RaisesOnLooking: "recognise_never_raises",
    ReportsNoProgress: "progress",
}


LEAKED = {LeaksErrors: RuntimeError, RaisesOnLooking: OSError}  # these pass through, and fail the test themselves


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.__name__)
def test_the_suite_catches(defect, monkeypatch, tmp_path):
    suite = type("Suite", (ToyConformance,), {"format": defect()})()
    point = type("Point", (), {"name": "toy", "value": "toy", "load": lambda _: suite.format})()
    monkeypatch.setattr(open_trace, "_third_party", lambda: {"toy": point})
    claims = [name for name in dir(suite) if name.startswith("test_") and DEFECTS[defect] in name]
    assert claims
    with pytest.raises(LEAKED.get(defect, (AssertionError, pytest.fail.Exception))):
        for claim in claims:
            run(suite, claim, tmp_path)


def run(suite, claim, tmp_path):
    """Call a test method as pytest would: once, or for every parameter."""
    method = getattr(suite, claim)
    marks = [mark for mark in getattr(method, "pytestmark", []) if mark.name == "parametrize"]
    cases = [{marks[0].args[0]: value} for value in marks[0].args[1]] if marks else [{}]
    for number, case in enumerate(cases):
        if "tmp_path" in method.__code__.co_varnames[: method.__code__.co_argcount]:
            case["tmp_path"] = tmp_path / f"{claim[:20]}-{number}"
            case["tmp_path"].mkdir()
        method(**case)


def test_a_sound_format_passes_every_claim_when_run_the_same_way(tmp_path, monkeypatch):
    suite = type("Suite", (ToyConformance,), {"format": Toy()})()
    point = type("Point", (), {"name": "toy", "value": "toy", "load": lambda _: suite.format})()
    monkeypatch.setattr(open_trace, "_third_party", lambda: {"toy": point})
    for number, claim in enumerate(name for name in dir(suite) if name.startswith("test_")):
        directory = tmp_path / str(number)
        directory.mkdir()
        run(suite, claim, directory)


def test_a_suite_without_lies_does_not_pass(tmp_path):
    suite = type("Suite", (FormatConformance,), {"format": Toy(), "suffix": ".toy"})()
    with pytest.raises(AssertionError, match="claims far more"):
        suite.test_a_huge_claim_on_a_small_file_fails_without_allocating(tmp_path)


def test_every_dtype_has_awkward_values():
    assert set(TestToy.dtypes) == set(ITEMSIZE)
