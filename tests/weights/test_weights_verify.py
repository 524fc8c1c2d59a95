"""`weights verify` is a gate: 0 when everything arrives, 1 when it does not fit, 2 when nobody can tell."""

import json
import re
import subprocess
import sys
import zlib
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from click.testing import CliRunner
from safetensors.torch import load_file, save_file
from tests.weights.networks import other, plain

from firstdrift.cli.main import cli
from firstdrift.weights.loading import arriving
from firstdrift.weights.writing import write_checkpoint

FACTORY = """
from torch import nn

def build():
    return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 6))

def strange():
    model = build()
    if float(model[0].weight.sum()) > 1e9:  # needs numbers while it is built
        raise AssertionError
    return model

def failing():
    raise KeyError("no such config")

def nothing():
    return 3

def lazy():
    return nn.LazyLinear(3)
"""

PLAIN_GPT = """
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(32, 32) for _ in range(4))
        self.up, self.down = nn.Linear(32, 128), nn.Linear(128, 32)
        self.ln_1, self.ln_2 = nn.LayerNorm(32), nn.LayerNorm(32)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(64, 32), nn.Embedding(16, 32)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.ln_f = nn.LayerNorm(32)
"""

GPT2_MAP = """
transformer.h.{}.attn.c_attn.weight:
  {to: ['blocks.{}.q.weight', 'blocks.{}.k.weight', 'blocks.{}.v.weight'], transpose: true, split: 0}
transformer.h.{}.attn.c_attn.bias: {to: ['blocks.{}.q.bias', 'blocks.{}.k.bias', 'blocks.{}.v.bias'], split: 0}
transformer.h.{}.attn.c_proj.weight: {to: 'blocks.{}.o.weight', transpose: true}
transformer.h.{}.attn.c_proj.bias: blocks.{}.o.bias
transformer.h.{}.mlp.c_fc.weight: {to: 'blocks.{}.up.weight', transpose: true}
transformer.h.{}.mlp.c_fc.bias: blocks.{}.up.bias
transformer.h.{}.mlp.c_proj.weight: {to: 'blocks.{}.down.weight', transpose: true}
transformer.h.{}.mlp.c_proj.bias: blocks.{}.down.bias
transformer.h.{}.ln_{}.*: blocks.{}.ln_{}.*
transformer.*: '*'
lm_head.weight: null
"""


def run(*arguments):
    found = CliRunner().invoke(cli, ["weights", "verify", *map(str, arguments)])
    return found.exit_code, found.output


@pytest.fixture
def place(tmp_path, monkeypatch):
    (tmp_path / "my_net.py").write_text(FACTORY)
    save_file(other(plain()), tmp_path / "m.safetensors")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_net", raising=False)
    return tmp_path


@pytest.mark.parametrize("model", ["my_net:build", "my_net.py:build", "my_net:strange"])
def test_a_checkpoint_that_fills_the_model_passes(place, model):
    code, output = run(model, "m.safetensors")
    assert code == 0, output
    assert "all 9 tensors" in output


def test_the_proof_is_printed_as_json(place):
    code, output = run("my_net:build", "m.safetensors", "--json")
    found = json.loads(output)
    assert (code, found["verdict"], found["count"], found["hash"]) == (0, "same", 9, "crc32")
    assert [len(line["crc32"]) for line in found["parameters"]] == [8] * 9


def test_a_checkpoint_that_does_not_fit_fails_with_every_reason(place):
    state = load_file("m.safetensors")
    del state["0.bias"]
    state["2.bias"] = torch.zeros(5)
    save_file(state, "bad.safetensors")
    code, output = run("my_net:build", "bad.safetensors")
    assert code == 1
    assert "FALSIFY-APR-PRETRAIN-INIT-007" in output
    assert "0.bias: not present in bad.safetensors; the model's parameter has shape [4]" in output
    assert "init length 5" in output
    code, output = run("my_net:build", "bad.safetensors", "--json")
    assert code == 1
    assert len(json.loads(output)["problems"]) == 2


def test_the_bar_reaches_its_end(place, monkeypatch):
    totals, done = [], []

    @contextmanager
    def bar(description, total):
        totals.append(total)
        yield done.append

    monkeypatch.setattr("firstdrift.cli.commands.weights.progress", bar)
    assert run("my_net:build", "m.safetensors")[0] == 0
    assert totals == [sum(done)] == [sum(value.nbytes for value in load_file("m.safetensors").values())]
    assert len(done) == 9


def test_a_model_that_is_not_made_yet_fails_the_gate(place):
    code, output = run("my_net:lazy", "m.safetensors")
    assert (code, "weight: has no shape yet" in output) == (1, True)


def test_a_tensor_that_arrives_rolled_by_one_fails_the_gate(place, monkeypatch):
    real = arriving.write
    monkeypatch.setattr(arriving, "write", lambda tensor, array: real(tensor, np.roll(array, 1)))
    code, output = run("my_net:build", "m.safetensors")
    assert (code, "0.weight: holds bytes of checksum" in output) == (1, True)


def test_nan_fails_the_gate(place):
    state = load_file("m.safetensors")
    state["0.weight"][1, 1] = float("nan")
    save_file(state, "bad.safetensors")
    code, output = run("my_net:build", "bad.safetensors")
    assert (code, "1 NaN among 24" in output) == (1, True)


