"""Equations of a jaxpr as calls of ATen, where one means the other; the rest are `jax.<primitive>`, which is no call
that is run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...core.dtypes import numpy_dtype
from ...program.calls import Ref, Type
from .equations import Equation, Rule, UntranslatedError
from .product_calls import PRODUCTS
from .program_lines import Number, ProgramLines, Value, number_of, type_of

UNARY = {
    "exp": "exp", "log": "log", "log1p": "log1p", "expm1": "expm1", "tanh": "tanh", "sin": "sin", "cos": "cos",
    "tan": "tan", "asin": "asin", "acos": "acos", "atan": "atan", "sinh": "sinh", "cosh": "cosh", "asinh": "asinh",
    "acosh": "acosh", "atanh": "atanh", "logistic": "sigmoid", "rsqrt": "rsqrt", "sqrt": "sqrt", "abs": "abs",
    "neg": "neg", "sign": "sign", "floor": "floor", "ceil": "ceil", "erf": "erf", "erfc": "erfc", "erf_inv": "erfinv",
    "exp2": "exp2", "lgamma": "lgamma", "digamma": "digamma", "is_finite": "isfinite", "not": "bitwise_not",
}  # fmt: skip
BINARY = {
    "add": "add", "add_any": "add", "sub": "sub", "mul": "mul", "div": "div", "atan2": "atan2", "max": "maximum",
    "min": "minimum", "rem": "fmod", "nextafter": "nextafter", "and": "bitwise_and", "or": "bitwise_or",
    "xor": "bitwise_xor", "eq": "eq", "ne": "ne", "lt": "lt", "le": "le", "gt": "gt", "ge": "ge",
}  # fmt: skip
WITHOUT_TENSOR = frozenset({"maximum", "minimum", "atan2", "nextafter"})  # overloads that have no name of their own
COMMUTE = frozenset({"add", "mul", "maximum", "minimum", "bitwise_and", "bitwise_or", "bitwise_xor", "eq", "ne"})
MIRRORED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}
COMPARE = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
SAME = frozenset({"stop_gradient", "copy", "copy_p", "sharding_constraint", "optimization_barrier", "pvary"})


def write(lines: ProgramLines, name: str, params: Mapping[str, Any], args: Sequence[Value], types: Sequence[Type],
          outs: Sequence[Any]) -> list[Value]:  # fmt: skip
    """Write an equation's calls; gives what its results are."""
    equation = Equation(lines, name, params, args, types, [type_of(out) for out in outs])
    try:
        rule = RULES.get(name)
        if rule is None:
            raise UntranslatedError
        made = rule(equation)
        return made if isinstance(made, list) else [made]
    except UntranslatedError:
        first = lines.call(f"jax.{_word(name)}", list(args), equation.out, **_settings(params))
        return [first._replace(at=at) for at in range(len(equation.out))]


def _unary(op: str) -> Rule:
    return lambda e: e.call(f"{op}.default", [e.tensor(0)], e.out[0].shape)


def _binary(op: str) -> Rule:
    def rule(e: Equation) -> Value:
        name, args = op, list(e.args)
        if isinstance(args[0], Number) and isinstance(args[1], Ref) and (name in COMMUTE or name in MIRRORED):
            name, args = MIRRORED.get(name, name), args[::-1]
        whole = e.types[0].dtype[0] in "iu"
        if name == "div" and whole:
            return e.call("div.Tensor_mode", [e.tensor(0), e.tensor(1)], e.out[0].shape, rounding_mode="trunc")
        if isinstance(args[0], Ref) and isinstance(args[1], Number):
            return _with_number(e, name, args[0], args[1])
        if name == "sub" and isinstance(args[0], Number) and isinstance(args[1], Ref):
            return e.call("rsub.Scalar", [args[1], args[0]], e.out[0].shape)
        overload = "default" if name in WITHOUT_TENSOR else "Tensor"
        return e.call(f"{name}.{overload}", [e.tensor(0), e.tensor(1)], e.out[0].shape)

    return rule


