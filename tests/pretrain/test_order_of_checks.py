"""Everything that can be refused is refused before the model has memory, in one fixed order, each under its id."""

import json
from dataclasses import replace

import numpy as np
import pytest
from tests.pretrain.worlds import FINETUNE, byte_vocabulary, files_of, firstdrift, pretrain, settings

import firstdrift as fd
from firstdrift.pretrain import building
from firstdrift.weights.open_checkpoint import open_checkpoint
from firstdrift.weights.writing import write_checkpoint

# From the first check to the last: the flaw, and what the error has to say.
FLAWS = {
    "no such device": ["GATE-GPUTRAIN-002", "--device cuda"],
    "no such file": ["FALSIFY-APR-PRETRAIN-INIT-003", "missing.apr"],
    "no checkpoint": ["FALSIFY-APR-PRETRAIN-INIT-004", "init.apr"],
    "no architecture": ["FALSIFY-APR-PRETRAIN-INIT-005", "rope_theta is missing"],
    "an encoder": ["FALSIFY-APR-PRETRAIN-ARCH-007", "BertModel", "Encoder", "decoder-only", "64", "2 layers", "256"],
    "too few tokens": ["token budget", "--force-under-provisioned"],
    "no target": ["--val-loss-target 0"],
    "a large vocabulary": ["GATE-ARCH-370M-011", "INV-ARCH-370M-006-RELAXED", "OOB", "257", "256"],
    "no data": ["missing.txt", "--data"],
    "a NaN": ["FALSIFY-APR-PRETRAIN-INIT-006", "model.norm.weight: 1 NaN among 64 values"],
    "names of others": ["FALSIFY-INIT-ARCH-MATCH-001", "qwen2", "llama"],
    "another shape": ["FALSIFY-APR-PRETRAIN-INIT-007", "model.norm.weight: init length 63"],
}


@pytest.fixture
def no_memory(monkeypatch):
    """A model that is given memory, or numbers, is one too early."""

    def refuse(*arguments):
        raise AssertionError("the model was allocated")

    monkeypatch.setattr(building, "empty_decoder", refuse)
    monkeypatch.setattr(building, "random_decoder", refuse)


def write_init(world, path, flaws):
    if "no checkpoint" in flaws:
        path.write_bytes(b"APX\0" + bytes(100))
        return
    with open_checkpoint(world.apr) as checkpoint:
        metadata = dict(checkpoint.metadata)
        tensors = {name: np.array(checkpoint.array(name)) for name in checkpoint.entries}
    norm = tensors["model.norm.weight"]
    if "another shape" in flaws:
        tensors["model.norm.weight"] = norm = norm[:-1].copy() if "a NaN" not in flaws else norm
    if "a NaN" in flaws:
        norm[3] = np.nan
    if "names of others" in flaws:
        metadata |= {"hf_architecture": "Qwen2ForCausalLM", "architecture": "qwen2", "hf_model_type": "qwen2"}
        metadata["model_type"] = "qwen2"
    if "an encoder" in flaws:
        metadata["hf_architecture"] = "BertModel"
    if "no architecture" in flaws:
        del metadata["rope_theta"], metadata["rope_parameters"]
    write_checkpoint(path, tensors.items(), format="apr", metadata=metadata)


def arguments(world, tmp_path, flaws):
    write_init(world, tmp_path / "init.apr", flaws)
    tokenizer = tmp_path / "tokenizer"
    tokenizer.mkdir(exist_ok=True)
    more = {"<more>": 256} if "a large vocabulary" in flaws else {}
    (tokenizer / "vocab.json").write_text(json.dumps(byte_vocabulary() | more))
    return [
        "--init", tmp_path / ("missing.apr" if "no such file" in flaws else "init.apr"),
        "--data", tmp_path / "missing.txt" if "no data" in flaws else world.text,
        "--tokenizer", tokenizer, *FINETUNE[:-1], *(["--force-under-provisioned"] * ("too few tokens" not in flaws)),
        "--device", "cuda" if "no such device" in flaws else "cpu", "--num-steps", 2, "--out", tmp_path / "run",
        "--val-loss-target", 0 if "no target" in flaws else 9,
    ]  # fmt: skip


