"""`fd.calibrate`: a reference that knows its own noise."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .capture.calibration import Calibration
from .errors import CaptureError
from .strict_json import Json

if TYPE_CHECKING:
    import torch


def calibrate(
    model: torch.nn.Module,
    inputs: Any,
    path: str | os.PathLike[str],
    *,
    loss_fn: Callable[..., torch.Tensor] | None = None,
    target: Any = None,
    optimizer: Callable[[torch.nn.Module], torch.optim.Optimizer] | None = None,
    train: bool = False,
    runs: int = 2,
    seed: int | None = None,
    overwrite: bool = False,
    advance: Callable[[int], None] | None = None,
    **header: Json,
) -> Calibration:
    """Record one step of a reference, and with every tensor how far the reference's own runs are from each other.

        fd.calibrate(model, (x,), "ref", loss_fn=loss_fn, target=y)
        fd.diff("ref", "cand")          # uses it by itself: on another machine, against any engine

    The trace is an ordinary one. Further runs, of which the distances alone are kept, show how noise grows in this
    model on this data: one in float64, `runs` with the inputs perturbed by one rounding (where they are integers, what
    is looked up by them), and one with a module halfway perturbed. So noise that the model amplifies is not taken for
    a bug, and a bug is not taken for noise that this model does not have.

    - `inputs`: the model's arguments: a tuple, a dict of keywords, or one tensor.
    - `loss_fn(output, target)`, or `loss_fn(output)` without a target: gradients too.
    - `optimizer`: makes the optimizer of a model, `model -> optimizer`: updates too.
    - `train`: training mode; `seed`: set before every run, which else all begin with the present random numbers.
    - `overwrite` replaces a trace; `advance` is called with 1 after every run; the rest goes into the header.

    Copies run: the model and the random numbers are as they were, to the bit.
    """
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(model, torch.nn.Module):
        raise CaptureError(f"a {type(model).__qualname__} cannot be calibrated; give a torch.nn.Module")
    if type(runs) is not int or runs < 1:
        raise CaptureError(f"runs {runs!r} is not a whole number from 1; say how many perturbed runs to make")
    if optimizer is not None and (loss_fn is None or not callable(optimizer)):
        raise CaptureError("an optimizer is made for every copy and needs gradients; give a function and loss_fn")
    from .live.calibrating import calibrate
    from .live.sides import Side

    args, kwargs = ((), dict(inputs)) if isinstance(inputs, Mapping) else (_as_arguments(inputs), {})
    side = Side(model, args, kwargs, loss_fn, target, optimizer, train=train, seed=seed)
    options = {"overwrite": overwrite, **({} if seed is None else {"seed": seed}), **header}
    return calibrate(side, Path(path), runs, advance or (lambda count: None), **options)


def _as_arguments(inputs: Any) -> tuple[Any, ...]:
    return tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)
