"""The reference, run on what the candidate computed: every module is handed the candidate's own inputs, and every
gradient the candidate's own.

What arrives at a site was then made by one operation of the reference from the candidate's tensors: it is what the
candidate should have there, with nothing inherited. It is written to a trace of its own, the replay; then the
candidate's tensor takes its place and the run goes on. Decisions (masks, maxima, routes) follow from the candidate's
values, so that a near-tie that it decided the other way makes no difference.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from ..capture.torch.names import modules_of, numbered_arguments, parameters_of
from ..capture.torch.updates import steps_under_way
from ..capture.torch.values import NotComparableError, array_of, leaves, outputs
from ..errors import FirstdriftError
from ..opening import open_trace
from ..sites import Site
from ..store.writer import Writer
from ..traces import Array, Trace
from .sides import Side, randomness_kept
from .structures import with_leaves


@dataclass(frozen=True, slots=True)
class Plan:
    """What is forced. Inside `opaque` modules nothing is: only what goes into them and comes out is the candidate's.
    `own_weight` says which weights are the candidate's own, and `only` at which sites its tensors take over."""

    opaque: Callable[[str], bool] = lambda name: False
    own_weight: Callable[[Site], bool] = lambda site: True
    only: Callable[[Site], bool] = lambda site: True
    seen: Callable[[Site, torch.Tensor], None] = lambda site, tensor: None  # is told what arrives


class ReplayError(RuntimeError):
    """The reference cannot be run on the candidate's tensors: its own code raised."""


def replay(side: Side, candidate: Trace, path: Path, plan: Plan | None = None) -> Trace:
    """Run the reference on the candidate's tensors and write what it makes of them."""
    try:
        return _replayed(side, candidate, path, plan)
    except FirstdriftError:
        raise
    except Exception as error:  # whatever the model's code raises
        said = str(error).splitlines()[0] if str(error) else ""
        raise ReplayError(f"{type(error).__name__}: {said}") from error


def _replayed(side: Side, candidate: Trace, path: Path, plan: Plan | None) -> Trace:
    model = side.copied()
    optimizer = side.made_optimizer(model)
    with (
        Writer(path) as writer, randomness_kept(), side.environment(),
        _Forcing(model, candidate, writer, plan or Plan(), side.sites) as forcing,
    ):  # fmt: skip
        if optimizer is not None:
            forcing.watch(optimizer)
        for step in range(side.steps):
            forcing.begin_step(step)
            side.begin_step()
            _run_step(side, model, optimizer, forcing)
    return open_trace(path)


def _run_step(side: Side, model: nn.Module, optimizer: torch.optim.Optimizer | None, forcing: _Forcing) -> None:
    output = side.forward(model)
    if side.loss_fn is not None:
        loss = side.loss(output)
        forcing.lose(loss)
        with forcing.backward():
            loss.backward()
        forcing.write_gradients()
    if optimizer is not None:
        forcing.hand_gradients("grad")
        optimizer.step()
        forcing.write_updates(optimizer.state)
        optimizer.zero_grad(set_to_none=True)
    else:
        forcing.write_updates({})


