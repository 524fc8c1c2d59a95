"""A calibrated reference: what it keeps, what it leaves alone, and which verdicts change for it, and which do not."""

import copy
import json
import random
import sys

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn

import firstdrift as fd
from firstdrift.cli.main import cli
from firstdrift.compare import comparison
from firstdrift.judge.apriori import calibrated
from firstdrift.judge.replay import programs


class Shift(nn.Module):
    def forward(self, x):
        return x + 300


class Cancel(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(64, 64)

    def forward(self, x):
        return (self.inner(x) + 1000) - 1000


class Sharp(nn.Module):
    def forward(self, x):
        return (x * 200).softmax(-1)


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.wide, self.act = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU()
        self.narrow = nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.narrow(self.act(self.wide(self.norm(x))))


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(64, 64)

    def forward(self, x):
        return torch.tanh(2 * self.gate(x)) * x


def classifier(*inside, width=64):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, width), *inside, nn.Linear(width, 8))


def data(seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(32, 64, generator=generator), torch.randint(0, 8, (32,), generator=generator)


loss_fn = nn.functional.cross_entropy


def traced(path, model, x, y):
    with fd.trace(model, path):
        loss_fn(model(x), y).backward()
    model.zero_grad()
    return path


def in_float64(model, x):
    return copy.deepcopy(model).double(), x.double()


def summed_otherwise(model, x):
    """The same model, whose products are sums of two parts of shuffled terms."""
    model = copy.deepcopy(model)
    for layer in (module for module in model.modules() if isinstance(module, nn.Linear)):
        first, second = torch.randperm(layer.in_features, generator=torch.Generator().manual_seed(2)).chunk(2)

        def forward(x, layer=layer, first=first, second=second):
            parts = [x[..., part] @ layer.weight[:, part].T for part in (first, second)]
            return parts[0] + parts[1] + layer.bias

        layer.forward = forward
    return model, x


# What calibration changes.


@pytest.mark.parametrize("candidate", [in_float64, summed_otherwise])
@pytest.mark.parametrize(
    "inside",
    [(Shift, lambda: nn.LayerNorm(64)), (Cancel,), (Sharp,)],
    ids=["tiny variance", "cancels", "sharp softmax"],
)
def test_a_false_alarm_about_an_ill_conditioned_network_becomes_noise(tmp_path, inside, candidate):
    model, (x, y) = classifier(*(part() for part in inside)), data()
    traced(tmp_path / "plain", model, x, y)
    other, z = candidate(model, x)
    traced(tmp_path / "c", other, z, y)
    fd.calibrate(model, x, tmp_path / "r", loss_fn=loss_fn, target=y)
    before, after = fd.diff(tmp_path / "plain", tmp_path / "c"), fd.diff(tmp_path / "r", tmp_path / "c")
    assert (str(after.verdict), after.exit_code) == ("noise", 0), after.sentence
    if before.exit_code:  # all but one of the six
        reasons = [
            pair.reason for pair in after.pairs if "as calibrated: the reference's own runs differ" in pair.reason
        ]
        assert reasons
    assert any("the reference is calibrated" in note for note in after.notes)


@pytest.fixture
def no_torch(monkeypatch):
    """Nothing can be replayed, so that limits alone decide."""
    for place in (programs, comparison):
        monkeypatch.setattr(place, "is_torch_here", lambda: False)


def test_what_the_ladder_cannot_tell_in_bfloat16_is_noise_once_calibrated(tmp_path, no_torch):
    blocks = (nn.Sequential(Residual(64), Gated()) for _ in range(11))
    model, (x, _) = classifier(*blocks).bfloat16(), data()
    x = x.bfloat16()
    other = copy.deepcopy(model).float()
    for module in other.modules():
        if not any(module.children()):
            module.register_forward_hook(lambda module, inputs, output: output.bfloat16().float())
    for path, one, z in (("plain", model, x), ("c", other, x.float())):
        with torch.no_grad(), fd.trace(one, tmp_path / path, program=False):
            one(z)
    fd.calibrate(model, x, tmp_path / "r")
    assert fd.diff(tmp_path / "plain", tmp_path / "c").verdict == "inconclusive"
    assert fd.diff(tmp_path / "r", tmp_path / "c").verdict == "noise"


class Mixing(nn.Module):
    """A norm over many elements of which little else is computed."""

    def __init__(self):
        super().__init__()
        self.norm, self.mix, self.act = nn.LayerNorm([4, LONG]), nn.Conv1d(4, 4, 3, padding=1), nn.GELU()

    def forward(self, x):
        return x + self.act(self.mix(self.norm(x)))


LONG = 4096


def long_network():
    torch.manual_seed(0)
    return nn.Sequential(*(Mixing() for _ in range(5))).eval(), torch.randn(2, 4, LONG) + 1


def recorded(path, model, x):
    with torch.no_grad(), fd.trace(model, path):
        model(x)
    return path


def test_a_small_error_that_the_ladder_has_room_for_is_found_once_calibrated(tmp_path, no_torch):
    model, x = long_network()
    wrong = copy.deepcopy(model).double()
    wrong[3].norm.register_forward_hook(lambda module, inputs, output: output * (1 + 8e-6))
    recorded(tmp_path / "plain", model, x)
    recorded(tmp_path / "c", wrong, x.double())
    fd.calibrate(model, x, tmp_path / "r")
    assert fd.diff(tmp_path / "plain", tmp_path / "c").first_drift is None
    result = fd.diff(tmp_path / "r", tmp_path / "c")
    assert (result.first_drift.phase, result.first_drift.name) == ("fwd", "3.norm")
    assert next(one for one in result.pairs if one.site == result.first_drift.site).chain[-1].facts["noise"] is not None


def serial_norm(layer):
    """A plain loop in float32, as C code has it."""

    def mean(rows):
        return np.cumsum(rows, -1, dtype=np.float32)[:, -1:] / np.float32(rows.shape[-1])

    def forward(x):
        rows = x.detach().numpy().reshape(len(x), -1)
        centred = rows - mean(rows)
        normed = centred / np.sqrt(mean(centred * centred) + np.float32(layer.eps))
        return torch.from_numpy(normed.reshape(x.shape)) * layer.weight + layer.bias

    return forward


def test_serial_sums_are_no_bug_of_a_calibrated_reference_either(tmp_path):
    model, x = long_network()
    other = copy.deepcopy(model)
    for block in other:
        block.norm.forward = serial_norm(block.norm)
    recorded(tmp_path / "c", other, x)
    fd.calibrate(model, x, tmp_path / "r")
    result = fd.diff(tmp_path / "r", tmp_path / "c")
    norm = next(pair for pair in result.pairs if (pair.site.name, pair.site.port) == ("0.norm", "out"))
    assert norm.error > 4 * norm.pair.reference.details["noise"]["perturbed"]  # which alone would accuse it
    assert (str(result.verdict), result.exit_code) == ("noise", 0), result.sentence


BUGS = {
    "0.1 % too large": lambda output: output * 1.001,
    "one channel 1 % off": lambda output: torch.cat([output[..., :1] * 1.01, output[..., 1:]], -1),
    "rolled by one": lambda output: torch.roll(output, 1, -1),
    "first sample zero": lambda output: torch.cat([output[:1] * 0, output[1:]]),
}


@pytest.fixture(scope="module")
def calibrated_once(tmp_path_factory):
    path = tmp_path_factory.mktemp("calibrated") / "r"
    model, (x, y) = classifier(*(Residual(64) for _ in range(5))), data()
    fd.calibrate(model, x, path, loss_fn=loss_fn, target=y)
    return path, model


@pytest.mark.parametrize("bug", BUGS)
@pytest.mark.parametrize("place", ["0", "2.norm", "3.act", "4", "6"])
def test_bugs_are_found_where_they_are_as_without_calibration(tmp_path, calibrated_once, place, bug):
    path, model = calibrated_once
    wrong, x = in_float64(model, data()[0])
    wrong.get_submodule(place).register_forward_hook(lambda module, inputs, output: BUGS[bug](output))
    first = fd.diff(path, recorded(tmp_path / "c", wrong, x)).first_drift
    assert (first.phase, first.name) == ("fwd", place)


@pytest.mark.parametrize("seed", range(2))
def test_clean_candidates_of_a_calibrated_reference_are_noise(tmp_path, seed):
    model = nn.Sequential(nn.Conv1d(1, 8, 9, padding=4), nn.BatchNorm1d(8), nn.ReLU(), nn.MaxPool1d(4), nn.Flatten(),
                          nn.Linear(128, 8))  # fmt: skip
    x, y = data(seed)
    optimizer = lambda model: torch.optim.AdamW(model.parameters())  # noqa: E731
    fd.calibrate(model, x[:, None], tmp_path / "r", loss_fn=loss_fn, target=y, optimizer=optimizer, train=True)
    other = copy.deepcopy(model).double()
    step = optimizer(other)
    with fd.trace(other, tmp_path / "c", optimizer=step):
        loss_fn(other(x[:, None].double()), y).backward()
        step.step()
    result = fd.diff(tmp_path / "r", tmp_path / "c")
    assert (result.exit_code, str(result.verdict) in ("noise", "flip")) == (0, True), result.sentence


def test_a_candidate_in_another_format_is_judged_by_the_calibration_too(tmp_path):
    model, (x, _) = classifier(Shift(), nn.LayerNorm(64)), data()
    fd.calibrate(model, x, tmp_path / "r")
    other, z = in_float64(model, x)
    with torch.no_grad():
        hidden = other[:2](z)
        arrays = {"1.out": hidden, "2.out": other[2](hidden), "3.out": other(z)}
    arrays["0.out"] = other[0](z).detach()
    with fd.Writer(tmp_path / "w") as t:
        for name in "0123":
            t.put(name, "fwd", arrays[f"{name}.out"].detach().float().numpy())
    np.savez(
        tmp_path / "c.npz",
        **{f"{n}.fwd": fd.open_trace(tmp_path / "w").array(fd.Site(0, "fwd", n, "out")) for n in "0123"},
    )
    result = fd.diff(tmp_path / "r", tmp_path / "c.npz", allow_missing=["*"])
    assert {pair.site.name: str(pair.verdict) for pair in result.pairs} == dict.fromkeys("0123", "noise")


# What it leaves alone.


def test_the_model_and_all_random_numbers_are_as_they_were(tmp_path):
    model, (x, y) = classifier(nn.BatchNorm1d(64), nn.Dropout(0.5)), data()
    model.train()
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
    before = copy.deepcopy(model.state_dict()), x.clone(), *states
    hooks = [dict(module._forward_hooks) for module in model.modules()]
    optimizer = lambda model: torch.optim.SGD(model.parameters(), 0.1)  # noqa: E731
    fd.calibrate(model, x, tmp_path / "r", loss_fn=loss_fn, target=y, optimizer=optimizer, train=True, seed=3)
    assert all(torch.equal(value, before[0][name]) for name, value in model.state_dict().items())
    assert torch.equal(x, before[1])
    assert torch.equal(torch.get_rng_state(), before[2])
    assert (np.random.get_state()[1] == before[3]).all()  # noqa: NPY002
    assert random.getstate() == before[4]
    assert [dict(module._forward_hooks) for module in model.modules()] == hooks
    assert all(parameter.grad is None for parameter in model.parameters())
    assert model.training
    assert torch.get_default_dtype() == torch.float32


def test_the_trace_is_the_one_that_tracing_writes_but_for_the_figures(tmp_path):
    model, (x, y) = classifier(nn.GELU()), data()
    model.eval()
    traced(tmp_path / "plain", model, x, y)
    fd.calibrate(model, x, tmp_path / "r", loss_fn=loss_fn, target=y)
    ours, theirs = fd.open_trace(tmp_path / "plain"), fd.open_trace(tmp_path / "r")
    assert theirs.complete
    for one, other in zip(ours.lines, theirs.lines, strict=True):
        assert one == other._replace(details={k: v for k, v in other.details.items() if k != "noise"})
    assert (tmp_path / "plain" / "data-00000.bin").read_bytes() == (tmp_path / "r" / "data-00000.bin").read_bytes()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_two_calibrations_leave_equal_bytes(tmp_path):
    model, (x, y) = classifier(nn.Dropout(0.3), nn.GELU()), data()
    for path in "ab":
        fd.calibrate(model, x, tmp_path / path, loss_fn=loss_fn, target=y, train=True, seed=1)
    for name in ("index.jsonl", "trace.json", "data-00000.bin"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


# What it keeps.


def test_every_computed_site_has_figures_of_the_size_of_rounding(tmp_path):
    model, (x, y) = classifier(nn.GELU(), nn.LayerNorm(64)), data()
    answer = fd.calibrate(model, x, tmp_path / "r", loss_fn=loss_fn, target=y, runs=3)
    trace = fd.open_trace(tmp_path / "r")
    for record in trace:
        given = record.site.phase in ("input", "weight")
        assert given == ("noise" not in record.details)
        if record.site.phase == "fwd" and record.site.port == "out":
            noise = record.details["noise"]
            assert 3e-8 < noise["float64"] < 1e-6
            assert 5e-8 < noise["perturbed"] < 1e-6
            assert noise["worst"] >= noise["perturbed"]
    assert answer.runs == 5
    assert answer.calibrated == sum("noise" in record.details for record in trace)


class CastingNorm(nn.Module):
    def forward(self, x):
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def test_casts_to_float32_are_done_without_in_the_float64_run(tmp_path):
    model, (x, _) = classifier(CastingNorm()), data()
    fd.calibrate(model, x, tmp_path / "r")
    trace = fd.open_trace(tmp_path / "r")
    assert trace[fd.Site(0, "fwd", "1", "out")].details["noise"]["float64"] > 3e-8


class Rounded(nn.Module):
    def forward(self, x):
        return x.bfloat16().to(x.dtype) if x.dtype == torch.float32 else x.bfloat16()


def test_what_stays_short_in_the_float64_run_is_reported(tmp_path):
    model, (x, _) = nn.Sequential(nn.Linear(64, 8), Rounded()), data()
    fd.calibrate(model, x, tmp_path / "r")
    assert any("not float64 in the float64 run either" in note for note in fd.open_trace(tmp_path / "r").notes)


class OnlyFloat32(nn.Module):
    def forward(self, x):
        if x.dtype != torch.float32:
            raise TypeError("float32 only")
        return x * 2


def test_a_model_that_cannot_run_in_float64_is_calibrated_by_perturbation(tmp_path):
    model, (x, _) = classifier(OnlyFloat32()), data()
    fd.calibrate(model, x, tmp_path / "r")
    trace = fd.open_trace(tmp_path / "r")
    assert any("there is no float64 run (TypeError: float32 only)" in note for note in trace.notes)
    assert set(trace[fd.Site(0, "fwd", "1", "out")].details["noise"]) == {"perturbed", "worst"}


def test_integers_are_perturbed_where_they_are_looked_up(tmp_path):
    model = nn.Sequential(nn.Embedding(10, 16), nn.Linear(16, 4))
    fd.calibrate(model, torch.arange(10), tmp_path / "r")
    trace = fd.open_trace(tmp_path / "r")
    assert trace[fd.Site(0, "fwd", "0", "out")].details["noise"]["perturbed"] == pytest.approx(2**-23, rel=0.1)


class Lookup(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Parameter(torch.randn(10, 16)), nn.Linear(16, 4)

    def forward(self, ids):
        return self.head(self.table[ids])


def test_where_nothing_can_be_perturbed_it_is_said(tmp_path):
    fd.calibrate(Lookup(), torch.arange(10), tmp_path / "r")
    trace = fd.open_trace(tmp_path / "r")
    assert any("nothing that is fed in could be perturbed" in note for note in trace.notes)
    assert trace[fd.Site(0, "fwd", "head", "out")].details["noise"]["float64"] > 0


def test_autocast_is_perturbed_in_its_own_precision_and_left_out_of_the_float64_run(tmp_path):
    model, (x, _) = classifier(nn.GELU()), data()
    with torch.autocast("cpu", torch.bfloat16):
        fd.calibrate(model, x, tmp_path / "r")
    noise = fd.open_trace(tmp_path / "r")[fd.Site(0, "fwd", "0", "out")].details["noise"]
    assert 1e-3 < noise["perturbed"] < 2e-2
    assert 1e-3 < noise["float64"] < 1e-2


def line(**noise):
    return fd.Record(fd.Site(0, "fwd", "a", "out"), "f32", (4,), None, {"noise": noise})


@pytest.mark.parametrize(
    ("noise", "expected"),
    [
        ({"float64": 2e-7, "perturbed": 3e-7}, 3e-7), ({"float64": 4e-7, "perturbed": 3e-7}, 4e-7),
        ({"float64": 0.5, "perturbed": 3e-7}, 3e-7),  # no rounding error: random numbers, or a flip
        ({"float64": 2e-7}, 2e-7), ({"perturbed": 0.0}, 0.0), ({"perturbed": "nan"}, None), ({"perturbed": True}, None),
        ({}, None), ({"float64": -1.0}, None),
    ],
)  # fmt: skip
def test_a_figure_is_read_with_care(noise, expected):
    assert calibrated.figure(line(**noise)) == expected
    assert calibrated.figure(line()._replace(details={"noise": "much"})) is None


@pytest.mark.parametrize(
    ("inputs", "middle", "expected"),
    [([1e-7, 3e-7], 0.0, 3e-7), ([1e-7, 1e-2], 0.0, 1e-7), ([1e-7], 2e-7, 2e-7), ([1e-7], 1e-2, 1e-7), ([], 2e-7, 2e-7),
     ([0.0, 0.0], 3e-7, 3e-7), ([0.0, 2e-8], 0.0, 2e-8)],
)  # fmt: skip
def test_a_run_in_which_a_decision_flipped_says_nothing_of_rounding(inputs, middle, expected):
    from firstdrift.live.calibrating import _noise

    assert _noise(inputs, middle) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"runs": 0}, "runs 0 is not"),
        ({"optimizer": lambda model: None}, "needs gradients"),
        ({"model": "x"}, "a str cannot"),
    ],
)
def test_what_cannot_be_calibrated_is_refused_before_anything_runs(tmp_path, given, words):
    arguments = {"model": classifier(), "inputs": data()[0], "path": tmp_path / "r"} | given
    with pytest.raises(fd.CaptureError, match=words):
        fd.calibrate(**arguments)
    assert not (tmp_path / "r").exists()


