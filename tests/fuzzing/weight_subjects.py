"""Checkpoints of every format, whole and ready to be damaged, and the configurations beside them."""

import json
import struct
import zlib
from pathlib import Path

import numpy as np
from tests.fuzzing.feeding import Subject
from tests.fuzzing.trace_subjects import parts_of

from firstdrift.decoder.config_json import to_config
from firstdrift.decoder.decoder_config import PRESETS, config_of
from firstdrift.weights.formats.apr_layout import checksum
from firstdrift.weights.open_checkpoint import open_checkpoint
from firstdrift.weights.writing import write_checkpoint

TENSORS = {
    "model.embed_tokens.weight": np.ones((4, 32), np.float32),
    "model.layers.0.self_attn.q_proj.weight": np.arange(16, dtype=np.float16).reshape(4, 4),
    "scalar": np.array(3.0, np.float32),
    "empty": np.zeros((0, 5), np.float32),
}
GGUF = {
    "general.architecture": "llama", "llama.attention.head_count": 2, "llama.embedding_length": 32,
    "llama.block_count": 1, "tokenizer.ggml.tokens": ["a", "b"], "tokenizer.ggml.scores": [0.5, 1.5],
}  # fmt: skip
APR_HEADER, APR_FOOTER = slice(40, 44), 4


def everything(path: Path) -> None:
    """Open a checkpoint, and load every tensor of it."""
    with open_checkpoint(path) as checkpoint:
        for name in checkpoint:
            assert checkpoint[name].shape == checkpoint.entries[name].shape


def stored(format: str, name: str):
    def make(scratch: Path) -> Subject:
        named = {one: array for one, array in TENSORS.items() if format != "gguf" or one.startswith("model")}
        metadata = GGUF if format == "gguf" else {}
        write_checkpoint(scratch / name, named.items(), format=format, metadata=metadata, shard_bytes=300)
        return Subject(parts_of(scratch), lambda directory: everything(directory / name))

    return make


def torch_shards(scratch: Path) -> Subject:
    """Two files of PyTorch and the index beside them."""
    weight_map = {}
    for number, (name, array) in enumerate(list(TENSORS.items())[:2]):
        write_checkpoint(scratch / f"m-{number}.bin", [(name, array)], format="pt")
        weight_map[name] = f"m-{number}.bin"
    index = "pytorch_model.bin.index.json"
    (scratch / index).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return Subject(parts_of(scratch), lambda directory: everything(directory / index))


def apr_with_right_checksums(scratch: Path) -> Subject:
    """Lies that no checksum tells."""
    write_checkpoint(scratch / "m.apr", TENSORS.items(), format="apr", metadata={"model_type": "llama"})

    def put(directory, parts):
        data = bytearray(parts["m.apr"])
        if len(data) >= 64 + APR_FOOTER:
            data[APR_HEADER] = bytes(4)
            data[APR_HEADER] = struct.pack("<I", checksum(bytes(data[:64])))
            data[-APR_FOOTER:] = struct.pack("<I", zlib.crc32(data[:-APR_FOOTER]))
        (directory / "m.apr").write_bytes(data)

    return Subject(parts_of(scratch), lambda directory: everything(directory / "m.apr"), put)


def hf_directory(scratch: Path) -> Subject:
    """Weights with their config.json, as Hugging Face has them, and what the decoder makes of it."""
    write_checkpoint(scratch / "model.safetensors", TENSORS.items(), format="safetensors")
    (scratch / "config.json").write_text(json.dumps(to_config(PRESETS["tiny"])))

    def read(directory: Path) -> None:
        config_of(directory / "config.json")
        everything(directory)

    return Subject(parts_of(scratch), read)


CHECKPOINTS = {
    "safetensors weights": (stored("safetensors", "m.safetensors"), 20_000),
    "apr": (stored("apr", "m.apr"), 20_000),
    "apr, checksums right": (apr_with_right_checksums, 25_000),
    "gguf": (stored("gguf", "m.gguf"), 30_000),
    "npz weights": (stored("npz", "m.npz"), 15_000),
    "pt": (stored("pt", "m.pt"), 15_000),
    "safetensors shards": (stored("safetensors-sharded", "m.safetensors.index.json"), 10_000),
    "apr shards": (stored("apr-sharded", "m.apr.index.json"), 10_000),
    "pt shards": (torch_shards, 10_000),
    "config.json": (hf_directory, 15_000),
}
