"""llama.cpp loads the GGUF files that are written here, and computes what this project's own decoder does."""

import numpy as np
import pytest
import torch
from tests.weights.llama_cpp import run

from firstdrift.decoder.engines import load_decoder
from firstdrift.decoder.tokenizing import tokenizer_of
from firstdrift.weights.conversion import convert

pytestmark = pytest.mark.engines
TOKENS = [1, 9690, 198, 2683, 359, 253, 5356, 5646]
TEXT = "def f(x): return 12 * x  # naïve"
CLOSE = 0.01  # of the logits: llama.cpp keeps keys and values in half precision


def own_logits(path):
    with torch.no_grad():
        return load_decoder(path, dtype=torch.float32)(torch.tensor([TOKENS]))[0, -1].numpy()


def apart(a, b):
    return np.linalg.norm(a - b) / np.linalg.norm(b)


@pytest.mark.parametrize("dtype", ["f32", "f16", None])
def test_a_converted_model_runs_and_gives_our_logits(smollm2, tmp_path, dtype):
    convert(smollm2, tmp_path / "m.gguf", dtype=dtype)
    found, tokens = run(tmp_path / "m.gguf", TEXT, TOKENS)
    assert tokens == tokenizer_of(smollm2).encode(TEXT).ids
    if dtype is None:  # blocks as they were: what llama.cpp makes of the original, bit for bit
        assert np.array_equal(found, run(smollm2, TEXT, TOKENS)[0])
    else:
        wanted = own_logits(tmp_path / "m.gguf")
        assert apart(found, wanted) < CLOSE
        assert found.argmax() == wanted.argmax()
        assert apart(found[::-1], wanted) > 10 * CLOSE  # the negative control


def test_a_model_that_came_by_other_formats_runs(smollm2, tmp_path):
    convert(smollm2, tmp_path / "m.safetensors")
    convert(tmp_path / "m.safetensors", tmp_path / "m.apr")
    convert(tmp_path / "m.apr", tmp_path / "m.gguf")
    found, tokens = run(tmp_path / "m.gguf", TEXT, TOKENS)
    assert apart(found, own_logits(smollm2)) < CLOSE
    assert tokens == tokenizer_of(smollm2).encode(TEXT).ids
