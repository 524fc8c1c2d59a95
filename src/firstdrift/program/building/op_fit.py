"""Which operation of the library made a tensor that names none: the first that reproduces it on all its elements, with
the constants that do so best.

Asked for one site at a time, where a doubt asks for it. What is tried, and in which order, follows from the shapes
alone; the number of trials is bounded, so that the answer does not depend on the machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, permutations, product
from math import inf, prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...core.arrays import wide
from ...core.records import Record
from ...core.sites import Site
from ...core.strict_json import Json
from ...core.traces import Trace
from ...errors import FirstdriftError
from ..calls import Step
from ..interpreter import NotReplayableError
from ..library import Steps
from ..operations.function_formulas import ACTIVATIONS
from ..operations.known_operations import named
from ..operations.op_table import Operation
from ..running.calling import FAILURES
from ..torch_values import lifted, tensor_of
from .library_forward import OUTPUTS, Building, OpSpec, as_many
from .reproduction import APART, left_of, why_not

Sizes = tuple[int, ...]
Trial = tuple[str, dict[str, Json]]
MOST_TRIALS = 512
EARLIER = 12  # tensors before the last one that a chain without recorded producers may have read
MOST_AXES = 4  # that are tried in every order
# Every eps in common use, the machine epsilons that are defaults among them.
EPS = (1e-5, 1e-6, 1e-12, 1e-8, 1e-3, 1e-7, 2.0**-23, 2.0**-7, 2.0**-10, 0.0)
KERNELS = range(2, 8)
HEADS = frozenset({*(1 << n for n in range(1, 9)), 40, 48, 56, 72, 80, 88, 96, 112, 144, 160, 192})  # their sizes
MOST_GROUPS = 4096
MOST_STARTS = 16
DILATIONS = (1, 2, 4, 8)
SCREENED = 1 << 22  # elements of all that an operation reads and makes, up to which its formula is tried first
FAR = 2 * APART  # of its norm: a formula that leaves so much of a tensor did not make it
PRODUCTS = frozenset({named("Linear"), named("MatMul"), named("Gemm")})  # of which a weight may lie either way


def fit(trace: Trace, site: Site) -> OpSpec | None:
    """The operation that made a forward tensor; None if nothing in the library reproduces it."""
    if site not in trace or trace[site].at is None or site.phase != "fwd":
        return None
    try:
        numbers = np.asarray(trace.array(site))
    except FirstdriftError:
        return None
    if numbers.size < 2 or (numbers == numbers.flat[0]).all():
        return None  # many operations give nothing but zeros
    best, least = None, inf
    steps = Steps(trace)
    formulas = _Formulas(trace, trace[site], steps.building(site.step))
    for reads, trial in islice(_trials(formulas.building, trace[site]), MOST_TRIALS):
        spec = OpSpec(*trial, reads)
        if best is not None and (best.op, best.reads) != (spec.op, spec.reads):
            break
        left = _left(steps, trace[site], spec) if formulas.may_have_made(spec) else None
        if left is not None and left < least:
            best, least = spec, left
    return best


class _Formulas:
    """Formulas on what was recorded: most are so far from a tensor that nobody needs to know the calls they make."""

    def __init__(self, trace: Trace, record: Record, building: Building) -> None:
        self.building = building
        self._trace, self._record = trace, record
        self._weights = building.weights_of(record)
        self._recorded = wide(trace.array(record.site))
        self._tensors: dict[Site, torch.Tensor] = {}

    def may_have_made(self, spec: OpSpec) -> bool:
        """Whether an operation gives about what was recorded; true also of what is too large to try."""
        operation = named(spec.op)
        assert operation is not None
        try:
            inputs = as_many(operation, spec.reads or ())
            sites = (*inputs, *(site for _, site in self._weights))
            if sum(prod(self.building.type(one).shape) for one in (*sites, self._record.site)) > SCREENED:
                return True
            settings, _ = operation.settled(spec.attrs)
            given = [self._tensor(one) for one in sites]
            made = self._made(operation, settings, len(inputs), given)
        except (NotReplayableError, FirstdriftError, *FAILURES):
            return False
        return not made.is_floating_point() or self._is_near(made.double().numpy())

    def _made(self, operation: Operation, settings: dict[str, Any], inputs: int, given: list[torch.Tensor]) -> Any:
        record = self._record
        assert record.shape is not None
        assert record.dtype is not None
        ports = [port for port, _ in self._weights]
        at = OUTPUTS.get(record.site.port, 0)
        with torch.no_grad():
            return operation.function(settings, inputs, ports, record.shape, record.dtype, at)(given)

    def _is_near(self, made: NDArray[np.float64]) -> bool:
        finite = np.isfinite(self._recorded)
        with np.errstate(all="ignore"):
            off = np.linalg.norm(made[finite] - self._recorded[finite])
        return bool(off <= FAR * np.linalg.norm(self._recorded[finite]))

    def _tensor(self, site: Site) -> torch.Tensor:
        if site not in self._tensors:
            self._tensors[site] = lifted(tensor_of(self._trace.array(site)))
        return self._tensors[site]


def _left(steps: Steps, record: Record, spec: OpSpec) -> float | None:
    """What an operation leaves of a tensor that it reproduces; None where it does not."""
    building = steps.building(record.site.step)
    try:
        building.place(record, spec, spec.reads or (), building.weights_of(record))
    except NotReplayableError:
        return None
    step = Step(record.site.step, tuple(building.nodes), (), building.sites)
    return None if why_not(steps.trace, step, record.site) is not None else left_of(steps.trace, step, record.site)


def _trials(building: Building, record: Record) -> Iterator[tuple[tuple[Site, ...], Trial]]:
    """What it may have read, with what may have been made of it."""
    weights = {port: building.type(site).shape for port, site in building.weights_of(record)}
    assert record.shape is not None
    for reads in _reads(building, record):
        shapes = [building.type(read).shape for read in reads]
        tried = _of_several(shapes, record.shape) if len(reads) > 1 else _of_one(shapes[0], record.shape, weights)
        fitting = {repr(one): one for trial in tried if (one := _as_said(record, *trial)) is not None}
        yield from ((reads, trial) for trial in fitting.values())


def _as_said(record: Record, op: str, attrs: dict[str, Json]) -> Trial | None:
    """A trial with the settings that a record has, if it may be what the record names: that with settings of which it
    says nothing, or a product with its weight turned. What the library has no name for may be anything."""
    said, tried = named(record.op or ""), named(op)
    if said is None or said is not tried:
        return (op, attrs) if said is None or {said, tried} <= PRODUCTS else None
    known = {
        setting.names[0]
        for setting in said.settings
        if any(record.attrs.get(name) is not None for name in setting.names)
    }
    return op, {**record.attrs, **{name: value for name, value in attrs.items() if name not in known}}


def _reads(building: Building, record: Record) -> Iterator[tuple[Site, ...]]:
    """What is on record, then, in a chain, the last tensor with one before it, and each of those alone."""
    try:
        found = tuple(building.reads(record))
    except NotReplayableError:
        found = ()
    if found:
        yield found
    if len(found) > 1:
        yield found[:1]
    if record.producers is not None or len(found) > 1:
        return
    before = building.chain(record)[::-1][:EARLIER]
    same = [site for site in before if prod(building.type(site).shape) == prod(record.shape or ())]
    yield from ((same[0], site) for site in same[1:])
    yield from _attended(building, record, before)
    yield from ((site,) for site in before if (site,) != found)


def _attended(building: Building, record: Record, before: Sequence[Site]) -> Iterator[tuple[Site, ...]]:
    """Query, key and value: the last three tensors of as many tokens; the value also before the other two, which were
    turned by their positions."""
    tokens = (record.shape or ())[:-1]
    last = [site for site in before if tokens and building.type(site).shape[:-1] == tokens][:3]
    if len(last) == 3 and not building.weights_of(record):
        third, second, first = last
        yield from ((first, second, third), (second, third, first))


def _of_several(shapes: Sequence[Sizes], y: Sizes) -> Iterator[Trial]:
    """Sums, products and joins."""
    yield "Add", {}
    yield "Mul", {}
    if len(shapes) == 2:
        yield from (("Sub", {}), ("Div", {}), ("MatMul", {}))
    if len(shapes) >= 3:
        yield from _attentions(shapes, y)
    yield from (
        ("Concat", {"dim": axis}) for axis, n in enumerate(y) if sum(s[axis] for s in shapes if len(s) > axis) == n
    )


def _attentions(shapes: Sequence[Sizes], y: Sizes) -> Iterator[Trial]:
    """With heads on an axis of their own, and with all heads of a token beside each other."""
    query, key, value = shapes[:3]
    together = [n for n in range(2, query[-1] + 1) if query[-1] % n == 0 and query[-1] // n in HEADS]
    fitting = [n for n in together if key[-1] % (query[-1] // n) == 0 and y[-1] * key[-1] == value[-1] * query[-1]]
    for heads, causal in product([None, *fitting], (False, True)):
        yield "ScaledDotProductAttention", {"is_causal": causal, **({} if heads is None else {"heads": heads})}


def _of_one(x: Sizes, y: Sizes, weights: Mapping[str, Sizes]) -> Iterator[Trial]:
    weight = weights.get("weight") or weights.get("kernel")
    if weight is not None:
        yield from _with_weight(x, y, weight, weights)
        return
    if prod(x) == prod(y):
        yield "Reshape", {}
    if x == y:
        yield from _functions(x)
    yield from _moves(x, y)
    yield from _pools(x, y)
    if weights or x != y:
        return
    yield from _norms(x, None)


def _with_weight(x: Sizes, y: Sizes, weight: Sizes, weights: Mapping[str, Sizes]) -> Iterator[Trial]:
    if len(weight) == 2 and x:
        yield from (("Linear", {}), ("MatMul", {}), ("Embedding", {}), ("Embedding", {"scale": weight[1] ** 0.5}))
    if len(weight) == len(x) == len(y) > 2 and weight[1] and x[1] % weight[1] == 0:
        yield from (("Conv", {"groups": x[1] // weight[1], "dilation": number}) for number in DILATIONS)
    if x == y:
        if "running_mean" in weights:
            yield from (("BatchNorm", {"eps": eps, "training": own}) for own in (False, True) for eps in EPS)
        yield from _norms(x, weight)
        yield "PReLU", {}


def _norms(x: Sizes, weight: Sizes | None) -> Iterator[Trial]:
    if x and (weight is None or x[-len(weight) :] == weight):
        yield from (("LayerNorm", {"eps": eps}) for eps in EPS)
        yield from (("RMSNorm", {"eps": eps, "offset": more}) for more in (0.0, 1.0) for eps in EPS)
    if len(x) > 1 and (weight is None or weight == x[1:2]):
        yield from (("BatchNorm", {"eps": eps, "training": True}) for eps in EPS)
        groups = [count for count in range(1, min(x[1], MOST_GROUPS) + 1) if x[1] % count == 0]
        yield from (("GroupNorm", {"num_groups": count, "eps": eps}) for count in groups for eps in EPS[:3])


def _functions(x: Sizes) -> Iterator[Trial]:
    yield from ((name, {}) for name in ACTIVATIONS if name not in ("Identity", "Swish"))
    yield from (("GELU", {"approximate": how}) for how in ("none", "tanh"))
    yield from (("LeakyReLU", {"negative_slope": slope}) for slope in (0.01, 0.1, 0.2, 0.3))
    yield from (("ELU", {}), ("Softplus", {}), ("Hardtanh", {}))
    for axis in reversed(range(len(x))):
        yield from ((name, {"dim": axis}) for name in ("Softmax", "LogSoftmax"))


def _moves(x: Sizes, y: Sizes) -> Iterator[Trial]:
    """The same numbers in another arrangement, some of them, or their mean."""
    if prod(x) == prod(y) and 1 < len(x) <= MOST_AXES:
        yield from (("Transpose", {"perm": list(axes)}) for axes in islice(permutations(range(len(x))), 1, None))
    for axis, n in enumerate(x):
        if (*x[:axis], *x[axis + 1 :]) == y and n:
            yield from (("Select", {"dim": axis, "index": at}) for at in (n - 1, 0))
            yield "Mean", {"dim": [axis]}
        if len(x) == len(y) and (*x[:axis], *x[axis + 1 :]) == (*y[:axis], *y[axis + 1 :]) and 0 < y[axis] < n:
            starts = dict.fromkeys([*range(0, n - y[axis] + 1, y[axis])[:MOST_STARTS], n - y[axis]])
            yield from (("Slice", {"dim": axis, "start": at, "end": at + y[axis]}) for at in starts)


def _pools(x: Sizes, y: Sizes) -> Iterator[Trial]:
    if len(x) < 3 or x[:2] != y[:2] or x == y:
        return
    if len(y) == len(x):
        yield from (("MaxPool", {}), ("AvgPool", {}))
    yield from (("AdaptiveAvgPool1d", {}), ("AdaptiveMaxPool1d", {}))
    for kernel, padding, ceil in product(KERNELS, range(4), (False, True)) if len(y) == len(x) else ():
        for stride in range(1, kernel + 1):
            if all((n + 2 * padding - kernel + (stride - 1 if ceil else 0)) // stride + 1 == m
                   for n, m in zip(x[2:], y[2:], strict=True)) and 2 * padding <= kernel:  # fmt: skip
                said: dict[str, Json] = {"kernel_size": kernel, "stride": stride, "padding": padding, "ceil_mode": ceil}
                yield "MaxPool", said
                yield from (("AvgPool", {**said, "count_include_pad": c}) for c in (True, False)[: 1 + bool(padding)])
