"""Write Hugging Face directories: weights as safetensors, the configuration and tokenizer of the source beside them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from ..atomic import replacing, replacing_path
from ..errors import FormatError, storage
from .checkpoint import Checkpoint
from .hf_directory import CONFIG, FORMAT, tokenizer_files

SINGLE, SHARDED = "model.safetensors", "model.safetensors.index.json"
DTYPE_KEYS = ("dtype", "torch_dtype")
_DTYPES = {"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16"}


def weights_path(source: Checkpoint, target: Path, shard_bytes: int) -> tuple[Path, str]:
    """Where in a directory the weights go, and in which format."""
    if source.format != FORMAT:
        raise FormatError(
            f"{target}: a Hugging Face directory needs a config.json and {source.path} has none; convert to "
            f"{target}/{SINGLE} and put the model's config.json beside it"
        )
    if source.nbytes > shard_bytes:
        return target / SHARDED, "safetensors-sharded"
    return target / SINGLE, "safetensors"


def write_companions(source: Checkpoint, target: Path, dtype: str | None) -> list[str]:
    """Copy the tokenizer and the configuration, which says the new dtype if it said the old one."""
    copied = tokenizer_files(source.path)
    config = dict(source.metadata)
    for key in DTYPE_KEYS:
        if key in config and dtype in _DTYPES:
            config[key] = _DTYPES[dtype]
    with storage(target, "write the directory", "choose a place that you may write, with room for it"):
        for name in copied:
            with replacing_path(target / name) as partial:
                shutil.copyfile(source.path / name, partial)
        with replacing(target / CONFIG) as file:
            file.write(json.dumps(config, indent=2, ensure_ascii=False).encode())
    return [f"copied {', '.join([CONFIG, *copied])}"]
