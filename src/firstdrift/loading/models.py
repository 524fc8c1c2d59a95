"""Models to check weights against: made without memory, because only names, shapes and dtypes are needed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..checkpoints.hf_directory import CONFIG
from ..checkpoints.json_file import read_json_object
from ..errors import CaptureError, FormatError


def from_directory(path: Path) -> nn.Module:
    """The model that the config.json of a Hugging Face directory describes, without memory and in its dtype."""
    try:
        import transformers
    except ImportError:
        raise CaptureError(f"{path}: is a Hugging Face directory; pip install transformers to build it") from None
    file = path / CONFIG
    named = read_json_object(file).get("architectures")
    if not isinstance(named, list) or not named or not isinstance(named[0], str):
        raise FormatError(f'{file}: names no architecture; add "architectures": ["LlamaForCausalLM"], or whichever')
    kind: Any = getattr(transformers, named[0], None)
    if not isinstance(kind, type) or not issubclass(kind, transformers.PreTrainedModel):
        raise FormatError(f"{file}: this transformers ({transformers.__version__}) has no {named[0]}; upgrade it")

    build_from: Any = kind._from_config

    def build() -> nn.Module:
        config = transformers.AutoConfig.from_pretrained(str(path), trust_remote_code=False)
        model: nn.Module = build_from(config, dtype=config.dtype or torch.get_default_dtype())
        return model

    return without_memory(build, str(path))


def without_memory(build: Callable[[], object], place: str) -> nn.Module:
    """What a function builds, on the meta device; with memory where it cannot be built there."""
    try:
        with torch.device("meta"):
            model = build()
    except (Exception, SystemExit):  # it may need numbers while it is built: then it gets memory for them
        model = _built(build, place)
    if not isinstance(model, nn.Module):
        raise CaptureError(f"{place}: returned a {type(model).__name__}, not a torch.nn.Module; return the model")
    return model


def _built(build: Callable[[], object], place: str) -> object:
    try:
        return build()
    except (Exception, SystemExit) as error:
        raise CaptureError(f"{place}: building the model raised {type(error).__name__}: {error}; mend it") from error
