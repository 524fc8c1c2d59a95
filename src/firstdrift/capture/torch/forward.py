"""The forward pass: inputs of the model, inputs and outputs of every module, taps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ...core.sites import Site
from ...core.strict_json import Json
from .backward import Backward
from .calls.ops import Operations
from .hooks import is_compiled
from .names import attrs_of, behind, classes_of, is_scripted, layer_of, named_arguments, numbered_arguments
from .run import Run
from .tensor_values import leaves, outputs


@dataclass(slots=True)
class Frame:
    """A module that has been entered and not left."""

    module: nn.Module
    name: str
    call: int
    recomputed: bool = False
    inputs: list[Site] = field(default_factory=list)
    called: bool = False  # whether a module inside it ran
    operations: Operations | None = None  # observed from here inwards
    end_of_program: Callable[[], None] | None = None  # of what it kept from being written down


class Forward:
    """Records a forward pass as its modules are entered and left."""

    def __init__(self, run: Run, backward: Backward, *, every_operation: bool) -> None:
        self.run = run
        self.backward = backward
        self.every_operation = every_operation
        self.stack: list[Frame] = []
        self.failure: BaseException | None = None

    def feed(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], call: int) -> None:
        """Record what the model is fed."""
        model = self.run.model
        tensors = [leaf for name, item in named_arguments(model, args, kwargs) for leaf in leaves(item, name)]
        if tensors and tensors[0][1].ndim:
            self.run.describe(batch=tensors[0][1].size(0))  # which nested tensors have too, unlike a shape
        for port, tensor in tensors:
            site = self.run.site("input", "input", port, call)
            if "input" in self.run.scope.phases:
                self.run.put(site, tensor)
            self.run.known.mark(tensor, site)

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, recomputed: bool) -> Frame:
        """A module is called."""
        name = self.run.names[module]
        if self.stack:
            self.stack[-1].called = True
        frame = Frame(module, name, -1 if recomputed else self.run.next_call(name), recomputed)
        self.stack.append(frame)
        if self.run.program is not None:
            frame.end_of_program = self.run.program.enter(module, (args, kwargs))
        if not recomputed and self.run.takes("fwd", name):
            order = self.run.next_position()
            for key, item in numbered_arguments(module, args, kwargs):
                for port, tensor in leaves(item, f"in.{key}"):
                    site = self.run.site("fwd", name, port, frame.call)
                    self.backward.meet_again(tensor)
                    made_of = self.run.known.producers(tensor)
                    self.run.put(site, tensor, order=order, producers=made_of)
                    if not made_of:  # what reads it inside has this site to name
                        self.run.known.mark(tensor, site)
                    frame.inputs.append(site)
        if not recomputed:
            self._observe_operations(frame)
        return frame

    def _observe_operations(self, frame: Frame) -> None:
        """Watch single operations inside a module that was chosen for it. Without gradients there is no graph to
        say what was computed from what, so that they are watched everywhere, and only what they read is kept."""
        if any(outer.operations for outer in self.stack):
            return
        chosen = self.every_operation and self.run.takes("fwd", frame.name)
        if chosen or not torch.is_grad_enabled():
            frame.operations = Operations(self.run, self._current_path if self.every_operation else None)
            frame.operations.__enter__()

    def _current_path(self) -> str | None:
        """The path of the module that runs, if it or one around it was chosen, and its inside can be seen."""
        if is_compiled(self.stack[-1].module) or is_scripted(self.stack[-1].module):
            return None
        chosen = any(self.run.takes("fwd", frame.name) for frame in self.stack)
        return self.stack[-1].name if chosen else None

    def leave(self, module: nn.Module, output: Any) -> Frame | None:
        """A module returns."""
        frame = self._pop(module)
        if frame is None:
            return None
        found = outputs(output)
        if frame.recomputed:
            self.backward.watch_again(frame.name, found)
            return frame
        name, run = frame.name, self.run
        order = run.next_position()
        run.first_position.setdefault(name, order)
        taken = run.takes("fwd", name)
        details: dict[str, Json] = {
            "op": classes_of(behind(module))[0],
            "attrs": attrs_of(behind(module)),
            "layer": layer_of(name),
        }
        for port, tensor in found:
            site = run.site("fwd", name, port, frame.call)
            if taken:
                # What a container returns was made by what ran inside it; a leaf computes from its own inputs, and so
                # does a container of which nothing inside is recorded.
                made_of = list(run.known.producers(tensor) or ()) if frame.called else []
                if not any(one.phase in ("input", "fwd") for one in made_of):
                    made_of += frame.inputs
                run.put(site, tensor, order=order, producers=made_of, **details)
                run.known.mark(tensor, site)
            if run.takes("agrad", name):
                self.backward.watch(site._replace(phase="agrad"), tensor, order)
        return frame

    def tap(self, name: str, tensor: torch.Tensor) -> None:
        """A tensor is marked inside the module that runs."""
        frame = self.stack[-1]
        path = f"{frame.name}.{name}" if frame.name else name
        if frame.recomputed:
            self.backward.watch_again(path, [("out", tensor)])
            return
        site = self.run.site("fwd", path, "out", self.run.next_call(path))
        order = self.run.next_position()
        if self.run.takes("fwd", path) or self.run.takes("fwd", frame.name):
            made_of = self.run.known.producers(tensor)
            self.run.put(site, tensor, op="tap", layer=layer_of(path), order=order, producers=made_of)
            self.run.known.mark(tensor, site)
        if self.run.takes("agrad", path) or self.run.takes("agrad", frame.name):
            self.backward.watch(site._replace(phase="agrad"), tensor, order)

    def fail(self, module: nn.Module, error: BaseException) -> None:
        """A module raised; the innermost one says so, those around it have only passed it on."""
        passed_on = error is self.failure
        frame = self._pop(module)
        if frame is None or frame.recomputed or passed_on:
            return
        self.failure = error if self.stack else None
        if self.run.takes("fwd", frame.name):
            site = self.run.site("fwd", frame.name, "out", frame.call)
            self.run.recorder.absent(site, f"raised {type(error).__name__}: {error}", op=classes_of(module)[0])

    def forget(self, module: nn.Module) -> None:
        """A module is left when nothing is recorded any longer."""
        self._pop(module)

    def unwind(self) -> None:
        """Forget modules that were left by an exception that nobody told us of."""
        while self.stack:
            self._drop()

    def _pop(self, module: nn.Module) -> Frame | None:
        """The frame of a module, if it was entered while we looked; frames above it were left without our hearing."""
        while any(frame.module is module for frame in self.stack):
            frame = self._drop()
            if frame.module is module:
                return frame
        return None

    def _drop(self) -> Frame:
        frame = self.stack.pop()
        if frame.operations is not None:
            frame.operations.__exit__(None, None, None)
        if frame.end_of_program is not None:
            frame.end_of_program()
        if not self.stack:
            self.failure = None  # which holds on to everything its traceback can see
        return frame
