"""The same checkpoint through the transformers library: an engine that shares no line with our decoder.

Its weights are read by the library wherever it can read them. Stages are what its modules take and return; queries,
keys, scores and weights are seen where it hands them to its attention function.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..errors import CaptureError, FirstdriftError, WeightsError
from ..weights.formats.hf_directory import CONFIG
from ..weights.open_checkpoint import open_checkpoint
from .config_json import FAMILIES, to_config
from .decoder_layers import OFF, Taps
from .decoder_settings import DecoderConfig
from .engines import Engine, refuse_missing_layers

OLDEST = 5
_EXPERT = re.compile(r"(.*\.experts)\.([0-9]+)\.(gate|up|down)_proj\.weight")
ATTENTION = "firstdrift"  # under this name our attention function is registered with the library


class TransformersEngine(Engine):
    """A model of the library, with hooks at every stage."""

    def __init__(self, path: str | PathLike[str], config: DecoderConfig, dtype: torch.dtype) -> None:
        library = transformers_library()
        with open_checkpoint(path) as checkpoint:
            refuse_missing_layers(checkpoint, config)
        _register(library)
        with _quiet(library):
            self.model, loading_info = _load(library, Path(path), config, dtype)
            _refuse_incomplete(loading_info, path)
            self.model.set_attn_implementation(ATTENTION)
            self.model.set_experts_implementation("eager")
        self.model.eval()
        self.loaded = f"{len(self.model.state_dict())} tensors loaded by transformers"
        self.taps = OFF
        self.config = config
        self._cache = library.DynamicCache()  # without its configuration: sliding layers would forget early tokens
        _watch(self)

    @torch.no_grad()
    def forward(self, tokens: Tensor, taps: Taps) -> Tensor:
        self.taps = taps
        try:
            logits: Tensor = self.model(tokens, past_key_values=self._cache, use_cache=True).logits
        except FirstdriftError:
            raise
        except RuntimeError as error:  # it may have read other settings from the file than we have
            why = str(error).split("\n")[0]
            raise CaptureError(
                f"transformers loaded the model and cannot run it ({why}); use --engine decoder"
            ) from error
        taps("lm_head", self.config.num_hidden_layers, logits)
        return logits

    def weight(self, name: str) -> Tensor | None:
        """Those of experts are parts of one tensor here."""
        expert = _EXPERT.fullmatch(name)
        if expert is None:
            return super().weight(name)
        module, number, part = expert.groups()
        together = super().weight(f"{module}.{'down_proj' if part == 'down' else 'gate_up_proj'}")
        if together is None or together.dim() != 3:
            return None
        own = together[int(number)]
        return own if part == "down" else own.chunk(2)[part == "up"].contiguous()


def transformers_library() -> Any:
    """The `transformers` library, or a sentence that asks for it."""
    try:
        import transformers
    except ImportError:
        raise CaptureError("--engine transformers needs the transformers library; pip install transformers") from None
    if int(transformers.__version__.split(".")[0]) < OLDEST:
        raise CaptureError(
            f"--engine transformers needs version {OLDEST} of it or newer, not {transformers.__version__}; upgrade it"
        )
    return transformers


def _load(library: Any, path: Path, config: DecoderConfig, dtype: torch.dtype) -> tuple[Any, dict[str, Any]]:
    """By the library's own readers where it has one; else weights as we read them, in a model as it builds it."""
    options = {"dtype": dtype, "attn_implementation": "eager", "output_loading_info": True}
    try:
        if path.is_dir() and (path / CONFIG).is_file():
            loaded = library.AutoModelForCausalLM.from_pretrained(str(path), local_files_only=True, **options)
        elif path.suffix == ".gguf":
            loaded = library.AutoModelForCausalLM.from_pretrained(
                str(path.parent), gguf_file=path.name, local_files_only=True, **options
            )
        else:
            loaded = _load_reference(library, path, config, options)
    except FirstdriftError:
        raise
    except Exception as error:  # it raises whatever its parts raise
        why = str(error).strip().split("\n")[0]
        raise CaptureError(f"{path}: transformers cannot load it ({type(error).__name__}: {why})") from error
    return loaded[0], loaded[1]


def _load_reference(library: Any, path: Path, config: DecoderConfig, options: dict[str, Any]) -> Any:
    if config.rope.divisors or config.rope.adjacent:
        raise CaptureError(f"{path}: its rotary embedding is none that transformers has; use --engine decoder")
    kind = getattr(library, FAMILIES[config.family].architecture)
    said = {key: value for key, value in to_config(config).items() if key != "architectures"}
    with open_checkpoint(path) as checkpoint:
        state = {name: _tensor(checkpoint.array(name)) for name in checkpoint.entries}
    return kind.from_pretrained(None, config=kind.config_class(**said), state_dict=state, **options)


def _tensor(array: Any) -> Tensor:
    """A tensor of its own; numpy has no bfloat16, so that goes by its bits."""
    import numpy as np

    if array.dtype.name == "bfloat16":
        return torch.from_numpy(np.array(array.view(np.int16))).view(torch.bfloat16)
    return torch.from_numpy(np.array(array))


