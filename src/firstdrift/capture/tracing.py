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

ENGINES = "a torch.nn.Module, an ONNX model or its path, an MLX model, a flax or equinox model, a JAX function"


@overload
def trace(model: torch.nn.Module, path: str | os.PathLike[str], **options: Any) -> Tracing: ...
@overload
def trace(model: Any, path: str | os.PathLike[str], *, inputs: Any, **options: Any) -> Trace: ...
def trace(
    model: Any,
    path: str | os.PathLike[str],
    *,
    inputs: Any = None,
    params: Any = None,
    loss_fn: Callable[[Any, Any], Any] | None = None,
    target: Any = None,
    optimizer: Any = None,
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
        fd.trace(flax_model, "cand", inputs=(x,), loss_fn=loss_fn, target=y, optimizer=optax.adamw(1e-3))

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
    - `inputs`: a tuple, or a mapping by name. All but torch models need them. With `loss_fn(outputs, target)` the
      gradients are recorded too, and with `optimizer` its step: for JAX an optax transformation, or it and its state.
      A JAX model is left as it is; `params` are those of a linen module or of a function, as its first argument.
    - `optimize`: record an ONNX graph as ONNX Runtime's optimizations leave it, not as the file has it.
    - `kv_type` ("f16", "f32") and `flash_attention`, of a GGUF model: how llama.cpp runs it.
    - Further keywords, such as `seed`, `batch` or `gradient_of`, go to `fd.Writer`.
    """
    scope = {"steps": steps, "only": only, "classes": classes, "depth": depth, "phases": phases, "keep": keep}
    common: dict[str, Any] = {"scope": scope, "overwrite": overwrite, "checksum": checksum, "header": header}
    training: dict[str, Any] = {"loss_fn": loss_fn, "target": target, "optimizer": optimizer}
    kind = _kind(model)
    if kind != "torch" and inputs is None:
        raise CaptureError(f"{_NAMES[kind]} is run by fd.trace itself; give inputs=(x,)")
    if kind != "jax" and params is not None:
        raise CaptureError("params are those of a linen module or a JAX function; leave them out")
    if kind == "llamacpp":
        extra("llamacpp", "xllamacpp", "gguf")
        from .llamacpp.llamacpp_recording import record as record_gguf

        settings = {key: header.pop(key) for key in ("kv_type", "flash_attention") if key in header}
        record_gguf(model, path, inputs, **settings, **common)
        return read(Path(path))
    if kind == "onnx":
        extra("onnx", "onnx", "onnxruntime")
        from .onnx.onnx_recording import record as record_onnx

        record_onnx(model, path, inputs, optimize=optimize, **common)
        return read(Path(path))
    if kind == "mlx":
        extra("mlx", "mlx")
        from .mlx.mlx_recording import FRAMEWORK
        from .module_calls import record as record_calls

        record_calls(FRAMEWORK, model, path, inputs, **training, **common)
        return read(Path(path))
    if kind == "jax":
        extra("jax", "jax")
        from .jax.jax_recording import record as record_jax

        record_jax(model, path, inputs, params=params, granularity=granularity, program=program, source=source,
                   **training, **common)  # fmt: skip
        return read(Path(path))
    tracing: Tracing = _adapter(model, ENGINES).begin(
        model, path, optimizer=optimizer, scaler=scaler, granularity=granularity, logits=logits, verify=verify,
        on_full=on_full, program=program, source=source, overwrite=overwrite, checksum=checksum, header=header,
        scope=scope,
    )  # fmt: skip
    if inputs is None:
        return tracing
    with tracing:
        outputs = model(**inputs) if isinstance(inputs, Mapping) else model(*inputs)
        if loss_fn is not None:
            loss_fn(outputs, target).backward()
            for one in () if optimizer is None else (optimizer if isinstance(optimizer, Sequence) else (optimizer,)):
                one.step()
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


_NAMES = {"llamacpp": "a GGUF model", "onnx": "an ONNX model", "mlx": "an MLX model", "jax": "a JAX model or function"}
# The module and the class of models, by framework. One that is not imported cannot have made the model.
_MODELS = {
    "torch": ("torch.nn", "Module"), "mlx": ("mlx.nn", "Module"), "nnx": ("flax.nnx", "Module"),
    "linen": ("flax.linen", "Module"), "equinox": ("equinox", "Module"),
}  # fmt: skip


def _kind(model: Any) -> str:
    """The framework of a model, "torch" for what is none: a function is one of JAX, if that is imported."""
    package = type(model).__module__.partition(".")[0]
    if isinstance(model, str | os.PathLike) and Path(model).suffix == ".gguf":
        return "llamacpp"
    if isinstance(model, str | os.PathLike | bytes) or package in ("onnx", "onnxruntime"):
        return "onnx"
    for kind, (module, name) in _MODELS.items():
        if module in sys.modules and isinstance(model, getattr(sys.modules[module], name)):
            return kind if kind in ("torch", "mlx") else "jax"
    return "jax" if "jax" in sys.modules and callable(model) and not isinstance(model, type) else "torch"


def extra(name: str, *packages: str) -> None:
    """Refuse, naming the extra, if a package that an engine needs is not installed."""
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        raise CaptureError(f"{' and '.join(missing)} not installed; run: pip install 'firstdrift[{name}]'")


def _adapter(model: Any, engines: str = "a torch.nn.Module") -> Any:
    """The module that can trace a model of this type. A framework that is not imported cannot have made it."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(model, torch.nn.Module):
        from .torch import entering

        return entering
    raise CaptureError(f"a {type(model).__module__}.{type(model).__qualname__} cannot be traced; give {engines}")
