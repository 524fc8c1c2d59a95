"""A run being traced: its model's names, the step it is in, and how one tensor of it is recorded."""

from __future__ import annotations

from collections import Counter

import torch
from torch import nn

from ...sites import Site
from ...strict_json import Json
from ..recorder import Kept, Recorder
from ..scope import Scope
from .names import classes_of, modules_of
from .producers import Known
from .values import NotComparableError, array_of


class Run:
    """What the recorders of the phases share."""

    recorder: Recorder  # set when the trace is opened

    def __init__(self, model: nn.Module, scope: Scope) -> None:
        self.model = model
        self.scope = scope
        self.stated: set[str] = set()  # header keys that are known
        self.busy = False  # while we look at tensors ourselves, which is no operation of the model
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

    def read_names(self) -> None:
        """Learn the modules that the model has now."""
        self.names = modules_of(self.model)
        self._classes = {name: classes_of(module) for module, name in self.names.items()}
        self._taken.clear()

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
            return
        self.known.keep(tensor, self.put_value(site, tensor, **details))

    def put_value(self, site: Site, tensor: torch.Tensor, **details: Json) -> Kept | None:
        """Record a tensor whatever is known of it: old code writes to parameters and gradients behind torch's back."""
        try:
            array = array_of(tensor)
        except NotComparableError as error:
            self.recorder.absent(site, str(error), **details)
            return None
        return self.recorder.put(site, array, **details)

    def describe(self, **header: Json) -> None:
        """Add to the header what it does not say yet."""
        new = {key: item for key, item in header.items() if key not in self.stated}
        if new:
            self.stated.update(new)
            self.recorder.describe(**new)
