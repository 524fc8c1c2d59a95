"""From a change and what surrounds it to the label of the vocabulary: the one table of names.

Where none fits, the change itself is the answer: CHANGED.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..program.calls import Call, Ref, reads
from ..program.reruns import Rerun
from .one_program.around import (
    ATTENTION,
    JOINS,
    LOW,
    MIXING,
    MOVES,
    SOFTMAX,
    Around,
    are_positions,
    base,
    cosines,
    is_mask,
    number,
)

CHANGED = "changed-call"
ROOTS = frozenset({"rsqrt", "sqrt", "pow", "reciprocal"})
CHOOSING = frozenset({"topk", "gather", "sort", "max"})
NORMS = frozenset({
    "native_layer_norm", "native_group_norm", "native_batch_norm", "_native_batch_norm_legit",
    "_native_batch_norm_legit_no_training", "rms_norm", "_fused_rms_norm", "cudnn_batch_norm",
})  # fmt: skip
NORMALISE = frozenset({"normalize", "layer_norm", "rms_norm", "group_norm", "instance_norm"})
POOLS = frozenset({"max_pool2d_with_indices", "avg_pool2d", "avg_pool1d", "max_pool1d", "_adaptive_avg_pool2d"})
LOOKED_UP = frozenset({"index", "gather", "index_select", "index_put", "scatter", "nll_loss_forward"})
COMPARED = frozenset({"lt", "le", "gt", "ge", "eq", "ne", "tril", "triu"})
PROJECTIONS = frozenset({"convolution", "mm", "addmm", "bmm"})
RECURRENT = frozenset({"tanh", "sigmoid"})

# Settings whose name says what it is called if they are others.
SETTINGS: Mapping[str, str] = {
    "eps": "norm-eps", "momentum": "batchnorm-momentum", "training": "batchnorm-mode", "train": "batchnorm-mode",
    "group": "norm-axis", "align_corners": "interpolation", "scales_h": "interpolation", "scales_w": "interpolation",
    "count_include_pad": "pool-count-pad", "divisor_override": "pool-count-pad", "ceil_mode": "pool-mode",
    "approximate": "activation-variant", "is_causal": "mask-missing", "scale": "attention-scale",
    "reduction": "reduction-scale", "ignore_index": "loss-formula", "padding": "padding", "pad": "padding",
    "correction": "batchnorm-unbiased", "unbiased": "batchnorm-unbiased", "negative_slope": "activation-variant",
    "alpha": "activation-variant", "beta": "activation-variant", "threshold": "activation-variant",
}  # fmt: skip


def setting_label(around: Around, name: str) -> str:
    """What it is called if a setting that is no operand is another one."""
    if name in ("alpha", "beta") and around.op not in ("elu", "softplus", "celu"):
        if len(around.tensors) < 2:
            return added_label(around, 0.0)
        return scaled_label(around, around.tensors[-1])
    if name in ("dim", "dims"):
        return axes_label(around)
    if name == "diagonal":
        return position_label(around, abs(int(around.settings[name].value or 0)) > 1)
    if name in ("start", "end", "index", "step"):
        return _index_label(around)
    if name in ("min", "max"):
        return clamp_label(around)
    if name == "value" and "pad" in around.op:
        return "padding"
    if name == "other" and around.op in COMPARED:
        return position_label(around, abs(float(around.settings[name].value or 0)) > 1)
    if name in ("value", "fill_value", "exponent"):
        return CHANGED
    return SETTINGS.get(name, CHANGED)


def _index_label(around: Around) -> str:
    if around.op == "arange":
        return position_label(around, False)
    if around.tensors and around.source_ref(around.tensors[0]) in cosines(around.rerun):
        return "position-shift"
    return "position-shift" if around.op != "select" and _reads_table(around) else "index-shift"


def _reads_table(around: Around) -> bool:
    return bool(around.tensors) and around.is_parameter(around.tensors[0]) and len(around.shape) > 1


def position_label(around: Around, wide: bool) -> str:
    """What it is called if whole numbers are others: positions, or where a mask begins."""
    compared = COMPARED & (around.after | {around.op})
    if around.op not in COMPARED:
        behind = (one for one in around.behind(frozenset()) if one.op in COMPARED and not one.is_behind)
        wide = wide or any(_is_wide(one) for one in behind)
    if compared and around.of_scores and not around.in_tables and "embedding" not in around.after:
        return "window-off-by-one" if wide else "mask-off-by-one"
    if around.in_tables:
        return "position-shift"
    if "embedding" in around.after:
        return "position-shift" if are_positions(around.rerun, around.result) else "index-shift"
    if "round" in around.before | around.after:
        return "zero-point"
    return "index-shift" if LOOKED_UP & around.after else CHANGED


def _is_wide(around: Around) -> bool:
    """Whether a comparison is with more than one place further."""
    names = ("other", "diagonal")
    found = [number(around.settings[name].value) for name in names if name in around.settings]
    return any(value is not None and abs(value) > 1 for value in found)


def clamp_label(around: Around) -> str:
    """What it is called if a limit is another one."""
    is_of_norm = {"div", "mul"} & around.following and {"norm", "linalg_vector_norm"} & around.before
    return "norm-eps" if is_of_norm else "clamp"


def added_label(around: Around, value: float) -> str:
    """What it is called if a number that is added is another one."""
    if around.kind == "i":
        return position_label(around, abs(value) > 1)
    if value == 1 and any(around.is_parameter(ref) for ref in around.tensors):
        return "norm-plus-one"
    if ROOTS & around.following or (
        "div" in around.following and {"sqrt", "linalg_vector_norm", "std"} & around.before
    ):
        return "norm-eps"
    if around.in_tables:
        return "position-shift"
    return offset_label(around)


def offset_label(around: Around) -> str:
    """What it is called if something is added that is not there, or another number."""
    if "round" in around.after | around.before | {around.op}:
        return "zero-point"
    return "gate-formula" if "sigmoid" in around.following and "tanh" in around.after else "offset"


def factor_label(around: Around) -> str:
    """What a factor is called that is another one, or one too many."""
    if around.kind == "i":
        return position_label(around, False)
    if is_cap(around):
        return "softcap"
    if around.in_tables:
        return table_of_angles(around, "rope-theta" if {"pow", "exp"} & around.after else "rope-scaling")
    if around.is_bias_of_scores:
        return "alibi-slope"
    if CHOOSING & around.before and not around.of_scores:
        return "scale"
    return "attention-scale" if around.of_scores else "scale"


def is_cap(around: Around) -> bool:
    """Whether a number divides right before a tanh, or multiplies right behind it."""
    near = (around.following | around.preceding) - MOVES
    if around.op == "tanh":
        return bool(near & {"mul", "div"}) and not is_cell(around)
    return "tanh" in near and around.op in ("mul", "div") and not is_cell(around)


def power_label(around: Around) -> str:
    """What it is called if a base or an exponent is another one."""
    if around.is_bias_of_scores:
        return "alibi-slope"
    return table_of_angles(around, "rope-theta") if around.in_tables else CHANGED


def table_of_angles(around: Around, turned: str) -> str:
    """Tables of positions that are joined are added to something; those of a rotation stay two."""
    calls = around.rerun.calls
    behind = [Around(around.rerun, n) for n, call in calls.items() if call.op.split(".")[1] in ("cos", "sin")]
    mixed = any(other.op == "mul" and not other.is_behind for one in behind for other in one.behind(MIXING))
    return "frequency-table" if not mixed and any(JOINS & one.following for one in behind) else turned


def frequencies(rerun: Rerun) -> int:
    """How many different columns the angles have that cosines are taken of, without those of zeros."""
    taken = [call.args[0] for call in rerun.calls.values() if base(call) == "cos"]
    tables = [rerun.array(ref) for ref in taken if isinstance(ref, Ref) and len(rerun.shape(ref)) > 1]
    columns = [np.unique(table.reshape(-1, table.shape[-1]), axis=1).T for table in tables]
    return max((int(column.any(axis=1).sum()) for column in columns), default=0)


def left_out_label(around: Around, at: int, ref: Ref, other: Ref | None) -> str:
    """What it is called if a term is missing."""
    if around.kind == "f" and is_mask(around.array(ref)) and around.of_scores:
        return "mask-missing"
    if around.is_parameter(ref) and around.is_small(ref):
        return "missing-bias"
    maker = around.rerun.calls.get(ref.node)
    if maker is not None and maker.op.split(".")[1] == "mean" and at == 1:
        return "rms-vs-layernorm"
    if around.is_parameter(ref):
        return "missing-term"
    if other is not None and not around.of_scores and (around.depends(other, ref) or _is_shortcut(around, ref, other)):
        return "missing-residual"
    return "missing-term"


def _is_shortcut(around: Around, ref: Ref, other: Ref) -> bool:
    """Whether a term is a projection of what the other term was made of by more than one."""
    maker = around.rerun.step.nodes[ref.node]
    if not isinstance(maker, Call) or base(maker) not in PROJECTIONS or not (read := reads(maker)):
        return False
    source = read[1] if base(maker) == "addmm" else read[0]
    first = around.rerun.step.nodes[other.node]
    direct = isinstance(first, Call) and base(first) in PROJECTIONS and source in reads(first)
    return not direct and around.depends(other, source)


def scaled_label(around: Around, ref: Ref) -> str:
    """What it is called if a term counts otherwise."""
    maker = around.rerun.calls.get(ref.node)
    if maker is not None and Around(around.rerun, ref.node).is_bias_of_scores:
        return "alibi-slope"
    is_mask = around.of_scores and len(np.unique(around.array(ref))) == 2  # one number for what is hidden
    return "mask-missing" if is_mask else "scale"


def skipped_label(around: Around) -> str:
    """What it is called if an operation is not applied."""
    if around.op in NORMS or around.written in NORMALISE:
        return "norm-missing"
    if around.kind == "b":
        return mask_label(around)
    if is_cap(around):
        return "softcap"
    if around.op in ("clamp", "clamp_min", "clamp_max", "hardtanh"):
        return clamp_label(around)
    if around.op in ("add", "sub"):
        return added_label(around, 0.0)
    if around.op in ("masked_fill", "where") and around.of_scores:
        return "mask-missing"
    if around.op in ("mul", "div"):
        if CHOOSING & around.before and "sum" in around.before and around.op == "div":
            return "router-renorm"
        if any(around.is_parameter(ref) and len(around.rerun.shape(ref)) == 1 for ref in around.tensors):
            return "channel-scale"
        return factor_label(around)
    return "gate-formula" if is_cell(around) else "skipped-op"


def axes_label(around: Around) -> str:
    """What it is called if a reduction runs over other axes, or over parts of one."""
    if CHOOSING & around.before and "div" in around.following:
        return "router-renorm"
    normalises = around.op in SOFTMAX or ROOTS & around.after or {"div", "sub"} & around.following
    return "norm-axis" if normalises else "axis-order"


def mask_label(around: Around) -> str:
    """What it is called if a condition holds everywhere or nowhere."""
    if around.rerun.shape(around.rerun.target) == () and "sum" in around.following:
        return "reduction-scale"  # it counts what a loss is divided by
    if ATTENTION & around.reached(PROJECTIONS) or _hides(around):
        return "mask-missing"
    if around.in_tables and any(around.rerun.kind(ref) == "f" for ref in around.tensors):
        return table_of_angles(around, "rope-scaling")  # it is frequencies that are compared or chosen
    if around.in_tables or "embedding" in around.after:
        return "position-shift"
    return "skipped-op"


def _hides(around: Around) -> bool:
    """Whether something very low is put where a condition holds."""
    filled = [one.call.args[2] for one in around.behind(frozenset()) if one.op == "masked_fill"]
    return any((value := number(fill)) is not None and value <= LOW for fill in filled)


def merge_label(around: Around, sizes: tuple[int, ...]) -> str:
    """What it is called if axes are merged or split in another order."""
    if {"expand", "repeat"} & around.before and around.of_scores and _repeats(around):
        return "gqa-order"
    if 2 in sizes and around.is_rotation and len(sizes) == 2 and len(around.rerun.shape(around.tensors[0])) > 3:
        return "rope-interleave"
    if 3 in sizes and around.in_attention:
        return "qkv-order"
    return "head-permutation" if around.in_attention else "axis-order"


def _repeats(around: Around) -> bool:
    left = list(around.makers())
    while left:
        one = left.pop()
        if one.op in ("expand", "repeat") and one.tensors and one.rerun.shape(one.tensors[0]) != one.shape:
            return True
        left += one.makers() if one.op in ("clone", "expand", "_unsafe_view", "view") else ()
    return False


def parts_label(around: Around, count: int) -> str:
    """What it is called if parts are taken in another order."""
    if count == 2:
        return "swapped-halves"
    if around.after >= RECURRENT and not around.in_attention:
        return "gate-order"
    return "qkv-order" if around.in_attention and count == 3 else "gate-order"


def swapped_label(around: Around, one: Ref, other: Ref) -> str:
    """What it is called if two operands are exchanged: parts of one tensor are its blocks."""
    parted, too = around.parted(one), around.parted(other)
    if parted is None or too is None or parted.number != too.number:
        return "swapped-operands"
    return parts_label(parted, len(parted.call.results))


def interleave_label(around: Around) -> str:
    """What it is called if neighbours are taken for halves."""
    is_joined = table_of_angles(around, "") == "frequency-table"
    return "rope-interleave" if around.is_rotation and not is_joined else "interleave"


def table_label(around: Around) -> str:
    """What it is called if a small table holds other numbers."""
    if around.in_tables:
        return table_of_angles(around, "rope-scaling")
    return "alibi-slope" if around.is_bias_of_scores else "wrong-weight"


def order_label(around: Around, first: str) -> str:
    """What it is called if two neighbours are exchanged."""
    if {around.op, first} & ROOTS and "add" in (around.op, first):
        return "norm-eps-placement"
    if {around.op, first} == {"add", "div"} and "sqrt" in around.before and len(around.tensors) == 1:
        return "norm-eps-placement"
    return "axis-order" if around.op in ("view", "transpose", "permute") else "op-order"


def source_label(around: Around, old: Ref, new: Ref) -> str:
    """What it is called if a call reads another tensor."""
    if around.is_parameter(old) and around.is_parameter(new):
        return "transpose" if around.source(old) == around.source(new) else "weight-swap"
    both = old.node == new.node and old.node in around.rerun.calls and len(around.rerun.calls[old.node].results) > 1
    if both and (old in around.rerun.refs and old not in around.rerun.given):
        return parts_label(Around(around.rerun, old.node), len(around.rerun.calls[old.node].results))
    if is_cell(around):
        return "gate-formula"
    if around.op == "add" and not around.of_scores:
        return "residual-source"
    return CHANGED


def is_cell(around: Around) -> bool:
    """Whether sigmoids and a tanh are mixed, as recurrent cells mix them."""
    ops = {base(call) for call in around.rerun.calls.values()}
    return ops >= RECURRENT and not ATTENTION & ops


ACTIVATIONS = frozenset({
    "relu", "gelu", "silu", "sigmoid", "tanh", "leaky_relu", "elu", "softplus", "hardswish", "hardsigmoid", "hardtanh",
    "mish", "abs", "selu", "relu6", "softsign", "celu", "log_sigmoid_forward", "prelu",
})  # fmt: skip
RESIZES = frozenset({"upsample_nearest2d", "upsample_bilinear2d", "upsample_bicubic2d", "_upsample_nearest_exact2d"})
PADS = frozenset({
    "constant_pad_nd", "reflection_pad2d", "replication_pad2d", "reflection_pad1d", "replication_pad1d",
})  # fmt: skip
LOSSES = frozenset({"nll_loss_forward", "mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy"})
KINDS: tuple[tuple[frozenset[str], str], ...] = (
    (POOLS | {"mean", "amax", "max", "adaptive_max_pool2d", "_adaptive_avg_pool2d"}, "pool-mode"),
    (frozenset({"select", "mean"}), "pool-mode"), (frozenset({"relu", "clamp", "clamp_max"}), "clamp"),
    (ACTIVATIONS, "activation-variant"), (RESIZES, "interpolation"), (PADS, "padding"), (NORMS, "norm-axis"),
    (frozenset({"floor", "ceil", "round", "trunc"}), "rounding-mode"), (LOSSES, "loss-formula"),
)  # fmt: skip


def kind_label(one: str, other: str) -> str:
    """What it is called if one operation stands for another."""
    return next((label for ops, label in KINDS if one in ops and other in ops), CHANGED)


REDUCED = (frozenset({"amax", "max"}), frozenset({"amin", "min"}), frozenset({"sum", "mean"}))
FUNCTIONS = frozenset({
    "tan", "atan", "sinh", "asinh", "cosh", "acosh", "atanh", "asin", "acos", "erf", "erfc", "exp", "exp2", "expm1",
    "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "square", "reciprocal", "sign", "sgn", "neg",
})  # fmt: skip


def instead_label(around: Around, op: str) -> str:
    """What it is called if one call of another operation stands for one."""
    if around.op == op or any({around.op, op} <= alike and "mean" not in (around.op, op) for alike in REDUCED):
        return CHANGED if around.op == op else axes_label(around)
    if {around.op, op} == {"add", "sub"} and len(around.tensors) == 2:
        return scaled_label(around, around.tensors[1])
    if {around.op, op} == {"mul", "div"}:
        return "op-order"
    if {around.op, op} <= FUNCTIONS | ACTIVATIONS:
        return "activation-variant"
    return kind_label(around.op, op)


ADDED: Mapping[str, str] = {
    "clamp": "clamp", "clamp_min": "clamp", "clamp_max": "clamp", "hardtanh": "clamp", "tanh": "softcap",
    "native_dropout": "dropout-active", "bernoulli": "dropout-active", "neg": "scale",
}  # fmt: skip


# What a change in a backward pass is called as it is anywhere; all others make it another derivative.
OF_BACKWARD = frozenset({"dtype-rounding", "tied-gradient", "stale-buffer", "index-shift", "transpose", "call-count"})


IN_STEP: Mapping[str, str] = dict.fromkeys(("norm-eps", "norm-eps-placement"), "optimizer-eps")


def phase_label(label: str, phase: str) -> str:
    """What a change is called where it is one of a loss or of a backward pass, whose forward pass is right."""
    if phase == "loss" and label in (CHANGED, "activation-variant"):
        return "loss-formula"
    if phase in ("optim", "weight_after"):
        return IN_STEP.get(label, label)
    if phase == "grad" and label == "missing-term":
        return "tied-gradient"  # of a parameter's gradient the terms are its uses
    if phase == "agrad" and label in ("missing-term", "missing-residual"):
        return "gradient-missing"  # of an activation's, its readers
    if phase == "lossgrad" and label == "scale":
        return "gradient-scale"
    is_backward = phase in ("lossgrad", "agrad", "grad") and not label.startswith("gradient")
    return "gradient-formula" if is_backward and label not in OF_BACKWARD else label


def additional_label(op: str, around: Around) -> str:
    """What it is called if the candidate calls something that the reference does not; `around` is where."""
    if op in ("mul", "div"):
        return factor_label(around)
    return ADDED.get(op, CHANGED)


def more_label(around: Around) -> str:
    """What it is called if a module is handed what a call makes of what it should be handed."""
    if around.op in ("add", "sub"):
        return "offset" if len(around.tensors) == 1 else "residual-source"
    return "scale" if around.op in ("mul", "div") and len(around.tensors) == 1 else CHANGED
