"""Larger operations made otherwise: reductions, norms, kernels, borders, pools, sizes of images, losses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, islice, product
from math import prod

from ...program.calls import Call, Ref
from ...program.edits import local, made_by
from ..naming import NORMS, ROOTS, axes_label
from ..one_program.around import Around, Change

SQUARES = frozenset({"square", "pow", "mul"})
MOST_PADS = 64  # ways to divide padding between two ends
REDUCTIONS: Mapping[str, str] = {
    "mean": "mean.dim",
    "sum": "sum.dim_IntList",
    "amax": "amax.default",
    "amin": "amin.default",
}


def reductions(around: Around) -> Iterator[Change]:
    """Another reduction over the same axes, or one in groups of the last."""
    known = around.op in (*REDUCTIONS, "max", "logsumexp", "topk")
    if not known or len(around.call.results) != 1 or not around.tensors:
        return
    x = around.tensors[0]
    shape = around.rerun.shape(x)
    axes = [axis for axis, size in enumerate(shape) if axis >= len(around.shape) or around.shape[axis] != size]
    given = around.settings.get("dim")
    dims = given.value if given is not None else tuple(range(len(shape)))
    dims = (dims,) if isinstance(dims, int) else tuple(dims or range(len(shape)))
    keep = len(around.shape) == len(shape)
    for name, op in REDUCTIONS.items():
        if name != around.op and around.kind == "f":
            label = "pool-mode" if "amax" in (name, around.op) and len(shape) == 4 else _scale_of(around, name)
            edit = around.instead(made_by(op, x, dims, keep))
            yield Change(name, label, f"{name} instead of {around.written}", edit, 4.0, parameters={"operation": name})
    if around.op == "mean" and SQUARES & around.preceding:
        yield from _by_one_less(around, prod(shape[axis] for axis in (dim % len(shape) for dim in dims)))
    if keep and axes == [len(shape) - 1] and around.op in ("mean", "sum", "amax") and around.kind == "f":
        yield from _in_groups(around, x, shape)


def _by_one_less(around: Around, count: int) -> Iterator[Change]:
    """A mean of squares is divided by one less than there are."""
    if count > 1:
        edit = around.then("mul.Tensor", count / (count - 1))
        said = f"the sum of {count} squares is divided by {count - 1}"
        back = f"the sum of {count} squares is divided by {count} instead of {count - 1}"
        yield Change("one less", "batchnorm-unbiased", said, edit, 4.0, undone=back)


def _scale_of(around: Around, name: str) -> str:
    if around.shape == () and {name, around.op} == {"mean", "sum"}:
        return "reduction-scale"
    return "scale" if {name, around.op} == {"mean", "sum"} else "changed-call"


def _in_groups(around: Around, x: Ref, shape: Sequence[int]) -> Iterator[Change]:
    size = shape[-1]
    for groups in (number for number in range(2, size // 2 + 1) if size % number == 0):
        parts = (*shape[:-1], groups, size // groups)
        edit = around.instead(
            made_by("reshape.default", x, parts), made_by(REDUCTIONS[around.op], local(0), (-1,), True),
            made_by("expand.default", local(1), parts), made_by("reshape.default", local(2), tuple(shape)),
            results=(local(3),),
        )  # fmt: skip
        said = f"{around.written} runs over {groups} groups of the last axis"
        yield Change(f"groups {groups}", axes_label(around), said, edit, 6.0, parameters={"groups": groups})


def norms(around: Around) -> Iterator[Change]:
    """Normalised in groups of the last axis, without the mean's subtraction, or with the batch's statistics."""
    if around.op not in NORMS:
        return
    x = around.tensors[0]
    if around.op == "native_layer_norm":
        shape, size = around.rerun.shape(x), around.rerun.shape(x)[-1]
        _, _, weight, bias, eps = around.call.args
        for groups in (number for number in range(2, size // 2 + 1) if size % number == 0):
            parts = (*shape[:-1], groups, size // groups)
            calls = [made_by("reshape.default", x, parts),
                     made_by("native_layer_norm.default", local(0), (size // groups,), None, None, eps),
                     made_by("reshape.default", local(1), tuple(shape))]  # fmt: skip
            for op, one in (("mul.Tensor", weight), ("add.Tensor", bias)):
                if one is not None:
                    calls.append(made_by(op, local(len(calls) - 1), one))
            said = f"the last axis is normalised in {groups} groups"
            edit = around.instead(*calls, results=(local(len(calls) - 1),))
            yield Change(f"groups {groups}", "norm-axis", said, edit, 6.0, parameters={"groups": groups})
        yield from _by_hand(around, x, tuple(shape), tuple(range(len(shape) - len(around.call.args[1]), len(shape))),
                            (weight, bias), eps)  # fmt: skip
    if around.op == "native_group_norm":
        yield from _grouped(around, x)
    if around.op in ("native_batch_norm", "_native_batch_norm_legit_no_training"):
        args = around.call.args
        training = around.op == "native_batch_norm" and bool(args[5])
        edit = around.instead(
            made_by("native_batch_norm.default", *args[:5], not training, *args[-2:]), results=(local(0),)
        )
        said = "running statistics in training" if training else "batch statistics in eval"
        yield Change("mode", "batchnorm-mode", said, edit, 3.0)


def centred(around: Around) -> Iterator[Change]:
    """What a root mean square is taken of has its mean subtracted."""
    squared = {"pow", "square", "mul"} & around.following and "mean" in around.after
    if around.kind == "f" and len(around.shape) > 1 and squared and ROOTS & around.after:
        mean = made_by("mean.dim", local(0), (-1,), True)
        edit = around.instead(around.call, mean, made_by("sub.Tensor", local(0), local(1)))
        said = f"what {around.written} gives has its mean over the last axis subtracted"
        yield Change("centred", "rms-vs-layernorm", said, edit, 5.0)


def _grouped(around: Around, x: Ref) -> Iterator[Change]:
    """Groups of neighbours, or of channels that are as far apart as there are groups."""
    shape = around.rerun.shape(x)
    _, weight, bias, _, channels, _, groups, eps = around.call.args
    assert isinstance(channels, int)
    assert isinstance(groups, int)
    one = (1, -1, *(1,) * (len(shape) - 2))
    gains = tuple(None if ref is None else made_by("reshape.default", ref, one) for ref in (weight, bias))
    rest, size = shape[2:], channels // groups
    near, far = (shape[0], groups, size, *rest), (shape[0], size, groups, *rest)
    spatial = tuple(range(3, len(near)))
    yield from _by_hand(around, x, near, (2, *spatial), gains, eps)
    if 1 < groups < channels:
        said = f"channel i belongs to group i mod {groups} instead of to its neighbours'"
        edit = around.instead(*_normed(x, far, (1, *spatial), shape, gains, eps, "norm"))
        yield Change("interleaved groups", "norm-axis", said, edit, 4.0, parameters={"groups": groups})


WAYS = (
    ("rms", "rms-vs-layernorm", "the mean is not subtracted"),
    ("outside", "norm-eps-placement", "eps is added to the root instead of under it"),
    ("unbiased", "batchnorm-unbiased", "the variance is divided by one less than there are"),
)


def _by_hand(
    around: Around, x: Ref, parts: tuple[int, ...], axes: tuple[int, ...], gains: tuple[object, ...], eps: object
) -> Iterator[Change]:  # fmt: skip
    """A norm by its formula, made otherwise in one step."""
    shape = tuple(around.rerun.shape(x))
    for way, label, said in WAYS:
        yield Change(way, label, said, around.instead(*_normed(x, parts, axes, shape, gains, eps, way)), 4.0)


def _normed(
    x: Ref, parts: tuple[int, ...], axes: tuple[int, ...], shape: tuple[int, ...], gains: tuple[object, ...],
    eps: object, way: str,
) -> list[Call]:  # fmt: skip
    """The calls of a norm over some axes of a tensor seen in parts, with its gains."""
    calls = [made_by("reshape.default", x, parts)]

    def add(op: str, *args: object) -> Ref:
        calls.append(made_by(op, *args))
        return local(len(calls) - 1)

    seen = local(0)
    seen = seen if way == "rms" else add("sub.Tensor", seen, add("mean.dim", seen, axes, True))
    square = add("mul.Tensor", seen, seen)
    count = prod(parts[axis] for axis in axes)
    variance = add("mean.dim", square, axes, True)
    variance = add("mul.Tensor", variance, count / (count - 1)) if way == "unbiased" and count > 1 else variance
    if way == "outside":
        root = add("add.Tensor", add("sqrt.default", variance), eps)
    else:
        root = add("sqrt.default", add("add.Tensor", variance, eps))
    made = add("reshape.default", add("div.Tensor", seen, root), shape)
    for op, gain in zip(("mul.Tensor", "add.Tensor"), gains, strict=True):
        if isinstance(gain, Call):
            calls.append(gain)
            gain = local(len(calls) - 1)
        made = made if gain is None else add(op, made, gain)
    return calls


def kernels(around: Around) -> Iterator[Change]:
    """A kernel turned or read in another order of axes; a bias left out or twice; borders padded otherwise."""
    place = {"convolution": 2, "addmm": 0}.get(around.op)
    bias = None if place is None else around.call.args[place]
    if isinstance(bias, Ref):
        nothing, twice = made_by("zeros_like.default", bias), made_by("mul.Tensor", bias, 2.0)
        yield Change("unbiased", "missing-bias", "the bias is not added", around.read_as(bias, nothing), 2.0)
        yield Change("twice", "double-bias", "the bias is added twice", around.read_as(bias, twice))
    if around.op == "convolution":
        weight = around.tensors[1]
        for label, said, calls in _turned_kernels(weight, around.rerun.shape(weight)):
            yield Change(said, label, said, around.read_as(weight, *calls), 3.0 + len(calls))
        yield from _borders(around, around.tensors[0])


def _turned_kernels(weight: Ref, shape: Sequence[int]) -> Iterator[tuple[str, str, list[Call]]]:
    """The label, the sentence and the calls of every way to read a kernel otherwise."""
    axes = range(2, len(shape))
    for some in (some for count in range(1, len(axes) + 1) for some in combinations(axes, count)):
        said = f"the kernel is flipped along axis {' and '.join(map(str, some))}"
        yield "conv-flip", said, [made_by("flip.default", weight, some)]
    turned = {"the kernel is transposed": (0, 1, 3, 2), "channels in and out are exchanged": (1, 0, *axes)}
    for said, order in turned.items():
        if len(order) == len(shape) and tuple(shape[one] for one in order) == shape:
            label = "conv-flip" if order[0] == 0 else "conv-layout"
            yield label, said, [made_by("permute.default", weight, order)]
    read = [made_by("permute.default", weight, (0, *axes, 1)), made_by("reshape.default", local(0), shape)]
    yield "conv-layout", "the kernel is read in another order of axes", read


def _borders(around: Around, x: Ref) -> Iterator[Change]:
    sizes = around.call.args[4]
    assert isinstance(sizes, tuple | list)
    if not any(sizes) or around.call.args[6]:
        return
    unpadded = (*around.call.args[1:4], (0,) * len(sizes), *around.call.args[5:])
    again = Call(around.call.op, (local(0), *unpadded), {}, ())
    even = tuple(int(size) for one in reversed(sizes) for size in (one, one))
    for mode in ("reflect", "replicate", "circular"):
        edit = around.instead(made_by("pad.default", x, even, mode), again)
        yield Change(mode, "padding", f"borders are padded by {mode}", edit)
    for by in (1, -1):
        uneven = tuple(size + (by if at % 2 == 0 else -by) for at, size in enumerate(even))
        edit = around.instead(made_by("constant_pad_nd.default", x, uneven), again)
        yield Change(f"by {by}", "padding", "padded more on one side than on the other", edit)


def pads(around: Around) -> Iterator[Change]:
    """Padded elsewhere, or with something else."""
    if "pad" not in around.op or len(around.call.args) < 2:
        return
    x, amounts = around.call.args[:2]
    assert isinstance(amounts, tuple | list)
    sizes = [int(amount) for amount in amounts]
    sums = [sizes[at] + sizes[at + 1] for at in range(0, len(sizes), 2)]
    for firsts in islice(product(*(range(number + 1) for number in sums)), MOST_PADS):
        now = tuple(size for first, both in zip(firsts, sums, strict=True) for size in (first, both - first))
        if list(now) != sizes:
            edit = around.given(1, now)
            yield Change(f"pad {now}", "padding", f"padded by {list(now)} instead of {sizes}", edit, 5.0,
                         parameters={"pad": list(now), "reference_pad": sizes})  # fmt: skip
    yield from _shifts(around, sizes)
    for mode in ("reflect", "replicate", "circular", "constant"):
        edit = around.instead(made_by("pad.default", x, tuple(sizes), mode))
        yield Change(mode, "padding", f"padded by {mode}", edit, 4.0)


def _shifts(around: Around, sizes: Sequence[int]) -> Iterator[Change]:
    """What is added at one end is taken away at the other: a shift, of another length or to the other side."""
    for at in range(0, len(sizes), 2):
        if sizes[at] != -sizes[at + 1] or not sizes[at]:
            continue
        for by in (-sizes[at], 2 * sizes[at], 0):
            now = (*sizes[:at], by, -by, *sizes[at + 2 :])
            said = f"what is read is shifted by {by} instead of {sizes[at]}"
            edit = around.given(1, now)
            yield Change(f"shift {by}", "index-shift", said, edit, 4.0, parameters={"shift": by - sizes[at]})


def resizes(around: Around) -> Iterator[Change]:
    """Resized in another mode, with other corners."""
    if not around.op.startswith(("upsample", "_upsample")) or len(around.shape) != 4:
        return
    x, size = around.tensors[0], around.shape[2:]
    ways = {
        "nearest": made_by("upsample_nearest2d.default", x, size),
        "nearest-exact": made_by("_upsample_nearest_exact2d.default", x, size),
        "area": made_by("_adaptive_avg_pool2d.default", x, size),
    }
    for corners in (False, True):
        for mode in ("bilinear", "bicubic"):
            ways[f"{mode}, align_corners={corners}"] = made_by(f"upsample_{mode}2d.default", x, size, corners)
    for mode in ("bilinear", "bicubic"):
        ways[f"{mode}, antialiased"] = made_by(f"_upsample_{mode}2d_aa.default", x, size, False)
    for name, call in ways.items():
        named = {
            "mode": name.split(",")[0],
            "align_corners": name.endswith("True"),
            "antialias": name.endswith("aliased"),
        }
        yield Change(name, "interpolation", f"resized by {name}", around.instead(call), 4.0, parameters=named)


def pools(around: Around) -> Iterator[Change]:
    """Maximum for average, borders counted or not."""
    if around.op in ("avg_pool2d", "max_pool2d_with_indices"):
        window = around.call.args[:4]
        other = "max_pool2d_with_indices" if around.op == "avg_pool2d" else "avg_pool2d"
        edit = around.instead(made_by(f"{other}.default", *window), results=(local(0),))
        yield Change("other", "pool-mode", f"{other.split('_with')[0]} instead of {around.written}", edit, 3.0)
    if around.op in ("_adaptive_avg_pool2d", "mean", "amax") and len(around.rerun.shape(around.tensors[0])) == 4:
        x, size = around.tensors[0], around.shape[2:]
        if len(size) == 2 and around.op == "_adaptive_avg_pool2d":
            edit = around.instead(made_by("adaptive_max_pool2d.default", x, size), results=(local(0),))
            yield Change("other", "pool-mode", "maximum instead of average", edit, 3.0)


def losses(around: Around) -> Iterator[Change]:
    """Against shifted labels, with smoothed ones, or without their weights."""
    if around.op not in ("nll_loss_forward", "nll_loss2d_forward"):
        return
    scores, target, weight, reduction, ignored = around.call.args[:5]
    for by in (1, -1):
        edit = around.instead(made_by("roll.default", target, (by,), (-1,)),
                              Call(around.call.op, (scores, local(0), weight, reduction, ignored), {}, ()))  # fmt: skip
        yield Change(f"labels {by}", "label-shift", f"labels are shifted by {by}", edit, 4.0, parameters={"shift": by})
    if weight is not None:
        edit = around.given(2, None)
        yield Change("unweighted", "loss-formula", "the weights of classes are not used", edit, 3.0)


TABLE = (reductions, norms, centred, kernels, pads, resizes, pools, losses)