@pytest.mark.parametrize("number", range(len(FLAWS)), ids=list(FLAWS))
@pytest.mark.parametrize("dry", [[], ["--dry-run"]], ids=["run", "dry run"])
def test_of_several_flaws_the_first_in_the_order_is_told(number, dry, world, tmp_path, no_memory):
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has the device that must not be there")
    left = list(FLAWS)[number:]
    run = pretrain(*arguments(world, tmp_path, left), *dry)
    assert run.exit_code == 2, run.output
    for said in FLAWS[left[0]]:
        assert said in run.stderr
    later = [FLAWS[flaw][0] for flaw in left[1:] if FLAWS[flaw][0] != FLAWS[left[0]][0]]
    assert not [said for said in later if said in run.stderr]
    assert not list(tmp_path.glob("run/checkpoints/*"))


def test_a_dry_run_of_what_is_right_starts_nothing_and_leaves_nothing(world, tmp_path, no_memory):
    before = files_of(tmp_path)
    run = pretrain(*arguments(world, tmp_path, []), "--dry-run")
    assert run.exit_code == 0, run.output
    assert "nothing was started" in run.stdout
    assert not (tmp_path / "run").exists()
    said = json.loads(pretrain(*arguments(world, tmp_path, []), "--dry-run", "--json").stdout)
    assert (said["dry_run"], said["stamp"]["name"], said["device"]) == (True, "llama-pretrain", "cpu")
    assert before == {}


@pytest.mark.falsifies("FALSIFY-APR-PRETRAIN-INIT-004")
@pytest.mark.parametrize("content", [b"", b"AP", b"XYZW" + bytes(60), b"{}", b"\x80\x04]"])
def test_what_is_empty_short_or_something_else_is_no_checkpoint(content, world, tmp_path):
    (tmp_path / "init").write_bytes(content)
    run = pretrain("--init", tmp_path / "init", "--data", world.text, *FINETUNE)
    assert (run.exit_code, "FALSIFY-APR-PRETRAIN-INIT-004" in run.stderr) == (2, True), run.stderr


@pytest.mark.falsifies("FALSIFY-APR-PRETRAIN-INIT-005")
@pytest.mark.parametrize("content", [b"APR\0", b"APR\0" + bytes(200), b"APRN" + bytes(60), b"GGUF" + bytes(60)])
def test_a_right_magic_with_nothing_behind_it_says_no_architecture(content, world, tmp_path):
    (tmp_path / "init").write_bytes(content)
    run = pretrain("--init", tmp_path / "init", "--data", world.text, *FINETUNE)
    assert (run.exit_code, "FALSIFY-APR-PRETRAIN-INIT-005" in run.stderr) == (2, True), run.stderr


@pytest.mark.parametrize(
    ("name", "model_type", "tensor"),
    [
        ("FooForCausalLM", "foo", "model.layers.0.self_attn.q_proj.weight"),
        ("GPT2LMHeadModel", "gpt2", "transformer.h.0.attn.c_attn.weight"),
        ("MambaForCausalLM", "mamba", "backbone.layers.0.mixer.in_proj.weight"),
    ],
)
def test_an_architecture_that_cannot_be_built_here_is_none(name, model_type, tensor, world, tmp_path):
    config = json.loads((world.safetensors / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"architectures": [name], "model_type": model_type}))
    write_checkpoint(tmp_path / "model.safetensors", [(tensor, np.ones(2, np.float32))], format="safetensors")
    run = pretrain("--init", tmp_path, "--data", world.text, *FINETUNE)
    assert run.exit_code == 2
    assert "FALSIFY-APR-PRETRAIN-INIT-005" in run.stderr
    assert name in run.stderr


# What a model is called, in every place where it is called something: one answer through every door.

NAMES = ("hf_architecture", "architecture", "hf_model_type", "model_type")
LLAMA = dict(zip(NAMES, ("LlamaForCausalLM", "LlamaForCausalLM", "llama", "llama"), strict=True))
CALLED = {
    "two say GPT2": ({"hf_architecture": "GPT2LMHeadModel", "architecture": "gpt2"}, "FALSIFY-INIT-ARCH-MATCH-001"),
    "one says Mamba": ({"hf_model_type": "mamba"}, "FALSIFY-INIT-ARCH-MATCH-001"),
    "all say GPT2": (dict.fromkeys(NAMES, "gpt2"), "FALSIFY-INIT-ARCH-MATCH-001"),
    "all say Qwen3": (dict.fromkeys(NAMES, "qwen3"), "FALSIFY-INIT-ARCH-MATCH-001"),
    "one says BERT": ({"hf_architecture": "BertModel"}, "FALSIFY-APR-PRETRAIN-ARCH-007"),
    "the last says RoBERTa": ({"model_type": "roberta"}, "FALSIFY-APR-PRETRAIN-ARCH-007"),
    "all say BERT": (dict.fromkeys(NAMES, "bert"), "FALSIFY-APR-PRETRAIN-ARCH-007"),
}


