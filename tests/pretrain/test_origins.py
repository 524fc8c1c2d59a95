"""What a run can start from: other families, shards, half precision, GGUF; each is trained and comes back whole."""

import json

import numpy as np
import pytest
from tests.pretrain.worlds import FINETUNE, events, newest, pretrain

import firstdrift as fd
from firstdrift.weights.conversion import convert
from firstdrift.weights.open_checkpoint import open_checkpoint
from firstdrift.weights.writing import write_checkpoint

transformers = pytest.importorskip("transformers")

SIZES = {
    "vocab_size": 256, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "rms_norm_eps": 1e-6, "tie_word_embeddings": True,
}  # fmt: skip
FAMILIES = {
    "qwen2": ("Qwen2ForCausalLM", lambda: transformers.Qwen2Config(**SIZES)),
    "qwen3": ("Qwen3ForCausalLM", lambda: transformers.Qwen3Config(**SIZES, head_dim=8)),
    "mistral": ("MistralForCausalLM", lambda: transformers.MistralConfig(**SIZES, sliding_window=16)),
    "gemma2": ("Gemma2ForCausalLM", lambda: transformers.Gemma2Config(**SIZES, head_dim=8, sliding_window=16)),
}


def tune(world, init, out, *more):
    shared = ["--data", world.text, "--tokenizer", world.tokenizer, *FINETUNE, "--allow-weak-init"]
    return pretrain("--init", init, *shared, "--out", out, *more)


@pytest.fixture(params=FAMILIES)
def made(request, tmp_path):
    """A model of a family as `transformers` saves it: its name, its class, its directory."""
    import torch

    torch.manual_seed(0)
    name, (architecture, config) = request.param, FAMILIES[request.param]
    transformers.AutoModelForCausalLM.from_config(config()).save_pretrained(tmp_path / name)
    return name, architecture, tmp_path / name


