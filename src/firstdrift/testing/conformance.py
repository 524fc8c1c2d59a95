"""What every format must keep: a suite of claims, to be subclassed once for each format.

The subclass names the format and what it cannot carry; every test method is a claim about the rest. Nothing here
knows any one format, except that a reader has to be lied to in its own language (`lying_files`).
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from ..compare.open_trace import BUILT_IN, load_format, open_trace
from ..core.dtypes import ITEMSIZE, dtype_name, numpy_dtype
from ..core.records import Record
from ..core.sites import PARAMETER_PHASES, PHASES, Site
from ..core.strict_json import Json
from ..core.traces import Array, Trace
from ..errors import FirstdriftError, TraceExistsError
from . import strategies
from .damage import Outcome, cuts, files_of, full_disk, read_all, snapshot
from .samples import awkward_array, bits, memory_trace

MOST_MEMORY = 4 << 20  # bytes that reading a file of a few bytes may take, whatever it claims

_property = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,  # a suite that others depend on must not fail by chance
    suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow],
)


class FormatConformance:
    """Subclass as `TestSomething`, set `format`, and set or override what the format cannot carry."""

    format: ClassVar[Any]  # a `firstdrift.compare.open_trace.Format`
    suffix: ClassVar[str] = ""  # of a path the format writes to
    dtypes: ClassVar[Sequence[str]] = tuple(ITEMSIZE)
    phases: ClassVar[Sequence[str]] = PHASES
    names: ClassVar[Sequence[str]] = ("embed", "layers.0.attn", "layers.0", "head")  # in forward order
    ports: ClassVar[bool] = True
    steps: ClassVar[bool] = True
    calls: ClassVar[bool] = True
    samples: ClassVar[bool] = True
    shapes: ClassVar[bool] = True  # else every tensor comes back flat
    order: ClassVar[bool] = True  # whether causal order survives
    details: ClassVar[bool] = True  # optional keys, lines without values, the header
    slack: ClassVar[Sequence[str]] = ()  # globs of files that may hold bytes which belong to no tensor

    def lying_files(self, directory: Path) -> Iterable[Path]:
        """Make files of a few bytes whose headers claim gigabytes, and return the paths to read."""
        raise AssertionError("a subclass must write at least one file that claims far more than it has")

    def name_strategy(self) -> st.SearchStrategy[str]:
        """Names the format can carry."""
        return strategies.names()

    # --- bits and types

    @pytest.mark.parametrize("dtype", ITEMSIZE)
    def test_every_bit_of_every_dtype_survives_or_its_loss_is_refused_or_said(self, dtype: str, tmp_path: Path) -> None:
        source = memory_trace({self._site(): awkward_array(dtype)})
        if dtype in self.dtypes:
            assert self._write(source, tmp_path) == []
            self._assert_same(self._read(tmp_path), source)
        else:
            try:
                said = self._write(source, tmp_path)
            except FirstdriftError as error:
                said = [str(error)]
            assert said, f"{dtype} is not carried and nobody is told"

    @pytest.mark.parametrize("shape", [(), (0,), (3,), (1,), (2, 0, 3), (2, 3, 4)], ids=str)
    def test_empty_scalar_and_odd_shapes_survive(self, shape: tuple[int, ...], tmp_path: Path) -> None:
        for number, dtype in enumerate(self.dtypes):
            directory = tmp_path / str(number)
            directory.mkdir()
            count = int(np.prod(shape, dtype=int))
            source = memory_trace({self._site(): np.resize(awkward_array(dtype), count).reshape(shape)})
            self._write(source, directory)
            self._assert_same(self._read(directory), source)

    def test_strided_fortran_and_big_endian_sources_are_written_by_value(self, tmp_path: Path) -> None:
        dtype = next(name for name in ("f32", *self.dtypes) if name in self.dtypes)
        square = np.arange(12).reshape(3, 4).astype(numpy_dtype(dtype))
        odd = [np.asfortranarray(square), square[::2, ::-1], square.T]
        if ITEMSIZE[dtype] > 1 and square.dtype.kind in "fiu":
            odd.append(square.astype(square.dtype.newbyteorder(">")))
        for number, array in enumerate(odd):
            directory = tmp_path / str(number)
            directory.mkdir()
            source = memory_trace({self._site(): array})
            self._write(source, directory)
            self._assert_same(self._read(directory), source)

    def test_arrays_are_read_only_and_of_the_recorded_dtype(self, tmp_path: Path) -> None:
        self._write(self._sample(), tmp_path)
        trace = self._read(tmp_path)
        for record in trace:
            array = trace.array(record)
            assert dtype_name(array.dtype) == record.dtype
            assert not array.flags.writeable

    # --- sites, order, facts

    def test_sites_survive_in_causal_order(self, tmp_path: Path) -> None:
        source = self._sample()
        self._write(source, tmp_path)
        trace = self._read(tmp_path)
        assert {record.site for record in trace} == {record.site for record in source}
        if self.order:
            assert [record.site for record in trace] == [record.site for record in source]

    def test_any_trace_survives_or_is_refused(self) -> None:
        self._check_any_trace()

    @_property
    @given(st.data())
    def _check_any_trace(self, data: st.DataObject) -> None:
        sites = strategies.sites(
            self.name_strategy(), phases=self.phases, ports=self.ports,
            steps=self.steps, calls=self.calls, samples=self.samples,
        )  # fmt: skip
        arrays = strategies.arrays(self.dtypes, dims=(0, 3) if self.shapes else (1, 1))
        source = data.draw(strategies.traces(sites, arrays, min_size=1))
        with TemporaryDirectory() as directory:
            try:
                self._write(source, Path(directory))
            except FirstdriftError:
                assume(False)
            trace = self._read(Path(directory))
            assert {record.site for record in trace} == {record.site for record in source}
            self._assert_same(trace, source)

    def test_optional_keys_lines_without_values_and_the_header_survive_or_are_said(self, tmp_path: Path) -> None:
        first, second = self._sites()[:2]
        facts: dict[str, Json] = {
            "op": "Linear", "layer": 0, "attrs": {"eps": 1e-5, "scale": "inf"}, "note": "ü", "ours": [1, None],
            "from": [{"name": "embed", "phase": "fwd"}], "dims": ["a"], "aliases": ["tied.weight"],
        }  # fmt: skip
        absent = Record(second._replace(name="gone"), None, None, None, {"absent": "no gradient"})
        counted = Record(second._replace(name="big"), "f32", (2,), None, {"stats": {"max": "nan"}})
        source = memory_trace(
            {first: awkward_array(self.dtypes[0])},
            details={first: facts},
            without_values=[absent, counted],
            header={"model": "kws", "batch": 32},
        )
        said = self._write(source, tmp_path)
        if not self.details:
            assert said, "lines without values vanish and nobody is told"
            return
        trace = self._read(tmp_path)
        assert trace.header.items() >= source.header.items()
        for record in source:
            found = trace[record.site]
            assert found.dtype == record.dtype
            assert found.shape == record.shape
            assert (found.at is None) == (record.at is None)
            assert dict(found.details).items() >= dict(record.details).items()

    # --- files

    def test_writing_twice_gives_identical_bytes(self, tmp_path: Path) -> None:
        (tmp_path / "a").mkdir()
        (tmp_path / "b").mkdir()
        self._write(self._sample(), tmp_path / "a")
        self._write(self._sample(), tmp_path / "b")
        assert snapshot(self._target(tmp_path / "a")) == snapshot(self._target(tmp_path / "b"))

    def test_progress_counts_every_byte(self, tmp_path: Path) -> None:
        source, told = self._sample(), list[int]()
        self.format.write(source, self._target(tmp_path), overwrite=False, advance=told.append)
        assert sum(told) == source.nbytes

    def test_an_existing_target_is_refused_and_unharmed(self, tmp_path: Path) -> None:
        self._write(self._sample(), tmp_path)
        before = snapshot(tmp_path)
        with pytest.raises(TraceExistsError, match=self._target(tmp_path).name):
            self._write(self._other(), tmp_path)
        assert snapshot(tmp_path) == before

    def test_a_foreign_file_at_the_target_is_refused_and_unharmed(self, tmp_path: Path) -> None:
        target = self._target(tmp_path)
        target.write_bytes(b"precious")
        with pytest.raises(FirstdriftError, match=target.name):
            self._write(self._sample(), tmp_path)
        assert target.read_bytes() == b"precious"

    def test_overwriting_leaves_nothing_of_the_old_trace(self, tmp_path: Path) -> None:
        self._write(self._sample(), tmp_path)
        source = self._other()
        self._write(source, tmp_path, overwrite=True)
        trace = self._read(tmp_path)
        assert [record.site for record in trace] == [record.site for record in source]
        self._assert_same(trace, source)

    def test_a_full_disk_leaves_no_half_file_and_no_wrong_number(self, tmp_path: Path) -> None:
        source = self._large()
        with full_disk(8 << 10), pytest.raises(FirstdriftError, match=self._target(tmp_path).name):
            self._write(source, tmp_path)
        assert not [file for file in files_of(tmp_path) if file.name.endswith(".partial")]
        found = read_all(self.format, self._target(tmp_path))
        assert found.values.items() <= self._values(source).items()
        assert found.complaints or len(found.values) < len(source)

    def test_a_full_disk_while_overwriting_a_file_leaves_the_old_one(self, tmp_path: Path) -> None:
        self._write(self._other(), tmp_path)
        before = snapshot(tmp_path)
        is_one_file = self._target(tmp_path).is_file()
        with full_disk(8 << 10), pytest.raises(FirstdriftError):
            self._write(self._large(), tmp_path, overwrite=True)
        assert not is_one_file or snapshot(tmp_path) == before  # a directory is replaced file by file

    # --- damage

    def test_truncation_at_any_byte_is_an_error_or_named_and_never_a_wrong_number(self, tmp_path: Path) -> None:
        values = self._written_values(tmp_path)
        for file in files_of(self._target(tmp_path)):
            whole = file.read_bytes()
            for size in cuts(len(whole)):
                file.write_bytes(whole[:size])
                self._assert_harmless(read_all(self.format, self._target(tmp_path)), values, file)
            file.write_bytes(whole)

    def test_trailing_bytes_are_refused_or_named(self, tmp_path: Path) -> None:
        values = self._written_values(tmp_path)
        for file in files_of(self._target(tmp_path)):
            whole = file.read_bytes()
            for extra in (b"\0", b"garbage", b"\xff" * 100, whole):
                file.write_bytes(whole + extra)
                found = read_all(self.format, self._target(tmp_path))
                self._assert_harmless(found, values, file)
                assert found.complaints or any(file.match(glob) for glob in self.slack), f"{extra[:9]!r} behind {file}"
            file.write_bytes(whole)

    def test_a_file_that_is_missing_is_an_error_or_named(self, tmp_path: Path) -> None:
        values = self._written_values(tmp_path)
        for file in files_of(self._target(tmp_path)):
            whole = file.read_bytes()
            file.unlink()
            found = read_all(self.format, self._target(tmp_path))
            assert found.values.items() <= values.items()
            assert found.complaints or len(found.values) < len(values) or self._is_remark(found)
            file.write_bytes(whole)

    def test_damaged_files_give_our_errors_or_a_readable_trace(self) -> None:
        self._check_damage()

    @settings(_property, max_examples=150)
    @given(st.data())
    def _check_damage(self, data: st.DataObject) -> None:
        with TemporaryDirectory() as directory:
            self._write(self._sample(most=5), Path(directory))
            file = data.draw(st.sampled_from(files_of(self._target(Path(directory)))))
            file.write_bytes(data.draw(strategies.damaged(file.read_bytes())))
            read_all(self.format, self._target(Path(directory)))

    def test_a_huge_claim_on_a_small_file_fails_without_allocating(self, tmp_path: Path) -> None:
        self._write(self._sample(), tmp_path)
        read_all(self.format, self._target(tmp_path))  # imports and caches are paid for here
        liars = list(self.lying_files(tmp_path))
        assert liars
        for path in liars:
            tracemalloc.start()
            try:
                found = read_all(self.format, path)
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert found.complaints, f"{path} was believed"
            assert peak < MOST_MEMORY, f"{path} made its reader allocate {peak} bytes"

    def test_tensors_whose_files_vanish_after_opening_are_our_error(self, tmp_path: Path) -> None:
        values = self._written_values(tmp_path)
        trace = self._read(tmp_path)
        for file in files_of(self._target(tmp_path)):
            file.unlink()
        for record in trace:
            try:
                assert bits(trace.array(record)) == values[record.site]  # read before, or held open
            except FirstdriftError as error:
                assert str(self._target(tmp_path)) in str(error)

    # --- the one door

    def test_open_trace_finds_it(self, tmp_path: Path) -> None:
        self._write(self._sample(), tmp_path)
        assert self.format.recognise(self._target(tmp_path)) is True
        assert open_trace(self._target(tmp_path)).format == self.format.NAME

    def test_recognise_never_raises_and_refuses_what_is_not_its_own(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"\x93NUMPY nonsense")
        (tmp_path / "empty").touch()
        (tmp_path / "folder").mkdir()
        (tmp_path / "loop").symlink_to(tmp_path / "loop")
        for name in ("file", "empty", "folder", "loop", "missing", "file/below", "x" * 5000, "nul\0byte"):
            assert self.format.recognise(tmp_path / name) is False

    @pytest.mark.parametrize("other", BUILT_IN)
    def test_recognise_is_false_for_other_formats(self, other: str, tmp_path: Path) -> None:
        if other == self.format.NAME:
            return
        foreign = load_format(other)
        path = tmp_path / f"run{_SUFFIXES.get(other, '')}"
        foreign.write(_FOREIGN, path, overwrite=False, advance=_ignore)
        assert self.format.recognise(path) is False

    def test_reading_what_is_not_there_is_our_error_and_names_it(self, tmp_path: Path) -> None:
        path = tmp_path / f"nothing{self.suffix}"
        assert path.name in read_all(self.format, path).complaints[0] or not self.format.recognise(path)
        assert read_all(self.format, path).complaints

    # --- how the suite makes and judges its traces

    def _target(self, directory: Path) -> Path:
        return directory / f"run{self.suffix}"

    def _write(self, trace: Trace, directory: Path, *, overwrite: bool = False) -> list[str]:
        said: list[str] = self.format.write(trace, self._target(directory), overwrite=overwrite, advance=_ignore)
        return said

    def _read(self, directory: Path) -> Trace:
        trace: Trace = self.format.read(self._target(directory))
        assert trace.complete, trace.problems
        return trace

    def _sites(self) -> list[Site]:
        """Sites of every kind the format can carry, as a training step would write them."""
        found: dict[Site, None] = {}
        for step in (0, 1) if self.steps else (0,):
            for phase in self.phases:
                for name in self.names:
                    if self.ports and phase == "fwd":
                        found[Site(step, phase, name, "in.0")] = None
                    found[Site(step, phase, name, strategies.usual_port(phase))] = None
                    if self.ports and phase in PARAMETER_PHASES:
                        found[Site(step, phase, name, "bias")] = None
                if self.samples and phase == "fwd":
                    found[Site(step, phase, self.names[-1], "out", 0, 1000)] = None
                if self.calls and phase == "fwd":
                    found[Site(step, phase, self.names[-1], "out", 1)] = None
        return list(found)

    def _site(self) -> Site:
        return self._sites()[0]

    def _sample(self, most: int = 1000) -> Trace:
        """A trace of `most` sites of every kind the format can carry, dtypes in turn, no two tensors alike."""
        tensors: dict[Site, Array] = {}
        sites = self._sites()
        for number, site in enumerate(sites[:: -(-len(sites) // most)]):
            dtype = self.dtypes[number % len(self.dtypes)]
            array = np.roll(awkward_array(dtype), number)[:6]
            tensors[site] = array.reshape((2, -1) if self.shapes and array.size % 2 == 0 else (-1,))
        return memory_trace(tensors)

    def _other(self) -> Trace:
        return memory_trace({self._site(): awkward_array(self.dtypes[0])[:3]})

    def _large(self) -> Trace:
        sizes = (10, 64 << 10, 10)
        dtype = numpy_dtype(self.dtypes[0])
        return memory_trace({s: np.ones(n, dtype) for s, n in zip(self._sites(), sizes, strict=False)})

    def _written_values(self, directory: Path) -> dict[Site, bytes]:
        source = self._sample(most=5)
        self._write(source, directory)
        return self._values(source)

    def _values(self, trace: Trace) -> dict[Site, bytes]:
        return {record.site: bits(trace.array(record)) for record in trace}

    def _assert_same(self, found: Trace, source: Trace) -> None:
        for record in source:
            array, original = found.array(record.site), source.array(record)
            assert found[record.site].dtype == record.dtype
            assert array.shape == (original.shape if self.shapes else (original.size,)), record.site
            assert bits(array) == bits(original), record.site

    def _assert_harmless(self, found: Outcome, values: Mapping[Site, bytes], file: Path) -> None:
        """Nothing wrong was handed out; whatever is missing was said, with the file's name."""
        assert found.values.items() <= values.items(), f"{file}: a wrong number, and no word about it"
        assert found.complaints or found.values == values, f"{file}: tensors are gone without a word"
        assert not found.complaints or any(file.name in text for text in found.complaints), found.complaints

    def _is_remark(self, found: Outcome) -> bool:
        return bool(found.trace and found.trace.notes)


def _ignore(nbytes: int) -> None:
    pass


_SUFFIXES = {"npz": ".npz", "safetensors": ".safetensors"}
_FOREIGN = memory_trace({Site(0, "fwd", "lm_head", "out"): np.zeros(4, np.float32)})
