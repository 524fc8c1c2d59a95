"""Kernels, borders, pools and sizes of images, taken otherwise; and matrices, which are kernels of one element."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations, islice, product
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from .view import Rewrite, Rewrites, View

MODES = ("nearest", "nearest-exact", "linear", "bilinear", "bicubic", "area", "trilinear")
MOST_PADS = 64  # ways to divide padding between two ends
BORDERS = ("reflect", "replicate", "circular", "constant")


def convolutions(view: View) -> Iterator[Rewrite]:
    """Without bias or with two, with a kernel turned or padded otherwise."""
    weight, bias = view.argument(1, "weight"), view.argument(2, "bias")
    if isinstance(bias, torch.Tensor):
        zero = torch.zeros_like(bias)
        yield Rewrite("unbiased", "missing-bias", "the bias is not added", view.changed(bias=(2, zero)))
        yield Rewrite("twice", "double-bias", "the bias is added twice", view.changed(bias=(2, 2 * bias)))
    if view.call.name == "linear":
        if weight.shape[0] == weight.shape[1]:
            yield Rewrite("transposed", "transpose", "the matrix is transposed", view.changed(weight=(1, weight.mT)))
        return
    axes = range(2, weight.dim())
    for some in (some for count in range(1, len(axes) + 1) for some in combinations(axes, count)):
        said = f"the kernel is flipped along axis {' and '.join(map(str, some))}"
        yield Rewrite(f"flip {some}", "conv-flip", said, view.changed(weight=(1, weight.flip(some))))
    if len(axes) == 2 and weight.shape[2] == weight.shape[3]:
        yield Rewrite("turned", "conv-flip", "the kernel is transposed", view.changed(weight=(1, weight.mT)))
    if weight.shape[0] == weight.shape[1]:
        said, turned = "channels in and out are exchanged", weight.transpose(0, 1)
        yield Rewrite("channels", "conv-layout", said, view.changed(weight=(1, turned)))
    said, read = "the kernel is read in another order of axes", weight.movedim(1, -1).reshape(weight.shape)
    yield Rewrite("layout", "conv-layout", said, view.changed(weight=(1, read)))
    yield from _borders(view)


def _borders(view: View) -> Iterator[Rewrite]:
    given = view.argument(4, "padding", 0)
    count = view.tensors[0].dim() - 2
    sizes = [given] * count if isinstance(given, int) else given
    if isinstance(sizes, str) or not any(sizes):
        return
    unpadded = view.changed(padding=(4, 0))

    def padded(by: int, mode: str) -> Any:
        amounts = [one for size in reversed(sizes) for one in (size + by, size - by)]
        return lambda x, *a, **k: unpadded(F.pad(x, amounts, mode=mode), *a, **k)

    for mode in BORDERS[:-1]:
        yield Rewrite(mode, "padding", f"borders are padded by {mode}", padded(0, mode))
    for by in (1, -1):
        yield Rewrite(f"by {by}", "padding", "padded more on one side than on the other", padded(by, "constant"))


def pads(view: View) -> Iterator[Rewrite]:
    """Padded elsewhere, or with something else."""
    amounts = list(view.argument(1, "pad"))
    sums = [amounts[at] + amounts[at + 1] for at in range(0, len(amounts), 2)]
    for firsts in islice(product(*(range(one + 1) for one in sums)), MOST_PADS):
        now = [size for first, both in zip(firsts, sums, strict=True) for size in (first, both - first)]
        if now != amounts:
            said = f"padded by {now} instead of {amounts}"
            yield Rewrite(
                f"pad {now}",
                "padding",
                said,
                view.changed(pad=(1, now)),
                parameters={"pad": now, "reference_pad": amounts},
            )
    for mode in BORDERS:
        yield Rewrite(
            mode, "padding", f"padded by {mode}", lambda *a, mode_=mode, **_: F.pad(a[0], amounts, mode=mode_)
        )


def resizes(view: View) -> Iterator[Rewrite]:
    """Resized in another mode, with other corners, with or without a filter."""
    size = tuple(view.result.shape[2:])
    for mode in MODES:
        for corners in (None, True, False):
            for smooth in (False, True):
                said = f"resized by {mode}{'' if corners is None else f', align_corners={corners}'}"
                said += ", antialiased" if smooth else ""
                named = {"mode": mode, "align_corners": corners, "antialias": smooth}
                change = lambda *a, named_=named, **_: F.interpolate(a[0], size=size, **named_)  # noqa: E731
                yield Rewrite(said, "interpolation", said, change, parameters=named)


def pools(view: View) -> Iterator[Rewrite]:
    """Maximum for average, borders counted or not."""
    name = view.call.name
    is_average = name.startswith("avg")
    kernel, stride, padding = (
        view.argument(at, key) for at, key in ((1, "kernel_size"), (2, "stride"), (3, "padding"))
    )
    other = f"{'max' if is_average else 'avg'}{name[3:]}"
    func, border = getattr(F, other), padding or 0
    yield Rewrite(
        "other", "pool-mode", f"{other} instead of {name}", lambda *a, **_: func(a[0], kernel, stride, border)
    )
    for counted in (False, True) if is_average else ():
        said = "borders are counted" if counted else "borders are not counted"
        change = lambda *a, counted_=counted, **_: getattr(F, name)(  # noqa: E731
            a[0], kernel, stride, border, count_include_pad=counted_
        )
        yield Rewrite(said, "pool-count-pad", said, change)


TABLE: Mapping[str, tuple[Rewrites, ...]] = {
    **dict.fromkeys(("linear", "conv1d", "conv2d", "conv3d"), (convolutions,)),
    **dict.fromkeys(("max_pool1d", "max_pool2d", "avg_pool1d", "avg_pool2d"), (pools,)),
    "pad": (pads,),
    "interpolate": (resizes,),
}