def renamed(world, path, **called):
    """The small model, called something else; the names of its tensors stay Llama's."""
    with open_checkpoint(world.apr) as checkpoint:
        tensors = {name: np.array(checkpoint.array(name)) for name in checkpoint.entries}
        metadata = {**checkpoint.metadata, **LLAMA, **called}
    metadata.pop("architectures", None)
    if path.suffix == ".apr":
        write_checkpoint(path, tensors.items(), format="apr", metadata=metadata)
        return path
    path.mkdir()
    config = json.loads((world.safetensors / "config.json").read_text())
    config |= {"architectures": [metadata["hf_architecture"]], "model_type": metadata["hf_model_type"]}
    (path / "config.json").write_text(json.dumps(config))
    write_checkpoint(path / "model.safetensors", tensors.items(), format="safetensors")
    return path


@pytest.mark.falsifies("FALSIFY-INIT-ARCH-MATCH-001", "FALSIFY-APR-PRETRAIN-ARCH-007")
@pytest.mark.parametrize("door", ["read_architecture", "pretrain", "trace", "builder"])
@pytest.mark.parametrize("form", ["init.apr", "directory"])
@pytest.mark.parametrize("case", CALLED)
def test_names_that_contradict_each_other_have_one_answer_through_every_door(case, form, door, world, tmp_path):
    called, identifier = CALLED[case]
    if form == "directory" and set(called) == {"model_type"}:
        called = {"hf_model_type": called["model_type"]}  # a config.json has two names, and this is the second
    path = renamed(world, tmp_path / form, **called)
    said = through(door, path, world, tmp_path)
    assert identifier in said
    assert str(path) in said
    assert any(name in said for name in called.values())


def through(door, path, world, tmp_path):
    """The error that a checkpoint has in one of the places that read what it is of."""
    if door == "pretrain":
        run = pretrain(
            "--init", path, "--data", world.text, "--tokenizer", world.tokenizer, *FINETUNE, "--out", tmp_path / "run"
        )
        assert run.exit_code == 2
        return run.stderr
    if door == "trace":
        run = firstdrift("trace", path, "--tokens", "1,2,3", "--save-tensor", "lm_head", "--output", tmp_path / "trace")
        assert run.exit_code == 2
        return run.stderr
    with pytest.raises(fd.FirstdriftError) as caught:
        if door == "read_architecture":
            fd.read_architecture(path)
        else:
            init_config = replace(fd.read_architecture(world.apr), family=None)
            building.build_trainer_with_init(settings(), init_config=init_config, init_path=path)
    return str(caught.value)


@pytest.mark.parametrize(
    "called", [{}, {"architecture": "llama"}, {"architecture": "something new"}, {"model_type": "t"}]
)
def test_names_that_agree_or_are_in_no_table_are_no_contradiction(called, world, tmp_path):
    path = renamed(world, tmp_path / "init.apr", **called)
    assert fd.read_architecture(path).family == "llama"
    shared = ["--data", world.text, "--tokenizer", world.tokenizer, *FINETUNE, "--dry-run"]
    assert pretrain("--init", path, *shared).exit_code == 0


def test_hybrids_are_refused_by_what_they_have_instead_of_attention(world, tmp_path):
    config = json.loads((world.safetensors / "config.json").read_text())
    config["architectures"] = ["Qwen3NextForCausalLM"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes((world.safetensors / "model.safetensors").read_bytes())
    run = pretrain("--init", tmp_path, "--data", world.text, *FINETUNE)
    assert (run.exit_code, "Gated DeltaNet" in run.stderr) == (2, True)


# The vocabulary.


def vocabulary(tmp_path, entries):
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "vocab.json").write_text(json.dumps({f"t{n}": n for n in range(entries)}))
    return tmp_path / "tokenizer"


@pytest.mark.falsifies("FALSIFY-APR-PRETRAIN-ARCH-006")
@pytest.mark.parametrize("entries", [50_256, 50_258, 151_665])
def test_without_init_the_preset_wants_its_own_vocabulary_exactly(entries, world, tmp_path):
    tokenizer = vocabulary(tmp_path, entries)
    run = pretrain("--config", "llama-370m", "--data", world.text, "--tokenizer", tokenizer, "--dry-run", *FINETUNE)
    assert run.exit_code == 2
    for said in ("GATE-ARCH-370M-011", "INV-ARCH-370M-006:", str(entries), "50257"):
        assert said in run.stderr
    assert "RELAXED" not in run.stderr


