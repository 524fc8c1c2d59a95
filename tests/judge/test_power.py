"""What power promises is true: a planted error of the size it names is found, and a smaller one is not."""

import copy
import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn

import firstdrift as fd
from firstdrift.cli.main import cli
from firstdrift.judge.measure.scales import matrix_of


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A training step, and the same in float64, kept as float32."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("pair")
    model = nn.Sequential(
        nn.Linear(64, 96), nn.LayerNorm(96), nn.GELU(), nn.Linear(96, 48), nn.Tanh(), nn.Linear(48, 40)
    )
    x, y = torch.randn(50, 64), torch.randint(0, 40, (50,))
    for path, dtype in (("r", torch.float32), ("wide", torch.float64)):
        one = copy.deepcopy(model).to(dtype)
        with fd.trace(one, folder / path):
            nn.functional.cross_entropy(one(x.to(dtype)), y).backward()
    rewritten(folder / "wide", folder / "c", {})
    fd.calibrate(model, x, folder / "k", loss_fn=nn.functional.cross_entropy, target=y)
    return folder


def rewritten(source, target, changes):
    """A copy of a trace in float32, in which some sites hold something else."""
    trace = fd.open_trace(source)
    with fd.Writer(target, overwrite=True, gradient_of=trace.header.get("gradient_of")) as writer:
        for record in trace.lines:
            step, phase, name, port, call, sample = record.site
            array = trace.array(record)
            array = array.astype(np.float32) if array.dtype == np.float64 else array
            change = changes.get(record.site)
            writer.put(
                name, phase, array if change is None else change(array).astype(array.dtype), port=port, step=step,
                call=call, sample=sample, producers=record.producers,
            )  # fmt: skip
    return target


def factor(size):
    return lambda array: array * (1 + size)


def one_part(size, axis):
    def change(array):
        matrix = array.astype(np.float64).reshape(matrix_of(array.shape))
        index = [slice(None), slice(None)]
        index[axis] = 1
        usual = np.sqrt(np.mean(matrix[tuple(index)] ** 2))
        signs = np.random.default_rng(0).choice([-1, 1], matrix[tuple(index)].shape)
        matrix[tuple(index)] += signs * size * usual
        return matrix.reshape(array.shape)

    return change


SITES = [
    *(fd.Site(0, "fwd", name, "out") for name in "012345"), fd.Site(0, "agrad", "2", "out"),
    fd.Site(0, "grad", "3", "weight"), fd.Site(0, "lossgrad", "loss", "out"),
]  # fmt: skip


def is_found(folder, tmp_path, site, change, reference="r"):
    rewritten(folder / "c", tmp_path / "c", {site: change})
    judged = next(pair for pair in fd.diff(folder / reference, tmp_path / "c").pairs if pair.site == site)
    return str(judged.verdict) in ("drift", "precision", "inconclusive")


ASKED = [*((site, "r") for site in (SITES[3], *SITES[6:])), (SITES[1], "k")]


@pytest.mark.parametrize(("site", "reference"), ASKED, ids=str)
def test_an_error_of_the_size_that_power_names_is_found(pair, tmp_path, site, reference):
    (one,) = (one for one in fd.power(pair / reference, pair / "c").sites if one.site == site)
    assert is_found(pair, tmp_path, site, factor(1.1 * one.everywhere), reference)
    assert not is_found(pair, tmp_path, site, factor(0.3 * one.everywhere), reference)
    for axis in (0, 1):
        assert is_found(pair, tmp_path, site, one_part(2 * one.in_part, axis), reference)


def test_one_trace_is_taken_with_the_usual_noise(pair):
    alone = {one.site: one for one in fd.power(pair / "r").sites}
    both = {one.site: one for one in fd.power(pair / "r", pair / "c").sites}
    assert alone.keys() == both.keys()
    for site in SITES[:6]:
        assert 0.5 < alone[site].everywhere / both[site].everywhere < 4
        assert alone[site].in_part > alone[site].everywhere


def test_calibration_sharpens_what_is_found_where_peers_vouch_for_it(pair):
    plain, sharp = (
        {one.site: one.everywhere for one in fd.power(pair / path, pair / "c").sites} for path in ("r", "k")
    )
    assert all(sharp[site] <= 1.1 * plain[site] for site in SITES[:6])


def test_only_what_is_asked_for_is_reported(pair):
    found = fd.power(pair / "r", only=["3"], phases=["fwd"])
    assert [str(one.site) for one in found.sites] == ["fwd 3:out step 0"]
    with pytest.raises(fd.SelectionError, match="nothing matches"):
        fd.power(pair / "r", only=["nowhere"])


def test_inputs_of_modules_and_integers_are_left_out(tmp_path):
    with fd.Writer(tmp_path / "r") as writer:
        writer.put("ids", "fwd", np.arange(4))
        writer.put("a", "fwd", np.ones((4, 4), np.float32), port="in.0")
        writer.put("zero", "fwd", np.zeros((4, 4), np.float32))
        writer.put("a", "fwd", np.ones((4, 4), np.float32))
    assert [one.site.name for one in fd.power(tmp_path / "r").sites] == ["a"]


def test_where_noise_hides_everything_nothing_is_promised(tmp_path):
    import ml_dtypes

    x = np.random.default_rng(0).standard_normal((64, 64))
    for side, noise in (("r", 0.0), ("c", 0.02)):
        with fd.Writer(tmp_path / side) as writer:
            for number in range(6):
                size = noise * 3**number if number < 3 else noise * 9
                value = x * (1 + size * np.random.default_rng(number).standard_normal(x.shape))
                writer.put(f"layer{number}", "fwd", value.astype(ml_dtypes.float8_e4m3fn), op="Custom")
    found = fd.power(tmp_path / "r", tmp_path / "c")
    assert found.blind
    assert all(one.in_part is None for one in found.sites if one.everywhere is None)