def _refuse_incomplete(loading_info: dict[str, Any], path: str | PathLike[str]) -> None:
    """The library fills what is missing with random numbers, and goes on."""
    missing = sorted(loading_info.get("missing_keys") or ())
    other = sorted(map(str, loading_info.get("mismatched_keys") or ()))
    if missing or other:
        named = ", ".join([*missing, *other][:4])
        raise WeightsError(
            f"{path}: transformers found no weights for {len(missing) + len(other)} tensors ({named}); it would use "
            "random ones, so check the file with `firstdrift weights verify`"
        )


Seen = tuple[tuple[str, str | int], ...]  # stages, and where at a module each is seen
GIVEN, MADE = "given", "made"  # what a module takes, or what it returns; a number is a part of that
LAYER_STAGES: dict[str, Seen] = {
    "input_layernorm": (("attn_norm", MADE),),
    "self_attn.o_proj": (("attention", GIVEN), ("attn_out", MADE)),
    "": (("post_ffn_residual", MADE),),
}
NORM_STAGES: Seen = (("post_attn_residual", GIVEN), ("ffn_norm", MADE))
DENSE_STAGES: dict[str, Seen] = {
    "mlp.gate_proj": (("ffn_gate", MADE),),
    "mlp.up_proj": (("ffn_up", MADE),),
    "mlp.act_fn": (("ffn_silu", MADE),),
    "mlp.down_proj": (("ffn_swigl", GIVEN), ("ffn_out", MADE)),
}
EXPERT_STAGES: dict[str, Seen] = {
    "mlp.gate": (("moe_router", 1), ("moe_router_indices", 2)),
    "mlp": (("moe_ffn_out", MADE),),
}


def _watch(engine: TransformersEngine) -> None:
    """Hooks on the library's modules, for every stage that a module takes or returns."""
    body = engine.model.model

    def see(module: nn.Module, stage: str, layer: int, which: str | int = MADE) -> None:
        def after(module: nn.Module, given: Any, made: Any) -> None:
            found = given[0] if which == GIVEN else made[which] if isinstance(which, int) else made
            found = found[0] if isinstance(found, tuple) else found
            engine.taps(stage, layer, found if found.dim() > 2 else found[None])  # routers may leave the batch out

        module.register_forward_hook(after)

    see(body.embed_tokens, "embedding", 0)
    see(body.norm, "final_norm", engine.config.num_hidden_layers)
    for number, layer in enumerate(body.layers):
        layer.self_attn.firstdrift = engine
        norm = "pre_feedforward_layernorm" if engine.config.sandwich_norms else "post_attention_layernorm"
        network = EXPERT_STAGES if engine.config.experts_of(number) else DENSE_STAGES
        _see_projections(engine, layer.self_attn, number)
        for path, stages in {**LAYER_STAGES, norm: NORM_STAGES, **network}.items():
            for stage, which in stages:
                see(layer.get_submodule(path), stage, number, which)


def _see_projections(engine: TransformersEngine, attention: Any, layer: int) -> None:
    """Query, key and value together, before their biases and after."""
    products: list[Tensor] = []
    sums: list[Tensor] = []

    def after(module: nn.Linear, given: Any, made: Tensor) -> None:
        if engine.taps.wants("qkv_matmul", layer):
            products.append(made if module.bias is None else functional.linear(given[0], module.weight))
        sums.append(made)
        if module is attention.v_proj:
            if products:
                engine.taps.see("qkv_matmul", layer, torch.cat(products, -1))
            if engine.taps.wants("qkv_bias", layer):
                engine.taps.see("qkv_bias", layer, torch.cat(sums, -1))
            products.clear()
            sums.clear()

    for projection in (attention.q_proj, attention.k_proj, attention.v_proj):
        projection.register_forward_hook(after)
    for which in "qk":
        last = getattr(attention, f"{which}_norm", getattr(attention, f"{which}_proj"))

        def heads(module: nn.Module, given: Any, made: Tensor, stage: str = f"{which}_pre_rope") -> None:
            split = made if made.dim() == 4 else made.unflatten(-1, (-1, engine.config.head_dim))
            engine.taps(stage, layer, split)

        last.register_forward_hook(heads)


def _attention(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **options: Any) -> Any:
    """The family's own eager attention, with what goes in and what comes out seen."""
    taps: Taps = module.firstdrift.taps
    layer: int = module.layer_idx
    family = sys.modules[type(module).__module__]
    new = query.shape[2]
    taps("q_post_rope", layer, query.transpose(1, 2))
    taps("k_post_rope", layer, key[:, :, -new:].transpose(1, 2))
    if taps.wants("attn_scores", layer):
        keys = family.repeat_kv(key, module.num_key_value_groups)
        taps.see("attn_scores", layer, torch.matmul(query, keys.transpose(2, 3)) * module.scaling)
    mixed, weights = family.eager_attention_forward(module, query, key, value, mask, **options)
    taps("attn_softmax", layer, weights)
    return mixed, weights


def _register(library: Any) -> None:
    from transformers.masking_utils import AttentionMaskInterface, eager_mask

    library.AttentionInterface.register(ATTENTION, _attention)
    AttentionMaskInterface.register(ATTENTION, eager_mask)


@contextmanager
def _quiet(library: Any) -> Iterator[None]:
    """Without the library's bars and warnings: what matters of them is an error here."""
    logging = library.utils.logging
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with redirect_stderr(StringIO()):  # some of its bars know no other switch
            yield
    finally:
        logging.set_verbosity(before)
