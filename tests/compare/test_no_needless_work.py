"""What the one pass over its bytes has shown to be equal, or clearly clean, is not looked at again."""

from collections import Counter

import numpy as np
import pytest
from tests.compare.making import noisy, normal, record

import firstdrift as fd
from firstdrift.core.traces import Trace
from firstdrift.judge.measure import measuring
from firstdrift.judge.measure.result import Why
from firstdrift.judge.passes import by_program as replaying
from firstdrift.program.building import op_fit

X, W = normal(32, 16), normal(8, 16, seed=1)
SMALL = 2.0**-25  # half a rounding
LARGE = 2e-5  # more than a short sum may be off, less than a long one


def network(hidden, out, gradient=None):
    """A linear layer and an activation, as a run records them, with what each was computed from."""
    return {
        "input :x": X,
        "weight fc": W,
        "fwd fc": (hidden, {"op": "Linear", "producers": [fd.Site(0, "input", "", "x")]}),
        "fwd act": (out, {"op": "Tanh", "producers": [fd.Site(0, "fwd", "fc", "out")]}),
        "agrad act": normal(32, 8, seed=3),
        "grad fc": normal(8, 16, seed=4) if gradient is None else gradient,
    }


HIDDEN = X @ W.T
OUT = np.tanh(HIDDEN)


@pytest.fixture
def written(tmp_path):
    """A function that records two runs, of which the second is given."""
    ours = network(HIDDEN, OUT)
    return lambda theirs: (record(tmp_path / "r", ours), record(tmp_path / "c", theirs))


@pytest.fixture
def work(monkeypatch):
    """Counts what is fitted, replayed and loaded, by site."""
    done = {"fitted": Counter(), "replayed": Counter(), "loaded": Counter()}
    fitted, replayed, loaded = op_fit.fit, replaying.introduced_at, Trace.array

    def counted_fit(trace, site):
        done["fitted"][site.name] += 1
        return fitted(trace, site)

    def counted_replay(pair, *given):
        done["replayed"][pair.site.name] += 1
        return replayed(pair, *given)

    def counted_array(self, site):
        record = site if isinstance(site, fd.Record) else self[site]
        done["loaded"][self.path.name, record.site] += 1
        return loaded(self, site)

    monkeypatch.setattr(op_fit, "fit", counted_fit)
    monkeypatch.setattr(replaying, "introduced_at", counted_replay)
    monkeypatch.setattr(Trace, "array", counted_array)
    return done


def test_equal_runs_are_read_once_and_never_fitted_or_replayed(written, work):
    result = fd.diff(*written(network(HIDDEN, OUT)))
    assert (result.verdict, result.coverage.compared) == ("same", 6)
    assert not work["fitted"]
    assert not work["replayed"]
    assert len(work["loaded"]) == 12
    assert set(work["loaded"].values()) == {1}
    assert {pair.introduced for pair in result.pairs} == {None}


def test_clearly_clean_runs_are_read_once_and_never_fitted_or_replayed(written, work):
    result = fd.diff(*written(network(noisy(HIDDEN, SMALL), noisy(OUT, SMALL), noisy(normal(8, 16, seed=4), SMALL))))
    assert [str(pair.verdict) for pair in result.pairs] == ["same", "same", "noise", "noise", "same", "noise"]
    assert not work["fitted"]
    assert not work["replayed"]
    assert set(work["loaded"].values()) == {1}


def test_only_what_is_in_doubt_is_replayed(written, work):
    result = fd.diff(*written(network(HIDDEN, noisy(OUT, LARGE))))
    assert result.first_drift.name == "act"
    assert set(work["replayed"]) == {"act"}
    assert next(pair for pair in result.pairs if pair.site.name == "act").introduced > 1e-6


def test_equal_runs_without_a_graph_are_read_once(tmp_path, work):
    sites = {f"fwd layer{number}": normal(8, 16, seed=number) for number in range(5)}
    result = fd.diff(record(tmp_path / "r", sites), record(tmp_path / "c", sites))
    assert result.verdict == "same"
    assert not work["fitted"]
    assert set(work["loaded"].values()) == {1}


def test_nan_on_one_side_is_never_skipped(written):
    broken = OUT.copy()
    broken[3, 4] = np.nan
    result = fd.diff(*written(network(HIDDEN, broken)))
    assert (result.verdict, result.first_drift.name) == ("drift", "act")


def in_one(array, at, value):
    array = array.copy()
    array[at] = value
    return array


CHANGES = {
    "an element": lambda h: in_one(h, (3, 4), h[3, 4] * np.float32(1 + 1e-6)),
    "a row": lambda h: in_one(h, 3, noisy(h[3], 1e-6)),
    "all": lambda h: noisy(h, 1e-6),
    "a factor": lambda h: h * np.float32(1 + 1e-6),
    "a NaN": lambda h: in_one(h, (3, 4), np.nan),
}


@pytest.mark.parametrize("change", CHANGES)
def test_nothing_that_differs_in_nan_or_by_more_than_the_least_operation_adds_is_clearly_clean(written, change):
    def first(hidden):
        result = fd.diff(*written(network(hidden, OUT)))
        return next(pair for pair in result.pairs if pair.site.name == "fc" and pair.site.phase == "fwd")

    assert first(CHANGES[change](HIDDEN)).chain[0].why in (Why.DOUBT, Why.NON_FINITE)


def test_two_roundings_are_clearly_clean(written):
    result = fd.diff(*written(network(noisy(HIDDEN, SMALL), OUT)))
    assert [pair.why for pair in result.pairs if pair.verdict == "noise"] == [Why.CLEAR]


def test_a_nan_of_any_bits_is_compared_without_a_warning(tmp_path):
    """numpy warns where a signalling NaN is converted; a comparison converts everything."""
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    signalling = np.full((3, 2), 0x7F800001, np.uint32).view(np.float32)
    for side in ("reference", "candidate"):
        with fd.Writer(tmp_path / side) as writer:
            writer.put("", "input", x, port="x")
            writer.put("fc", "weight", signalling if side == "candidate" else x[:2], port="weight")
            writer.put("fc", "fwd", signalling if side == "candidate" else x @ x[:2].T, op="linear")
    assert fd.diff(tmp_path / "reference", tmp_path / "candidate").exit_code == 1


def test_updates_of_equal_weights_by_equal_gradients_are_subtracted_once(tmp_path, monkeypatch):
    subtracted = []
    plain = measuring._difference
    monkeypatch.setattr(measuring, "_difference", lambda after, before: subtracted.append(1) or plain(after, before))
    step = {"weight fc": W, "grad fc": normal(8, 16, seed=4), "weight_after fc": W * np.float32(0.9)}
    result = fd.diff(record(tmp_path / "r", step), record(tmp_path / "c", step))
    assert (result.verdict, len(subtracted)) == ("same", 1)
    other = step | {"weight_after fc": W * np.float32(0.8)}
    assert fd.diff(tmp_path / "r", record(tmp_path / "d", other)).verdict == "drift"
    assert len(subtracted) == 3
