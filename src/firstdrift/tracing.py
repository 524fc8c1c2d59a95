"""`fd.trace` and its relatives: the framework is chosen by the type of the model."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from .errors import CaptureError
from .strict_json import Json

if TYPE_CHECKING:
    import torch

    from .capture.estimate import Estimate
    from .capture.torch.session import Tracing


def trace(
    model: torch.nn.Module,
    path: str | os.PathLike[str],
    *,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None = None,
    scaler: torch.amp.GradScaler | None = None,
    steps: Sequence[int] | range | slice | int | None = None,
    only: str | Sequence[str] = (),
    classes: str | type | Sequence[str | type] = (),
    depth: int | None = None,
    phases: str | Sequence[str] = (),
    keep: str | Mapping[str, str] = "full",
    granularity: Literal["module", "op"] = "module",
    logits: str | None = None,
    verify: bool = False,
    on_full: Literal["raise", "continue"] = "raise",
    program: bool = True,
    source: bool = False,
    overwrite: bool = False,
    checksum: bool = False,
    **header: Json,
) -> Tracing:
    """Record everything a model computes while a block runs, without changing it.

        with fd.trace(model, "ref", optimizer=optimizer):
            loss = loss_fn(model(x), y)
            loss.backward()
            optimizer.step()

    Recorded are inputs, weights and buffers before and after, inputs and outputs of every module, the loss, gradients
    of outputs and of parameters, and the state of the optimizer, each at its own site.

    - `optimizer`: one or several; a step ends when all of them have stepped. `scaler`: the GradScaler in use.
    - `steps`: which steps to record: a list, `range(0, 1000, 10)`, `slice(None, None, 10)` for every tenth.
    - `only`: globs on module names; `classes`: class names or types; `depth`: 0 is the model itself; `phases`.
    - `keep`: `"full"`, or `"stats"` for statistics in place of values; or both by pattern,
      `{"*": "stats", "layers.3.*": "full"}`, of which the last that matches counts.
    - `granularity="op"`: also every operation inside the modules chosen, as sites `<module>/<operation>`.
    - `logits`: the module whose output the loss reads, where that is not the model's own output.
    - `verify`: run the first forward pass untraced as well and compare the outputs, and look for stale buffers.
    - `on_full`: what a full disk does: `"raise"`, or `"continue"` without tracing after a warning.
    - `program`: also write down the calls that made the tensors, to `program.jsonl`; `source`: with the text of the
      lines of code that made them.
    - `overwrite`, `checksum` and further keywords go to `fd.Writer`: `seed`, `batch`, `gradient_of`, anything else.
    """
    tracing: Tracing = _adapter(model).begin(
        model, path, optimizer=optimizer, scaler=scaler, granularity=granularity, logits=logits, verify=verify,
        on_full=on_full, program=program, source=source, overwrite=overwrite, checksum=checksum, header=header,
        scope={"steps": steps, "only": only, "classes": classes, "depth": depth, "phases": phases, "keep": keep},
    )  # fmt: skip
    return tracing


def estimate(
    model: torch.nn.Module,
    inputs: Any,
    *,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None = None,
    train: bool = True,
    only: str | Sequence[str] = (),
    classes: str | type | Sequence[str | type] = (),
    depth: int | None = None,
    phases: str | Sequence[str] = (),
    keep: str | Mapping[str, str] = "full",
    granularity: Literal["module", "op"] = "module",
) -> Estimate:
    """How many tensors and bytes a step's trace will hold, before it is taken.

        print(fd.estimate(model, (x,), optimizer=optimizer))

    `inputs` are the model's arguments: a tuple, a dict of keywords, or one tensor. `train=False` counts a forward pass
    alone. The rest is as in `fd.trace`. Nothing is computed: the step runs over tensors that have shapes and no
    memory, or over a copy of the model where its values decide its shapes. The model is left as it is.
    """
    _adapter(model)
    from .capture.torch.estimating import estimate

    return estimate(
        model, inputs, optimizer=optimizer, train=train, granularity=granularity,
        scope={"only": only, "classes": classes, "depth": depth, "phases": phases, "keep": keep},
    )  # fmt: skip


def traced_grads(
    model: torch.nn.Module,
    x: Any,
    y: Any,
    loss_fn: Callable[[Any, Any], torch.Tensor],
    sink: Callable[[int, str, str, torch.Tensor], object] | None,
    *,
    logits: str | int | None = None,
) -> torch.Tensor:
    """One forward and backward pass whose tensors are handed to a callback. Returns the loss; gradients add up.

    `sink(layer, kind, phase, tensor)` is called with `fwd` for every layer from 0, then once with `lossgrad` (layer =
    number of layers), then with `agrad` for every layer from the one the loss reads down to the first that has a
    gradient, each before that layer's backward runs. The tensor is borrowed: valid during the call, not to be changed.
    Layers are the children of an `nn.Sequential`, else all modules without children. `loss_fn(logits, y)` reads the
    output of the layer `logits` names, by default the last one that is no `nn.Softmax`; later layers are forward-only.
    Without a sink this is the plain pass, bit for bit.
    """
    _adapter(model)
    from .capture.torch.sinks import traced_grads

    return traced_grads(model, x, y, loss_fn, sink, logits)


def trace_weights(
    model: torch.nn.Module, tag: str, sink: Callable[[int, str, str, torch.Tensor], object] | None
) -> None:
    """Hand every parameter to a callback, layer by layer: `sink(layer, kind, "<tag>.weight", tensor)`, then bias."""
    _adapter(model)
    from .capture.torch.sinks import trace_weights

    trace_weights(model, tag, sink)


def trace_grads(model: torch.nn.Module, tag: str, sink: Callable[[int, str, str, torch.Tensor], object] | None) -> None:
    """Hand every parameter's gradient to a callback, as `trace_weights` does; what has none gives no event."""
    _adapter(model)
    from .capture.torch.sinks import trace_grads

    trace_grads(model, tag, sink)


def _adapter(model: Any) -> Any:
    """The module that can trace a model of this type. A framework that is not imported cannot have made it."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(model, torch.nn.Module):
        from .capture.torch import opening

        return opening
    raise CaptureError(
        f"a {type(model).__module__}.{type(model).__qualname__} cannot be traced; give a torch.nn.Module"
    )
