"""The callback form of a traced step: layers by number, one event a tensor, in the order of a sequential engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from ...errors import CaptureError
from .tensor_values import outputs, takes_gradient

Sink = Callable[[int, str, str, torch.Tensor], object]


def traced_grads(
    model: nn.Module, x: Any, y: Any, loss_fn: Callable[[Any, Any], torch.Tensor], sink: Sink | None,
    logits: str | int | None = None,
) -> torch.Tensor:  # fmt: skip
    """One forward and backward pass; `sink` is told of every layer. Returns the loss."""
    layers = layers_of(model)
    flow = _Flow(layers, _read_at(layers, logits), sink)
    handles = [layer.register_forward_hook(flow.watching(number)) for number, (_, layer) in enumerate(layers)]
    try:
        output = model(x)
        loss = loss_fn(flow.found.get(flow.read, output), y)
        if loss.requires_grad:  # a fully frozen model has a forward pass only
            loss.backward()
    finally:
        for handle in (*handles, *flow.handles):
            handle.remove()
    return loss.detach()


def trace_weights(model: nn.Module, tag: str, sink: Sink | None) -> None:
    """Tell `sink` of every parameter, layer by layer, as `<tag>.weight`, `<tag>.bias`."""
    if sink is not None:
        for number, layer, name, parameter in _parameters(model):
            sink(number, type(layer).__name__, f"{tag}.{name}", parameter.detach())


def trace_grads(model: nn.Module, tag: str, sink: Sink | None) -> None:
    """Tell `sink` of every parameter's gradient; what is frozen or has none gives no event."""
    for number, layer, name, parameter in _parameters(model):
        if sink is not None and parameter.requires_grad and parameter.grad is not None:
            sink(number, type(layer).__name__, f"{tag}.{name}", parameter.grad.detach())


def layers_of(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """The layers by number: the children of a sequence, else all modules without children."""
    if isinstance(model, nn.Sequential):
        return list(model.named_children())
    return [(name, module) for name, module in model.named_modules() if not any(module.children())]


def _read_at(layers: list[tuple[str, nn.Module]], logits: str | int | None) -> int:
    """The number of the layer the loss reads: the last one that is no softmax, unless it was named."""
    if logits is None:
        plain = [number for number, (_, layer) in enumerate(layers) if not isinstance(layer, nn.Softmax)]
        return plain[-1] if plain else len(layers) - 1
    names = [name for name, _ in layers]
    if logits in names:
        return names.index(str(logits))
    if type(logits) is int and 0 <= logits < len(layers):
        return logits
    raise CaptureError(f"logits {logits!r} is no layer of the model; it has {', '.join(names)}")


class _Flow:
    """What flows through the layers: outputs as they are made, gradients as they come back."""

    def __init__(self, layers: list[tuple[str, nn.Module]], read: int, sink: Sink | None) -> None:
        self.read = read  # the layer whose output the loss reads
        self.found: dict[int, Any] = {}
        self.handles: list[torch.utils.hooks.RemovableHandle] = []
        self._kinds = [type(layer).__name__ for _, layer in layers]
        self._sink = sink
        self._watched: dict[tuple[int, int], tuple[torch.Tensor, list[int]]] = {}

    def watching(self, number: int) -> Callable[[nn.Module, Any, Any], None]:
        """A forward hook for a layer."""

        def hook(layer: nn.Module, inputs: Any, output: Any) -> None:
            self.found[number] = output
            if self._sink is not None:
                for _, tensor in outputs(output):
                    self._sink(number, self._kinds[number], "fwd", tensor.detach())
                    if takes_gradient(tensor) and tensor.requires_grad:
                        self._watch(number, tensor, self._sink)

        return hook

    def _watch(self, number: int, tensor: torch.Tensor, sink: Sink) -> None:
        """Gradients of an output arrive before its layer's backward runs. Watched at once, because the next layer may
        write over it in place; and once only, because a layer may pass on what it was given."""
        key = (id(tensor), tensor._version)
        if key not in self._watched:
            numbers: list[int] = []
            self._watched[key] = (tensor, numbers)
            self.handles.append(tensor.register_hook(lambda gradient: self._flowed(numbers, gradient, sink)))
        self._watched[key][1].append(number)

    def _flowed(self, numbers: list[int], gradient: torch.Tensor, sink: Sink) -> None:
        if self.read in numbers:
            sink(len(self._kinds), self._kinds[-1], "lossgrad", gradient.detach())
            numbers = numbers[: numbers.index(self.read) + 1]  # later layers are forward-only
        for number in reversed(numbers):
            sink(number, self._kinds[number], "agrad", gradient.detach())


def _parameters(model: nn.Module) -> Iterator[tuple[int, nn.Module, str, nn.Parameter]]:
    for number, (_, layer) in enumerate(layers_of(model)):
        for name, parameter in layer.named_parameters():
            yield number, layer, name, parameter
