"""Sums, products and functions of one number, written otherwise: a term or a factor left out, another activation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from .view import SOFTMAX, Rewrite, Rewrites, View, is_parameter, is_small

LOW = -1e4  # what is added to scores to mask them is no greater
SUMS = ("add", "sub", "__rsub__", "rsub", "__radd__", "add_", "sub_")
PRODUCTS = ("mul", "mul_", "__rmul__")
QUOTIENTS = ("div", "__rdiv__", "div_", "true_divide")

ACTIVATIONS: Mapping[str, Any] = {
    "relu": F.relu, "gelu": F.gelu, "gelu-tanh": lambda x: F.gelu(x, approximate="tanh"),
    "quick-gelu": lambda x: x * torch.sigmoid(1.702 * x), "silu": F.silu, "sigmoid": torch.sigmoid, "tanh": torch.tanh,
    "relu6": F.relu6, "leaky_relu": F.leaky_relu, "elu": F.elu, "selu": F.selu, "softplus": F.softplus,
    "hardswish": F.hardswish, "hardsigmoid": F.hardsigmoid, "mish": F.mish, "exp": torch.exp, "softsign": F.softsign,
    "square": torch.square, "relu2": lambda x: F.relu(x).square(), "abs": torch.abs, "celu": F.celu,
    "hardtanh": F.hardtanh,
}  # fmt: skip
NAMES_OF_ACTIVATIONS = ("relu", "gelu", "silu", "sigmoid", "tanh", "relu6", "leaky_relu", "elu", "selu", "softplus",
                        "hardswish", "hardsigmoid", "mish", "softsign", "celu", "hardtanh", "relu_", "silu_", "prelu",
                        "logsigmoid", "erf")  # fmt: skip
ROUNDINGS: Mapping[str, Any] = {
    "round": torch.round, "floor": torch.floor, "ceil": torch.ceil, "trunc": torch.trunc,
    "half up": lambda x: torch.floor(x + 0.5), "half away from zero": lambda x: x.sign() * torch.floor(x.abs() + 0.5),
}  # fmt: skip


def sums(view: View) -> Iterator[Rewrite]:
    """One of two terms is left out, is there twice, or has the other sign."""
    operands = view.given[0][:2]
    if len(operands) < 2 or not view.result.is_floating_point():
        return
    for at, term in enumerate(operands):
        if isinstance(term, torch.Tensor):
            label = _left_out(view, at)
            yield Rewrite(f"without {at}", label, f"{_told(view, at)} is not added", _scaled(view, at, 0.0))
            twice = "double-bias" if label == "missing-bias" else _scaled_label(view, at)
            yield Rewrite(f"twice {at}", twice, f"{_told(view, at)} is added twice", _scaled(view, at, 2.0))
            yield Rewrite(
                f"sign {at}", _scaled_label(view, at), f"{_told(view, at)} has the other sign", _scaled(view, at, -1.0),
                parameters={"factor": -1.0},
            )  # fmt: skip


def _scaled_label(view: View, at: int) -> str:
    """What it is called if a term counts otherwise."""
    maker = getattr(view.call.args[at], "call", None)
    return "alibi-slope" if maker is not None and View(view.program, maker).is_bias_of_scores else "scale"


def _told(view: View, at: int) -> str:
    words = ("the first term", "the second term")
    return f"{words[at]} of the {'difference' if 'sub' in view.call.name else 'sum'}"


def _scaled(view: View, at: int, factor: float) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        terms = list(args)
        term = torch.zeros_like(terms[at]) if not factor else terms[at] * factor  # a mask's infinities times 0 are NaN
        terms[at] = term
        return view.call.func(*terms, **kwargs)

    return call


def _left_out(view: View, at: int) -> str:
    """What it is called if a term is missing."""
    term, other = view.given[0][at], view.given[0][1 - at]
    if bool((term <= LOW).any()) and SOFTMAX & view.after:
        return "mask-missing"
    if is_parameter(term) and is_small(term):
        return "missing-bias"
    own = view.call.args[at]
    if getattr(own, "call", None) is not None and view.program.calls[own.call].name == "mean" and at == 1:
        return "rms-vs-layernorm"
    depends = isinstance(other, torch.Tensor) and _depends(view, 1 - at, own)
    return "missing-residual" if depends and not SOFTMAX & view.after else "missing-term"


def _depends(view: View, at: int, on: Any) -> bool:
    """Whether one term was computed from the other."""
    calls, left = view.program.calls, [view.call.args[at]]
    seen: set[int] = set()
    while left:
        item = left.pop()
        number = getattr(item, "call", None)
        if number is None or number in seen:
            continue
        seen.add(number)
        if any(one is on or (isinstance(one, tuple) and one == on) for one in calls[number].args):
            return True
        left.extend(calls[number].reads)
    return False


def products(view: View) -> Iterator[Rewrite]:
    """A factor that is a tensor is left out, or counted from 1; an activation stands at the other factor."""
    operands = view.given[0][:2]
    if len(operands) < 2 or not all(isinstance(one, torch.Tensor) for one in operands):
        return
    for at, factor in enumerate(operands):
        kept = operands[1 - at]
        if kept.shape == view.result.shape:
            said = f"the {('first', 'second')[at]} factor of a product is left out"
            yield Rewrite(f"without {at}", "skipped-op", said, lambda *args, at_=at, **_: args[1 - at_] + 0)
        if is_parameter(factor) and is_small(factor):
            said = "a gain w is applied as 1 + w"
            yield Rewrite(
                f"plus one {at}", "norm-plus-one", said, lambda *args, at_=at, **_: args[1 - at_] * (1 + args[at_])
            )
    yield from _gates(view)


def _gates(view: View) -> Iterator[Rewrite]:
    """act(a) * b written as a * act(b)."""
    for at, made in enumerate(view.call.args[:2]):
        maker = None if getattr(made, "call", None) is None else View(view.program, made.call)
        if maker is None or maker.call.name not in NAMES_OF_ACTIVATIONS or not maker.tensors:
            continue

        def call(*args: Any, at: int = at, maker: View = maker, **_: Any) -> Any:
            _args, kwargs = maker.given
            return _args[0] * maker.call.func(args[1 - at], *_args[1:], **kwargs)

        yield Rewrite(f"gate {at}", "swapped-operands", f"{maker.call.name} is applied to the other factor", call)


def quotients(view: View) -> Iterator[Rewrite]:
    """A divisor that is a tensor is left out, or multiplies."""
    operands = view.given[0][:2]
    if len(operands) < 2 or not isinstance(operands[1], torch.Tensor) or "r" in view.call.name[:3]:
        return
    label = "router-renorm" if {"topk"} & view.before and "sum" in view.before else "skipped-op"
    yield Rewrite("undivided", label, "a division is left out", lambda *args, **_: args[0] + 0)
    yield Rewrite("times", "op-order", "it multiplies instead of dividing", lambda *args, **_: args[0] * args[1])


def activations(view: View) -> Iterator[Rewrite]:
    """Another activation, or none."""
    for name, func in ACTIVATIONS.items():
        said = f"{name} instead of {view.call.name}"
        yield Rewrite(
            name,
            "activation-variant",
            said,
            lambda *args, func_=func, **_: func_(args[0]),
            parameters={"activation": name},
        )


def roundings(view: View) -> Iterator[Rewrite]:
    """Another rule to round by."""
    for name, func in ROUNDINGS.items():
        said = f"rounded by {name} instead of {view.call.name}"
        yield Rewrite(
            name, "rounding-mode", said, lambda *args, func_=func, **_: func_(args[0]), parameters={"rounding": name}
        )


def swaps(view: View) -> Iterator[Rewrite]:
    """Two arguments of one shape are exchanged."""
    args = view.given[0]
    if view.call.name in ("add", "mul", "add_", "mul_", "maximum", "minimum"):
        return
    for one in range(len(args)):
        for other in range(one + 1, len(args)):
            if not all(isinstance(args[at], torch.Tensor) for at in (one, other)):
                continue

            def call(*args: Any, first_: int = one, second_: int = other, **kwargs: Any) -> Any:
                now = list(args)
                now[first_], now[second_] = now[second_], now[first_]
                return view.call.func(*now, **kwargs)

            said = f"arguments {one} and {other} of {view.call.name} are exchanged"
            yield Rewrite(f"swap {one} {other}", "swapped-operands", said, call)


TABLE: Mapping[str, tuple[Rewrites, ...]] = {
    **dict.fromkeys(SUMS, (sums,)), **dict.fromkeys(PRODUCTS, (products,)), **dict.fromkeys(QUOTIENTS, (quotients,)),
    **dict.fromkeys(NAMES_OF_ACTIVATIONS, (activations,)),
    **dict.fromkeys(("round", "floor", "ceil", "trunc"), (roundings,)),
}  # fmt: skip
