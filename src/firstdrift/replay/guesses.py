"""Which operations may have made a tensor: by what the run calls its module, and by shapes where it says nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations, product
from math import prod

from ..causes.formulas import ACTIVATIONS
from ..strict_json import Json
from . import activations, dense, moving, normalisation, pooling, recurrent
from .operation import Operation

Sizes = tuple[int, ...]

# Every eps in common use, the machine epsilons that are defaults among them.
EPS = (1e-5, 1e-6, 1e-12, 1e-8, 1e-3, 1e-7, 2.0**-23, 2.0**-7, 2.0**-10, 0.0)
KERNELS = range(2, 8)
STRIDES = (1, 2, 3, 4, 8)
DILATIONS = (1, 2, 4, 8)
MOST_AXES = 4  # that are tried in every order


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a tensor before its numbers are looked at."""

    shape: Sizes
    inputs: Sequence[Sizes]
    parameters: Mapping[str, Sizes]
    op: str = ""
    attrs: Mapping[str, Json] = field(default_factory=dict)
    port: str = "out"


def by_class(facts: Facts) -> Iterator[Operation]:
    """Operations that the recorded class and settings name."""
    op, attrs = facts.op.lower(), facts.attrs
    if not facts.inputs:
        return
    x, y = facts.inputs[0], facts.shape
    if re.fullmatch(r"conv[123]d", op) and "stride" in attrs:
        yield from _conv(attrs, x, y, facts.parameters)
    elif re.fullmatch(r"convtranspose[123]d", op):
        yield from _conv_transposed(attrs, len(x) - 2)
    elif op in ("lstm", "gru", "rnn") and "mode" in attrs and facts.port in recurrent.OUTPUTS:
        yield from _recurrent(attrs, facts.port)
    elif "batchnorm" in op:
        own = bool(attrs.get("training")) or "running_mean" not in facts.parameters
        yield from (normalisation.batch_norm(eps=eps, training=own) for eps in _eps(attrs))
    elif "instancenorm" in op and len(x) > 2:
        yield from (normalisation.group_norm(groups=x[1], eps=eps) for eps in _eps(attrs))
    elif op == "groupnorm" and "num_groups" in attrs:
        yield from (normalisation.group_norm(groups=int(attrs["num_groups"]), eps=eps) for eps in _eps(attrs))
    elif "pool" in op:
        yield from _pools_by_class(op, attrs, x, y)
    elif op in ("softmax", "softmin", "logsoftmax") and x:
        axis = attrs.get("dim")
        yield activations.softmax(axis=len(x) - 1 if axis is None else int(axis) % len(x), log=op == "logsoftmax")
    else:
        yield from _activation_by_class(op, attrs)


def by_shape(facts: Facts) -> Iterator[Operation]:
    """Operations that the shapes of inputs, parameters and output allow; the plainest first."""
    if len(facts.inputs) > 1:
        yield from _joins(facts)
        return
    if not facts.inputs:
        return
    x, y, ports = facts.inputs[0], facts.shape, facts.parameters
    weight = ports.get("weight")
    if "running_mean" in ports and x == y:
        for training in (False, True):
            yield from (normalisation.batch_norm(eps=eps, training=training) for eps in _eps(facts.attrs))
    if weight is not None:
        yield from _products(x, y, ports)
        if x == y:
            yield from _norms(x, weight, facts.attrs)
        return
    if x == y:
        yield moving.reshaped(y[1:])
        yield from _functions(x)
        yield from _norms(x, None, facts.attrs)
    yield from _moves(x, y)
    yield from _pools(x, y)


def _eps(attrs: Mapping[str, Json]) -> Sequence[float]:
    said = next((attrs[key] for key in ("eps", "variance_epsilon", "epsilon") if key in attrs), None)
    return (float(said),) if isinstance(said, int | float) else EPS


def _sizes(said: Json, axes: int) -> Sizes:
    found = tuple(int(one) for one in said) if isinstance(said, list | tuple) else (int(said),)
    return found * axes if len(found) == 1 else found


