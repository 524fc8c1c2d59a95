"""Where weights go: every parameter and persistent buffer of a model once, with all its names; of models made
without memory too, because only names, shapes and dtypes are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ...core.dtypes import LONG_NAMES
from ...errors import CaptureError, FormatError
from ..formats.hf_directory import CONFIG
from ..json_file import read_json_object


@dataclass(frozen=True, eq=False)
class Destination:
    """One tensor of a model. `names` are all the names it has: more than one where weights are tied."""

    names: tuple[str, ...]
    tensor: torch.Tensor
    kind: str  # parameter or buffer

    @property
    def name(self) -> str:
        """The name that comes first in the model."""
        return self.names[0]

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return tuple(self.tensor.shape)

    @property
    def size(self) -> int:
        """Number of its elements."""
        return prod(self.shape)

    @property
    def dtype(self) -> str:
        """Its dtype by our name; that of torch where we have none."""
        return LONG_NAMES.get(str(self.tensor.dtype).removeprefix("torch."), str(self.tensor.dtype))


def destinations(model: nn.Module) -> list[Destination]:
    """Every tensor that a checkpoint of this model has to bring, in the model's order; tied ones once."""
    found: dict[object, tuple[list[str], torch.Tensor, str]] = {}
    for name, tensor, kind in _named(model):
        names = found.setdefault(_identity(tensor), ([], tensor, kind))[0]
        if name not in names:
            names.append(name)
    return [Destination(tuple(names), tensor, kind) for names, tensor, kind in found.values()]


def shapeless(all_of_them: list[Destination]) -> list[str]:
    """What a lazy module has not made yet, a line each: nothing can be planned for it."""
    why = "has no shape yet; run the model once before weights are loaded"
    return [f"{destination.name}: {why}" for destination in all_of_them if nn.parameter.is_lazy(destination.tensor)]


def unwritable(all_of_them: list[Destination], *, meta: bool) -> list[str]:
    """What cannot be written element by element, a line each; `meta` says whether tensors without memory are meant."""
    problems = []
    for destination in all_of_them:
        why = _why_not(destination, meta)
        if why:
            problems.append(f"{destination.name}: {why}")
    return problems + _overlaps(
        [destination for destination in all_of_them if destination.tensor.device.type != "meta" and destination.size]
    )


def _named(model: nn.Module) -> Iterator[tuple[str, torch.Tensor, str]]:
    """Every name of every tensor. A state_dict would leave it to hooks what it calls them."""
    for path, module in model.named_modules(remove_duplicate=False):
        prefix = f"{path}." if path else ""
        for name, parameter in module._parameters.items():
            if parameter is not None:
                yield prefix + name, parameter, "parameter"
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                yield prefix + name, buffer, "buffer"


def _identity(tensor: torch.Tensor) -> object:
    """What two names have in common that stand for the same numbers."""
    if _is_plain(tensor) and tensor.device.type != "meta" and tensor.numel():
        return str(tensor.device), tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype
    return id(tensor)


def _is_plain(tensor: torch.Tensor) -> bool:
    if nn.parameter.is_lazy(tensor) or tensor.layout != torch.strided:
        return False
    return type(tensor) in (torch.Tensor, nn.Buffer) or isinstance(tensor, nn.Parameter)


def _why_not(destination: Destination, meta: bool) -> str | None:
    tensor = destination.tensor
    if not _is_plain(tensor):
        return (
            f"is a {type(tensor).__name__} of layout {tensor.layout}, not a plain tensor; load before it is converted"
        )
    if destination.dtype.startswith("torch."):
        return f"has dtype {destination.dtype}, which no checkpoint holds; load before it is converted"
    if tensor.device.type == "meta" and not meta:
        return "is on the meta device and has no memory; call model.to_empty(device='cpu') first"
    if any(step == 0 and count > 1 for step, count in zip(tensor.stride(), tensor.shape, strict=True)):
        return "is an expanded view whose elements share memory; make it contiguous first"
    return None


def _overlaps(placed: list[Destination]) -> list[str]:
    """Tensors that share some of their memory: writing one would change the other."""
    spans = []
    for destination in placed:
        if not _is_plain(destination.tensor):
            continue
        start = destination.tensor.data_ptr()
        last = sum(
            (count - 1) * step for count, step in zip(destination.shape, destination.tensor.stride(), strict=True)
        )
        spans.append(
            (
                str(destination.tensor.device),
                start,
                start + (last + 1) * destination.tensor.element_size(),
                destination.name,
            )
        )
    spans.sort()
    return [
        f"{after[3]}: shares a part of its memory with {before[3]}, so that each would change the other"
        for before, after in pairwise(spans)
        if before[0] == after[0] and after[1] < before[2]
    ]


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
