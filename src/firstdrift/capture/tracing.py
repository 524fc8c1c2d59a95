"""`fd.trace` and its relatives: the framework is chosen by the type of the model."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from ..core.strict_json import Json
from ..core.traces import Trace
from ..errors import CaptureError
from ..store.reader import read

if TYPE_CHECKING:
    import torch

    from .answers import Estimate
    from .torch.session import Tracing

ENGINES = "a torch.nn.Module, an ONNX model or its path"


@overload
def trace(model: torch.nn.Module, path: str | os.PathLike[str], **options: Any) -> Tracing: ...
@overload
def trace(model: Any, path: str | os.PathLike[str], *, inputs: Any, **options: Any) -> Trace: ...
def trace(
    model: Any,
    path: str | os.PathLike[str],
    *,
    inputs: Any = None,
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
    optimize: bool = False,
    overwrite: bool = False,
    checksum: bool = False,
    **header: Json,
) -> Tracing | Trace:
    """Record what a model computes while a block runs, without changing it; or, with `inputs`, run it once on these.

        with fd.trace(model, "ref", optimizer=optimizer):
            loss = loss_fn(model(x), y)
            loss.backward()
            optimizer.step()

        fd.trace("model.onnx", "cand", inputs={"x": x})    # returns the trace

    Records weights and buffers before and after, inputs and outputs of every module, the loss, all gradients, and the
    optimizer's state.

    - `optimizer`: one or several; a step ends when all have stepped. `scaler`: the GradScaler.
    - `steps`: steps to record: a list, `range(0, 1000, 10)`, or `slice(None, None, 10)`.
    - `only`: globs on module names. `classes`: class names or types. `depth`: 0 is the model itself. `phases`: globs.
    - `keep`: `"full"`, `"stats"`, or by pattern, `{"*": "stats", "layers.3.*": "full"}`; the last match counts.
    - `granularity="op"`: also every operation inside the modules, as `<module>/<operation>`.
    - `logits`: the module whose output the loss reads, if not the model's.
    - `verify`: also run the first forward pass untraced, compare, and look for stale buffers.
    - `on_full`: on a full disk `"raise"`, or `"continue"` untraced with a warning.
    - `program`: also record the calls, in `program.jsonl`. `source`: with their lines of code.
    - `inputs`: a tuple, or a mapping by name; models of other engines need them. `optimize`: record the graph as ONNX
      Runtime's optimizations leave it. Of llama.cpp, `kv_type` ("f16", "f32") and `flash_attention` may be given.
    - Further keywords, such as `seed`, `batch` or `gradient_of`, go to `fd.Writer`.
    """
    scope = {"steps": steps, "only": only, "classes": classes, "depth": depth, "phases": phases, "keep": keep}
    common: dict[str, Any] = {"scope": scope, "overwrite": overwrite, "checksum": checksum, "header": header}
    if _is_gguf(model):
        _need_inputs(inputs, "a GGUF model", "token ids")
        extra("llamacpp", "xllamacpp", "gguf")
        from .llamacpp import recording as llamacpp

        options = {key: header.pop(key) for key in ("kv_type", "flash_attention") if key in header}
        llamacpp.record(model, path, inputs, **options, **common)
        return read(Path(path))
    if _is_onnx(model):
        _need_inputs(inputs, "an ONNX model", "{name: array}")
        extra("onnx", "onnx", "onnxruntime")
        from .onnx import recording as onnx

        onnx.record(model, path, inputs, optimize=optimize, **common)
        return read(Path(path))
    tracing: Tracing = _adapter(model).begin(
        model, path, optimizer=optimizer, scaler=scaler, granularity=granularity, logits=logits, verify=verify,
        on_full=on_full, program=program, source=source, overwrite=overwrite, checksum=checksum, header=header,
        scope=scope,
    )  # fmt: skip
    if inputs is None:
        return tracing
    with tracing:
        model(**inputs) if isinstance(inputs, Mapping) else model(*inputs)
    return read(Path(path))


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
    """Estimate how many tensors and bytes the trace of a step will hold.

        print(fd.estimate(model, (x,), optimizer=optimizer))

    `inputs` is a tuple, a dict of keywords, or one tensor; `train=False` counts the forward pass alone; the rest is as
    in `trace`. The step runs without computing values, or on a copy if values decide shapes. The model does not change.
    """
    _adapter(model)
    from .torch.estimating import estimate

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
    """Run one forward and backward pass with a callback for its tensors. Returns the loss; gradients add up.

    `sink(layer, kind, phase, tensor)` is called with `fwd` for each layer from 0, then with `lossgrad` (layer = number
    of layers), then with `agrad` for each layer back from the one the loss reads, before its backward runs. The tensor
    is valid during the call only. Layers are the children of an `nn.Sequential`, else all modules without children.
    `loss_fn(logits, y)` reads layer `logits`, by default the last that is no `nn.Softmax`. Without a sink this is the
    plain pass, bit for bit.
    """
    _adapter(model)
    from .torch.sinks import traced_grads

    return traced_grads(model, x, y, loss_fn, sink, logits)


def trace_weights(
    model: torch.nn.Module, tag: str, sink: Callable[[int, str, str, torch.Tensor], object] | None
) -> None:
    """Pass every parameter to a callback by layer: `sink(layer, kind, "<tag>.weight", tensor)`, then bias."""
    _adapter(model)
    from .torch.sinks import trace_weights

    trace_weights(model, tag, sink)


def trace_grads(model: torch.nn.Module, tag: str, sink: Callable[[int, str, str, torch.Tensor], object] | None) -> None:
    """Pass every parameter's gradient to a callback, as `trace_weights` does. Without a gradient there is no call."""
    _adapter(model)
    from .torch.sinks import trace_grads

    trace_grads(model, tag, sink)


def _need_inputs(inputs: Any, what: str, form: str) -> None:
    if inputs is None:
        raise CaptureError(f"{what} is run by fd.trace itself; give inputs={form}")


def _is_gguf(model: Any) -> bool:
    """Whether a model is a file for llama.cpp."""
    return isinstance(model, str | os.PathLike) and Path(model).suffix == ".gguf"


def _is_onnx(model: Any) -> bool:
    """Whether a model is one for ONNX Runtime: a file, its bytes, what onnx loads, or a session."""
    if isinstance(model, str | os.PathLike):
        return True
    return isinstance(model, bytes) or type(model).__module__.partition(".")[0] in ("onnx", "onnxruntime")


def extra(name: str, *packages: str) -> None:
    """Refuse, naming the extra, if a package that an engine needs is not installed."""
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        raise CaptureError(f"{' and '.join(missing)} not installed; run: pip install 'firstdrift[{name}]'")


def _adapter(model: Any) -> Any:
    """The module that can trace a model of this type. A framework that is not imported cannot have made it."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(model, torch.nn.Module):
        from .torch import entering

        return entering
    raise CaptureError(
        f"a {type(model).__module__}.{type(model).__qualname__} cannot be traced; give a torch.nn.Module"
    )
