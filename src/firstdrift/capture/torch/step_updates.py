"""Parameters and buffers before and after a step, and what the optimizer sees and remembers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...core.records import NOT_REQUIRED
from ...core.strict_json import Json
from ...errors import CaptureError
from .backward import NO_GRADIENT, Backward
from .names import Parameter, parameters_of, plain_value
from .run import Run
from .tensor_values import is_fake, without_values
from .turns import STEPS

Optimizer = torch.optim.Optimizer
SMALL = 1 << 16  # elements of a buffer that is kept for a step, to see whether a pass changed it


class Updates:
    """Records weights, and every optimizer's step from its own hooks."""

    def __init__(self, run: Run, backward: Backward, optimizers: Sequence[Optimizer]) -> None:
        for optimizer in optimizers:
            if not isinstance(optimizer, Optimizer):
                raise CaptureError(
                    f"optimizer is a {type(optimizer).__name__}, not a torch.optim.Optimizer; give the one whose "
                    "step() is called, or a list of them"
                )
        self.run = run
        self.backward = backward
        self.optimizers = tuple(optimizers)
        self.stepped: set[int] = set()  # optimizers, by id, that have stepped in this step
        self._buffers: dict[tuple[str, str], torch.Tensor] = {}  # as the step found them, where nobody steps
        self._handles: list[torch.utils.hooks.RemovableHandle] = []
        self._stepping: set[int] = set()  # optimizers, by id, whose step has begun and not ended

    def install(self, begin_again: Callable[[], None]) -> None:
        """Listen to the optimizers; `begin_again` starts a new step when one of them steps twice."""
        self._begin_again = begin_again
        for optimizer in self.optimizers:
            self._handles.append(optimizer.register_step_pre_hook(lambda *said: self.before(*said)))
            self._handles.append(optimizer.register_step_post_hook(lambda *said: self.after(*said)))

    def before(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """An optimizer is about to step."""
        if steps_under_way(optimizer) > 1:  # its step has called that of the class it extends
            return
        if not self._takes_turn(optimizer):
            self.run.turn.miss(STEPS)
            return
        with self.run.hooked():
            if id(optimizer) in self.stepped:
                self._begin_again()
            if self.run.recording and self.run.program is not None:
                self.run.program.part = "optimizer"
                self.run.program.optimizer(self._settings(optimizer))
            if self.run.recording and not _sees_later(optimizer, args, kwargs):
                self._see(optimizer)

    def after(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """An optimizer has stepped."""
        if steps_under_way(optimizer) > 1 or id(optimizer) not in self._stepping or not self.run.turn.is_mine():
            return
        try:
            with self.run.hooked():
                self._record_step(optimizer, args, kwargs)
        finally:
            self._stepping.discard(id(optimizer))
            self.run.turn.end()

    def _record_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.stepped.add(id(optimizer))
        if not self.run.recording:
            return
        if _sees_later(optimizer, args, kwargs):
            self._see(optimizer)
        self._record_state(optimizer)
        if self.over:
            self._record("weight_after")
        if self.run.program is not None:
            self.run.program.part = "after"
            if self.over:
                self.run.program.pause()

    def _takes_turn(self, optimizer: Optimizer) -> bool:
        """Have the turn while an optimizer steps; that of a step that raised is still there for its next one."""
        if id(optimizer) in self._stepping and self.run.turn.is_mine():
            return True
        taken = self.run.turn.take(for_good=False)
        if taken:
            self._stepping.add(id(optimizer))
        return taken

    def close(self) -> None:
        """Listen no longer."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def forget_optimizers(self) -> None:
        """Keep nothing of optimizers that are no longer listened to."""
        self.optimizers = ()
        self._buffers.clear()

    @property
    def stepping(self) -> bool:
        """Whether an optimizer's step is running, whose closure may call the model again and again."""
        return any(steps_under_way(optimizer) for optimizer in self.optimizers)

    @property
    def over(self) -> bool:
        """Whether every optimizer has stepped."""
        return bool(self.optimizers) and len(self.stepped) == len(self.optimizers)

    def record_before(self) -> None:
        """Record parameters and buffers as a step finds them."""
        self._record("weight")
        if not self.optimizers:
            self._buffers = {
                (parameter.module, parameter.port): parameter.tensor.clone() for parameter in self._buffers_to_watch()
            }

    def end_step(self) -> None:
        """Say of optimizers that did not step that there is nothing they saw; record what a pass alone changed."""
        self._record_changed_buffers()
        for optimizer in self.optimizers if self.backward.passes else ():
            if id(optimizer) not in self.stepped:
                for item, _ in self._of(optimizer, "grad_scaled"):
                    site = self.run.site("grad_scaled", item.module, item.port)
                    self.run.recorder.absent(site, "the optimizer did not step", order=self._order(item))
        self.stepped.clear()

    def _buffers_to_watch(self) -> list[Parameter]:
        buffers = [item for item in parameters_of(self.run.model) if item.is_buffer]
        usual = [buffer for buffer in buffers if is_fake(buffer.tensor) or without_values(buffer.tensor) is None]
        return [parameter for parameter in usual if parameter.tensor.numel() <= SMALL]

    def _changed(self, item: Parameter) -> bool:
        before = self._buffers.get((item.module, item.port))
        if before is None or not is_fake(before):
            return before is not None and not torch.equal(before, item.tensor)
        owner = next((module for module, name in self.run.names.items() if name == item.module), None)
        return getattr(owner, "training", False) and bool(getattr(owner, "track_running_stats", False))

    def _record_changed_buffers(self) -> None:
        """Running statistics change with every forward pass in training, whether an optimizer steps or not."""
        for item in parameters_of(self.run.model) if self._buffers else ():
            if self._changed(item) and self.run.takes("weight_after", item.module):
                site = self.run.site("weight_after", item.module, item.port)
                self.run.put_value(site, item.tensor, order=self._order(item), aliases=list(item.aliases) or None)
        self._buffers = {}

    def _record(self, phase: str) -> None:
        groups = {id(p): group for o in self.optimizers for group in o.param_groups for p in group["params"]}
        for item in parameters_of(self.run.model):
            if self.run.takes(phase, item.module):
                details: dict[str, Json] = {"order": self._order(item), "aliases": list(item.aliases) or None}
                if phase == "weight_after" and id(item.tensor) in groups:
                    details["attrs"] = hyper_parameters(groups[id(item.tensor)])
                site = self.run.site(phase, item.module, item.port)
                self.run.put_value(site, item.tensor, **details)
                if phase == "weight":
                    self.run.known.mark(item.tensor, site)  # for functions that use a parameter without its module

    def _see(self, optimizer: Optimizer) -> None:
        """Record gradients as an optimizer sees them, after unscaling, clipping and accumulation."""
        self.backward.name_gradients(
            {self.run.site("grad", item.module, item.port) for item, _ in self._of(optimizer, "grad")}
        )
        for item, _ in self._of(optimizer, "grad_scaled"):
            site = self.run.site("grad_scaled", item.module, item.port)
            details: dict[str, Json] = {"order": self._order(item), "aliases": list(item.aliases) or None}
            gradient = item.tensor.grad
            if gradient is None:
                why = NO_GRADIENT if item.tensor.requires_grad else NOT_REQUIRED
                self.run.recorder.absent(site, why, **details)
            else:
                self.run.put_value(site, gradient, **details)

    def _record_state(self, optimizer: Optimizer) -> None:
        for item, state in self._of(optimizer, "optim"):
            for key, value in state.items():
                if isinstance(value, bool | int | float):
                    kind = torch.int64 if isinstance(value, int) else torch.float64
                    value = torch.tensor(value, dtype=kind, device="cpu")  # whatever the default device is
                if isinstance(value, torch.Tensor):
                    site = self.run.site("optim", item.module, f"{item.port}.{key}")
                    self.run.put_value(site, value, order=self._order(item))

    def _settings(self, optimizer: Optimizer) -> dict[str, Json]:
        """An optimizer as its step finds it: each group's settings, its parameters, and how many steps it has made."""
        names = {
            id(parameter.tensor): [parameter.module, parameter.port] for parameter in parameters_of(self.run.model)
        }
        groups: list[Json] = []
        for group in optimizer.param_groups:
            counts = (optimizer.state.get(one, {}).get("step", 0) for one in group["params"])
            count = next((one.item() if _is_number(one) else one for one in counts), 0)
            known = [names[id(one)] for one in group["params"] if id(one) in names]
            groups.append({**hyper_parameters(group), "step": count, "parameters": known})
        return {"class": type(optimizer).__name__, "groups": groups}

    def _of(self, optimizer: Optimizer, phase: str) -> list[tuple[Parameter, dict[str, Any]]]:
        """An optimizer's parameters that are recorded, each with its state."""
        own = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        return [
            (item, optimizer.state.get(item.tensor, {}))
            for item in parameters_of(self.run.model)
            if id(item.tensor) in own and self.run.takes(phase, item.module)
        ]

    def _order(self, item: Parameter) -> int | None:
        return self.run.first_position.get(item.module)


def hyper_parameters(group: dict[str, Any]) -> dict[str, Json]:
    """The settings of a parameter group."""
    return {
        key: said
        for key, item in group.items()
        if key != "params" and (said := plain_value(item.item() if _is_number(item) else item)) is not None
    }


def described(optimizer: Optimizer) -> dict[str, Json]:
    """An optimizer for the header: its class and the settings of every group."""
    groups = [{**hyper_parameters(group), "parameters": len(group["params"])} for group in optimizer.param_groups]
    return {"class": type(optimizer).__name__, "groups": groups}


def _is_number(item: Any) -> bool:
    return isinstance(item, torch.Tensor) and item.numel() == 1


def steps_under_way(optimizer: Optimizer) -> int:
    """How many times an optimizer's step is on the stack; what counts calls would go wrong after an exception."""
    found, frame = 0, sys._getframe()
    while (outer := frame.f_back) is not None:
        frame = outer
        if frame.f_code.co_qualname == "Optimizer.profile_hook_step.<locals>.wrapper":
            found += frame.f_locals.get("self") is optimizer
    return found


def _sees_later(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether gradients are final only within the step: made by a closure, or unscaled by a fused kernel."""
    closure = args[1] if len(args) > 1 else kwargs.get("closure")  # args[0] is the optimizer itself
    return closure is not None or getattr(optimizer, "grad_scale", None) is not None