def test_an_existing_trace_is_replaced_only_when_asked_to(tmp_path):
    model, (x, _) = classifier(), data()
    fd.calibrate(model, x, tmp_path / "r")
    with pytest.raises(fd.TraceExistsError):
        fd.calibrate(model, x, tmp_path / "r")
    assert fd.calibrate(model, x, tmp_path / "r", overwrite=True).calibrated


# The command.

FILE = """
import torch
from torch import nn

def pair():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)), torch.randn(5, 4)

def step():
    model, inputs = pair()
    return {"model": model, "inputs": inputs, "target": torch.zeros(5, dtype=torch.long),
            "loss_fn": nn.functional.cross_entropy, "optimizer": lambda m: torch.optim.SGD(m.parameters(), 0.1)}

def nothing():
    return 3

def misspelt():
    return {"model": 1, "inputs": 2, "losses": 3}
"""


@pytest.fixture
def command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "mine.py").write_text(FILE)
    yield lambda *arguments: CliRunner().invoke(cli, ["calibrate", *arguments])
    sys.modules.pop("mine", None)


def test_the_command_writes_a_calibrated_trace(command):
    done = command("mine.py:pair", "ref", "--runs", "1")
    assert (done.exit_code, "sites calibrated by 3 further runs" in done.output) == (0, True), done.output
    assert command("mine.py:pair", "ref").exit_code == 2
    done = command("mine.py:step", "ref", "--force", "--train", "--seed", "3", "--json")
    said = json.loads(done.output)
    assert (said["schema"], said["runs"], done.exit_code) == ("firstdrift-calibrate-v1", 4, 0)
    phases = {record.site.phase for record in fd.open_trace("ref") if "noise" in record.details}
    assert {"fwd", "grad", "weight_after"} <= phases
    assert fd.open_trace("ref").header["seed"] == 3


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("mine.py", "write FILE.py:function"), ("none.py:pair", "there is no such file"),
        ("mine.py:pears", "it has pair, step, nothing, misspelt"), ("mine.py:nothing", "returned int"),
        ("mine.py:misspelt", "returned a dict of model, inputs, losses"),
    ],
)  # fmt: skip
def test_what_names_no_model_is_refused_in_a_sentence(command, place, words):
    done = command(place, "ref")
    assert (done.exit_code, words in done.output, done.output.count("\n")) == (2, True, 1), done.output


def test_a_model_that_gives_no_numbers_is_not_calibrated(tmp_path):
    found = fd.calibrate(nn.Linear(4, 4), torch.full((3, 4), torch.nan), tmp_path / "ref")
    assert (found.calibrated, found.exit_code) == (0, 2)
    assert "no noise was measured" in str(found)
