"""What engines call the same thing, and what they keep beside it: tables, no code."""

from __future__ import annotations

import re
from functools import cache

# Words of operations' names that mean one operation; the first row that fits is taken.
FAMILIES = {
    "embedding": ("embedding", "embed", "get_rows", "gather"),
    "norm": ("norm",),
    "attention": ("attention", "attn", "sdpa"),
    "softmax": ("softmax", "soft_max"),
    "gate": ("glu",),
    "sigmoid": ("sigmoid",),
    "activation": ("relu", "gelu", "silu", "tanh", "softplus", "mish", "swish", "activation"),
    "conv": ("conv2d", "conv3d", "convtranspose", "im2col", "conv"),
    "linear": ("linear", "dense", "matmul", "gemm", "mul_mat", "addmm", "conv1d"),
    "recurrent": ("lstm", "gru", "rnn"),
    "pool": ("pool",),
    "add": ("add",),
    "multiply": ("mul",),
    "drop": ("dropout",),
}
# Products with a kernel of one point are linear layers, and called either.
PRODUCTS = frozenset({"conv", "linear"})

# Parameters and buffers that hold no weights: counters, positions, tables made from the configuration.
BOOKKEEPING = frozenset({
    "num_batches_tracked", "position_ids", "token_type_ids", "inv_freq", "original_inv_freq", "attn_bias_mask",
    "masked_bias", "rotary_emb.inv_freq",
})  # fmt: skip

# What engines call the parameters of one layer.
ROLES = {
    "weight": "weight", "kernel": "weight", "w": "weight", "gamma": "weight", "scale": "weight", "g": "weight",
    "embedding": "weight", "bias": "bias", "b": "bias", "beta": "bias", "running_mean": "mean", "mean": "mean",
    "running_var": "variance", "var": "variance", "moving_mean": "mean", "moving_variance": "variance",
}  # fmt: skip

# What engines call one setting of an operation.
SETTINGS = {"epsilon": "eps", "variance_epsilon": "eps"}

# Words of names that mean one thing.
SYNONYMS = {
    "q": "query", "k": "key", "v": "value", "qcur": "query", "kcur": "key", "vcur": "value", "wte": "embedding",
    "tok": "embedding", "token": "embedding", "embd": "embedding", "embed": "embedding", "embeddings": "embedding",
    "tokens": "embedding", "wpe": "position", "pos": "position", "ln": "norm", "layernorm": "norm", "attn": "attention",
    "att": "attention", "ffn": "mlp", "feedforward": "mlp", "fc": "linear", "dense": "linear", "proj": "projection",
    "h": "layers", "blocks": "layers", "block": "layers", "blk": "layers", "layer": "layers", "o": "output",
    "out": "output", "head": "output", "rmsnorm": "norm", "layers": "layers", "gate": "gate", "conv": "conv",
}  # fmt: skip

_WORD = re.compile(r"[A-Za-z]+|[0-9]+")


@cache
def family_of(op: str | None) -> str | None:
    """The operation that a class or node name means; None where it says none."""
    lowered = (op or "").lower()
    if lowered.endswith("conv1d") and lowered != "conv1d":
        return "conv"
    return next((family for family, words in FAMILIES.items() if any(word in lowered for word in words)), None)


@cache
def words_of(name: str) -> tuple[str, ...]:
    """The words and numbers of a name, each under its usual spelling."""
    found = _WORD.findall(re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name))
    return tuple(SYNONYMS.get(word.lower(), word.lower()) for word in found)


def role_of(port: str) -> str:
    """What a parameter is in its layer, where it is a usual name."""
    return ROLES.get(port.rpartition(".")[2].lower(), port)


def is_bookkeeping(port: str) -> bool:
    """Whether a buffer is one that another engine has no use for."""
    return port in BOOKKEEPING or port.rpartition(".")[2] in BOOKKEEPING