def test_a_map_and_a_change_of_dtype_can_be_asked_for(place):
    state = {f"net.{k}": v.half() if v.is_floating_point() else v for k, v in load_file("m.safetensors").items()}
    save_file(state, "half.safetensors")
    (place / "map.yml").write_text("net.{}.*: '{}.*'\n")
    assert run("my_net:build", "half.safetensors")[0] == 1
    assert run("my_net:build", "half.safetensors", "--map", "map.yml")[0] == 1
    assert run("my_net:build", "half.safetensors", "--map", "map.yml", "--cast")[0] == 0


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("my_net:failing", "KeyError"),
        ("my_net:nothing", "returned a int"),
        ("my_net:absent", "has no function 'absent'"),
        ("no_such_module:build", "ModuleNotFoundError"),
        ("m.safetensors", "is no model"),
        ("nowhere/", "is no model"),
    ],
)
def test_what_is_no_model_cannot_be_told(place, model, said):
    code, output = run(model, "m.safetensors")
    assert (code, said in output) == (2, True), output


def test_a_damaged_checkpoint_cannot_be_told(place):
    write_checkpoint("m.apr", [(k, v.numpy()) for k, v in load_file("m.safetensors").items()], format="apr")
    data = bytearray(Path("m.apr").read_bytes())
    data[-100] ^= 1
    Path("m.apr").write_bytes(data)
    code, output = run("my_net:build", "m.apr")
    assert code == 2
    assert output.count("ChecksumMismatch") == 1


def test_what_is_no_checkpoint_cannot_be_told(place):
    assert run("my_net:build", "none.safetensors")[0] == 2
    (place / "junk.safetensors").write_bytes(b"junk")
    assert run("my_net:build", "junk.safetensors")[0] == 2


def tiny(kind, **more):
    config = transformers.AutoConfig.for_model(
        kind, vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
        max_position_embeddings=32, **more,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_a_hugging_face_directory_verifies_itself(tmp_path, kind, tied):
    model = tiny(kind, tie_word_embeddings=tied)
    model.save_pretrained(tmp_path)
    code, output = run(tmp_path, tmp_path, "--json")
    found = json.loads(output)
    assert (code, found["count"]) == (0, len(list(model.parameters()))), output
    assert [line["name"] for line in found["parameters"] if line["tied"]] == (
        ["model.embed_tokens.weight"] if tied else []
    )


def test_a_directory_is_built_in_the_dtype_its_config_says(tmp_path):
    tiny("llama").to(torch.bfloat16).save_pretrained(tmp_path)
    code, output = run(tmp_path, tmp_path, "--json")
    assert (code, json.loads(output)["parameters"][0]["dtype"]) == (0, "bf16")


@pytest.mark.parametrize("content", ["{}", '{"architectures": []}', '{"architectures": ["NoSuchModel"]}', "broken"])
def test_a_config_that_names_no_model_cannot_be_told(tmp_path, content):
    (tmp_path / "config.json").write_text(content)
    save_file({"w": torch.ones(2)}, tmp_path / "model.safetensors")
    assert run(tmp_path, tmp_path)[0] == 2


def test_gpt2_goes_into_plain_linear_layers_by_a_map_of_turned_and_split_tensors(tmp_path):
    """The published case: Conv1D weights are stored the other way round, and q, k and v are one."""
    config = transformers.GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=4)
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(config).eval()
    model.save_pretrained(tmp_path)
    (tmp_path / "plain_gpt.py").write_text(PLAIN_GPT)
    (tmp_path / "map.yml").write_text(GPT2_MAP)
    code, output = run(tmp_path / "plain_gpt.py:Net", tmp_path, "--map", tmp_path / "map.yml", "--json")
    assert code == 0, output
    lines = {line["name"]: line for line in json.loads(output)["parameters"]}
    weight = model.transformer.h[1].attn.c_attn.weight.detach().numpy().T[32:64]
    assert lines["blocks.1.k.weight"]["crc32"] == f"{zlib.crc32(np.ascontiguousarray(weight)):08x}"


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's own account of memory")
def test_verifying_needs_no_memory_for_the_model(tmp_path):
    width = 1024
    state = {f"{i}.weight": torch.randn(width, width) * 0.02 for i in range(64)}
    save_file(state, tmp_path / "m.safetensors")
    (tmp_path / "wide.py").write_text(
        f"from torch import nn\n\ndef build():\n"
        f"    return nn.Sequential(*(nn.Linear({width}, {width}, bias=False) for _ in range(64)))\n"
    )
    code = (
        "import re, sys, threading, time, torch, firstdrift.weights.loading.load\nfrom click.testing import CliRunner\n"
        "from firstdrift.cli.main import cli\n"
        "def anonymous(): return int(re.search(r'RssAnon:\\s+(\\d+)', open('/proc/self/status').read())[1])\n"
        "base = peak = anonymous()\ndone = False\n"
        "def watch():\n    global peak\n    while not done:\n"
        "        peak = max(peak, anonymous())\n        time.sleep(0.001)\n"
        "watcher = threading.Thread(target=watch)\nwatcher.start()\n"
        "found = CliRunner().invoke(cli, ['weights', 'verify', *sys.argv[1:]])\ndone = True\nwatcher.join()\n"
        "assert found.exit_code == 0, found.output\nprint(peak - base)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "wide.py") + ":build", str(tmp_path / "m.safetensors")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(re.findall(r"-?\d+", done.stdout)[-1]) < 100 << 10  # KiB, of a model of 256 MiB