def test_every_family_is_trained_and_its_checkpoints_are_of_its_own_kind(made, world, tmp_path):
    import torch

    name, architecture, init = made
    first = tune(world, init, tmp_path / "run", "--num-steps", 3, "--format", "apr", "--eval-every", 0)
    assert first.exit_code == 0, first.output
    kept = newest(tmp_path / "run") / "model.apr"
    with open_checkpoint(kept) as checkpoint:
        assert (checkpoint.metadata["name"], checkpoint.metadata["architecture"]) == (f"{name}-pretrain", architecture)
    again = tune(world, kept, tmp_path / "again", "--num-steps", 0)
    assert again.exit_code == 0, again.output
    # The first evaluation of the second run is the last one of the first, and transformers agrees with both.
    said = json.loads((tmp_path / "again/run.json").read_text())["gap"]["given"]
    last = json.loads((tmp_path / "run/log.jsonl").read_text().splitlines()[-1])["val_loss"]
    assert said == pytest.approx(last, rel=1e-6)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(newest(tmp_path / "again")).eval()
    from firstdrift.decoder.engines import load_decoder

    tokens = torch.arange(40)[None]
    with torch.no_grad():
        torch.testing.assert_close(theirs(tokens).logits, load_decoder(kept)(tokens), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("file", "options"),
    [
        ("half.safetensors", {"dtype": "f16"}),
        ("half.apr", {"dtype": "bf16"}),
        ("model.safetensors.index.json", {"shard_bytes": 100_000}),
        ("model.apr.index.json", {"shard_bytes": 100_000}),
        ("model.gguf", {}),
        ("quantized.apr", {"dtype": "apr_q8"}),
    ],
)
def test_every_format_is_an_init_and_its_numbers_arrive(file, options, world, tmp_path):
    if file.endswith("gguf"):
        pytest.importorskip("gguf")
    source = world.apr if file.endswith(("apr", "apr.index.json", "gguf")) else world.safetensors / "model.safetensors"
    convert(source, tmp_path / file, **options)
    done = pretrain(
        "--init", tmp_path / file, "--data", world.text, "--tokenizer", world.tokenizer, *FINETUNE, "--num-steps", 0,
        "--out", tmp_path / "run",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    with open_checkpoint(tmp_path / file) as given, open_checkpoint(newest(tmp_path / "run")) as kept:
        for name in kept.entries:
            assert np.array_equal(kept.array(name), given.array(name).astype(np.float32)), name
    assert fd.read_architecture(newest(tmp_path / "run")).to_json() == _rounded(tmp_path / file, world)


def _rounded(path, world):
    """The ten fields; GGUF keeps eps in 32 bits."""
    said = fd.read_architecture(world.apr).to_json()
    return said | {"rms_norm_eps": float(np.float32(1e-5))} if path.suffix == ".gguf" else said


def with_output(world, path, output):
    """The small model, whose embedding is tied, with an output layer stored beside it."""
    with open_checkpoint(world.apr) as checkpoint:
        tensors = {name: np.array(checkpoint.array(name)) for name in checkpoint.entries}
        metadata = dict(checkpoint.metadata)
    head = output(tensors["model.embed_tokens.weight"]).astype(np.float32)
    write_checkpoint(path, [*tensors.items(), ("lm_head.weight", head)], format="apr", metadata=metadata)
    return path, head


def rounded(weight):
    return weight.astype(np.float16)


def another(weight):
    return np.random.default_rng(0).normal(0, weight.std(), weight.shape)


@pytest.mark.parametrize("dry", [[], ["--dry-run"]], ids=["run", "dry run"])
def test_a_published_output_layer_is_tolerated_where_it_is_the_embedding_and_no_other(dry, world, tmp_path):
    arguments = ["--data", world.text, "--tokenizer", world.tokenizer, *FINETUNE, "--num-steps", 0, *dry]
    path, head = with_output(world, tmp_path / "rounded.apr", rounded)
    with open_checkpoint(world.apr) as checkpoint:
        largest = np.abs(head - checkpoint.array("model.embed_tokens.weight")).max()
    done = pretrain("--init", path, *arguments, "--out", tmp_path / "rounded")
    assert done.exit_code == 0, done.output
    assert "lm_head.weight is a rounded copy of model.embed_tokens.weight" in done.stdout
    assert f"they differ by up to {largest:.3g}" in done.stdout
    path, _ = with_output(world, tmp_path / "another.apr", another)
    done = pretrain("--init", path, *arguments, "--out", tmp_path / "another")
    assert done.exit_code == 2
    for said in ("FALSIFY-APR-PRETRAIN-INIT-006", "lm_head.weight are tied", "--untie"):
        assert said in done.stderr


@pytest.mark.parametrize("output", [rounded, another])
def test_untied_the_output_layer_is_a_parameter_of_its_own(output, world, tmp_path):
    path, head = with_output(world, tmp_path / "init.apr", output)
    done = tune(world, path, tmp_path / "run", "--untie", "--num-steps", 0)
    assert done.exit_code == 0, done.output
    with open_checkpoint(newest(tmp_path / "run")) as kept:
        assert np.array_equal(kept.array("lm_head.weight"), head)
        assert kept.metadata["tie_word_embeddings"] is False
    done = tune(world, path, tmp_path / "steps", "--untie", "--num-steps", 2, "--checkpoint-every", 1)
    assert done.exit_code == 0, done.output
    with open_checkpoint(newest(tmp_path / "steps")) as kept:
        assert not np.array_equal(kept.array("lm_head.weight"), head)  # it is trained
        assert not np.array_equal(kept.array("lm_head.weight"), kept.array("model.embed_tokens.weight"))
    again = pretrain("--resume", tmp_path / "steps", "--num-steps", 3)
    assert again.exit_code == 0, again.output


def test_untied_without_an_output_layer_of_its_own_it_starts_as_the_embedding(world, tmp_path):
    done = tune(world, world.apr, tmp_path / "run", "--untie", "--num-steps", 2, "--eval-every", 0)
    assert done.exit_code == 0, done.output
    first = events(tmp_path / "run", "gap")[0]["given"]
    tune(world, world.apr, tmp_path / "tied", "--num-steps", 0)
    assert first == events(tmp_path / "tied", "gap")[0]["given"]
    with open_checkpoint(newest(tmp_path / "run")) as kept:
        assert not np.array_equal(kept.array("lm_head.weight"), kept.array("model.embed_tokens.weight"))


def test_there_has_to_be_a_checkpoint_to_untie(world, tmp_path):
    shared = ["--data", world.text, "--tokenizer", world.tokenizer, "--out", tmp_path / "run"]
    done = pretrain("--config", "tiny", "--untie", *shared)
    assert (done.exit_code, "--untie is for the output layer of a checkpoint" in done.stderr) == (2, True)