def test_the_presets_own_vocabulary_passes(world, tmp_path):
    tokenizer = vocabulary(tmp_path, 50_257)
    np.save(tmp_path / "tokens.npy", np.arange(1000, dtype="u2"))
    run = pretrain(
        "--config", "llama-370m", "--data", tmp_path / "tokens.npy", "--tokenizer", tokenizer, "--dry-run", *FINETUNE
    )
    assert (run.exit_code, "llama-370m-pretrain" in run.stdout) == (0, True), run.output


@pytest.mark.falsifies(
    "FALSIFY-APR-PRETRAIN-ARCH-005", "FALSIFY-APR-PRETRAIN-ARCH-009", "FALSIFY-APR-PRETRAIN-ARCH-010"
)
@pytest.mark.parametrize(("entries", "passes"), [(151_665, True), (151_936, True), (151_937, False)])
def test_with_init_a_vocabulary_may_be_smaller_than_the_embedding(entries, passes):
    from firstdrift.errors import FormatError
    from firstdrift.pretrain.data.training_tokenizer import check_vocabulary

    if passes:
        check_vocabulary(entries, 151_936, strict=False, place="qwen")
        return
    with pytest.raises(FormatError, match=r"INV-ARCH-370M-006-RELAXED: qwen has 151937 .* 151936 .*OOB"):
        check_vocabulary(entries, 151_936, strict=False, place="qwen")


@pytest.mark.parametrize("content", [None, "{", "[1]", "{}"])
def test_a_vocabulary_that_cannot_be_read_carries_the_gates_id(content, world, tmp_path):
    if content is not None:
        (tmp_path / "vocab.json").write_text(content)
    run = pretrain("--init", world.apr, "--data", world.text, "--tokenizer", tmp_path, *FINETUNE)
    assert (run.exit_code, "GATE-ARCH-370M-011" in run.stderr) == (2, True)


# What is asked for has to make sense together.


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (["--config", "tiny"], "give --data"),
        (["--data", "x", "--eval-every", 2, "--steps-per-epoch", 3], "--steps-per-epoch and --eval-every are the same"),
        (["--data", "x", "--steps-per-epoch", 0], "--steps-per-epoch"),
        (["--data", "x", "--config", "tiny", "--seq-length", 64, "--min-epochs", -1], "--min-epochs -1"),
        (["--data", "x", "--parameters", "374M..366M"], "--parameters '374M..366M' is no range"),
        (["--data", "x", "--parameters", "many"], "--parameters 'many' is no range"),
        (["--data", "x", "--config", "huge"], "neither a file nor one of llama-370m, qwen2-0.5b, tiny"),
        (["--data", "x", "--config", "tiny", "--seq-length", 257], "257 is more than the 256 positions"),
        (["--data", "x", "--config", "tiny", "--trace-steps", "a"], "--trace-steps 'a'"),
        (["--data", "x", "--config", "tiny", "--num-steps", -1], "--num-steps -1"),
    ],
)
def test_a_request_that_makes_no_sense_is_a_usage_error(given, complaint, tmp_path):
    run = pretrain(*given, "--out", tmp_path / "run")
    assert (run.exit_code, complaint in run.stderr) == (2, True), run.stderr


def test_an_architecture_beside_a_checkpoint_has_to_be_its_own(world, tmp_path):
    shared = ["--data", world.text, "--tokenizer", world.tokenizer, "--dry-run", *FINETUNE]
    assert pretrain("--init", world.apr, "--config", "tiny", *shared).exit_code == 0
    run = pretrain("--init", world.apr, "--config", "qwen2-0.5b", *shared)
    assert run.exit_code == 2
    for said in (
        "FALSIFY-APR-PRETRAIN-INIT-007",
        "--config qwen2-0.5b",
        "hidden_size 896 and 64",
        "rms_norm_eps 1e-06",
    ):
        assert said in run.stderr


def test_init_none_is_random_weights(world, tmp_path):
    shared = ["--data", world.text, "--tokenizer", world.tokenizer, "--num-steps", 0, *FINETUNE]
    run = pretrain("--init", "none", "--config", "tiny", *shared, "--out", tmp_path / "run")
    assert (run.exit_code, "from random weights" in run.stdout) == (0, True), run.output
