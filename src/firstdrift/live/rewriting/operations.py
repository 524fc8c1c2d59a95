"""Larger operations, called otherwise: norms, reductions, masks, casts, losses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import combinations
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from .view import SOFTMAX, Rewrite, Rewrites, View

NORMS = ("layer_norm", "rms_norm", "group_norm", "batch_norm", "instance_norm", "normalize")
ROOTS = frozenset({"sqrt", "rsqrt", "pow"})
STRICT: Mapping[str, Callable[..., Any]] = {"lt": torch.le, "le": torch.lt, "gt": torch.ge, "ge": torch.gt}
CONDITIONS = ("__and__", "logical_and", "__or__", "logical_or")
OFFSETS = frozenset({"sub", "add", "__rsub__"})


def norms(view: View) -> Iterator[Rewrite]:
    """Over other channels, or with the other statistics."""
    source, name = view.tensors[0], view.call.name
    if name == "group_norm":
        channels = source.shape[1]
        for groups in (one for one in range(1, channels + 1) if channels % one == 0):
            said = f"normalised in {groups} groups instead of {view.argument(1, 'num_groups')}"
            yield Rewrite(f"groups {groups}", "norm-axis", said, view.changed(num_groups=(1, groups)))
    if name in ("layer_norm", "rms_norm"):
        yield from _other_groups(view, source.shape[-1])
    if name == "rms_norm":
        said = "LayerNorm instead of RMS: the mean is subtracted"
        yield Rewrite(
            "mean", "rms-vs-layernorm", said, lambda x, *a, **k: view.call.func(x - x.mean(-1, True), *a, **k)
        )
    if name == "batch_norm":
        training = bool(view.argument(5, "training", False))
        said = "running statistics in training" if training else "batch statistics in eval"
        yield Rewrite("mode", "batchnorm-mode", said, _in_mode(view, not training))


def _other_groups(view: View, size: int) -> Iterator[Rewrite]:
    """The last axis in groups, each normalised by itself, before the gain is applied."""
    weight, bias = view.argument(2, "weight"), view.argument(3, "bias") if view.call.name == "layer_norm" else None
    for groups in (one for one in range(2, size // 2 + 1) if size % one == 0):

        def call(x: Any, *_: Any, groups: int = groups, **__: Any) -> Any:
            parts = x.reshape(*x.shape[:-1], groups, -1)
            made = view.call.func(parts, parts.shape[-1:], eps=view.argument(4 if bias is not None else 3, "eps", 1e-5))
            made = made.reshape(x.shape) if weight is None else made.reshape(x.shape) * weight
            return made if bias is None else made + bias

        yield Rewrite(f"groups {groups}", "norm-axis", f"the last axis is normalised in {groups} groups", call)


def _in_mode(view: View, training: bool) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        names = ("running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
        named = {**dict(zip(names, args[1:], strict=False)), **kwargs, "training": training}
        kept = {key: one.clone() if key in names[:2] and one is not None else one for key, one in named.items()}
        return F.batch_norm(args[0], **kept)

    return call


def reductions(view: View) -> Iterator[Rewrite]:
    """Over other axes, more or fewer; a mean instead of a sum or a maximum."""
    source, name, axes = view.tensors[0], view.call.name, view.argument(1, "dim")
    keep = view.result.dim() == source.dim()
    if axes is None:
        return
    several = isinstance(axes, tuple | list)
    for count in range(1, source.dim() + 1) if keep and several else (len(axes) if several else 1,):
        for other in combinations(range(source.dim()), count):
            said = f"{name} runs over axis {' and '.join(map(str, other))}"
            yield Rewrite(
                f"axes {other}", _axes_label(view), said, view.changed(dim=(1, other if several else other[0]))
            )
    if keep and not several and name in ("mean", "sum", "amax", "norm"):
        for other in combinations(range(source.dim()), 2):
            said = f"{name} runs over axes {other[0]} and {other[1]}"
            yield Rewrite(f"axes {other}", _axes_label(view), said, view.changed(dim=(1, other)))
    if keep and name in ("mean", "sum", "amax") and axes in (-1, source.dim() - 1, (-1,), [-1]):
        yield from _in_groups(view, source.shape[-1])
    instead = {"mean": torch.mean, "sum": torch.sum, "amax": torch.amax}
    for other_name, func in instead.items() if name in instead else ():
        if other_name != name:
            label = "pool-mode" if "amax" in (name, other_name) else "scale"
            said = f"{other_name} instead of {name}"
            yield Rewrite(other_name, label, said, lambda *a, func_=func, **_: func_(a[0], axes, keepdim=keep))
    for by, told in ((0, "n"), (1, "n - 1")) if name in ("var", "std") else ():
        func = torch.var if name == "var" else torch.std
        yield Rewrite(
            told, "batchnorm-unbiased", f"the variance is divided by {told}",
            lambda *a, by_=by, func_=func, **_: func_(a[0], axes, correction=by_, keepdim=keep),
        )  # fmt: skip


def _in_groups(view: View, size: int) -> Iterator[Rewrite]:
    """The last axis in groups, each reduced by itself."""
    for groups in (one for one in range(2, size // 2 + 1) if size % one == 0):

        def call(x: Any, *args: Any, groups: int = groups, **kwargs: Any) -> Any:
            parts = x.reshape(*x.shape[:-1], groups, -1)
            return view.call.func(parts, *args, **kwargs).expand(parts.shape).reshape(x.shape)

        said = f"{view.call.name} runs over {groups} groups of the last axis"
        yield Rewrite(f"groups {groups}", _axes_label(view), said, call)


def _axes_label(view: View) -> str:
    if "topk" in view.before and "div" in view.next:
        return "router-renorm"
    normalises = view.call.name in SOFTMAX or ROOTS & view.after or {"div", "sub"} & view.next
    return "norm-axis" if normalises else "axis-order"


def renormalised(view: View) -> Iterator[Rewrite]:
    """What was chosen among many is made to sum to one."""
    label = "router-renorm" if {"topk", "gather", "sort"} & (view.before | {view.call.name}) else "norm-axis"

    def call(*args: Any, **kwargs: Any) -> Any:
        made = view.call.func(*args, **kwargs)
        first = made if isinstance(made, torch.Tensor) else made[0]
        scaled = first / first.sum(-1, keepdim=True)
        return scaled if first is made else (scaled, *made[1:])

    yield Rewrite("renormalised", label, f"what {view.call.name} gives is made to sum to one", call)


def masks(view: View) -> Iterator[Rewrite]:
    """A mask is ignored or inverted."""
    name = view.call.name
    label = "mask-missing" if SOFTMAX & view.after else "skipped-op"
    if name.startswith("masked_fill"):
        yield Rewrite("unmasked", label, "the mask is not applied", lambda *a, **_: a[0] + 0)
        yield Rewrite("inverted", label, "the mask is inverted", lambda *a, **_: a[0].masked_fill(~a[1], a[2]))
    if name == "where" and len(view.given[0]) == 3:
        whole = torch.zeros_like(view.result)
        yield Rewrite("first", label, "the condition is taken to hold everywhere", lambda *a, **_: a[1] + whole)
        yield Rewrite("second", label, "the condition is taken to hold nowhere", lambda *a, **_: a[2] + whole)
        said = "both branches are exchanged"
        yield Rewrite("exchanged", "swapped-operands", said, lambda *a, **_: torch.where(~a[0], a[1], a[2]))
    if view.result.dtype == torch.bool:
        placed = "position-shift" if view.in_tables or "embedding" in view.after else label
        for kept, told in ((torch.ones_like, "everywhere"), (torch.zeros_like, "nowhere")):
            said = f"{name} is taken to hold {told}"
            yield Rewrite(told, placed, said, lambda *_, kept_=kept, **__: kept_(view.result))
    if name in CONDITIONS:
        for at in (0, 1):
            said = f"the {('first', 'second')[at]} of two conditions is ignored"
            yield Rewrite(f"without {at}", label, said, lambda *a, at_=at, **_: a[1 - at_].expand(view.result.shape))


def diagonals(view: View) -> Iterator[Rewrite]:
    """A mask begins or ends one further."""
    name, scored = view.call.name, SOFTMAX & view.after
    if name in STRICT:
        off = "window-off-by-one" if OFFSETS & view.before else "mask-off-by-one"
        said = f"{STRICT[name].__name__} instead of {name}"
        yield Rewrite("strict", off if scored else "index-shift", said, lambda *a, **_: STRICT[name](a[0], a[1]))
        return
    diagonal = view.argument(1, "diagonal", 0)
    rows, columns = view.result.shape[-2:]
    for other in {diagonal + 1, diagonal - 1, diagonal + 2, diagonal - 2, columns - rows} - {diagonal}:
        label = "window-off-by-one" if abs(diagonal) > 1 else "mask-off-by-one"
        said = f"the diagonal of the mask is {other} instead of {diagonal}"
        change = view.changed(diagonal=(1, other))
        yield Rewrite(
            f"diagonal {other - diagonal}",
            label,
            said,
            change,
            parameters={"diagonal": other, "reference_diagonal": diagonal},
        )
    said = "the mask is not cut at the diagonal"
    yield Rewrite("whole", "mask-missing" if scored else "skipped-op", said, lambda *a, **_: a[0] | True)


def casts(view: View) -> Iterator[Rewrite]:
    """A type that the reference casts to is not used."""
    source = view.tensors[0]
    if source.dtype == torch.bool:
        label = "position-shift" if view.in_tables or "embedding" in view.after else "mask-missing"
        yield Rewrite(
            "ones", label, "the mask is taken to hold everywhere", lambda *_, **__: torch.ones_like(view.result)
        )
    if source.is_floating_point() and view.result.is_floating_point() and source.dtype != view.result.dtype:
        said = f"not cast to {str(view.result.dtype).removeprefix('torch.')}"
        yield Rewrite("uncast", "dtype-rounding", said, lambda *a, **_: a[0] + 0)


def losses(view: View) -> Iterator[Rewrite]:
    """Summed instead of averaged, or against shifted labels."""
    reduction = view.given[1].get("reduction", "mean")
    other = "sum" if reduction == "mean" else "mean"
    said = f"{other} instead of {reduction}"
    yield Rewrite(other, "reduction-scale", said, lambda *a, **k: view.call.func(*a, **{**k, "reduction": other}))
    for by in (1, -1):
        said = f"labels are shifted by {by}"
        change = lambda x, y, *a, by_=by, **k: view.call.func(x, y.roll(by_, -1), *a, **k)  # noqa: E731
        yield Rewrite(f"labels {by}", "label-shift", said, change)


TABLE: Mapping[str, tuple[Rewrites, ...]] = {
    **dict.fromkeys(NORMS, (norms,)),
    **dict.fromkeys(("mean", "sum", "amax", "log_softmax", "var", "std", "norm", "cumsum"), (reductions,)),
    "softmax": (reductions, renormalised),
    **dict.fromkeys(("topk", "gather"), (renormalised,)),
    **dict.fromkeys(("masked_fill", "masked_fill_", "where", "eq", "ne", *CONDITIONS), (masks,)),
    **dict.fromkeys(STRICT, (diagonals, masks)),
    **dict.fromkeys(("tril", "triu"), (diagonals,)),
    **dict.fromkeys(("to", "float", "half", "bfloat16", "type", "type_as", "long", "int"), (casts,)),
    **dict.fromkeys(("cross_entropy", "mse_loss", "nll_loss", "binary_cross_entropy_with_logits", "l1_loss", "kl_div"),
                    (losses,)),
}  # fmt: skip