def _conv(attrs: Mapping[str, Json], x: Sizes, y: Sizes, parameters: Mapping[str, Sizes]) -> Iterator[Operation]:
    axes = len(x) - 2
    stride, dilation = _sizes(attrs["stride"], axes), _sizes(attrs.get("dilation", 1), axes)
    kernel, padding = parameters.get("weight", x)[2:], attrs.get("padding", 0)
    if len(kernel) != axes or axes < 1:
        return
    if isinstance(padding, str):  # `same` pads the odd element behind
        total = [d * (k - 1) if padding == "same" else 0 for d, k in zip(dilation, kernel, strict=True)]
        before = tuple(t // 2 for t in total)
    else:
        before = _sizes(padding, axes)
    groups, mode = int(attrs.get("groups", 1)), str(attrs.get("padding_mode", "zeros"))
    yield dense.conv(stride=stride, padding=before, dilation=dilation, groups=groups, mode=mode, out=y[2:])


def _conv_transposed(attrs: Mapping[str, Json], axes: int) -> Iterator[Operation]:
    said = {key: _sizes(attrs.get(key, default), axes) for key, default in
            (("stride", 1), ("padding", 0), ("dilation", 1), ("output_padding", 0))}  # fmt: skip
    yield dense.conv_transposed(**said, groups=int(attrs.get("groups", 1)))


def _recurrent(attrs: Mapping[str, Json], port: str) -> Iterator[Operation]:
    mode = str(attrs["mode"])
    if mode in recurrent.STEPS and not attrs.get("proj_size") and not (attrs.get("dropout") and attrs.get("training")):
        yield recurrent.recurrent(
            mode=mode, layers=int(attrs.get("num_layers", 1)), both_ways=bool(attrs.get("bidirectional")),
            batch_first=bool(attrs.get("batch_first")), output=recurrent.OUTPUTS[port],
        )  # fmt: skip


def _activation_by_class(op: str, attrs: Mapping[str, Json]) -> Iterator[Operation]:
    if op == "gelu":
        yield activations.plain("gelu_tanh" if attrs.get("approximate") == "tanh" else "gelu")
    elif op == "leakyrelu":
        yield activations.leaky_relu(float(attrs.get("negative_slope", 0.01)))
    elif op == "elu":
        yield activations.elu(float(attrs.get("alpha", 1.0)))
    elif op == "softplus":
        yield activations.softplus(float(attrs.get("beta", 1.0)), float(attrs.get("threshold", 20.0)))
    elif op == "hardtanh":
        yield activations.clipped(float(attrs.get("min_val", -1.0)), float(attrs.get("max_val", 1.0)))
    elif op in (plain := {name.replace("_", ""): name for name in ACTIVATIONS}):
        yield activations.plain(plain[op])


def _pools_by_class(op: str, attrs: Mapping[str, Json], x: Sizes, y: Sizes) -> Iterator[Operation]:
    largest = "max" in op
    if "adaptive" in op:
        axes = int(op[-2]) if op[-2:-1].isdigit() else len(y) - 2
        yield pooling.bins(largest=largest, size=y[-axes:])
    elif "kernel_size" in attrs and op[-2:-1].isdigit():
        axes = int(op[-2])
        kernel = _sizes(attrs["kernel_size"], axes)
        yield pooling.pool(
            largest=largest, kernel=kernel, stride=_sizes(attrs.get("stride") or list(kernel), axes),
            padding=_sizes(attrs.get("padding", 0), axes), dilation=_sizes(attrs.get("dilation", 1), axes),
            ceil=bool(attrs.get("ceil_mode")), count_padding=bool(attrs.get("count_include_pad", True)),
        )  # fmt: skip


def _products(x: Sizes, y: Sizes, ports: Mapping[str, Sizes]) -> Iterator[Operation]:
    weight = ports["weight"]
    if len(weight) == 2 and x:
        if y == (*x[:-1], weight[0]) and x[-1] == weight[1]:
            yield dense.linear()
        if y == (*x[:-1], weight[1]) and x[-1] == weight[0]:
            yield dense.linear(transposed=True)
        if y == (*x, weight[1]):
            yield dense.embedding()
            yield dense.embedding(scale=weight[1] ** 0.5)
    if len(weight) == len(x) == len(y) > 2 and x[0] == y[0] and y[1] == weight[0] and x[1] % weight[1] == 0:
        for stride, dilation in product(STRIDES, DILATIONS):
            yield from _convs(x[2:], y[2:], weight[2:], stride, dilation, x[1] // weight[1])


def _convs(size: Sizes, found: Sizes, kernel: Sizes, stride: int, dilation: int, groups: int) -> Iterator[Operation]:
    """Convolutions of a stride and dilation whose padding, alike on both sides, gives the output's size."""
    choices = []
    for n, m, k in zip(size, found, kernel, strict=True):
        reach = dilation * (k - 1) + 1
        choices.append([p for p in range(reach) if n + 2 * p >= reach and (n + 2 * p - reach) // stride + 1 == m])
    for padding in product(*choices):
        axes = len(kernel)
        yield dense.conv(stride=(stride,) * axes, padding=padding, dilation=(dilation,) * axes, groups=groups)


def _norms(x: Sizes, weight: Sizes | None, attrs: Mapping[str, Json]) -> Iterator[Operation]:
    eps = _eps(attrs)
    axes = 1 if weight is None else len(weight)
    if x and (weight is None or x[-axes:] == weight):
        yield from (normalisation.layer_norm(axes=axes, eps=one) for one in eps)
        for plus_one in (False, True)[: 1 if weight is None else 2]:
            yield from (normalisation.rms_norm(axes=axes, eps=one, plus_one=plus_one) for one in eps)
    if len(x) > 1 and (weight is None or weight == x[1:2]):
        yield from (normalisation.batch_norm(eps=one, training=True) for one in eps)
        if len(x) > 2:
            groups = [count for count in range(1, x[1] + 1) if x[1] % count == 0]
            yield from (normalisation.group_norm(groups=count, eps=one) for count in groups for one in eps[:3])


def _functions(x: Sizes) -> Iterator[Operation]:
    yield from (activations.plain(name) for name in ACTIVATIONS if name not in ("identity", "leaky_relu", "elu"))
    yield from (activations.leaky_relu(slope) for slope in (0.01, 0.1, 0.2, 0.3))
    yield activations.elu(1.0)
    for axis in reversed(range(len(x))):
        yield activations.softmax(axis=axis)
        yield activations.softmax(axis=axis, log=True)


def _moves(x: Sizes, y: Sizes) -> Iterator[Operation]:
    """The same numbers in another arrangement, or some of them."""
    if x == y or not x:
        return
    if prod(x) == prod(y):
        yield moving.reshaped(y[1:]) if y and x[0] == y[0] else moving.anew(y)
        if len(x) <= MOST_AXES:
            for axes in list(permutations(range(len(x))))[1:]:
                moved = tuple(x[axis] for axis in axes)
                if y and moved[0] == y[0]:
                    yield moving.reshaped(y[1:], axes)
    for axis, n in enumerate(x):
        if (*x[:axis], *x[axis + 1 :]) == y:
            yield moving.selected(axis, n - 1)
            yield moving.selected(axis, 0)
            yield moving.mean(axis)
        if len(x) == len(y) and (*x[:axis], *x[axis + 1 :]) == (*y[:axis], *y[axis + 1 :]) and 0 < y[axis] < n:
            starts = [*range(0, n - y[axis] + 1, y[axis]), n - y[axis]]
            yield from (moving.part(axis, start, start + y[axis]) for start in dict.fromkeys(starts))


def _pools(x: Sizes, y: Sizes) -> Iterator[Operation]:
    if len(x) < 3 or x[:2] != y[:2] or x == y:
        return
    size, found = x[2:], y[2:] or (1,) * (len(x) - 2)
    if len(found) != len(size):
        return
    axes = len(size)
    for largest in (True, False):
        for kernel, padding, ceil in product(KERNELS, range(4), (False, True)):
            for stride in range(1, kernel + 1):
                said = (kernel,) * axes, (stride,) * axes, (padding,) * axes
                if padding > kernel // 2 or min(size) + 2 * padding < kernel:
                    continue
                if pooling.pool_size(size, *said, ceil=ceil) != found:
                    continue
                for counted in (True, False)[: 1 if largest or not padding else 2]:
                    yield pooling.pool(
                        largest=largest, kernel=said[0], stride=said[1], padding=said[2], ceil=ceil,
                        count_padding=counted,
                    )  # fmt: skip
        if y == (*x[:2], *found):
            yield pooling.bins(largest=largest, size=found)


def _joins(facts: Facts) -> Iterator[Operation]:
    """Sums, products and joins of several tensors."""
    inputs, y = facts.inputs, facts.shape
    if all(_broadcasts(shape, y) for shape in inputs):
        alike = all(shape == y for shape in inputs)
        yield moving.added((1.0,) * len(inputs), rows=alike)
        if len(inputs) == 2:
            yield moving.multiplied(rows=alike)
            yield moving.added((1.0, -1.0), rows=alike)
            yield moving.added((-1.0, 1.0), rows=alike)
    for axis, n in enumerate(y):
        rest = (*y[:axis], *y[axis + 1 :])
        fits = all(len(shape) == len(y) and (*shape[:axis], *shape[axis + 1 :]) == rest for shape in inputs)
        if fits and sum(shape[axis] for shape in inputs) == n:
            yield moving.joined(axis)


def _broadcasts(shape: Sizes, onto: Sizes) -> bool:
    ends = zip(reversed(shape), reversed(onto), strict=False)
    return len(shape) <= len(onto) and all(a in (1, b) for a, b in ends)