def _with_number(e: Equation, name: str, x: Ref, number: Number) -> Ref:
    if name in ("maximum", "minimum"):
        if name == "maximum" and number.value == 0 and number.dtype[0] in "fb":
            return e.call("relu.default", [x], e.out[0].shape)
        return e.call("clamp_min.default" if name == "maximum" else "clamp_max.default", [x, number], e.out[0].shape)
    if name in WITHOUT_TENSOR:
        other = e.lines.constant(np.asarray(number.value, numpy_dtype(number.dtype)), "a constant")
        return e.call(f"{name}.default", [x, other], e.out[0].shape)
    overload = "Scalar" if name in COMPARE or name.startswith("bitwise") or name == "fmod" else "Tensor"
    return e.call(f"{name}.{overload}", [x, number], e.out[0].shape)


def _power(e: Equation) -> Value:
    exponent: Value = e.args[1] if len(e.args) > 1 else Number(e.params.get("y", 2), "i32")
    if isinstance(exponent, Number):
        return e.call("pow.Tensor_Scalar", [e.tensor(0), exponent], e.out[0].shape)
    return e.call("pow.Tensor_Tensor", [e.tensor(0), e.cast(exponent, e.types[0].dtype)], e.out[0].shape)


def _select(e: Equation) -> Value:
    if e.types[0].dtype != "bool" or len(e.args) != 3:
        raise UntranslatedError
    return e.call("where.self", [e.tensor(0), e.tensor(2), e.tensor(1)], e.out[0].shape)


def _clamp(e: Equation) -> Value:
    low, x, high = e.args
    if isinstance(low, Number) and isinstance(high, Number):
        return e.call("clamp.default", [x, low, high], e.out[0].shape)
    return e.call("clamp.Tensor", [e.tensor(1), e.tensor(0), e.tensor(2)], e.out[0].shape)


def _convert(e: Equation) -> Value:
    if isinstance(e.args[0], Number):
        value = np.asarray(e.args[0].value).astype(numpy_dtype(e.out[0].dtype))
        return Number(number_of(value), e.out[0].dtype)
    return e.cast(e.args[0], e.out[0].dtype)


def _broadcast(e: Equation) -> Value:
    shape, dims = e.out[0].shape, e.params["broadcast_dimensions"]
    if isinstance(e.args[0], Number):
        return e.lines.call("aten.full.default", [list(shape), e.args[0]], [e.out[0]], dtype={"dtype": e.out[0].dtype})
    inside = [1] * len(shape)
    for axis, dim in enumerate(dims):
        inside[dim] = e.size()[axis]
    ref = e.reshaped(e.args[0], inside)
    return ref if tuple(inside) == shape else e.call("expand.default", [ref, list(shape)], shape)


def _reshape(e: Equation) -> Value:
    if e.params.get("dimensions") is not None:
        raise UntranslatedError
    return e.reshaped(e.tensor(0), e.out[0].shape)


def _reduction(op: str) -> Rule:
    def rule(e: Equation) -> Value:
        axes, dtype = list(e.params["axes"]), e.types[0].dtype
        if not axes:
            return e.args[0]
        whole = {} if dtype[0] in "fbc" and dtype != "bool" else {"dtype": {"dtype": e.out[0].dtype}}
        if op == "sum.dim_IntList":
            return e.lines.call(f"aten.{op}", [e.tensor(0), axes], [e.out[0]], **whole)
        if op in ("all", "any"):
            return e.call(f"{op}.dims", [e.tensor(0), axes], e.out[0].shape)
        return e.call(op, [e.tensor(0), axes], e.out[0].shape)

    return rule


def _arg(op: str) -> Rule:
    def rule(e: Equation) -> Value:
        (axis,) = e.params["axes"]
        return e.cast(e.call(f"{op}.default", [e.tensor(0), axis], e.out[0].shape, "i64"), e.out[0].dtype)

    return rule


