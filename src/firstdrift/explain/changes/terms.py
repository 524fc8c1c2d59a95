"""Sums, products and functions of one number, written otherwise: a term or a factor left out, another function."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ...program.calls import Call, Ref
from ...program.edits import Edit, local, made_by
from ..naming import (  # fmt: skip
    CHANGED,
    CHOOSING,
    additional_label,
    factor_label,
    left_out_label,
    scaled_label,
    skipped_label,
    swapped_label,
)
from ..one_program.around import MOVES, Around, Change
from ..two_programs.chains import FEW_DEEP, expression, makers_of
from .constants import constants

ACTIVATIONS = ("relu", "gelu", "silu", "sigmoid", "tanh", "leaky_relu", "elu", "softplus", "hardswish", "hardsigmoid",
               "hardtanh", "mish", "exp", "abs", "selu", "relu6", "softsign", "celu", "log_sigmoid")  # fmt: skip
LIKE: Mapping[str, tuple[str, ...]] = {  # operations that take the same arguments
    **dict.fromkeys(("lt", "le", "gt", "ge"), ("lt.Tensor", "le.Tensor", "gt.Tensor", "ge.Tensor")),
    **dict.fromkeys(("round", "floor", "ceil", "trunc"),
                    ("round.default", "floor.default", "ceil.default", "trunc.default")),
    **dict.fromkeys(("add", "sub"), ("add.Tensor", "sub.Tensor")),
    **dict.fromkeys(("mul", "div"), ("mul.Tensor", "div.Tensor")),
    **dict.fromkeys(("maximum", "minimum"), ("maximum.default", "minimum.default")),
    **dict.fromkeys(("cos", "sin"), ("cos.default", "sin.default")),
    **dict.fromkeys(("logical_and", "logical_or", "bitwise_and", "bitwise_or"),
                    ("logical_and.default", "logical_or.default")),
}  # fmt: skip
SYMMETRIC = frozenset({
    "add", "mul", "maximum", "minimum", "logical_and", "bitwise_and", "logical_or", "bitwise_or", "eq", "ne",
})  # fmt: skip
FEW_MAKERS = 8  # calls that a factor is made of, which a mask among them then is
EITHER_WAY = frozenset({"rms-vs-layernorm"})  # names of a term, whichever side has it
PASSED_ON = frozenset({"masked_fill", "native_layer_norm", "native_group_norm", "native_batch_norm", "where"})


def _function(name: str, x: Ref, at: int = 0) -> tuple[Call, ...]:
    """An activation by its name, as the calls numbered from `at` of a fragment."""
    if name == "gelu-tanh":
        return (made_by("gelu.default", x, approximate="tanh"),)
    if name == "quick-gelu":
        return (made_by("mul.Tensor", x, 1.702), made_by("sigmoid.default", local(at)),
                made_by("mul.Tensor", x, local(at + 1)))  # fmt: skip
    if name == "relu2":
        return (made_by("relu.default", x), made_by("square.default", local(at)))
    if name == "softmax":
        return (made_by("_softmax.default", x, -1, False),)
    if name == "log_sigmoid":
        return (made_by("log_sigmoid.default", x),)
    return (made_by(f"{name}.default", x),)


def activations(around: Around) -> Iterator[Change]:
    """Another activation."""
    chosen = bool(CHOOSING & (around.before | around.after))
    if around.op not in ACTIVATIONS and not (around.op == "_softmax" and chosen):
        return
    x = around.tensors[0]
    now = "gelu-tanh" if around.op == "gelu" and around.call.kwargs.get("approximate") == "tanh" else around.op
    for name in (*ACTIVATIONS, "gelu-tanh", "quick-gelu", "relu2", "square", *(("softmax",) if chosen else ())):
        if name != now:
            said, back = f"{_told(name)} instead of {_told(now)}", f"{_told(now)} instead of {_told(name)}"
            parameters = {"activation": name, "reference_activation": now}
            edit = around.instead(*_function(name, x))
            yield Change(name, "activation-variant", said, edit, 5.0, parameters=parameters, undone=back)


def complements(around: Around) -> Iterator[Change]:
    """A gate is taken for what is left of it."""
    if around.op == "sigmoid":
        x = around.tensors[0]
        edit = around.instead(made_by("neg.default", x), made_by("sigmoid.default", local(0)))
        said = "one less the sigmoid instead of it"
        yield Change("complement", "gate-formula", said, edit, 4.0, undone=said)


def _told(name: str) -> str:
    return {"gelu": "gelu (erf)", "gelu-tanh": "gelu (tanh)"}.get(name, name)


def operands(around: Around) -> Iterator[Change]:
    """One of two terms is left out, is there twice, or has the other sign; a factor is left out."""
    if around.kind not in "fi" or around.op not in ("add", "sub", "mul", "div", "addcmul", "rsub"):
        return
    tensors = around.tensors[:2]
    sums = around.op in ("add", "sub")
    for at, ref in enumerate(tensors if len(tensors) == 2 else ()):
        other = tensors[1 - at]
        term = f"the {('first', 'second')[at]} {_word(around)}"
        if sums or around.rerun.shape(other) == around.shape:
            kept: Edit = around.passing(other)
            if around.op == "sub" and at == 0:
                kept = around.instead(made_by("neg.default", other))
            if around.op == "div" and at == 0:
                kept = around.instead(made_by("reciprocal.default", other))
            label = left_out_label(around, at, ref, other) if sums else _without_factor(around)
            said = f"{term} is {'not added' if sums else 'left out'}{_of(around, ref)}"
            back, more = _more(around, ref, label)
            yield Change(f"without {at}", label, said, kept, 2.0, undone=back, undone_label=more)
        if sums:
            twice = "double-bias" if around.is_parameter(ref) and around.is_small(ref) else scaled_label(around, ref)
            ways = ((2.0, "is added twice", twice), (-1.0, "has the other sign", scaled_label(around, ref)))
            for factor, how, name in ways:
                edit, said = around.read_as(ref, made_by("mul.Tensor", ref, factor)), f"{term} {how}{_of(around, ref)}"
                yield Change(f"{how} {at}", name, said, edit, parameters={"factor": factor})
        elif around.is_parameter(ref) and around.is_small(ref) and around.op == "mul":
            edit, said = around.read_as(ref, made_by("add.Tensor", ref, 1.0)), "a gain w is applied as 1 + w"
            yield Change(f"plus one {at}", "norm-plus-one", said + _of(around, ref), edit)


def _more(around: Around, ref: Ref, label: str) -> tuple[str, str]:
    """How it is told, and what it is called, that the candidate has an operand more."""
    made = makers_of(around.rerun, ref, frozenset())
    does = {"add": "adds", "sub": "subtracts", "mul": "multiplies by", "div": "divides by"}.get(around.op, "has")
    is_masked = len(made) <= FEW_MAKERS and any(one.kind == "b" for one in made)
    term = ("a mask, " if is_masked else "") + expression(around.rerun, ref, frozenset(), FEW_DEEP)
    more = CHANGED if around.op in ("add", "sub") or around.rerun.shape(ref) else additional_label(around.op, around)
    if any(one.call.drawn is not None for one in made):
        more = "dropout-active"
    return f"the candidate {does} {term}, which the reference does not", "" if label in EITHER_WAY else more


def _word(around: Around) -> str:
    return {"add": "term of the sum", "sub": "term of the difference", "mul": "factor of the product",
            "div": "operand of the quotient"}.get(around.op, "operand")  # fmt: skip


def _of(around: Around, ref: Ref) -> str:
    source = around.source(ref)
    if source is None:
        maker = around.rerun.calls.get(ref.node)
        return (
            "" if maker is None or maker.op.split(".")[1] in MOVES else f" ({Around(around.rerun, ref.node).written})"
        )
    return f" ({'.'.join(part for part in (source.name, source.port) if part)})"


def _without_factor(around: Around) -> str:
    is_of_chosen = around.op == "div" and CHOOSING & around.before and "sum" in around.before
    return "router-renorm" if is_of_chosen else "skipped-op"


def gates(around: Around) -> Iterator[Change]:
    """act(a) * b written as a * act(b)."""
    if around.op != "mul" or len(around.tensors) != 2:
        return
    for at, ref in enumerate(around.tensors):
        maker = around.rerun.calls.get(ref.node)
        if maker is None or maker.op.split(".")[1] not in ACTIVATIONS or not maker.args or ref in around.rerun.given:
            continue
        source, other = maker.args[0], around.tensors[1 - at]
        if not isinstance(source, Ref):
            continue
        again = Call(maker.op, (other, *maker.args[1:]), maker.kwargs, ())
        edit = around.instead(again, made_by("mul.Tensor", source, local(0)))
        name = Around(around.rerun, ref.node).written
        yield Change(f"gate {at}", "swapped-operands", f"{name} is applied to the other factor", edit, 4.0)


def others(around: Around) -> Iterator[Change]:
    """Another operation that takes the same."""
    for op in LIKE.get(around.op, ()):
        name = op.split(".")[0]
        if name == around.op:
            continue
        edit = around.instead(Call(f"aten.{op}", around.call.args, around.call.kwargs, ()))
        label, bits = CHANGED, 4.0
        if name in ("mul", "div"):
            label, bits = ("op-order", 4.0) if len(around.tensors) > 1 else (factor_label(around), 6.0)
        if around.op in ("round", "floor", "ceil", "trunc"):
            label = "rounding-mode"
        if around.op in ("lt", "le", "gt", "ge"):
            label = _of_comparisons(around)
        if around.op in ("add", "sub"):
            label = scaled_label(around, around.tensors[-1])
        parameters = {"rounding": name} if label == "rounding-mode" else {"operation": name}
        said, back = f"{name} instead of {around.written}", f"{around.written} instead of {name}"
        yield Change(name, label, said, edit, bits, parameters=parameters, undone=back)


def _of_comparisons(around: Around) -> str:
    if not around.of_scores:
        return CHANGED
    return "window-off-by-one" if {"sub", "add", "rsub"} & around.before else "mask-off-by-one"


def swaps(around: Around) -> Iterator[Change]:
    """Two arguments of one shape are exchanged."""
    if around.op in SYMMETRIC or around.op in MOVES or (around.op == "lerp" and len(around.tensors) == 2):
        return
    args = around.call.args
    places = [at for at, one in enumerate(args) if isinstance(one, Ref)]
    for at, one in enumerate(places):
        for other in places[at + 1 :]:
            if around.rerun.shape(args[one]) != around.rerun.shape(args[other]):
                continue
            now = list(args)
            now[one], now[other] = now[other], now[one]
            edit = around.instead(Call(around.call.op, tuple(now), around.call.kwargs, ()))
            said = f"arguments {one} and {other} of {around.written} are exchanged"
            label = swapped_label(around, args[one], args[other])
            yield Change(f"swap {one} {other}", label, said, edit, 4.0)


def skipped(around: Around) -> Iterator[Change]:
    """The call is not made: what it works on is passed on."""
    if around.kind != "f" or around.op in MOVES or not around.tensors:
        return
    source = around.tensors[0]
    if around.rerun.shape(source) != around.shape or around.rerun.kind(source) != "f":
        return
    if len(around.tensors) == 2 and around.op not in PASSED_ON:
        return
    if around.op in ("add", "sub", "mul", "div") and any(constants(around)):
        return  # another number there
    said, back = f"{around.written} is not applied", f"{around.written} is applied, which the reference does not do"
    more = additional_label(around.op, around)
    yield Change("skipped", skipped_label(around), said, around.passing(source), 2.0, undone=back, undone_label=more)


TABLE = (operands, activations, complements, gates, others, swaps, skipped)
