"""`Tracing`: a model under observation, from the first step to the last."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Self

import torch
from torch import nn

from ...errors import CaptureError, StorageError
from ..recorder import Recorder
from ..scope import Scope, some_of
from . import hooks
from .backward import Backward
from .forward import Forward
from .run import Run
from .updates import Optimizer, Updates
from .values import outputs
from .verification import Verification


class Tracing:
    """Records a model while its block is open; see `fd.trace`.

    A step ends with `optimizer.step()`. Without an optimizer it ends when the model is called again, unless
    gradients are being accumulated: a backward pass has run and its gradients are still there. A step whose
    gradients are cleared without a step of the optimizer (a skipped one) ends there too. `next_step` ends one by hand.
    """

    def __init__(
        self,
        model: nn.Module,
        scope: Scope,
        open_recorder: Callable[[], Recorder],
        *,
        optimizers: Sequence[Optimizer] = (),
        scaler: torch.amp.GradScaler | None = None,
        every_operation: bool = False,
        logits: str | None = None,
        verification: Verification | None = None,
    ) -> None:
        self.run = Run(model, scope)
        self.run.check_scope()
        self.backward = Backward(self.run, scaler)
        self.forward = Forward(self.run, self.backward, every_operation=every_operation)
        self.updates = Updates(self.run, self.backward, optimizers)
        self._open_recorder = open_recorder
        self._verification = verification
        self._read_at = logits or ""  # whose output the loss reads
        self._fed = 0  # times the model was called in this step
        self._depth = 0  # calls of the model that have not returned: a model may call itself
        self._asked = False  # for the next step, by the user
        self._used = False
        self._strangers: set[int] = set()
        names = sorted(set(self.run.names.values()))
        if self._read_at not in names:
            raise CaptureError(f"logits {logits!r} is no module of the model; {some_of(names)}")

    def __enter__(self) -> Self:
        if self._used:
            raise CaptureError("this trace has been taken already; call fd.trace again for another one")
        for other in hooks.observers():
            if any(other.owns(module) for module in self.run.names):
                raise CaptureError("a module of this model is being traced already; close that trace first")
        self.run.recorder = self._open_recorder()
        self._used = True
        self.updates.install(self._begin_step)
        hooks.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._take_away()
        try:
            self._end_step(whole=error is None)
        except BaseException:
            self.run.recorder.close(whole=False)
            if error is None:
                raise
            return  # what went wrong in the block matters more
        finally:
            self.forward.unwind()
            self.backward.close()
        self.run.recorder.close(whole=error is None)
        if error is None:
            if not self.run.recorded:
                raise CaptureError(self._why_nothing())
            if self._verification is not None:
                self._verification.judge()

    def next_step(self) -> None:
        """End the step: the next call of the model begins another one."""
        self._asked = True

    # What hooks tell us.

    def owns(self, module: nn.Module) -> bool:
        """Whether a module is part of the model, as it is now."""
        if module in self.run.names:
            return True
        if not self.forward.stack or id(module) in self._strangers:
            return False
        self.run.read_names()  # a module that the model has made itself since the step began
        if module not in self.run.names:
            self._strangers.add(id(module))
        return module in self.run.names

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """A module is called."""
        with self._looking():
            recomputed = hooks.in_backward()
            outermost = module is self.run.model and self._depth == 0
            if outermost and not recomputed and not self._is_evaluation():
                self._begin_forward()
                if self._verification is not None and self.run.recording:
                    self._verification.rehearse(self.run.model, args, kwargs)
                if self._is_recorded():
                    self.forward.feed(args, kwargs, self._fed - 1)
            if self._is_recorded():
                self.forward.enter(module, args, kwargs, recomputed=recomputed)
        self._depth += module is self.run.model

    def leave(self, module: nn.Module, output: Any) -> None:
        """A module returns."""
        self._depth -= module is self.run.model
        if not self._is_recorded():
            self.forward.forget(module)
            return
        with self._looking():
            frame = self.forward.leave(module, output)
            if frame is None or frame.recomputed:
                return
            if frame.name == self._read_at:
                for port, tensor in outputs(output):
                    self.backward.watch_loss(self.run.site("lossgrad", "loss", port, frame.call), tensor)
            if module is self.run.model and self._verification is not None:
                self._verification.compare(outputs(output))

    def fail(self, module: nn.Module, error: BaseException) -> None:
        """A module raised, which matters more than a disk that is full."""
        self._depth -= module is self.run.model
        if self._is_recorded():
            with suppress(StorageError):
                self.forward.fail(module, error)
        else:
            self.forward.forget(module)

    def tapped(self, name: str, tensor: Any) -> bool:
        """A tensor is marked; whether that was inside this model."""
        if not self.forward.stack or not isinstance(tensor, torch.Tensor):
            return False
        if self._is_recorded():
            with self._looking():
                self.forward.tap(name, tensor)
        return True

    def begin_backward(self, roots: tuple[torch.Tensor, ...]) -> None:
        """A backward pass begins; those of steps that are not recorded count too."""
        self.backward.begin(roots)

    def end_backward(self, *, whole: bool) -> None:
        """A backward pass has ended."""
        self.backward.end(whole=whole)

    # Steps.

    def _is_evaluation(self) -> bool:
        """With an optimizer, a call without gradients is no part of a training step."""
        return bool(self.updates.optimizers) and not torch.is_grad_enabled()

    def _is_recorded(self) -> bool:
        evaluating = self._is_evaluation() and not self.forward.stack and not hooks.in_backward()
        return self.run.recording and not self.run.recorder.stopped and not evaluating

    @contextmanager
    def _looking(self) -> Iterator[None]:
        self.run.busy = True
        try:
            yield
        finally:
            self.run.busy = False

    def _begin_forward(self) -> None:
        self.forward.unwind()  # what an exception that was caught has left behind
        if self._is_over():
            self._begin_step()
        if self.run.recording and self._fed == 0:
            self.updates.record_before()
        self._fed += 1

    def _is_over(self) -> bool:
        if self.run.step < 0 or self._asked:
            return True
        if self.updates.optimizers:
            given_up = bool(self.backward.graded) and not self.updates.stepping and self._gradients_are_cleared()
            return self.updates.over or given_up
        return self._fed > 0 and (self.backward.passes == 0 or self._gradients_are_cleared())

    def _gradients_are_cleared(self) -> bool:
        return all(one.grad is None or _is_zero(one.grad) for one in self.backward.graded)

    def _begin_step(self) -> None:
        self._end_step()
        self._asked = False
        self._fed = 0
        self._strangers.clear()
        self.run.begin_step()
        self._say_what_is_hidden()
        self.backward.begin_step()

    def _say_what_is_hidden(self) -> None:
        compiled = [name or "the model" for module, name in self.run.names.items() if hooks.is_compiled(module)]
        if compiled:
            names = ", ".join(dict.fromkeys(compiled))
            self.run.describe(notes=[f"{names}: compiled; only what goes in and comes out is recorded"])

    def _end_step(self, *, whole: bool = True) -> None:
        if self.run.recording:
            self.backward.name_gradients()
            if whole:  # what did not come before an exception is not absent
                self.backward.end_step()
                self.updates.end_step()
        self.updates.stepped.clear()

    def _take_away(self) -> None:
        hooks.remove(self)
        self.updates.close()

    def _why_nothing(self) -> str:
        if self.run.step < 0:
            return (
                "the model was not called inside the block, or only from inside code that torch.compile made; "
                "call the model that was given to fd.trace, and trace it uncompiled"
            )
        return f"none of the steps asked for came: {self.run.step + 1} ran; ask for steps from 0 to {self.run.step}"


def _is_zero(gradient: torch.Tensor) -> bool:
    try:
        return not gradient.any()
    except RuntimeError:  # no values to look at: meta tensors, exotic types
        return False
