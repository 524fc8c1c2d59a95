"""Derivatives out of the ordinary: written by hand, of derivatives, for each sample, through chance."""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.autograd.function import once_differentiable
from torch.func import functional_call, grad, jvp, vmap

from .network import Network, adamw, draw_of, normal, sgd, trains
from .training import Together, perceptron

WIDTH, CLASSES = 16, 5


# Written by hand


class GatedLinear(torch.autograd.Function):
    """x W + b through SiLU, in one function with the backward pass of both."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        inner = torch.addmm(bias, x, weight)
        ctx.save_for_backward(x, weight, inner)
        return inner * torch.sigmoid(inner)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        x, weight, inner = ctx.saved_tensors
        share = torch.sigmoid(inner)
        grad = grad * share * (1 + inner * (1 - share))
        return grad @ weight.T, x.T @ grad, grad.sum(0)


class Rounded(torch.autograd.Function):
    """Rounds in place, says which places were cut off, and lets gradients through where none was."""

    @staticmethod
    def forward(x: torch.Tensor, step: float) -> tuple[torch.Tensor, torch.Tensor]:
        cut = x.abs() > 8 * step
        return x.div_(step).round_().clamp_(-8, 8).mul_(step), cut

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_dirty(inputs[0])
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, _: Any) -> Any:
        return grad.masked_fill(ctx.saved_tensors[0], 0), None


class ByHand(nn.Module):
    """Layers with backward passes of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, 24) * 0.3)
        self.bias = nn.Parameter(torch.zeros(24))
        self.head = nn.Linear(24, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h, cut = Rounded.apply(GatedLinear.apply(x, self.weight, self.bias), 0.125)
        return self.head(h) + cut.float().mean()


def row_loss(model: Any, draw: torch.Generator) -> torch.Tensor:
    return F.cross_entropy(model(normal(draw, 8, WIDTH)), torch.randint(CLASSES, (8,), generator=draw))


# Of derivatives


class Players(nn.Module):
    """A generator and a critic whose gradient is to have length one."""

    def __init__(self) -> None:
        super().__init__()
        self.maker = nn.Sequential(nn.Linear(4, 24), nn.ReLU(), nn.Linear(24, WIDTH))
        self.critic = nn.Sequential(
            nn.Linear(WIDTH, 24), nn.LeakyReLU(0.2), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 1)
        )


def penalty_step(model: nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
    """Two updates of the critic, through the gradient of its gradient, and one of the generator."""
    assert isinstance(optimizer, Together)
    players: Any = model
    of_maker, of_critic = optimizer.parts
    for _ in range(2):
        real, made = normal(draw_of(model), 6, WIDTH), players.maker(torch.randn(6, 4)).detach()
        between = torch.lerp(real, made, torch.rand(6, 1)).requires_grad_()
        (slope,) = torch.autograd.grad(players.critic(between).sum(), between, create_graph=True)
        penalty = (slope.norm(2, dim=1) - 1).square().mean()
        of_critic.zero_grad()
        (players.critic(made).mean() - players.critic(real).mean() + 10 * penalty).backward()
        of_critic.step()
    players.critic.requires_grad_(False)
    of_maker.zero_grad()
    (-players.critic(players.maker(torch.randn(6, 4))).mean()).backward()
    of_maker.step()
    players.critic.requires_grad_(True)


def for_players(model: Any) -> torch.optim.Optimizer:
    betas = (0.0, 0.9)
    return Together(
        torch.optim.Adam(model.maker.parameters(), 1e-3, betas),
        torch.optim.Adam(model.critic.parameters(), 1e-3, betas),
    )


def physics_loss(model: Any, draw: torch.Generator) -> torch.Tensor:
    """A network that is to solve u'' = -u: its second derivatives in time, and one forwards, are in the loss."""
    time = torch.rand(10, 1, generator=draw).requires_grad_()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="`torch.jit.script` is deprecated")  # torch's own use of it
        u, slope = jvp(model, (time,), (torch.ones_like(time),))
    (first,) = torch.autograd.grad(u.sum(), time, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), time, create_graph=True)
    return (
        (second + u).square().mean() + (slope - first).square().mean() + (model(torch.zeros(1, 1)) - 1).square().sum()
    )


def solver() -> nn.Module:
    return nn.Sequential(nn.Linear(1, 24), nn.Tanh(), nn.Linear(24, 24), nn.Softplus(), nn.Linear(24, 1))


# For each sample, and through chance


def private_step(model: nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
    """Gradients of every sample at once, each clipped, summed and blurred with noise."""
    assert optimizer is not None
    draw = draw_of(model)
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}

    def loss(weights: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(functional_call(model, weights, (x[None],)), y[None])

    rows, classes = normal(draw, 8, WIDTH), torch.randint(CLASSES, (8,), generator=draw)
    each = vmap(grad(loss), in_dims=(None, 0, 0), randomness="different")(weights, rows, classes)
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in each.values()]).norm(dim=0)
    factor = (1.0 / (norms + 1e-6)).clamp(max=1.0)
    for name, parameter in model.named_parameters():
        summed = torch.einsum("b,b...->...", factor, each[name])
        parameter.grad = (summed + 0.1 * torch.randn_like(summed)) / 8
    optimizer.step()
    optimizer.zero_grad()


class Policy(nn.Module):
    """An actor and a critic on one trunk."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(4, WIDTH), nn.Tanh())
        self.actor = nn.Linear(WIDTH, 3)
        self.value = nn.Linear(WIDTH, 1)

    def forward(self, state: torch.Tensor) -> tuple[torch.distributions.Categorical, torch.Tensor]:
        h = self.trunk(state)
        return torch.distributions.Categorical(logits=self.actor(h)), self.value(h).squeeze(-1)


def policy_step(model: nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
    """Some moves in a small world without gradients, then two passes over them with clipped ratios of chances."""
    assert optimizer is not None
    state, states, actions, chances, rewards = normal(draw_of(model), 4, 4), [], [], [], []
    for _ in range(5):
        with torch.no_grad():
            chance, _ = model(state)
            action = chance.sample()
        states.append(state)
        actions.append(action)
        chances.append(chance.log_prob(action))
        state = (state.roll(1, -1) + 0.1 * (action[:, None] - 1)).clamp(-2, 2)
        rewards.append(-state.abs().sum(-1))
    returns, total = torch.empty(5, 4), torch.zeros(4)
    for time in reversed(range(5)):
        total = rewards[time] + 0.9 * total
        returns[time] = total
    for order in torch.randperm(5).split(3):
        chance, value = model(torch.stack(states)[order])
        gain = returns[order] - value
        ratio = torch.exp(chance.log_prob(torch.stack(actions)[order]) - torch.stack(chances)[order])
        better = gain.detach()
        clipped = torch.minimum(ratio * better, ratio.clamp(0.8, 1.2) * better)
        optimizer.zero_grad()
        (F.smooth_l1_loss(value, returns[order]) - clipped.mean() - 0.01 * chance.entropy().mean()).backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.5)
        optimizer.step()


DERIVATIVES = (
    Network("custom-autograd", ByHand, trains(row_loss), adamw()),
    Network("gradient-penalty", Players, penalty_step, for_players),
    Network("second-derivatives", solver, trains(physics_loss), adamw()),
    Network("gradients-of-each-sample", perceptron, private_step, sgd(momentum=0.9)),
    Network("policy", Policy, policy_step, adamw()),
)
