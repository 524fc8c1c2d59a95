"""Operations that cannot be run as they are, opened to ones that can: kernels of a device, kernels without float64.

Each opener takes the arguments by their names in the schema and gives the results in their order; None stands for what
no other operation computes (a kernel's workspace, a generator's state). Backward kernels are the derivative, by
autograd, of the same opened forward. What is not here is opened by torch's own decompositions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch._decomp.decompositions import one_layer_lstm

from ..calls import NotReplayableError

aten = torch.ops.aten
Named = Mapping[str, Any]
Opened = Sequence[torch.Tensor | None]


def opened(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], *, is_missing: bool) -> list[Any] | None:
    """The results of an operation by way of others; None where no way is known. `is_missing` where no kernel fits."""
    opener = _OPENERS.get(func._opname)
    if opener is not None:
        return list(opener(_named(func, args, kwargs)))
    decomposition = decomposition_table.get(func) if is_missing else None
    return None if decomposition is None else _flat(decomposition(*args, **kwargs))


def _named(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    arguments = func._schema.arguments
    found = {argument.name: argument.default_value if argument.has_default_value() else None for argument in arguments}
    return found | {one.name: item for one, item in zip(arguments, args, strict=False)} | dict(kwargs)


def _flat(item: Any) -> list[Any]:
    return [one for part in item for one in _flat(part)] if isinstance(item, tuple | list) else [item]


def _gradients(
    forward: Callable[..., Opened], inputs: Sequence[torch.Tensor | None], given: Sequence[torch.Tensor | None]
) -> list[torch.Tensor | None]:
    """The gradients of an opened forward by its inputs, from those of its outputs."""
    with torch.enable_grad():
        own = [None if tensor is None else tensor.detach().clone().requires_grad_() for tensor in inputs]
        pairs = [(out, grad) for out, grad in zip(forward(*own), given, strict=False) if out is not None]
        pairs = [(out, grad) for out, grad in pairs if grad is not None]
        found = iter(
            torch.autograd.grad(
                [out for out, _ in pairs],
                [tensor for tensor in own if tensor is not None],
                [grad for _, grad in pairs],
                materialize_grads=True,
            )
        )
    return [None if one is None else next(found) for one in own]


# Attention.


def _mask(named: Named) -> Any:
    found = named.get("attn_bias") if "attn_bias" in named else named.get("attn_mask")
    return None if found is None or (found.numel() == 0 and found.ndim == 1) else found


def _attention_weights(named: Named) -> tuple[torch.Tensor, float, int]:
    """The weights of attention, the scale of its scores, and how many heads of queries share one of keys; a row that is
    masked altogether attends to nothing."""
    if named["dropout_p"]:
        raise NotReplayableError("attention draws its dropout inside a kernel, and what it drew was not stored")
    query, key, mask = named["query"], named["key"], _mask(named)
    shared = query.shape[-3] // key.shape[-3] if query.ndim > 2 else 1
    scale = query.shape[-1] ** -0.5 if named["scale"] is None else named["scale"]
    scores = query @ _shared(key, shared).transpose(-1, -2) * scale
    if named["is_causal"]:
        scores = scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(), float("-inf"))
    if mask is not None:
        scores = scores + mask if mask.is_floating_point() else scores.masked_fill(~mask, float("-inf"))
    hidden = (scores == float("-inf")).all(-1, keepdim=True)
    return torch.softmax(scores.masked_fill(hidden, 0.0), -1).masked_fill(hidden, 0.0), scale, shared


def _shared(tensor: torch.Tensor, times: int) -> torch.Tensor:
    return tensor.repeat_interleave(times, -3) if times > 1 else tensor


def _attention_forward(named: Named) -> Opened:
    weights, _, shared = _attention_weights(named)
    return [weights @ _shared(named["value"], shared), *[None] * 8]


def _attention_backward(named: Named) -> Opened:
    """Of query, key, value, and of a mask that is added."""
    mask = _mask(named)
    added = mask if mask is not None and mask.is_floating_point() else None

    def forward(query: Any, key: Any, value: Any, bias: Any) -> Opened:
        biased = {} if bias is None else {"attn_bias": bias}
        return _attention_forward({**named, "query": query, "key": key, "value": value, **biased})

    grad = named["grad_out"] if "grad_out" in named else named["grad_out_"]
    return _gradients(forward, [named["query"], named["key"], named["value"], added], [grad])


# Norms and convolutions.


def _batch_norm(named: Named) -> Opened:
    names = ("input", "weight", "bias", "running_mean", "running_var", "training", "exponential_average_factor")
    return [*aten.native_batch_norm(*[named[name] for name in names], named["epsilon"]), None]


def _convolution(named: Named) -> Opened:
    sizes = [named[one] for one in ("stride", "padding", "dilation")]
    none = [0] * len(sizes[1])
    return [aten.convolution(named["self"], named["weight"], named.get("bias"), *sizes, False, none, named["groups"])]


# Recurrent layers. Modes as cuDNN counts them.

_MODES = (aten.rnn_relu, aten.rnn_tanh, aten.lstm, aten.gru)
_LSTM = 2


def _recurrent(named: Named) -> Callable[..., Opened]:
    if named["dropout"] and named["train"]:
        raise NotReplayableError("a recurrent kernel draws its dropout inside, and what it drew was not stored")
    layer, has_biases = _MODES[named["mode"]], named["weight_stride0"] >= 4
    sizes, layers, bidirectional = list(named["batch_sizes"]), named["num_layers"], named["bidirectional"]

    def forward(data: Any, hx: Any, cx: Any, *weights: Any) -> Opened:
        state = [hx, cx] if named["mode"] == _LSTM else hx
        if sizes:
            found = layer.data(data, torch.tensor(sizes), state, weights, has_biases, layers, 0.0, False, bidirectional)
        else:
            first = named["batch_first"]
            found = layer.input(data, state, weights, has_biases, layers, 0.0, False, bidirectional, first)
        return [*found, None][:3]

    return forward


def _recurrent_forward(named: Named) -> Opened:
    return [*_recurrent(named)(named["input"], named["hx"], named["cx"], *named["weight"]), None, None]


def _recurrent_backward(named: Named) -> Opened:
    inputs = [named["input"], named["hx"], named["cx"], *named["weight"]]
    return _gradients(_recurrent(named), inputs, [named["grad_output"], named["grad_hy"], named["grad_cy"]])


def _one_layer(named: Named) -> Callable[..., Opened]:
    if named["mode"] != _LSTM:
        raise NotReplayableError("of the layers inside this kernel only an LSTM's are known")

    def forward(data: Any, *rest: Any) -> Opened:
        *weights, hx, cx = rest
        state = [one.reshape(-1, named["hidden_size"]) for one in (hx, cx)]
        weights = weights if named["has_biases"] else weights[:2]
        out, (hy, cy) = one_layer_lstm(data, state, weights, named["has_biases"], named["reverse"])
        return out, hy.reshape(hx.shape), cy.reshape(cx.shape)

    return forward


def _one_layer_forward(named: Named) -> Opened:
    inputs = [named[one] for one in ("input", "weight0", "weight1", "weight2", "weight3", "hx_", "cx_")]
    return [*_one_layer(named)(*inputs), None]


def _one_layer_backward(named: Named) -> Opened:
    inputs = [named[one] for one in ("input", "weight1", "weight2", "weight3", "weight4", "hx_", "cx_tmp")]
    return _gradients(_one_layer(named), inputs, [named["grad_output"], named["grad_hy"], named["grad_cy"]])


def _lstm_cell(named: Named) -> Opened:
    biases = [one for one in (named["input_bias"], named["hidden_bias"]) if one is not None]
    gates = sum(biases, named["input_gates"] + named["hidden_gates"])
    taken, kept, new, shown = gates.chunk(4, -1)
    taken, kept, new, shown = taken.sigmoid(), kept.sigmoid(), new.tanh(), shown.sigmoid()
    cell = kept * named["cx"] + taken * new
    return [shown * cell.tanh(), cell, torch.cat([taken, kept, new, shown], -1)]


def _lstm_cell_backward(named: Named) -> Opened:
    cx, cy = named["cx"], named["cy"]
    hidden, cell = (torch.zeros_like(cy) if named[one] is None else named[one] for one in ("grad_hy", "grad_cy"))
    taken, kept, new, shown = named["workspace"].chunk(4, -1)
    cell = cell + hidden * shown * (1 - cy.tanh().square())
    gates = torch.cat(
        [
            cell * new * taken * (1 - taken),
            cell * cx * kept * (1 - kept),
            cell * taken * (1 - new.square()),
            hidden * cy.tanh() * shown * (1 - shown),
        ],
        -1,
    )
    return [gates, cell * kept, gates.sum(0) if named["has_bias"] else None]


def _grouped(named: Named) -> Opened:
    """Products of groups: of rows, of columns, or of what is summed over, whichever side is not already in groups."""
    left, right, ends = named["self"], named["mat2"], named["offs"]
    if ends is None:
        return [left @ right]
    ends = ends.tolist()
    parts = list(zip([0, *ends[:-1]], ends, strict=True))
    if left.ndim == 2 and right.ndim == 2:
        return [torch.stack([left[:, a:b] @ right[a:b] for a, b in parts])]
    if left.ndim == 2:
        out = left.new_zeros(left.shape[0], right.shape[-1])
        for at, (a, b) in enumerate(parts):
            out[a:b] = left[a:b] @ right[at]
        return [out]
    out = left.new_zeros(left.shape[1], right.shape[-1])
    for at, (a, b) in enumerate(parts):
        out[:, a:b] = left[at] @ right[:, a:b]
    return [out]


_FUSED = ("flash_attention", "efficient_attention", "cudnn_attention", "fused_attention_overrideable",
          "flash_attention_for_cpu")  # fmt: skip
_OPENERS: dict[str, Callable[[Named], Opened]] = {
    **{f"_scaled_dot_product_{one}": _attention_forward for one in _FUSED},
    **{f"_scaled_dot_product_{one}_backward": _attention_backward for one in _FUSED},
    **dict.fromkeys(("cudnn_batch_norm", "miopen_batch_norm"), _batch_norm),
    **dict.fromkeys(("cudnn_convolution", "miopen_convolution", "mkldnn_convolution"), _convolution),
    "_cudnn_rnn": _recurrent_forward,
    "_cudnn_rnn_backward": _recurrent_backward,
    "_grouped_mm": _grouped,
    "_thnn_fused_lstm_cell": _lstm_cell,
    "_thnn_fused_lstm_cell_backward_impl": _lstm_cell_backward,
    "mkldnn_rnn_layer": _one_layer_forward,
    "mkldnn_rnn_layer_backward": _one_layer_backward,
}


# In steps that mean something by themselves, each of which is rounded.


def _var_mean(data: torch.Tensor, dim: Any = None, unbiased: Any = None, keepdim: bool = False, *,
              correction: Any = None) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    dims = list(range(data.ndim)) if dim is None or dim == [] else [dim] if isinstance(dim, int) else list(dim)
    count = prod(data.shape[one] for one in dims)
    fewer = correction if correction is not None else 1 if unbiased in (None, True) else 0
    mean = data.sum(dims, keepdim=True) / count
    off = data - mean
    var = (off * off).sum(dims, keepdim=True) / max(0, count - fewer)
    return (var, mean) if keepdim else (var.squeeze(dims), mean.squeeze(dims))


def _var(*args: Any, **kwargs: Any) -> torch.Tensor:
    return _var_mean(*args, **kwargs)[0]


def _layer_norm(
    data: torch.Tensor, shape: Sequence[int], weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """As torch's own table has it, without the compiler that this loads."""
    dims = list(range(data.ndim - len(shape), data.ndim))
    var, mean = aten.var_mean.correction(data, dims, correction=0, keepdim=True)
    rstd = (var + eps).rsqrt()
    found = (data - mean) * rstd
    found = found if weight is None else found * weight
    return (found if bias is None else found + bias), mean, rstd


def _plus(product: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A product with an addend, in two steps as code may write it."""

    def added(addend: torch.Tensor, *factors: torch.Tensor, beta: Any = 1, alpha: Any = 1) -> torch.Tensor:
        found = product(*factors)
        found = found if alpha == 1 else found * alpha
        return found + (addend if beta == 1 else addend * beta)

    return added


def _biased(
    data: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *sizes: Any
) -> torch.Tensor:  # fmt: skip
    found: torch.Tensor = aten.convolution(data, weight, None, *sizes)
    return found if bias is None else found + bias.reshape(-1, *[1] * (data.ndim - 2))


STEPS: dict[Any, Callable[..., Any]] = {
    **{getattr(aten.var_mean, one): _var_mean for one in aten.var_mean.overloads() if not one.endswith("out")},
    **{getattr(aten.var, one): _var for one in aten.var.overloads() if not one.endswith("out")},
    aten.native_layer_norm.default: _layer_norm,
    aten.addmm.default: _plus(aten.mm),
    aten.baddbmm.default: _plus(aten.bmm),
    aten.addmv.default: _plus(aten.mv),
    aten.convolution.default: _biased,
    aten.tanh.default: lambda data: torch.sigmoid(data * 2) * 2 - 1,
}
