"""The backward pass: the loss, gradients of outputs as they flow, raw gradients of parameters."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch

from ...core.records import NOT_COMPARABLE, NOT_REQUIRED
from ...core.sites import Site
from ...core.strict_json import Json
from ...errors import CaptureWarning
from ..recorder import Kept
from .names import parameters_of
from .producers import gradient_of
from .run import Run
from .tensor_values import NotComparableError, array_of, takes_gradient, version_of, without_values
from .turns import BACKWARD

NO_GRADIENT = "no gradient"
OVERWRITTEN = f"{NOT_COMPARABLE}the output is a view that was written over in place, which takes its place in the graph"
_RECOMPUTED = "its forward was recomputed in the backward pass (activation checkpointing)"
_FINGERPRINT = 64  # elements that tell the calls of a recomputed module apart


@dataclass(slots=True)
class _Pending:
    """A gradient that may still come; `why` is what is said if it does not."""

    why: str
    order: int | None
    fingerprint: bytes | None = None


class Backward:
    """Records backward passes: watches outputs, and keeps parameter gradients until they are known to be final."""

    def __init__(self, run: Run, scaler: torch.amp.GradScaler | None) -> None:
        self.run = run
        self.scaler = scaler
        self.passes = 0  # in this step
        self.running = False
        self.reference = False  # whether the pass that runs has come through this model
        self.graded: list[torch.Tensor] = []  # parameters that had a gradient after the last pass
        self._pending: dict[Site, _Pending] = {}
        self._watched: dict[int, tuple[weakref.ref[torch.Tensor], int | None, list[Site]]] = {}
        self._handles: list[torch.utils.hooks.RemovableHandle] = []
        self._recomputed: set[str] = set()
        self._aliases: dict[Site, tuple[str, ...]] = {}
        self._raw: dict[Site, Kept | str] = {}  # a gradient, or why there is none
        self._values: dict[Site, str | None] = {}  # what each raw gradient is in the program
        self._named: set[Site] = set()  # raw gradients that have their lines: they are final
        self._before: list[tuple[int, int | None] | None] = []  # gradients of parameters as a pass finds them
        self._losses: tuple[torch.Tensor, ...] = ()
        self._reduction: dict[str, str | int] | None = None
        self._warned = False

    def begin_step(self) -> None:
        """Forget the step before."""
        self.passes = 0
        self.graded = []
        self._pending.clear()
        self._watched.clear()
        self._recomputed.clear()
        self._raw.clear()
        self._values.clear()
        self._named.clear()
        self._aliases.clear()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def watch(self, site: Site, tensor: torch.Tensor, order: int | None) -> None:
        """Have the gradient of an output recorded when it comes."""
        if not takes_gradient(tensor):
            return
        watched = tensor.requires_grad
        self._pending[site] = _Pending(NO_GRADIENT if watched else NOT_REQUIRED, order, _fingerprint(tensor))
        if watched:
            self._hook(site, tensor)
            self._watch_base(site, tensor)

    def meet_again(self, tensor: torch.Tensor) -> None:
        """A tensor is met again. Torch forgets the node of a view that was written over since, and its gradient."""
        ref, version, sites = self._watched.get(id(tensor), (None, None, ()))
        if ref is not None and ref() is tensor and version != version_of(tensor) and tensor._is_view():
            for site in sites:
                if site in self._pending and self._pending[site].why == NO_GRADIENT:
                    self._pending[site].why = OVERWRITTEN

    def watch_again(self, name: str, found: Sequence[tuple[str, torch.Tensor]]) -> None:
        """A module is computed again during backward. Its gradients flow through the new tensors if the first ones,
        made without a graph (reentrant checkpoints), cannot have any."""
        self._recomputed.add(name)
        for port, tensor in found:
            waiting = [
                (site, pending)
                for site, pending in self._pending.items()
                if (site.name, site.port) == (name, port) and pending.why == NOT_REQUIRED
            ]
            if not waiting or not tensor.requires_grad:
                continue
            mark = _fingerprint(tensor, always=True)
            site, pending = next((one for one in waiting if one[1].fingerprint == mark), waiting[-1])
            pending.why = NO_GRADIENT
            self._hook(site, tensor)

    def watch_loss(self, site: Site, tensor: torch.Tensor) -> None:
        """Have the gradient at what the loss reads recorded."""
        if "lossgrad" in self.run.scope.phases and takes_gradient(tensor) and tensor.requires_grad:
            self._pending[site] = _Pending("", None)
            self._hook(site, tensor)

    def begin(self, roots: tuple[torch.Tensor, ...]) -> None:
        """A backward pass begins at these tensors."""
        self.running, self.reference = True, False
        self._before = self._gradients()
        if not self.run.recording:
            return
        self._losses = roots
        self._reduction = gradient_of(roots[0]) if len(roots) == 1 else None  # read before the graph is freed
        for root in roots:  # a model that returns its own loss: no gradient at what the loss reads
            for site in self._sites_of(root):
                if site.phase == "lossgrad":
                    self._pending.pop(site, None)

    def end(self, *, whole: bool) -> None:
        """A backward pass has ended."""
        self.running = False
        if whole and (self.reference or self._before != self._gradients()):
            if self.run.recording:
                self._record_loss()
                self._keep_raw_gradients()
            self.graded = [parameter for parameter in self.run.model.parameters() if parameter.grad is not None]
            self.passes += 1
        self._losses = ()

    def name_gradients(self, final: Collection[Site] | None = None) -> None:
        """Raw gradients are final, all of them or these: give them their sites."""
        for site in [one for one in self._raw if final is None or one in final]:
            raw = self._raw.pop(site)
            self._named.add(site)
            order = self.run.first_position.get(site.name)
            aliases = list(self._aliases[site]) or None
            if isinstance(raw, str):
                self.run.recorder.absent(site, raw, order=order, aliases=aliases)
            else:
                self.run.recorder.again(site, raw, order=order, aliases=aliases)
                if self.run.program is not None:
                    self.run.program.site_is(site, self._values.get(site))

    def end_step(self) -> None:
        """Say of every gradient that did not come that there is none."""
        self.name_gradients()
        if self.passes:
            for site, pending in self._pending.items():
                if pending.why:
                    self.run.recorder.absent(site, pending.why, order=pending.order)
        self._pending.clear()

    def close(self) -> None:
        """Take the hooks off the graphs that are still alive."""
        self.running = False  # for us: another thread may be in the middle of a pass
        self.begin_step()

    def _hook(self, site: Site, tensor: torch.Tensor) -> None:
        """One hook a tensor, however many sites it is."""
        self.meet_again(tensor)
        sites = self._sites_of(tensor)
        sites.append(site)
        if len(sites) == 1:
            self._watched[id(tensor)] = (weakref.ref(tensor), version_of(tensor), sites)
            self._handles.append(tensor.register_hook(lambda gradient: self._flowed(sites, gradient)))

    def _watch_base(self, site: Site, tensor: torch.Tensor) -> None:
        """Once a view is written over, its gradient arrives at the node of what it is a view of, and only there."""
        base = tensor._base if tensor._is_view() else None
        if base is None or base.grad_fn is None or base.numel() != tensor.numel():
            return
        if base.is_contiguous() and tensor.is_contiguous():
            shape, output = tensor.shape, base.output_nr

            def arrived(gradients: Sequence[torch.Tensor | None]) -> None:
                gradient, pending = gradients[output], self._pending.get(site)
                if gradient is not None and pending is not None and pending.why == OVERWRITTEN:
                    self._flowed([site], gradient.reshape(shape))

            self._handles.append(base.grad_fn.register_prehook(arrived))

    def _sites_of(self, tensor: torch.Tensor) -> list[Site]:
        entry = self._watched.get(id(tensor))
        return entry[2] if entry is not None and entry[0]() is tensor and entry[1] == version_of(tensor) else []

    def _flowed(self, sites: list[Site], gradient: torch.Tensor) -> None:
        """A gradient has arrived at an output. Only those of `backward` count: `autograd.grad` asks for others."""
        if not self.run.turn.is_mine():
            self.run.turn.miss(BACKWARD)
            return
        with self.run.lock:
            self._record_flow(sites, gradient)

    def _record_flow(self, sites: list[Site], gradient: torch.Tensor) -> None:
        if not self.running or sites[0].step != self.run.step:
            return
        self.reference = True
        for site in sites:
            pending = self._pending.pop(site, None)
            if pending is not None:
                details: dict[str, Json] = {"note": _RECOMPUTED} if site.name in self._recomputed else {}
                with self.run.hooked():
                    self.run.put(site, gradient, order=pending.order, **details)
            elif site.phase == "agrad":
                self._warn_of_second_pass()

    def _warn_of_second_pass(self) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(
                "a second backward pass went through the same forward pass; its activation gradients are not recorded: "
                "add the losses and call backward once to have them together",
                CaptureWarning, stacklevel=2,
            )  # fmt: skip

    def _record_loss(self) -> None:
        # A scaler that has scaled nothing yet has no scale of its own.
        used = self.scaler is not None and self.scaler.is_enabled() and self.scaler._scale is not None
        scale = self.scaler.get_scale() if used and self.scaler is not None else None
        details: dict[str, Json] = {} if scale is None else {"attrs": {"loss_scale": scale}}
        for number, loss in enumerate(self._losses):
            port = "out" if len(self._losses) == 1 else f"out.{number}"
            if "loss" in self.run.scope.phases:
                value = loss.detach() if scale is None else loss.detach() / scale
                self.run.put_value(self.run.site("loss", "loss", port, self.passes), value, **details)
        if scale is None and self._reduction is not None:
            self.run.describe(gradient_of=self._reduction)

    def _keep_raw_gradients(self) -> None:
        """Gradients as they are after a pass: a further pass may add to them, clipping may change them."""
        for module, port, aliases, parameter, is_buffer in parameters_of(self.run.model):
            site = self.run.site("grad", module, port)
            if is_buffer or site in self._named or not self.run.takes("grad", module):
                continue
            self._aliases[site] = aliases
            self._raw[site] = self._raw_gradient(site, parameter)

    def _gradients(self) -> list[tuple[int, int | None] | None]:
        """Which gradients the parameters have, and how often each was added to: what a pass of this model changes."""
        found = (parameter.grad for parameter in self.run.model.parameters())
        return [None if gradient is None else (id(gradient), version_of(gradient)) for gradient in found]

    def _raw_gradient(self, site: Site, parameter: torch.Tensor) -> Kept | str:
        if parameter.grad is None:
            return NO_GRADIENT if parameter.requires_grad else NOT_REQUIRED
        before = self._raw.get(site)
        try:
            array = array_of(parameter.grad)
        except NotComparableError as error:
            return str(error)
        if self.run.program is not None:
            self._values[site] = self.run.program.value_of(parameter.grad)
        kept = self.run.recorder.store(site, array, None if isinstance(before, str) else before)
        return NO_GRADIENT if kept is None else kept  # None after the disk was full, when nothing more is written


def _fingerprint(tensor: torch.Tensor, *, always: bool = False) -> bytes | None:
    """A few values of an output made without a graph, by which its recomputation will be known."""
    if (tensor.requires_grad and not always) or without_values(tensor):
        return None
    try:
        return bytes(array_of(tensor.detach().reshape(-1)[:_FINGERPRINT]).tobytes())
    except NotComparableError:
        return None
