"""Inspecting says what is there, and which tensors look as if nobody had trained or saved them."""

import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from tests.weights.samples import some_tensors

from firstdrift.cli.main import cli
from firstdrift.weights.difference import compare
from firstdrift.weights.inspection import inspect_checkpoint
from firstdrift.weights.open_checkpoint import open_checkpoint
from firstdrift.weights.writing import write_checkpoint


def run(*arguments):
    return CliRunner().invoke(cli, ["weights", "inspect", *map(str, arguments)])


def suspicions(tmp_path, **tensors):
    write_checkpoint(tmp_path / "m.safetensors", tensors.items(), format="safetensors")
    return {t.entry.name: " ".join(t.suspicions) for t in inspect_checkpoint(tmp_path / "m.safetensors").tensors}


def test_zero_constant_and_broken_tensors_are_named(tmp_path):
    found = suspicions(
        tmp_path,
        zero=np.zeros((4, 4), np.float32),
        ones=np.ones(8, np.float16),
        nan=np.array([1, np.nan], np.float32),
        inf=np.array([-np.inf, np.inf, 0], np.float32),
        single=np.array(7, np.int64),
        empty=np.zeros((0, 3), np.float32),
        fine=np.array([1.0, 2.0]),
    )
    assert found == {
        "zero": "all zero", "ones": "constant 1", "nan": "1 NaN, 0 Inf", "inf": "0 NaN, 2 Inf", "single": "",
        "empty": "", "fine": "",
    }  # fmt: skip


INITIALISERS = {
    "uniform within 1/sqrt(fan_in)": lambda w: torch.nn.init.kaiming_uniform_(w, a=5**0.5),
    "uniform within sqrt(6/fan_in)": lambda w: torch.nn.init.kaiming_uniform_(w, nonlinearity="relu"),
    "uniform within sqrt(6/(fan_in+fan_out))": torch.nn.init.xavier_uniform_,
    "normal, std sqrt(2/fan_in)": lambda w: torch.nn.init.kaiming_normal_(w, nonlinearity="relu"),
    "normal, std sqrt(2/(fan_in+fan_out))": torch.nn.init.xavier_normal_,
    "normal, std 0.02": lambda w: torch.nn.init.normal_(w, std=0.02),
    "normal, std 1/sqrt(fan_in)": lambda w: torch.nn.init.kaiming_normal_(w, nonlinearity="linear"),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("name", INITIALISERS)
def test_what_an_initialiser_drew_looks_initial(tmp_path, name, dtype):
    torch.manual_seed(0)
    small = () if name.startswith("normal") else ((96, 40), (32, 16, 3, 3))
    for shape in (*small, (700, 300), (128, 144, 3, 3)):
        weight = INITIALISERS[name](torch.empty(shape)).to(dtype).numpy()
        assert suspicions(tmp_path, w=weight) == {"w": f"looks initial: {name}"}, shape


def test_a_small_tensor_is_not_called_initial_for_its_spread_alone(tmp_path):
    torch.manual_seed(0)
    assert suspicions(tmp_path, w=torch.nn.init.normal_(torch.empty(96, 40), std=0.02).numpy()) == {"w": ""}


def test_a_trained_layer_does_not_look_initial(tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(40, 96), torch.nn.ReLU(), torch.nn.Linear(96, 8))
    inputs = torch.randn(512, 40)
    target = torch.stack([inputs[:, n] * inputs[:, n + 1] for n in range(8)], 1)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(200):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), target).backward()
        optimizer.step()
    weight = model[0].weight.detach().numpy()
    assert suspicions(tmp_path, w=weight) == {"w": ""}


def test_a_real_trained_model_has_no_suspicious_matrix(smollm2):
    found = inspect_checkpoint(smollm2)
    assert [t.entry.name for t in found.tensors if t.suspicions] == []
    assert found.architecture["num_layers"] == 30
    assert found.architecture["tie_word_embeddings"] is True


def test_the_command_exits_with_1_for_nan_and_names_the_tensor(tmp_path):
    write_checkpoint(tmp_path / "m.npz", some_tensors().items(), format="npz")
    result = run(tmp_path / "m.npz")
    assert result.exit_code == 1
    assert "odd: 1 NaN, 1 Inf" in result.output
    assert "naïve/名前 \\n" in result.output or "na\\xefve" in result.output
    said = json.loads(run(tmp_path / "m.npz", "--json").output)
    assert said["schema"] == "firstdrift-weights-inspect-v1"
    assert said["parameters"] == 28
    by_name = {tensor["name"]: tensor for tensor in said["tensors"]}
    assert by_name["odd"]["statistics"]["nan_count"] == 1
    assert by_name["half"]["shape"] == [1, 2]


def test_the_command_exits_with_0_for_a_sound_checkpoint_and_2_for_none(tmp_path):
    write_checkpoint(tmp_path / "m.npz", [("w", np.array([1.0, 2.0]))], format="npz")
    assert run(tmp_path / "m.npz").exit_code == 0
    result = run(tmp_path / "nothing")
    assert result.exit_code == 2
    assert "cannot read the checkpoint" in result.stderr


def test_layers_are_listed_in_natural_order(tmp_path):
    names = [f"layers.{number}.weight" for number in range(12)]
    write_checkpoint(tmp_path / "a.safetensors", [(n, np.ones(2)) for n in sorted(names)], format="safetensors")
    found = inspect_checkpoint(tmp_path / "a.safetensors")
    assert [tensor.entry.name for tensor in found.tensors] == names
    own = ["z", *names, "a"]  # neither order: the writer's own
    write_checkpoint(tmp_path / "b.npz", [(name, np.ones(2)) for name in own], format="npz")
    assert [tensor.entry.name for tensor in inspect_checkpoint(tmp_path / "b.npz").tensors] == own
    with open_checkpoint(tmp_path / "a.safetensors") as checkpoint:
        difference = compare(checkpoint, checkpoint)
    assert [one.name for one in difference.tensors] == names
