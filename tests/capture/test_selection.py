"""What is recorded of a model: by name, class, depth and phase; in full or as statistics."""

import numpy as np
import pytest
import torch
from tests.capture.taking import keys, record, same_bits, values
from torch import nn
from torch.nn import functional

import firstdrift as fd
from firstdrift.core.sites import PHASES


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.act = nn.Linear(4, 4), nn.ReLU()

    def forward(self, x):
        return self.act(self.fc(x))


def make():
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block(), nn.Linear(4, 2))
    return model, torch.optim.AdamW(model.parameters())


def take(path, **options):
    model, optimizer = make()
    with fd.trace(model, path, optimizer=optimizer, **options):
        functional.cross_entropy(model(torch.randn(3, 4)), torch.tensor([0, 1, 1])).backward()
        optimizer.step()
    return model


def names(path, *phases):
    return sorted({one.site.name for one in fd.open_trace(path) if one.site.phase in (phases or PHASES)})


EVERYTHING = ["", "0", "0.act", "0.fc", "1", "1.act", "1.fc", "2"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, EVERYTHING),
        ({"only": "*.fc"}, ["0.fc", "1.fc"]),
        ({"only": ["0", "1.*"]}, ["0", "1.act", "1.fc"]),
        ({"only": ""}, [""]),
        ({"classes": "Linear"}, ["0.fc", "1.fc", "2"]),
        ({"classes": nn.ReLU}, ["0.act", "1.act"]),
        ({"classes": [Block, "Seq*"]}, ["", "0", "1"]),
        ({"depth": 0}, [""]),
        ({"depth": 1}, ["", "0", "1", "2"]),
        ({"depth": 2}, EVERYTHING),
        ({"only": "1*", "classes": nn.Linear}, ["1.fc"]),
        ({"only": "*c*", "depth": 2, "classes": [nn.Linear, nn.ReLU]}, ["0.act", "0.fc", "1.act", "1.fc"]),
    ],
)
def test_modules_are_chosen_by_name_class_and_depth_together(options, expected, tmp_path):
    take(tmp_path / "all")
    take(tmp_path / "t", **options)
    assert names(tmp_path / "t", "fwd") == names(tmp_path / "t", "agrad") == expected
    weighted = [name for name in expected if name in ("0.fc", "1.fc", "2")]
    for phase in ("weight", "grad", "grad_scaled", "optim", "weight_after"):
        assert names(tmp_path / "t", phase) == weighted
    beside = ["input input:input", "loss loss:out", "lossgrad loss:out"]
    assert keys(tmp_path / "t", "input", "loss", "lossgrad") == beside
    every, found = values(tmp_path / "all"), values(tmp_path / "t")
    assert [name for name in every if name in found] == list(found)  # in the same order, too
    assert all(every[name].tobytes() == item.tobytes() for name, item in found.items())


def test_a_class_chooses_what_derives_from_it(tmp_path):
    class Better(nn.Linear):
        pass

    model = nn.Sequential(Better(2, 2), nn.Tanh())
    with fd.trace(model, tmp_path / "t", classes=nn.Linear):
        model(torch.ones(1, 2))
    assert names(tmp_path / "t", "fwd") == ["0"]


@pytest.mark.parametrize("phase", PHASES)
def test_one_phase_alone_is_what_it_is_among_all(phase, tmp_path):
    take(tmp_path / "all")
    take(tmp_path / "t", phases=phase)
    found = values(tmp_path / "t")
    expected = values(tmp_path / "all", phase)
    assert list(found) == list(expected)
    assert all(found[name].tobytes() == item.tobytes() for name, item in expected.items())


def test_phases_are_chosen_by_pattern(tmp_path):
    take(tmp_path / "t", phases=["grad*", "loss"])
    assert {one.site.phase for one in fd.open_trace(tmp_path / "t")} == {"loss", "grad", "grad_scaled"}
    assert "phases" in fd.open_trace(tmp_path / "t").header["options"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"only": "nothing*"}, "only 'nothing*' matches nothing in the model"),
        ({"only": ["0", "7"]}, "only '7' matches nothing in the model; it has '0', '0.fc'"),
        ({"classes": "Conv2d"}, "classes 'Conv2d' matches nothing in the model"),
        ({"classes": nn.Conv2d}, "classes 'Conv2d' matches nothing in the model"),
        ({"keep": {"*": "full", "layers.*": "stats"}}, "keep 'layers.*' matches nothing in the model"),
        ({"phases": "forward"}, "phases 'forward' matches none of input, weight, fwd"),
        ({"keep": "sketch"}, "keep 'sketch' for '*' is not one of full, stats"),
        ({"keep": {"0": "all"}}, "keep 'all' for '0' is not one of full, stats"),
        ({"depth": -1}, "depth -1 is not a whole number from 0"),
        ({"depth": True}, "depth True is not a whole number from 0"),
        ({"only": "0.fc", "classes": nn.ReLU}, "together leave no module of the model"),
        ({"only": "0.fc", "depth": 1}, "together leave no module of the model"),
        ({"on_full": "stop"}, "on_full 'stop' is not 'raise' or 'continue'"),
    ],
)
def test_what_matches_nothing_or_cannot_be_is_refused_by_name(options, message, tmp_path):
    with pytest.raises(fd.SelectionError) as raised:
        take(tmp_path / "t", **options)
    assert message in str(raised.value)
    assert not (tmp_path / "t").exists()


