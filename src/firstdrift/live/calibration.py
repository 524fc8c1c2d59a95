"""`fd.calibrate`: a reference that knows its own noise."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..capture.answers import Calibration
from ..core.strict_json import Json
from ..errors import CaptureError

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
    """Record one step of a reference with its own noise.

        fd.calibrate(model, (x,), "ref", loss_fn=loss_fn, target=y)
        fd.diff("ref", "cand")          # uses the measured noise, whatever engine wrote cand

    Further runs measure how this model amplifies rounding on this data: one in float64, `runs` with inputs perturbed by
    one rounding, one with a module perturbed halfway. Only their distances are kept. They use copies: the model and the
    random state do not change.

    - `inputs`, `loss_fn`, `target`, `optimizer`, `train`: as in `check`.
    - `seed`: set before every run. Without it all runs start from the current random state.
    - `overwrite`: replace a trace. `advance(1)`: called after each run. Further keywords go into trace.json.
    """
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(model, torch.nn.Module):
        raise CaptureError(f"a {type(model).__qualname__} cannot be calibrated; give a torch.nn.Module")
    if type(runs) is not int or runs < 1:
        raise CaptureError(f"runs {runs!r} is not a whole number from 1; say how many perturbed runs to make")
    if optimizer is not None and (loss_fn is None or not callable(optimizer)):
        raise CaptureError("an optimizer is made for every copy and needs gradients; give a function and loss_fn")
    from .calibrating import calibrate
    from .sides import side_of

    side = side_of(model, inputs, loss_fn=loss_fn, target=target, optimizer=optimizer, train=train, seed=seed)
    options = {"overwrite": overwrite, **({} if seed is None else {"seed": seed}), **header}
    return calibrate(side, Path(path), runs, advance or (lambda count: None), **options)
