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
from .calls.program_recorder import ProgramRecorder
from .forward import Forward
from .names import is_scripted, outermost
from .run import Run
from .step_updates import Optimizer, Updates
from .tensor_values import outputs
from .turns import Turn
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
        program: bool = True,
        source: bool = False,
    ) -> None:
        self.run = Run(model, scope)
        self.run.check_scope()
        self.run.program = ProgramRecorder(self.run, self._owner, source=source) if program else None
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
        self.run.turn = Turn()
        self._used = True
        self.updates.install(self._begin_step)
        hooks.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._take_away()
        with self.run.lock:
            try:
                self._end_step(whole=error is None)
                self._say_what_was_missed()
            except BaseException:
                self.run.recorder.close(whole=False)
                if error is None:
                    raise
                return  # what went wrong in the block matters more
            finally:
                self._let_go()
            if self.run.program is not None:
                self.run.program.close()
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
        if not self.forward.stack or id(module) in self._strangers or not self.run.turn.is_mine():
            return False
        self.run.read_names()  # a module that the model has made itself since the step began
        if module not in self.run.names:
            self._strangers.add(id(module))
        return module in self.run.names

    def follows(self, module: nn.Module) -> bool:
        """Whether a call that begins is one to be told of; in a thread without the turn it is only remembered."""
        if not self.owns(module):
            return False
        turn, evaluating = self.run.turn, self._is_evaluation()
        begins = module is self.run.model and not hooks.in_backward() and not evaluating
        followed = turn.take(for_good=True) if begins else turn.join()
        if not followed and self.run.recording and not evaluating:
            turn.miss(self.run.names.get(module, ""))
        return followed

    def is_elsewhere(self) -> bool:
        """Whether another thread may be calling the model now."""
        return not self.run.turn.is_mine()

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """A module is called."""
        try:
            self._enter(module, args, kwargs)
        except BaseException:
            self.run.turn.end()
            raise
        self._depth += module is self.run.model

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        with self.run.hooked():
            recomputed = hooks.in_backward()
            outermost = module is self.run.model and self._depth == 0
            if outermost and not recomputed and not self._is_evaluation():
                self._begin_forward()
                if self._verification is not None and self.run.recording:
                    with self._program_aside():
                        self._verification.rehearse(self.run.model, args, kwargs)
                if self._is_recorded():
                    self.forward.feed(args, kwargs, self._fed - 1)
            if self._is_recorded():
                self._say_part("forward", outermost and not recomputed)
                self.forward.enter(module, args, kwargs, recomputed=recomputed)

    def leave(self, module: nn.Module, output: Any) -> None:
        """A module returns."""
        try:
            self._leave(module, output)
        finally:
            self.run.turn.end()

    def _leave(self, module: nn.Module, output: Any) -> None:
        with self.run.lock:
            self._depth -= module is self.run.model
            if not self._is_recorded():
                self._forget(module)
                return
        with self.run.hooked():
            frame = self.forward.leave(module, output)
            self._say_part("loss", not self.forward.stack)
            if frame is None or frame.recomputed:
                return
            if frame.name == self._read_at:
                for port, tensor in outputs(output):
                    self.backward.watch_loss(self.run.site("lossgrad", "loss", port, frame.call), tensor)
            if module is self.run.model and self._verification is not None:
                self._verification.compare(outputs(output))

    def fail(self, module: nn.Module, error: BaseException) -> None:
        """A module raised, which matters more than a disk that is full."""
        with self.run.lock:
            self._depth -= module is self.run.model
            if self._is_recorded():
                with suppress(StorageError), self.run.hooked():
                    self.forward.fail(module, error)
            else:
                self._forget(module)
        self.run.turn.end()

    def _forget(self, module: nn.Module) -> None:
        """A module is left when nothing is recorded any longer."""
        self.forward.forget(module)
        if self.run.program is not None and self.run.recorder.stopped:
            self.run.program.stop()

    def tapped(self, name: str, tensor: Any) -> bool:
        """A tensor is marked; whether that was inside this model."""
        if not self.run.turn.is_mine() or not self.forward.stack or not isinstance(tensor, torch.Tensor):
            return False
        if self._is_recorded():
            with self.run.hooked():
                self.forward.tap(name, tensor)
        return True

    def begin_backward(self, roots: tuple[torch.Tensor, ...]) -> bool:
        """A backward pass begins; those of steps that are not recorded count too. Whether it is followed."""
        turn = self.run.turn
        if not turn.is_mine() and not (turn.is_free() and self._came_through(roots)):
            return False
        if not turn.take(for_good=False):
            return False
        self._say_part("backward")
        with self.run.hooked():
            turn.lent = True
            self.backward.begin(roots)
        return True

    def end_backward(self, *, whole: bool) -> None:
        """A backward pass has ended."""
        self._say_part("optimizer" if self.updates.stepping else "loss")
        with self.run.hooked():
            self.run.turn.lent = False
            self.backward.end(whole=whole and self.run.turn.open)
        self.run.turn.end()

    def _came_through(self, roots: tuple[torch.Tensor, ...]) -> bool:
        """Whether tensors were computed by what is recorded, not by another model in another thread."""
        with self.run.lock:
            return any(site.phase == "fwd" for root in roots for site in self.run.known.producers(root) or ())

    # Steps.

    def _is_evaluation(self) -> bool:
        """With an optimizer, a call without gradients is no part of a training step."""
        return bool(self.updates.optimizers) and not torch.is_grad_enabled()

    def _is_recorded(self) -> bool:
        evaluating = self._is_evaluation() and not self.forward.stack and not hooks.in_backward()
        return self.run.recording and not self.run.recorder.stopped and not evaluating

    def _owner(self) -> tuple[str, nn.Module] | None:
        """The module that runs, with its path."""
        if not self.forward.stack:
            return None
        frame = self.forward.stack[-1]
        return frame.name, frame.module

    def _say_part(self, part: str, changes: bool = True) -> None:
        if self.run.program is not None and changes and not hooks.in_backward():
            self.run.program.part = part

    @contextmanager
    def _program_aside(self) -> Iterator[None]:
        """The model runs as if nobody looked, although we do."""
        if self.run.program is None:
            yield
            return
        back = self.run.program.modes.aside()
        try:
            with torch._C._EnableTorchFunction():
                yield
        finally:
            back()

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
        return all(tensor.grad is None or _is_zero(tensor.grad) for tensor in self.backward.graded)

    def _begin_step(self) -> None:
        self._end_step()
        self._asked = False
        self._fed = 0
        self._strangers.clear()
        self.run.begin_step()
        if self.run.program is not None and self.run.recording:
            self.run.program.begin_step(self.run.step)
        self._say_what_is_hidden()
        self.backward.begin_step()

    def _say_what_is_hidden(self) -> None:
        for how, hides in (("compiled", hooks.is_compiled), ("TorchScript", is_scripted)):
            names = outermost(name for module, name in self.run.names.items() if hides(module))
            if names:
                said = ", ".join(name or "the model" for name in names)
                self.run.note(how, f"{said}: {how}; only what goes in and comes out is recorded")

    def _end_step(self, *, whole: bool = True) -> None:
        with self.run.hooked():
            if self.run.recording:
                self.backward.name_gradients()
                if whole:  # what did not come before an exception is not absent
                    self.backward.end_step()
                    self.updates.end_step()
            if self.run.program is not None:
                self.run.program.end_step()
        self.updates.stepped.clear()

    def _say_what_was_missed(self) -> None:
        said = self.run.turn.said()
        if said is not None:
            self.run.note("threads", said)

    def _let_go(self) -> None:
        self.run.turn.open = self.run.recording = False
        if self.run.turn.is_idle():  # a thread that is still inside the model leaves by itself
            self.forward.unwind()
            self._forget_model()
        self.backward.close()

    def _forget_model(self) -> None:
        """This and its parts know each other, so that they stay until the garbage collector comes by; weights do not
        have to wait for it."""
        self.run.forget_model()
        self.updates.forget_optimizers()
        del self._open_recorder  # which writes them into a header

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
