"""llama.cpp's names of tensors and weights, as modules of the Hugging Face model that a GGUF file is made from.

Queries and keys keep llama.cpp's names: many files hold their rows in another order, so they are not the same tensors.
"""

from __future__ import annotations

import re

# By llama.cpp's name before `-<layer>`, for the first tensor of that name: module of the layer, stage.
OF_LAYERS = {
    "attn_norm": ("input_layernorm", "attn_norm"),
    "Vcur": ("self_attn.v_proj", None),
    "attn_out": ("self_attn.o_proj", "attn_out"),
    "ffn_inp": (None, "post_attn_residual"),
    "ffn_norm": ("post_attention_layernorm", "ffn_norm"),
    "ffn_gate": ("mlp.gate_proj", "ffn_gate"),
    "ffn_up": ("mlp.up_proj", "ffn_up"),
    "ffn_out": ("mlp.down_proj", "ffn_out"),
    "l_out": ("", "post_ffn_residual"),
    "kq": (None, "attn_scores"),
    "kq_soft_max": (None, "attn_softmax"),
    "kqv_out": (None, "attention"),
    "ffn_swiglu": (None, "ffn_swigl"),
}
OF_MODEL = {
    "inp_embd": ("model.embed_tokens", "embedding"),
    "embd": ("model.embed_tokens", "embedding"),
    "result_norm": ("model.norm", "final_norm"),
    "result_output": ("lm_head", "lm_head"),
}
WEIGHTS = {
    "attn_norm": "input_layernorm", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm", "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj", "ffn_gate_inp": "mlp.gate",
}  # fmt: skip
TOP_WEIGHTS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def module_of(name: str, op: str, call: int) -> tuple[str, str | None, int | None]:
    """The module that a tensor is the output of, or llama.cpp's own name; its stage; its layer."""
    layered = re.fullmatch(r"(.+)-(\d+)", name)
    if layered is None:
        known, stage = OF_MODEL.get(name, (name, None))
        return known, stage, None
    layer = int(layered[2])
    module, stage = OF_LAYERS.get(layered[1], (None, None)) if call == 0 else (None, None)
    if module is None:
        return name, stage, layer
    return f"model.layers.{layer}.{module}".rstrip("."), stage, layer


def parameter_of(name: str) -> tuple[str, str]:
    """The module and the parameter that a weight of a GGUF file is."""
    owner, _, port = name.rpartition(".")
    layered = re.fullmatch(r"blk\.(\d+)\.(.+)", owner)
    if layered is not None:
        known = WEIGHTS.get(layered[2])
        return owner if known is None else f"model.layers.{layered[1]}.{known}", port
    return TOP_WEIGHTS.get(owner, owner), port