class _Replace(torch.autograd.Function):
    """One tensor in place of another, whose gradient flows on as if it were that one."""

    @staticmethod
    def forward(ctx: Any, arriving: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
        return given.clone()  # an argument handed back counts as a view, which no operation may write to in place

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None


class _Forcing:
    def __init__(
        self, model: nn.Module, candidate: Trace, writer: Writer, plan: Plan, sites: Container[Site] | None
    ) -> None:  # fmt: skip
        self.model = model
        self.candidate = candidate
        self.writer = writer
        self.plan = plan
        self.sites = candidate if sites is None else sites
        self.step = 0
        self.in_backward = False
        self.calls: Counter[str] = Counter()
        self.stack: list[tuple[int, dict[int, int]]] = []  # calls that have not returned, and what they were handed
        self.hidden = 0  # opaque modules that have been entered and not left
        self.same: dict[tuple[int, object], torch.Tensor] = {}  # tensors handed to one call more than once
        self.handles: list[RemovableHandle] = []
        for module, name in modules_of(model).items():
            self.handles.append(module.register_forward_pre_hook(self._enter(name), with_kwargs=True, prepend=True))
            self.handles.append(module.register_forward_hook(self._leave(name), with_kwargs=True))

    def __enter__(self) -> _Forcing:
        return self

    def __exit__(self, *said: object) -> None:
        """Let go of everything. A hook of a tensor holds this, which holds the tensor: a cycle through the graph of
        autograd, where the garbage collector does not look, would keep the candidate's trace for good."""
        for handle in self.handles:
            handle.remove()
        self.handles.clear()
        self.same.clear()
        self.stack.clear()

    def watch(self, optimizer: torch.optim.Optimizer) -> None:
        """See what the optimizer is handed."""
        self.handles.append(optimizer.register_step_pre_hook(lambda one, *said: self.see_gradients(one)))

    def begin_step(self, step: int) -> None:
        """Every step starts from the candidate's own weights: what it made of them before is judged there."""
        self.step = step
        self.calls.clear()
        self.stack.clear()
        self.hidden = 0
        for item in parameters_of(self.model):
            site = Site(step, "weight", item.module, item.port)
            given = self.given(site, item.tensor) if self.plan.own_weight(site) else None
            if given is not None:
                with torch.no_grad(), torch._C.DisableTorchFunction():
                    item.tensor.copy_(given)
            self.write(site._replace(phase="weight"), item.tensor)

    @contextmanager
    def backward(self) -> Iterator[None]:
        """The pass whose gradients count; a model may ask for others while it runs."""
        self.in_backward = True
        yield
        self.in_backward = False

    def _enter(self, name: str) -> Callable[..., Any]:
        def enter(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
            call = self.calls[name]
            self.calls[name] += 1
            if not self.hidden:
                self.same = {}
                named = dict(numbered_arguments(module, args, kwargs))
                forced = {key: self.force(item, name, f"in.{key}", call) for key, item in named.items()}
                values = list(forced.values())
                args, kwargs = tuple(values[: len(args)]), dict(zip(kwargs, values[len(args) :], strict=True))
            self.hidden += self.plan.opaque(name)
            handed = [tensor for _, tensor in leaves((args, dict(kwargs)), "")]
            self.stack.append((call, {id(tensor): tensor._version for tensor in handed}))
            return args, dict(kwargs)

        return enter

    def _leave(self, name: str) -> Callable[..., Any]:
        def leave(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> Any:
            call, handed = self.stack.pop()
            self.hidden -= self.plan.opaque(name)
            if self.hidden:
                return None
            found = outputs(output)
            if all(handed.get(id(tensor)) == tensor._version for _, tensor in found):
                for port, tensor in found:  # what a module hands through is still the tensor that went in
                    self.write(Site(self.step, "fwd", name, port, call), tensor)
                return None
            return self.force(output, name, "out", call, single=len(found) == 1)

        return leave

    def force(self, value: Any, name: str, port: str, call: int, *, single: bool = False) -> Any:
        """A structure with every tensor that the candidate has too replaced by the candidate's."""
        exchanges = {
            at: partial(self.swap, Site(self.step, "fwd", name, "out" if single else at, call))
            for at, _ in leaves(value, port)
        }
        return with_leaves(value, port, exchanges)

    def swap(self, site: Site, arriving: torch.Tensor) -> torch.Tensor:
        """Write what arrives at a site, and go on with the candidate's tensor."""
        self.write(site, arriving)
        key = (id(arriving), self.candidate[site].at if site in self.candidate else None)
        if key in self.same and site.port.startswith("in."):
            return self.same[key]  # attention looks whether query, key and value are one tensor
        given = self.same[key] = self.exchanged(site, arriving)
        return given

    def exchanged(self, site: Site, arriving: torch.Tensor) -> torch.Tensor:
        """The candidate's tensor in place of what arrives, if it is to be forced here."""
        given = self.given(site, arriving) if self.plan.only(site) else None
        if given is None:
            given = arriving
        elif arriving.requires_grad:
            given = _Replace.apply(arriving, given)
        if given.requires_grad and not site.port.startswith("in."):
            if given is arriving:
                given = given.view_as(given)  # a hook of its own, whoever else looks at this tensor
            self.handles.append(given.register_hook(self._gradient(site._replace(phase="agrad"))))
        return given

    def _gradient(self, site: Site) -> Callable[[torch.Tensor], torch.Tensor | None]:
        def arrive(gradient: torch.Tensor) -> torch.Tensor | None:
            if not self.in_backward:
                return None
            self.write(site, gradient)
            if site.name == "":
                self.write(site._replace(phase="lossgrad", name="loss"), gradient)
            return self.given(site, gradient) if self.plan.only(site) else None

        return arrive

    def lose(self, loss: torch.Tensor) -> None:
        """Write the loss."""
        for record in self.candidate.records:
            if record.site.phase == "loss" and record.site.step == self.step:
                self.write(record.site, loss)

    def write_gradients(self) -> None:
        """Write what the parameters' gradients should be."""
        for item in parameters_of(self.model):
            if item.tensor.grad is not None:
                self.write(Site(self.step, "grad", item.module, item.port), item.tensor.grad)

    def hand_gradients(self, phase: str) -> None:
        """Give the parameters the gradients that the candidate's had."""
        for item in parameters_of(self.model):
            site = Site(self.step, phase, item.module, item.port)
            given = None if item.is_buffer else self.given(site, item.tensor)
            if given is not None:
                item.tensor.grad = given

    def see_gradients(self, optimizer: torch.optim.Optimizer) -> None:
        """Write what the optimizer is handed, after whatever clips it, and hand it what the candidate's saw."""
        if steps_under_way(optimizer) > 1:  # its step has called that of the class it extends
            return
        for item in parameters_of(self.model):
            if item.tensor.grad is not None:
                self.write(Site(self.step, "grad_scaled", item.module, item.port), item.tensor.grad)
        self.hand_gradients("grad_scaled")

    def write_updates(self, states: Mapping[torch.Tensor, Mapping[str, Any]]) -> None:
        """Write parameters and buffers as the step leaves them, and what the optimizer remembers."""
        for item in parameters_of(self.model):
            self.write(Site(self.step, "weight_after", item.module, item.port), item.tensor)
            for key, state in states.get(item.tensor, {}).items():
                if isinstance(state, torch.Tensor):
                    self.write(Site(self.step, "optim", item.module, f"{item.port}.{key}"), state)

    def given(self, site: Site, like: torch.Tensor) -> torch.Tensor | None:
        """The candidate's tensor of a site, if it has one of this shape and kind."""
        if site not in self.candidate or site not in self.sites:
            return None
        record = self.candidate[site]
        if record.at is None or record.shape != tuple(like.shape):
            return None
        array = self.candidate.array(record)
        if (array.dtype.kind in "iub") != (not like.is_floating_point() and not like.is_complex()):
            return None
        with torch._C.DisableTorchFunction():  # it is given, not made by what the model calls
            # In the memory order of what it stands for: random masks are drawn in that order.
            return torch.empty_like(like, requires_grad=False).copy_(torch.from_numpy(_plain(array)))

    def write(self, site: Site, tensor: torch.Tensor) -> None:
        """Write a tensor that the candidate has too."""
        self.plan.seen(site, tensor)
        if site in self.candidate:
            try:
                array = array_of(tensor)
            except NotComparableError:
                return
            self.writer.put(site.name, site.phase, array, port=site.port, step=site.step, call=site.call)


def _plain(array: Array) -> Array:
    """A copy in a dtype that torch can take over."""
    kind = array.dtype.kind
    if kind == "V" or array.dtype.name not in np.sctypeDict:  # bfloat16 and float8
        return array.astype(np.float32)
    return array.copy()
