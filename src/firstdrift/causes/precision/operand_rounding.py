"""What an operation reads is rounded first, on one side: to be seen where the operation can be computed again."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ...dtypes import numpy_dtype
from ...traces import Array
from .. import formulas
from ..agreement import Floats, distance, floats, limit
from ..evidence import Evidence
from ..hypotheses import Finding, Hypothesis
from ..norm import norm_precision

DTYPES = ("bf16", "f16")
EPS = (1e-5, 1e-6, 1e-8, 1e-12)
PIECEWISE = ("identity", "relu", "relu6")  # of a rounded input these are rounded outputs, which are seen as such
ROWS = 64  # rows on which a formula is tried

Formula = Callable[[Floats], Floats]


def rounded_operand(evidence: Evidence) -> Iterator[Finding]:
    """One side rounds its input to a shorter float. Where it is the reference, the reference is the suspect."""
    x, y = evidence.inputs.get("in.0"), evidence.candidate_inputs.get("in.0")
    shape = evidence.expected.shape
    if evidence.site.phase != "fwd" or x is None or y is None or len(shape) < 2 or x.shape[:-1] != shape[:-1]:
        return
    if x.shape != y.shape or x.dtype.kind != "f":
        return
    ours, theirs, expected, found = (_rows(one) for one in (x, y, evidence.expected, evidence.found))
    if distance(expected, found) > 4 * 2.0**-8:  # more than bfloat16 makes of an input
        return
    for name, formula in _formulas(evidence, x.shape[-1]):
        reference_is_exact = distance(formula(ours), expected) <= limit(evidence)
        candidate_is_exact = distance(formula(theirs), found) <= limit(evidence)
        if reference_is_exact == candidate_is_exact:
            continue
        for dtype in DTYPES:
            if reference_is_exact and distance(formula(_cast(theirs, dtype)), found) <= limit(evidence):
                whole = formula(_cast(floats(y), dtype))
                yield Finding(
                    "dtype-rounding", f"the input of {name} is rounded to {dtype}", whole, 0, {"dtype": dtype}
                )
                return
            if candidate_is_exact and distance(formula(_cast(ours, dtype)), expected) <= limit(evidence):
                said = f"the candidate's {name} is that of float64, and the reference rounds its input to {dtype}"
                yield Finding("reference-suspect", said, formula(floats(y)), 0, {"dtype": dtype})
                return


def _rows(array: Array) -> Floats:
    return floats(array.reshape(-1, array.shape[-1])[:ROWS])


def _cast(values: Floats, dtype: str) -> Floats:
    return np.asarray(values.astype(numpy_dtype(dtype)), np.float64)


def _formulas(evidence: Evidence, width: int) -> Iterator[tuple[str, Formula]]:
    """What may have been computed row by row, from the parameters at hand; without any, activations and softmax."""
    weight, bias = (evidence.candidate_parameters.get(key) for key in ("weight", "bias"))
    if weight is not None and bias is not None and bias.shape != weight.shape[:1]:
        return  # a norm over several axes, which is not computed row by row
    if weight is not None and weight.shape == (width,):
        told = evidence.attrs.get("eps")
        for eps in (told,) if isinstance(told, float) else EPS:
            yield "an RMS norm", lambda x, eps=eps: formulas.rms_norm(x, floats(weight), eps)  # type: ignore[misc]
            offset = None if bias is None else floats(bias)
            yield "a layer norm", lambda x, eps=eps, b=offset: formulas.layer_norm(x, (width,), floats(weight), b, eps)  # type: ignore[misc]
    if weight is not None and weight.ndim == 2 and weight.shape == (evidence.expected.shape[-1], width):
        yield "a matrix product", lambda x: formulas.linear(x, floats(weight), None if bias is None else floats(bias))
    if not evidence.parameters and evidence.expected.shape[-1] == width:
        yield "the softmax", _softmax
        yield from ((f"the {name}", one) for name, one in formulas.ACTIVATIONS.items() if name not in PIECEWISE)


def _softmax(x: Floats) -> Floats:
    with np.errstate(all="ignore"):
        powers = np.exp(x - x.max(-1, keepdims=True))
        return np.asarray(powers / powers.sum(-1, keepdims=True))


HYPOTHESES: tuple[Hypothesis, ...] = (rounded_operand, *norm_precision.HYPOTHESES)