def test_a_pair_that_is_not_clean_is_refused(pair, tmp_path):
    rewritten(pair / "c", tmp_path / "c", {SITES[3]: factor(0.01)})
    with pytest.raises(fd.SelectionError, match="differ beyond noise at fwd 3:out"):
        fd.power(pair / "r", tmp_path / "c")
    done = CliRunner().invoke(cli, ["power", str(pair / "r"), str(tmp_path / "c")])
    assert (done.exit_code, done.output.count("\n")) == (2, 1)


def test_the_command_prints_a_line_a_tensor_and_what_to_remember(pair):
    done = CliRunner().invoke(cli, ["power", str(pair / "r"), str(pair / "c"), "--phase", "fwd"])
    lines = done.output.splitlines()
    assert done.exit_code == 0
    assert [line.split()[1] for line in lines[1:-1]] == [*"012345", "(root)"]
    assert lines[-1].startswith("with the noise of the two traces, errors of a tensor are found from ")
    said = json.loads(CliRunner().invoke(cli, ["power", str(pair / "k"), "--only", "3", "--json"]).output)
    assert (said["schema"], said["calibrated"], said["pair"]) == ("firstdrift-power-v1", True, False)
    assert {row["name"] for row in said["sites"]} == {"3"}


# What a green verdict proves


@pytest.mark.parametrize("program", [False, True])
def test_a_green_verdict_names_its_weakest_site_and_twice_its_size_is_found(tmp_path, program):
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(64, 96), nn.LayerNorm(96), nn.Linear(96, 48), nn.Tanh())
    x = torch.randn(50, 64)
    for path, dtype in (("r", torch.float32), ("wide", torch.float64)):
        one = copy.deepcopy(model).to(dtype)
        with fd.trace(one, tmp_path / path, program=program):
            one(x.to(dtype))
    theirs = rewritten(tmp_path / "wide", tmp_path / "c", {})
    result = fd.diff(tmp_path / "r", theirs)
    assert result.exit_code == 0
    assert f"least sensitive at fwd {result.proves.site.name}" in result.sentence
    assert result.to_json()["proves"]["error"] == result.proves.error
    rewritten(theirs, tmp_path / "d", {result.proves.site: factor(2 * result.proves.error)})
    assert fd.diff(tmp_path / "r", tmp_path / "d").exit_code


def test_it_proves_more_where_less_is_noise(tmp_path):
    ours = {"f64": np.float64, "f32": np.float32}
    stated = []
    for name, dtype in ours.items():
        x = np.random.default_rng(0).standard_normal((32, 64)).astype(dtype)
        for side, y in (("r", x @ x.T), ("c", (x[:, ::-1] @ x.T[::-1]))):
            with fd.Writer(tmp_path / f"{side}-{name}") as writer:
                writer.put("mm", "fwd", y.astype(dtype), op="Linear")
        stated.append(fd.diff(tmp_path / f"r-{name}", tmp_path / f"c-{name}").proves)
    long, short = stated
    assert 0 < 1e6 * long.error < short.error < 1e-3


def test_of_equal_bits_it_says_that_every_one_is(pair):
    result = fd.diff(pair / "r", pair / "r")
    assert (result.proves.site, result.proves.error) == (None, 0.0)
    assert fd.diff(pair / "r", pair / "c", phases="input").proves.site is None


def test_nothing_is_proven_where_it_is_not_green(pair, tmp_path):
    rewritten(pair / "c", tmp_path / "c", {SITES[3]: factor(0.1)})
    assert fd.diff(pair / "r", tmp_path / "c").proves is None


def test_power_refuses_a_pair_that_drifts_in_what_only_one_side_has(pair, tmp_path):
    trace = fd.open_trace(pair / "c")
    with fd.Writer(tmp_path / "c", gradient_of=trace.header.get("gradient_of")) as writer:
        for record in trace.lines:
            if record.site != fd.Site(0, "grad", "3", "weight"):
                name, phase, port = record.site.name, record.site.phase, record.site.port
                writer.put(name, phase, trace.array(record), port=port, producers=record.producers)
    with pytest.raises(fd.SelectionError, match="differ beyond noise at grad 3"):
        fd.power(pair / "r", tmp_path / "c")


@pytest.mark.parametrize(
    ("ours", "theirs", "code"),
    [
        (lambda x: x, lambda x: x, 0),
        (lambda x: np.full_like(x, np.nan), lambda x: np.full_like(x, np.nan), 2),
        (lambda x: x[:0], lambda x: x[:0], 2),
        (lambda x: x, lambda x: x[:, :3], 2),
        (lambda x: x, None, 2),
    ],
    ids=["numbers", "no numbers", "nothing", "another shape", "not there"],
)
def test_who_can_tell_nothing_does_not_say_that_all_is_well(tmp_path, ours, theirs, code):
    x = np.random.default_rng(0).standard_normal((16, 8)).astype(np.float32)
    for name, change in (("r", ours), ("c", theirs)):
        with fd.Writer(tmp_path / name) as writer:
            writer.put("other", "fwd", x if code == 0 or change is None or theirs is None else change(x))
            if change is not None:
                writer.put("this", "fwd", change(x))
    answer = CliRunner().invoke(cli, ["power", str(tmp_path / "r"), str(tmp_path / "c")])
    assert answer.exit_code == code, answer.output