def test_a_granularity_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(fd.SelectionError, match="granularity 'line' is not 'module' or 'op'"):
        take(tmp_path / "t", granularity="line")


@pytest.mark.parametrize("wrong", [{"only": 3}, {"classes": [3]}, {"keep": 3}, {"phases": 3}])
def test_an_option_of_the_wrong_type_is_refused_by_name(wrong, tmp_path):
    with pytest.raises(fd.SelectionError, match=next(iter(wrong))):
        take(tmp_path / "t", **wrong)


def test_statistics_are_kept_for_every_tensor_and_equal_those_of_the_values(tmp_path):
    take(tmp_path / "full")
    take(tmp_path / "stats", keep="stats")
    full = values(tmp_path / "full")
    trace = fd.open_trace(tmp_path / "stats")
    assert keys(tmp_path / "stats") == list(full)
    assert trace.nbytes == 0
    for one, array in zip(trace, full.values(), strict=True):
        assert (one.at, one.shape) == (None, array.shape)
        numbers = array.astype(np.float64)
        expected = {
            "count": array.size, "nan_count": 0, "inf_count": 0, "min": array.min(), "max": array.max(),
            "mean": numbers.mean(), "std": numbers.std(), "l2": np.linalg.norm(numbers.ravel()),
        }  # fmt: skip
        assert one.stats.keys() == expected.keys()
        assert all(one.stats[name] == pytest.approx(item, rel=1e-12, abs=1e-300) for name, item in expected.items())


def test_statistics_count_what_is_not_finite_and_leave_it_out_of_the_rest(tmp_path):
    model = nn.Identity()
    x = torch.tensor([1.0, float("nan"), float("inf"), -3.0, float("-inf"), float("nan"), float("inf")])
    with fd.trace(model, tmp_path / "t", keep="stats"):
        model(x)
    stats = record(tmp_path / "t", "fwd :out").stats
    assert (stats["count"], stats["nan_count"], stats["inf_count"]) == (7, 2, 3)
    assert (stats["min"], stats["max"], stats["mean"], stats["std"], stats["l2"]) == (-3, 1, -1, 2, 10**0.5)
    assert record(tmp_path / "t", "fwd :out").dtype == "f32"


@pytest.mark.parametrize(
    ("keep", "full"),
    [
        ({"*": "stats", "0.*": "full"}, {"0.act", "0.fc"}),
        ({"0.*": "full", "*": "stats"}, set()),
        ({"0.fc": "stats"}, set(EVERYTHING) - {"0.fc"}),
        ({"*": "stats", "0*": "full", "0.fc": "stats"}, {"0", "0.act"}),
    ],
)
def test_of_several_patterns_the_last_that_matches_counts(keep, full, tmp_path):
    model = take(tmp_path / "t", keep=keep)
    for one in fd.open_trace(tmp_path / "t"):
        if one.site.name in EVERYTHING:
            assert (one.stats is None) is (one.site.name in full), one.site
    if "0.fc" in full:
        found = values(tmp_path / "t", "weight_after") if len(full) == len(EVERYTHING) else None
        trace = fd.open_trace(tmp_path / "t")
        assert found is None or found
        assert same_bits(trace.array(record(tmp_path / "t", "weight_after 0.fc:weight")), model[0].fc.weight)


def test_the_same_tensor_is_kept_in_both_ways_where_both_are_asked_for(tmp_path):
    take(tmp_path / "t", keep={"0": "stats", "0.act": "full", "1": "full", "1.fc": "stats"})
    trace = fd.open_trace(tmp_path / "t")
    for name, kept in {"0.act:out": True, "0:out": False, "1:in.0": True, "1.fc:in.0": False}.items():
        assert (record(trace.path, f"fwd {name}").at is not None) is kept
    assert record(trace.path, "fwd 0:out").stats == record(trace.path, "fwd 1.fc:in.0").stats


def test_a_model_without_parts_says_so_where_a_pattern_matches_nothing(tmp_path):
    with pytest.raises(fd.SelectionError, match="it has no module but itself, whose name is empty"):
        fd.trace(nn.Linear(2, 2), tmp_path / "t", only="fc")
    with pytest.raises(fd.CaptureError, match="it has no module but itself"):
        fd.trace(nn.Linear(2, 2), tmp_path / "t", logits="fc")