def _slice(e: Equation) -> Value:
    ref = e.tensor(0)
    shape = list(e.size())
    strides = e.params["strides"] or [1] * len(shape)
    for axis, (start, end, step) in enumerate(
        zip(e.params["start_indices"], e.params["limit_indices"], strides, strict=True)
    ):
        if (start, end, step) != (0, shape[axis], 1):
            shape[axis] = -(-(end - start) // step)
            ref = e.call("slice.Tensor", [ref, axis, int(start), int(end), int(step)], shape)
    return ref


def _dynamic_slice(e: Equation) -> Value:
    starts, sizes = e.args[1:], e.params["slice_sizes"]
    if not all(isinstance(start, Number) for start in starts):
        raise UntranslatedError
    ref, shape = e.tensor(0), list(e.size())
    for axis, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        begin = max(0, min(int(start.value), shape[axis] - size))  # type: ignore[union-attr]
        if (begin, size) != (0, shape[axis]):
            shape[axis] = size
            ref = e.call("slice.Tensor", [ref, axis, begin, begin + size, 1], shape)
    return ref


def _split(e: Equation) -> list[Value]:
    sizes, axis = list(e.params["sizes"]), e.params["axis"]
    first = e.lines.call("aten.split_with_sizes.default", [e.tensor(0), sizes, axis], e.out)
    return [first._replace(at=at) for at in range(len(sizes))]


def _pad(e: Equation) -> Value:
    config = e.params["padding_config"]
    if any(inside for _, _, inside in config) or not isinstance(e.args[1], Number):
        raise UntranslatedError
    sides = [side for low, high, _ in reversed(config) for side in (int(low), int(high))]
    return e.call("constant_pad_nd.default", [e.tensor(0), sides, e.args[1]], e.out[0].shape)


def _iota(e: Equation) -> Value:
    shape, axis = e.out[0].shape, e.params["dimension"]
    size = shape[axis]
    row = e.lines.call("aten.arange.default", [size], [Type(e.out[0].dtype, (size,))],
                       dtype={"dtype": e.out[0].dtype})  # fmt: skip
    inside = [size if one == axis else 1 for one in range(len(shape))]
    ref = e.reshaped(row, inside)
    return ref if tuple(inside) == shape else e.call("expand.default", [ref, list(shape)], shape)


def _concatenate(e: Equation) -> Value:
    tensors = [e.tensor(at) for at in range(len(e.args))]
    return e.call("cat.default", [tensors, e.params["dimension"]], e.out[0].shape)


def _cumulative(e: Equation) -> Value:
    if e.params["reverse"] or e.types[0].dtype[0] != "f":
        raise UntranslatedError
    return e.call("cumsum.default", [e.tensor(0), e.params["axis"]], e.out[0].shape)


def _round(e: Equation) -> Value:
    if "EVEN" not in str(e.params["rounding_method"]):
        raise UntranslatedError
    return e.call("round.default", [e.tensor(0)], e.out[0].shape)


def _top_k(e: Equation) -> list[Value]:
    first = e.lines.call("aten.topk.default", [e.tensor(0), e.params["k"]], [e.out[0], e.out[1]._replace(dtype="i64")])
    return [first, e.cast(first._replace(at=1), e.out[1].dtype)]


def _word(name: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in name)


def _settings(params: Mapping[str, Any]) -> dict[str, Any]:
    """The plain parameters of an equation."""
    return {key: value for key, value in params.items() if type(value) in (bool, int, float) or (
        type(value) is tuple and all(type(one) is int for one in value))}  # fmt: skip


RULES: dict[str, Rule] = {
    **PRODUCTS,
    **{name: _unary(op) for name, op in UNARY.items()},
    **{name: _binary(op) for name, op in BINARY.items()},
    **dict.fromkeys(SAME, lambda e: list(e.args)),
    **dict.fromkeys(("reshape", "squeeze", "expand_dims"), _reshape),
    **dict.fromkeys(("pow", "integer_pow", "square"), _power),
    "select_n": _select, "clamp": _clamp, "convert_element_type": _convert, "broadcast_in_dim": _broadcast,
    "reduce_sum": _reduction("sum.dim_IntList"), "reduce_max": _reduction("amax.default"),
    "reduce_min": _reduction("amin.default"), "reduce_and": _reduction("all"), "reduce_or": _reduction("any"),
    "argmax": _arg("argmax"), "argmin": _arg("argmin"), "slice": _slice,
    "dynamic_slice": _dynamic_slice, "split": _split, "pad": _pad, "iota": _iota, "concatenate": _concatenate,
    "cumsum": _cumulative, "round": _round, "top_k": _top_k,
    "transpose": lambda e: e.permuted(e.tensor(0), e.params["permutation"]),
    "rev": lambda e: e.call("flip.default", [e.tensor(0), list(e.params["dimensions"])], e.out[0].shape),
}  # fmt: skip
