"""What a setting that a candidate states otherwise is called: by its name, and by what it is a setting of."""

from __future__ import annotations

from typing import Any

_ACTIVATIONS = ("relu", "elu", "gelu", "silu", "softplus", "experts", "rnn", "lstm", "gru")
_STEPPING = ("adam", "sgd", "optimizer")
_NORMS, _ROTARY, _SCORES = ("norm", "heads"), ("rope", "rotary"), ("attention", "sdpa", "softmax")

# Ends of a setting's name, what stands in the name of its operation (or before that end of a config's key), the label.
_LABELS: tuple[tuple[tuple[str, ...], tuple[str, ...], str], ...] = (
    (("eps", "epsilon"), _STEPPING, "optimizer-eps"),
    (("eps", "epsilon"), _NORMS, "norm-eps"),
    (("offset",), _NORMS, "norm-plus-one"),
    (("axes", "num_groups"), _NORMS, "norm-axis"),
    (("training", "training_mode"), ("batchnorm",), "batchnorm-mode"),
    (("training", "p"), ("dropout",), "dropout-active"),
    (("momentum",), ("batchnorm", "runningstatistics"), "batchnorm-momentum"),
    (("theta", "rope_base"), (), "rope-theta"),
    (("base",), _ROTARY, "rope-theta"),
    (("adjacent", "interleaved"), _ROTARY, "rope-interleave"),
    (("partial", "partial_rotary_factor"), (), "rope-partial"),
    (("position",), _ROTARY, "position-shift"),
    (("scaling", "factor", "original_positions", "divisors"), _ROTARY, "rope-scaling"),
    (("softcap", "softcapping"), (), "softcap"),
    (("is_causal",), (), "mask-missing"),
    (("window",), (), "window-off-by-one"),
    (("scale",), _SCORES, "attention-scale"),
    (("scale",), ("embedding",), "scale"),
    (("alpha", "beta"), ("gemm",), "scale"),
    (("transA", "transB"), ("gemm",), "transpose"),
    (("approximate", "nonlinearity", "hidden_act", "activation_function", "hidden_activation"), (),
     "activation-variant"),
    (("activation", "negative_slope", "alpha", "beta", "threshold"), _ACTIVATIONS, "activation-variant"),
    (("min_val", "max_val", "min", "max"), ("hardtanh", "clip"), "clamp"),
    (("count_include_pad",), (), "pool-count-pad"),
    (("ceil_mode",), (), "pool-mode"),
    (("padding", "pads", "padding_mode", "auto_pad", "output_padding"), (), "padding"),
    (("perm", "dims"), ("transpose", "permute"), "axis-order"),
    (("normalised", "norm_topk_prob"), (), "router-renorm"),
    (("reduction",), (), "reduction-scale"),
    (("label_smoothing", "ignore_index"), (), "loss-formula"),
    (("lr", "learning_rate"), (), "optimizer-lr"),
    (("betas", "momentum", "dampening", "nesterov"), (), "optimizer-momentum"),
    (("weight_decay",), (), "weight-decay-coupling"),
)  # fmt: skip
NONE_FITS = "other-setting"


def label_of(key: str, op: Any) -> str:
    """The label of a setting; that of none in particular where no other says what it does."""
    name = key.rpartition(".")[2]
    return next((label for ends, parts, label in _LABELS if _is_one(name, ends) and _is_of(name, op, parts)), NONE_FITS)


def _is_one(name: str, ends: tuple[str, ...]) -> bool:
    return any(name == end or name.endswith(f"_{end}") for end in ends)


def _is_of(name: str, op: Any, parts: tuple[str, ...]) -> bool:
    said = f"{op or ''} {name}".lower()
    return not parts or any(part in said for part in parts)
