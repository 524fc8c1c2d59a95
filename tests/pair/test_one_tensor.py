"""One tensor under several names is compared once; and what only seems to be one is not hidden by that."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.pair.paired_networks import traced  # noqa: E402
from torch import nn  # noqa: E402

import firstdrift as fd  # noqa: E402
from firstdrift.core.sites import Site  # noqa: E402


class Part(nn.Module):
    """A layer, dropout, and a container around both; `factor` is a mistake in what the container returns."""

    def __init__(self, names, factor=1.0):
        super().__init__()
        self.names, self.factor = names, factor
        for name, module in zip(names, (nn.Linear(8, 8), nn.Dropout(0.5)), strict=True):
            self.add_module(name, module)

    def forward(self, x):
        for name in self.names:
            x = getattr(self, name)(x)
        return x * self.factor if self.factor != 1.0 else x


class Model(nn.Module):
    def __init__(self, names, inner, factor=1.0):
        super().__init__()
        self.names = names
        for name, module in zip(names, (nn.LayerNorm(8), Part(inner, factor), nn.Linear(8, 3)), strict=True):
            self.add_module(name, module)

    def forward(self, x):
        for name in self.names:
            x = getattr(self, name)(x)
        return x


@pytest.fixture
def both():
    torch.manual_seed(0)
    ours = Model(("norm", "part", "head"), ("fc", "drop")).eval()

    def candidate(factor=1.0):
        theirs = Model(("a", "b", "c"), ("d", "e"), factor).eval()
        values = list(ours.state_dict().values())
        theirs.load_state_dict(dict(zip(theirs.state_dict(), values, strict=True)))
        return theirs

    return ours, candidate


def diffed(folder, ours, theirs):
    torch.manual_seed(1)
    x = torch.randn(16, 8)
    return fd.diff(traced(ours, folder / "r", x), traced(theirs, folder / "c", x))


def test_a_layer_its_dropout_and_their_container_find_their_own(both, tmp_path):
    result = diffed(tmp_path, both[0], both[1]())
    found = {match.name: match.candidate for match in result.matches if match.name}
    assert result.exit_code == 0
    assert found == {"norm": ("a",), "part.fc": ("b.d",), "part.drop": ("b.e",), "part": ("b",), "head": ("c",)}


def test_dropout_that_is_active_is_found_under_any_name(both, tmp_path):
    theirs = both[1]()
    theirs.b.e.train()
    result = diffed(tmp_path, both[0], theirs)
    assert (result.first_drift.name, result.first_drift.cause.label) == ("part.drop", "dropout-active")


def test_a_container_that_returns_something_else_is_found_under_any_name(both, tmp_path):
    result = diffed(tmp_path, both[0], both[1](factor=1.3))
    assert (result.first_drift.name, result.exit_code) == ("part", 1)


def test_an_activation_that_the_candidate_dropped_is_found_under_any_name(tmp_path):
    torch.manual_seed(0)
    ours = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    theirs = nn.Sequential()
    for name, module in zip("pqr", (ours[0], nn.Identity(), ours[2]), strict=True):
        theirs.add_module(name, module)
    result = diffed(tmp_path, ours, theirs)
    assert result.exit_code == 1
    assert result.first_drift.name == "1"


def graphs(folder, read, ours=(), theirs=()):
    """Two results of a layer, of which the candidate recorded one, and a head; `read` says who reads the second."""
    draw = np.random.default_rng(0)
    first, second, last = (draw.standard_normal((4, 6)).astype("f4") for _ in range(3))
    fed = Site(0, "input", "input", "out")
    with fd.Writer(folder / "r") as writer:
        writer.put("input", "input", first)
        writer.put("layer", "fwd", first, port="out.0", producers=[fed])
        writer.put("layer", "fwd", second, port="out.1", producers=[fed])
        writer.put("", "fwd", last, producers=[Site(0, "fwd", "layer", f"out.{n}") for n in range(1 + read)])
        for name, array, details in ours:
            writer.put(name, "weight", array, **details)
    with fd.Writer(folder / "c") as writer:
        writer.put("input", "input", first)
        writer.put("layer", "fwd", first, port="out.0")
        writer.put("", "fwd", last)
        for name, array in theirs:
            writer.put(name, "weight", array)
    return fd.diff(folder / "r", folder / "c")


@pytest.mark.parametrize("read", [False, True])
def test_a_result_that_nothing_reads_is_no_gap(tmp_path, read):
    result = graphs(tmp_path, read)
    left = [one.site.port for one in result.reference_only]
    assert left == (["out.1"] if read else [])


@pytest.mark.parametrize("untied", [False, True])
def test_a_tied_weight_is_no_gap_unless_the_candidate_has_another_like_it(tmp_path, untied):
    draw = np.random.default_rng(1)
    table, spare = (draw.standard_normal((7, 5)).astype("f4") for _ in range(2))
    theirs = [("embed", table), *([("other.thing", spare)] if untied else [])]
    result = graphs(tmp_path, False, [("embed", table, {"aliases": ["head.weight"]})], theirs)
    tied = [one for one in result.absorbed if one.reason.startswith("tied")]
    assert len(tied) == (0 if untied else 1)


@pytest.mark.parametrize(("bits", "code"), [(0x7F80_0001, 2), (0xFFA0_0000, 2), (0x7F7F_FFFF, 0)])
def test_signalling_nans_and_huge_numbers_are_paired_without_a_warning(tmp_path, bits, code):
    values = np.full((4, 8), bits, np.uint32).view(np.float32)
    values[1:3] = np.arange(16).reshape(2, 8)
    for side, name in (("r", "mine"), ("c", "other")):
        with fd.Writer(tmp_path / side) as writer:
            for number in range(3):
                writer.put(f"{name}{number}", "fwd", np.roll(values, number))
    assert fd.diff(tmp_path / "r", tmp_path / "c").exit_code == code
