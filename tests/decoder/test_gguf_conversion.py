"""A model converted to GGUF is the same model, or the conversion is refused."""

import pytest
import torch
from tests.decoder.checkpoints import directory
from tests.decoder.families import tokens

import firstdrift as fd
from firstdrift.decoder.engines import load_decoder
from firstdrift.errors import FormatError
from firstdrift.weights.conversion import convert

PLAIN = {"rope_type": "default", "rope_theta": 10_000.0}
LINEAR = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10_000.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
CARRIED = [
    ("llama", {"rope_parameters": LINEAR}),
    ("mistral", {"rope_parameters": PLAIN, "sliding_window": 3}),
    ("qwen2", {"rope_parameters": PLAIN, "use_sliding_window": False}),
    ("gemma2", {"rope_parameters": PLAIN, "head_dim": 16, "query_pre_attn_scalar": 16}),
]


@pytest.mark.parametrize(("family", "changes"), CARRIED, ids=[family for family, _ in CARRIED])
def test_what_changes_the_function_is_carried_over(family, changes, tmp_path):
    source = directory(tmp_path / "hf", family, tie_word_embeddings=False, **changes)
    convert(source, tmp_path / "m.gguf")
    with torch.no_grad():
        ours, theirs = (load_decoder(path, dtype=torch.float32)(tokens()) for path in (source, tmp_path / "m.gguf"))
    assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("family", "changes", "what"),
    [
        ("llama", {"rope_parameters": LLAMA3}, "RoPE scaling 'llama3'"),
        (
            "gemma2",
            {"rope_parameters": PLAIN, "head_dim": 16, "query_pre_attn_scalar": 24},
            "query_pre_attn_scalar of 24",
        ),
    ],
)
def test_what_gguf_has_no_key_for_is_refused(family, changes, what, tmp_path):
    source = directory(tmp_path / "hf", family, **changes)
    with pytest.raises(FormatError, match=what):
        convert(source, tmp_path / "m.gguf")
    assert not (tmp_path / "m.gguf").exists()


def test_the_architecture_of_shards_is_read_through_their_index(tmp_path):
    source = directory(tmp_path / "hf", "llama")
    convert(source, tmp_path / "m.apr.index.json")
    assert fd.read_architecture(tmp_path / "m.apr.index.json").to_json() == fd.read_architecture(source).to_json()
