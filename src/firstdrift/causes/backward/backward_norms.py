"""The backward passes of normalisations, right and as they are often mistaken."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ..agreement import Floats
from ..formulas import through_norm
from .backward_formulas import EPS, Backward, Formula, Known


@dataclass(frozen=True, slots=True)
class _Norm:
    """A norm over some axes, of groups of channels where there are groups, by given statistics or by its own."""

    axes: tuple[int, ...]
    eps: float
    centred: bool = True
    plus: float = 0.0  # on the weight
    groups: int = 0
    by_channel: bool = False
    running: bool = False

    def __call__(
        self, b: Backward, *, mean: bool = True, along: bool = True, gain: bool = True, rate: bool = True,
        last: bool = False, plus: float | None = None,
    ) -> Floats:  # fmt: skip
        """The gradient before the norm, with terms left out."""
        weight = b.parameter("weight")
        if weight is not None and self.by_channel:
            weight = weight.reshape(-1, *[1] * (b.value.ndim - 2))
        factor = 1.0 if weight is None or not gain else weight + (self.plus if plus is None else plus)
        g = b.gradient if last else b.gradient * factor
        x, g = self._split(b.value), self._split(g)
        if self.running:
            variance = b.parameter("running_var")
            assert variance is not None
            scale = 1 / np.sqrt(variance.reshape(-1, *[1] * (b.value.ndim - 2)) + self.eps)
            made = g * scale if rate else g
        else:
            shifted = x - x.mean(self.axes, keepdims=True) if self.centred else x
            scale = 1 / np.sqrt((shifted * shifted).mean(self.axes, keepdims=True) + self.eps)
            normal = shifted * scale
            made = through_norm(g, normal, self.axes, self.centred and mean)
            made = made if along else made + normal * (g * normal).mean(self.axes, keepdims=True)
            made = made * scale if rate else made
        made = made.reshape(b.value.shape)
        return np.asarray(made * factor if last else made)

    def _split(self, array: Floats) -> Floats:
        return array.reshape(len(array), self.groups, -1) if self.groups else array

    @property
    def mistakes(self) -> dict[str, Formula]:
        """The terms that are forgotten or misplaced."""
        found: dict[str, Formula] = {
            "forgets its own weight": partial(self, gain=False),
            "forgets to divide by the standard deviation": partial(self, rate=False),
        }
        if not self.running:
            found["lacks the term along the normalized input"] = partial(self, along=False)
            found["multiplies by its weight last, not first"] = partial(self, last=True)
        if self.centred and not self.running:
            found["lacks the mean of the gradient"] = partial(self, mean=False)
            found["takes mean and variance for constants"] = partial(self, mean=False, along=False)
        if self.running:
            found["takes the statistics of the batch, which are not used"] = replace(self, running=False)
        elif self.by_channel and not self.groups:
            found["takes one mean for all channels"] = replace(self, axes=tuple(range(-1, -self._rank - 1, -1)))
        other = 1.0 - self.plus
        found[f"takes {'1 + w' if other else 'w'} for its weight"] = partial(self, plus=other)
        return found

    @property
    def _rank(self) -> int:
        return -min(self.axes)


def known_norms(op: str, b: Backward) -> Iterator[Known]:
    """Norms whose weight fits: over the last axes, or by channel."""
    name, shape, weight = op.lower(), b.value.shape, b.parameter("weight")
    if b.gradient.shape != shape:
        return
    said = b.number("eps", "variance_epsilon", "epsilon", "norm_eps", "layer_norm_eps", default=-1.0)
    menu = (said,) if said >= 0 else EPS
    named = "norm" in name
    by_channel = any(word in name for word in ("batch", "group", "instance"))
    if len(shape) > 1 and by_channel and (weight is None or weight.shape == shape[1:2]):
        yield from _by_channel(name, b, menu)
        return
    count = weight.ndim if weight is not None else 1
    fits = weight.shape == shape[-count:] and weight.size > 1 if weight is not None and count else named
    for eps in menu if fits and len(shape) >= count else ():
        axes = tuple(range(-count, 0))
        for norm, called in (
            (_Norm(axes, eps), "the LayerNorm"), (_Norm(axes, eps, centred=False), "the RMSNorm"),
            (_Norm(axes, eps, centred=False, plus=1.0), "the RMSNorm of 1 + w"),
        ):  # fmt: skip
            yield Known(called, norm, norm.mistakes, named, samples=len(shape) > count)


def _by_channel(name: str, b: Backward, menu: tuple[float, ...]) -> Iterator[Known]:
    ndim, channels = b.value.ndim, b.value.shape[1]
    for eps in menu:
        if "batch" in name:
            axes = (-ndim, *range(2 - ndim, 0))
            kinds = [_Norm(axes, eps, by_channel=True)]
            if "running_var" in b.parameters:
                kinds.insert(0, _Norm(axes, eps, by_channel=True, running=True))
        else:
            groups = channels if "instance" in name else int(b.number("num_groups", "groups", default=0))
            counts = [groups] if groups and channels % groups == 0 else [1, channels]
            kinds = [_Norm((-1,), eps, by_channel=True, groups=one) for one in counts]
        for norm in kinds:
            yield Known(f"the {name.removesuffix(' backward')}", norm, norm.mistakes, True, samples=bool(norm.groups))
