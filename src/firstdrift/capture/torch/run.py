"""A run being traced: its model's names, the step it is in, and how one tensor of it is recorded."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import nn

from ...core.sites import Site
from ...core.strict_json import Json
from ...core.traces import Array
from ...errors import StorageError
from ..recorder import Kept, Recorder
from ..scope import Scope
from .names import classes_of, modules_of
from .producers import Known
from .tensor_values import NotComparableError, array_of
from .turns import Turn

_PLAIN = (torch.Tensor, nn.Parameter)


class _Eyes(threading.local):
    open = 0  # how many of us look at tensors in this thread: what one trace calls is no operation for another either


EYES = _Eyes()


if TYPE_CHECKING:
    from .calls.program_recorder import ProgramRecorder


class Run:
    """What the recorders of the phases share."""

    recorder: Recorder  # set when the trace is opened
    turn: Turn  # so is this, by the thread that opens it

    def __init__(self, model: nn.Module, scope: Scope) -> None:
        self.model = model
        self.scope = scope
        self.stated: set[str] = set()  # header keys that are known
        self.lock = threading.RLock()  # held while anything here changes: a block may end in another thread
        self.busy = False  # while we look at tensors ourselves, which is no operation of the model
        self.program: ProgramRecorder | None = None  # that writes down the calls, if asked to
        self.known = Known()
        self.step = -1
        self.recording = False  # whether the present step is one of those asked for
        self.recorded = 0  # steps so far
        self.names: dict[nn.Module, str] = {}
        self.first_position: dict[str, int] = {}  # of each module in the forward pass, for lines of later phases
        self._positions = 0
        self._calls: Counter[str] = Counter()
        self._taken: dict[str, bool] = {}
        self._classes: dict[str, list[str]] = {}
        self._notes: dict[str, str] = {}  # of the header, by what they are about
        self.read_names()

    def begin_step(self) -> None:
        """Go on to the next step; names are read anew, because a model may change between steps."""
        self.step += 1
        self.recording = self.scope.takes_step(self.step) and not self.recorder.stopped
        self.recorded += self.recording
        self.known.forget()
        self.first_position.clear()
        self._calls.clear()
        self._positions = 0
        self.read_names()

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Whatever we call inside is none of the model's operations."""
        before, self.busy, EYES.open = self.busy, True, EYES.open + 1
        try:
            if self.program is None or before:
                yield
            else:  # a mode of functions would be told of every attribute that we look at
                with torch._C.DisableTorchFunction():
                    yield
        finally:
            self.busy = before
            EYES.open -= 1

    @contextmanager
    def hooked(self) -> Iterator[None]:
        """The same in a hook. Where nothing more can be written, nobody has to watch any longer."""
        with self.lock, self.looking():
            try:
                yield
            except StorageError:
                if self.program is not None:
                    self.program.stop()
                raise

    def read_names(self) -> None:
        """Learn the modules that the model has now."""
        self.names = modules_of(self.model)
        self._classes = {name: classes_of(module) for module, name in self.names.items()}
        self._taken.clear()

    def forget_model(self) -> None:
        """Keep nothing of a model that is no longer watched."""
        self.model = nn.Module()
        self.names = {}

    def takes(self, phase: str, name: str) -> bool:
        """Whether tensors of a phase are recorded at a module, or at what lies inside one."""
        if phase not in self.scope.phases:
            return False
        if name not in self._taken:
            self._taken[name] = self.scope.takes(name, self._classes.get(name, ()))
        return self._taken[name]

    def check_scope(self) -> None:
        """Refuse patterns that match nothing in the model."""
        self.scope.check(self._classes)

    def next_call(self, name: str) -> int:
        """The number of a module's next call in this step."""
        self._calls[name] += 1
        return self._calls[name] - 1

    def next_position(self) -> int:
        """The next place in the forward pass."""
        self._positions += 1
        return self._positions - 1

    def site(self, phase: str, name: str, port: str, call: int = 0) -> Site:
        """A site of the present step."""
        return Site(self.step, phase, name, port, call)

    def put(self, site: Site, tensor: torch.Tensor, **details: Json) -> None:
        """Record an activation or its gradient; the same tensor again takes no further bytes."""
        kept = self.known.kept(tensor)
        if kept is not None and self.recorder.again(site, kept, **details):
            if self.program is not None:
                self.program.site(site, tensor)
            return
        self.known.keep(tensor, self.put_value(site, tensor, **details))

    def put_value(self, site: Site, tensor: torch.Tensor, **details: Json) -> Kept | None:
        """Record a tensor whatever is known of it: old code writes to parameters and gradients behind torch's back."""
        try:
            array = array_of(tensor) if self.program is None else self._quickly(tensor)
        except NotComparableError as error:
            self.recorder.absent(site, str(error), **details)
            return None
        kept = self.recorder.put(site, array, **details)
        if self.program is not None:
            self.program.site(site, tensor)
        return kept

    def _quickly(self, tensor: torch.Tensor) -> Array:
        """The numbers of a tensor past all modes, ours among them; other kinds of tensors may need theirs."""
        if type(tensor) not in _PLAIN:
            return array_of(tensor)
        with torch._C._DisableTorchDispatch():
            return array_of(tensor)

    def describe(self, **header: Json) -> None:
        """Add to the header what it does not say yet."""
        new = {key: item for key, item in header.items() if key not in self.stated}
        if new:
            self.stated.update(new)
            self.recorder.describe(**new)

    def note(self, about: str, sentence: str) -> None:
        """Say in the header's notes what the trace does not show; a later sentence about the same takes its place."""
        if "notes" not in self.stated and self._notes.get(about) != sentence:  # notes of the user are left alone
            self._notes[about] = sentence
            self.recorder.describe(notes=list(self._notes.values()))
