"""`fd.check`: two implementations in one process, and the sharpest verdict that can be had."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from ..core.sites import whole
from ..errors import CaptureError

if TYPE_CHECKING:
    import torch

    from ..judge.measure.result import Result


def check(
    *,
    reference: torch.nn.Module,
    candidate: torch.nn.Module,
    inputs: Any,
    loss_fn: Callable[..., torch.Tensor] | None = None,
    target: Any = None,
    optimizer: Callable[[torch.nn.Module], torch.optim.Optimizer] | None = None,
    candidate_optimizer: Callable[[torch.nn.Module], torch.optim.Optimizer] | None = None,
    candidate_inputs: Any = None,
    candidate_target: Any = None,
    candidate_loss_fn: Callable[..., torch.Tensor] | None = None,
    name_map: Mapping[str, str] | None = None,
    seed: int | None = None,
    train: bool = False,
    steps: int = 1,
    load: Literal["reference"] | Callable[[torch.nn.Module, torch.nn.Module], object] | None = None,
    explain: bool = True,
) -> Result:
    """Compare two models in one process: as they are, in float64, and each part on the other's inputs.

        result = fd.check(reference=model, candidate=port, inputs=(x,), loss_fn=loss_fn, target=y,
                          optimizer=lambda model: torch.optim.AdamW(model.parameters()), train=True)
        print(result.first_drift.name, result.first_drift.cause)

    - `inputs`: arguments of both models: a tuple, a dict of keywords, or one tensor.
    - `loss_fn(output, target)`, or `loss_fn(output)` without a target: compares gradients too.
    - `optimizer(model)`: returns an optimizer; compares updates too.
    - `candidate_*`: what differs for the candidate.
    - `name_map`: candidate's module paths to the reference's; others have no counterpart. Without it, modules are
      matched by name, weights, structure and order.
    - `seed`: set before every step. `train`: training mode. `steps`: number of steps.
    - `load`: `"reference"` copies the reference's weights into the candidate, a function does it with both copies.
      Otherwise weights are compared.
    - `explain=False`: says where they part and not why.

    Works on copies: both models stay as they are. Returns the same as `diff`.
    """
    import sys

    torch = sys.modules.get("torch")
    for side, model in (("reference", reference), ("candidate", candidate)):
        if torch is None or not isinstance(model, torch.nn.Module):
            raise CaptureError(f"the {side} is a {type(model).__qualname__}; give a torch.nn.Module")
    for name, made in (("optimizer", optimizer), ("candidate_optimizer", candidate_optimizer)):
        if made is not None and not callable(made):
            raise CaptureError(
                f"{name} is a {type(made).__qualname__}; give a function that makes one of a model, such as "
                f"lambda model: torch.optim.{type(made).__name__}(model.parameters())"
            )
    for name, given in (("loss_fn", loss_fn), ("candidate_loss_fn", candidate_loss_fn)):
        if given is not None and not callable(given):
            raise CaptureError(f"{name} is a {type(given).__qualname__}; give a function of the output and the target")
    if seed is not None and (isinstance(seed, bool) or not isinstance(whole(seed), int)):
        raise CaptureError(f"seed {seed!r} is a {type(seed).__qualname__}; give a whole number")
    if name_map is not None and not isinstance(name_map, Mapping):
        raise CaptureError(
            f"name_map is a {type(name_map).__qualname__}; give a dict from candidate to reference paths"
        )
    from .check import check_sides
    from .sides import side_of

    options = {"train": train, "steps": steps, "seed": 0 if seed is None else whole(seed)}
    one = side_of(reference, inputs, loss_fn=loss_fn, target=target, optimizer=optimizer, **options)
    other = side_of(
        candidate, inputs if candidate_inputs is None else candidate_inputs, loss_fn=candidate_loss_fn or loss_fn,
        target=target if candidate_target is None else candidate_target, optimizer=candidate_optimizer or optimizer,
        **options,
    )  # fmt: skip
    return check_sides(one, other, name_map, load, explain)
