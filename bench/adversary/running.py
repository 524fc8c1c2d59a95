"""Runs a network: freely or from another run's tensors, in any dtype, in any legal way, right or wrong."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .network import INPUT, Network, Node, Values, at
from .operations.op import Op, Way, compute, draw_way
from .optimizers import Optimizer, update


@dataclass(frozen=True)
class Plan:
    """Which way every operation is computed: drawn from a seed, or each by its formula."""

    seed: int | None = None

    def way(self, op: Op, store: torch.dtype, *place: object) -> Way:
        if self.seed is None:
            return Way(op.formulas[0], torch.float32 if store.itemsize == 1 else store, 0)
        return draw_way(op, store, self.rng(*place))

    def rng(self, *place: object) -> np.random.Generator:
        text = "/".join(map(str, place)).encode()
        return np.random.default_rng([self.seed or 0, *text])


class Change:
    """What is wrong in a run. This one changes nothing."""

    def edit(self, site, tensor: Tensor) -> Tensor:
        return tensor

    def op(self, step: int, node: str, op: Op) -> Op:
        return op

    def backward_op(self, step: int, node: str, op: Op) -> Op | None:
        """Another operation in the backward pass alone, or None."""
        return None

    def optimizer(self, step: int, key: tuple[str, str], optimizer: Optimizer) -> Optimizer:
        return optimizer

    def parts(self, site, parts: list[Tensor]) -> list[Tensor]:
        """The addends of a gradient."""
        return parts


class Runner:
    """One run. With a teacher, every operation reads the teacher's tensors and not those made here."""

    def __init__(
        self,
        network: Network,
        store: torch.dtype,
        plan: Plan,
        change: Change | None = None,
        teacher: Values | None = None,
    ) -> None:
        self.network, self.store, self.plan = network, store, plan
        self.change, self.teacher = change or Change(), teacher
        self.values: Values = {}
        self.state: dict[tuple[str, str], dict[str, Tensor]] = {}

    def run(self) -> Values:
        weights = {key: value.to(self.store) for key, value in self.network.weights.items()}
        for step in range(self.network.steps):
            weights = {(n, p): self._keep(at(step, "weight", n, p), value) for (n, p), value in weights.items()}
            with torch.set_grad_enabled(self.network.loss is not None):
                self._forward(step, weights)
                if self.network.loss is not None:
                    self._backward(step, weights)
            if self.network.optimizer is not None:
                weights = weights | {key: self._update(step, key, weights[key]) for key in self.network.trainable()}
        return self.values

    def _keep(self, site, tensor: Tensor) -> Tensor:
        """Write down what was made here, and give what the next operation reads."""
        own = self.change.edit(site, tensor.detach())
        self.values[site] = own
        if self.teacher is None or site not in self.teacher:
            return own
        given = self.teacher[site]
        return given.to(self.store) if given.is_floating_point() else given

    def _forward(self, step: int, weights: dict[tuple[str, str], Tensor]) -> None:
        x = self.network.x
        x = x.to(self.store) if x.is_floating_point() else x
        self.made = {INPUT: self._keep(at(step, "input", "input", INPUT), x)}
        self.graph = {}
        for node in self.network.nodes:
            op = self.change.op(step, node.name, node.op)
            self.graph[node.name] = self._call(step, node, op, weights)
            self.made[node.name] = self._keep(at(step, "fwd", node.name), self.graph[node.name][0])

    def _call(self, step: int, node: Node, op: Op, weights: dict[tuple[str, str], Tensor]):
        grown = torch.is_grad_enabled()
        inputs = [_leaf(self.made[one], grown) for one in node.inputs]
        kept = node.op.buffers()
        own = {port: _leaf(weights[node.owner, port], grown and port not in kept) for port in node.op.shapes()}
        way = self.plan.way(node.op, self.store, step, node.name)
        return compute(op, way, inputs, own, self.store), inputs, own

    def _backward(self, step: int, weights: dict[tuple[str, str], Tensor]) -> None:
        self.parts: dict[object, list[Tensor]] = defaultdict(list)
        self._loss(step)
        for node in reversed(self.network.nodes):
            if node.name not in self.parts:
                continue
            site = at(step, "agrad", node.name)
            gradient = self._keep(site, self._sum(site, self.parts[node.name]))
            wrong = self.change.backward_op(step, node.name, node.op)
            call = self.graph[node.name] if wrong is None else self._call(step, node, wrong, weights)
            self._differentiate(node, call, gradient)
        for name, port in self.network.trainable():
            site = at(step, "grad", name, port)
            self.made[name, port] = self._keep(site, self._sum(site, self.parts[name, port]))

    def _loss(self, step: int) -> None:
        op = self.change.op(step, "loss", self.network.loss)
        logits = _leaf(self.made[self.network.last], True)
        way = self.plan.way(self.network.loss, self.store, step, "loss")
        loss = compute(op, way, [logits], {}, self.store)
        self.parts[self.network.last] += torch.autograd.grad(loss, [logits])
        self._keep(at(step, "loss", "loss"), loss)

    def _differentiate(self, node: Node, call, gradient: Tensor) -> None:
        out, inputs, own = call
        wanted = [(name, x) for name, x in zip(node.inputs, inputs, strict=True) if x.requires_grad and name != INPUT]
        wanted += [((node.owner, port), own[port]) for port in own if port not in node.op.buffers()]
        if not wanted:
            return
        found = torch.autograd.grad(out, [tensor for _, tensor in wanted], gradient, allow_unused=True)
        for (key, tensor), one in zip(wanted, found, strict=True):
            self.parts[key].append(torch.zeros_like(tensor) if one is None else one)

    def _sum(self, site, parts: list[Tensor]) -> Tensor:
        """Addends in any order, rounded at every one or once."""
        parts = self.change.parts(site, parts)
        rng = self.plan.rng(*site, "sum")
        if len(parts) == 1:
            return parts[0]
        order = range(len(parts)) if self.plan.seed is None else rng.permutation(len(parts))
        work = torch.float64 if self.plan.seed is not None and rng.random() < 0.5 else self.store
        total = parts[order[0]].to(work)
        for one in order[1:]:
            total = total + parts[one].to(work)
        return total.to(self.store)

    def _update(self, step: int, key: tuple[str, str], weight: Tensor) -> Tensor:
        optimizer = self.change.optimizer(step, key, self.network.optimizer)
        rng = self.plan.rng(step, *key, "update")
        work, fused, short = self.store, False, False
        if self.plan.seed is not None:
            fused = rng.random() < 0.5
            work = torch.float64 if rng.random() < 0.3 else torch.float32
            work = self.store if rng.random() < 0.3 else work
            short = rng.random() < 0.3
        new, state = update(optimizer, weight, self.made[key], self.state.get(key, {}), step, work, fused, short)
        name, port = key
        self.state[key] = {k: self._keep(at(step, "optim", name, f"{port}.{k}"), value) for k, value in state.items()}
        return self._keep(at(step, "weight_after", name, port), new)


def _leaf(tensor: Tensor, grown: bool) -> Tensor:
    return tensor.detach().requires_grad_(grown and tensor.is_floating_point())


def run(network: Network, store: torch.dtype, seed: int | None, change: Change | None = None) -> Values:
    """A free run in one legal way (or by the formulas, without a seed), right or with one wrong change."""
    return Runner(network, store, Plan(seed), change).run()


def run_from(network: Network, store: torch.dtype, seed: int | None, teacher: Values) -> Values:
    """Every operation in one legal way on the teacher's tensors."""
    return Runner(network, store, Plan(seed), None, teacher).run()
