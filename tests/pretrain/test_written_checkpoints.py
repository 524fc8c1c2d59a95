"""Every checkpoint that `pretrain` writes is read by `trace`, with the tokenizer that it was trained with."""

import json

import numpy as np
import pytest
from tests.pretrain.worlds import FINETUNE, byte_vocabulary, firstdrift, newest, pretrain

from firstdrift.decoder.tokenizing import tokenizer_of

tokenizers = pytest.importorskip("tokenizers")
PROMPT = "the first theme"


def write_merged(directory):
    """A vocabulary with merges, which a checkpoint has to bring as well: without them there are other tokens."""
    directory.mkdir()
    vocabulary = byte_vocabulary()
    for gone, merged in zip(("Ā", "ā"), ("th", "the"), strict=True):  # two letters that no text here has
        vocabulary[merged] = vocabulary.pop(gone)
    (directory / "vocab.json").write_text(json.dumps(vocabulary))
    (directory / "merges.txt").write_text("#version: 0.2\nt h\nth e\n")
    return directory


def write_file(directory):
    """The same as one file."""
    write_merged(directory)
    library = tokenizer_of(directory)
    for name in ("vocab.json", "merges.txt"):
        (directory / name).unlink()
    library.save(str(directory / "tokenizer.json"))
    return directory


KINDS = {
    "a vocabulary": (write_merged, ""),
    "a vocabulary by its file": (write_merged, "vocab.json"),
    "a tokenizer": (write_file, ""),
    "a tokenizer by another name": (write_file, "mine.json"),
}


def train(world, tokenizer, out, form, *source):
    done = pretrain(
        *source, "--data", world.text, "--tokenizer", tokenizer, *FINETUNE, "--allow-weak-init", "--num-steps", 2,
        "--format", form, "--checkpoint-every", 1, "--out", out,
    )  # fmt: skip
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("form", ["safetensors", "apr"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_trace_reads_the_prompt_with_the_tokenizer_of_the_run(kind, form, world, tmp_path):
    write, name = KINDS[kind]
    tokenizer = write(tmp_path / "tokenizer")
    wanted = tokenizer_of(tokenizer).encode(PROMPT).ids
    assert len(wanted) == len(PROMPT) - 4  # "the" twice
    if name == "mine.json":
        (tokenizer / "tokenizer.json").rename(tokenizer / name)
    train(world, tokenizer / name, tmp_path / "run", form, "--config", "tiny")
    for checkpoint in sorted((tmp_path / "run/checkpoints").iterdir()):
        for number, model in enumerate((checkpoint, checkpoint / f"model.{form}")):
            assert tokenizer_of(model).encode(PROMPT).ids == wanted
            out = tmp_path / f"{checkpoint.name}-{number}"
            done = firstdrift("trace", model, "--prompt", PROMPT, "--save-tensor", "embedding,lm_head", "--output", out)
            assert done.exit_code == 0, done.output
            assert (out / "layer-0/embedding.bin").stat().st_size == 12 + 4 * 64 * len(wanted)


@pytest.mark.parametrize("form", ["safetensors", "apr"])
def test_a_run_from_a_checkpoint_takes_its_tokenizer_along(form, world, tmp_path):
    train(world, write_merged(tmp_path / "tokenizer"), tmp_path / "first", form, "--config", "tiny")
    init = newest(tmp_path / "first") / f"model.{form}"
    done = pretrain(
        "--init", init, "--data", world.text, *FINETUNE, "--allow-weak-init", "--num-steps", 0, "--out", tmp_path / "b"
    )
    assert done.exit_code == 0, done.output
    assert tokenizer_of(newest(tmp_path / "b")).encode(PROMPT).ids == tokenizer_of(init).encode(PROMPT).ids


def test_without_a_tokenizer_a_trace_asks_for_tokens(world, tmp_path):
    np.save(tmp_path / "tokens.npy", np.arange(4000, dtype="u2") % 256)
    shared = ["--data", tmp_path / "tokens.npy", *FINETUNE, "--num-steps", 0]
    done = pretrain("--config", "tiny", *shared, "--out", tmp_path / "r")
    assert done.exit_code == 0, done.output
    arguments = ["trace", newest(tmp_path / "r"), "--save-tensor", "lm_head", "--output", tmp_path / "out"]
    done = firstdrift(*arguments)
    assert (done.exit_code, "give --tokens" in done.stderr) == (2, True), done.output
    assert firstdrift(*arguments, "--tokens", "1,2,3").exit_code == 0
