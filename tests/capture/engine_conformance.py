"""What every recorder of an engine has to keep: one suite, given a small network in that engine."""

import json
from pathlib import Path

import numpy as np
import pytest

import firstdrift as fd


class EngineConformance:
    """Subclass it with `record(path, **options)`, `run()` and the facts of the network below.

    The network: two blocks of norm, linear layer, activation, linear layer and the sum with their input; a head.
    """

    modules: tuple[str, ...]  # with outputs, in forward order
    operations: dict[str, str]  # of modules, by name
    settings: dict[str, dict]  # of modules, those that the engine's trace has to say
    weights: dict[str, np.ndarray]  # by "<module>.<port>"

    @classmethod
    def record(cls, path, **options):
        raise AssertionError("say how this engine is recorded")

    @classmethod
    def run(cls):
        raise AssertionError("give what the engine computes without being recorded")

    @pytest.fixture(scope="class")
    @classmethod
    def trace(cls, tmp_path_factory):
        return cls.record(tmp_path_factory.mktemp("engine") / "trace")

    def test_every_module_has_its_output_in_forward_order(self, trace):
        names = [record.site.name for record in trace if record.site.phase == "fwd" and record.site.port == "out"]
        assert [name for name in names if name in self.modules] == list(self.modules)

    def test_a_model_computes_the_same_bits_recorded_or_not(self, trace):
        output = next(record for record in trace if record.site[1:4] == ("fwd", "", "out"))
        assert np.asarray(self.run()).tobytes() == trace.array(output).tobytes()

    def test_producers_are_recorded_before_what_they_make(self, trace):
        order = {record.site: number for number, record in enumerate(trace)}
        computed = [record for record in trace if record.site.phase == "fwd"]
        assert all(record.producers is not None for record in computed)
        for record in computed:
            for producer in record.producers:
                assert order[producer] < order[record.site], (producer, record.site)

    def test_the_input_is_what_the_first_module_reads(self, trace):
        first = next(record for record in trace if record.site.phase == "fwd")
        assert any(producer.phase == "input" for producer in first.producers)

    def test_operations_and_settings_are_said(self, trace):
        said = {record.site.name: record for record in trace if record.site.phase == "fwd"}
        for name, op in self.operations.items():
            assert said[name].op == op, name
        for name, settings in self.settings.items():
            assert {key: said[name].attrs.get(key) for key in settings} == settings

    def test_weights_are_whole_and_under_their_modules(self, trace):
        held = {f"{r.site.name}.{r.site.port}": trace.array(r) for r in trace if r.site.phase == "weight"}
        for name, array in self.weights.items():
            assert held[name].dtype == array.dtype
            assert held[name].tobytes() == np.ascontiguousarray(array).tobytes(), name

    def test_the_trace_is_whole_and_says_what_ran(self, trace):
        assert trace.complete
        assert not trace.problems
        header = json.loads((Path(trace.path) / "trace.json").read_text())
        assert header["producer"].startswith("firstdrift ")

    def test_two_recordings_are_bit_equal(self, trace, tmp_path):
        result = fd.diff(trace.path, self.record(tmp_path / "again").path)
        assert result.verdict is fd.Verdict.SAME

    def test_a_trace_that_is_there_is_not_overwritten(self, trace):
        with pytest.raises(fd.TraceExistsError):
            self.record(trace.path)
