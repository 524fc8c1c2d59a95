"""Ways of training: precision, recomputation, accumulation, optimizers, hooks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from torch.utils.data import DataLoader, TensorDataset

from .network import Network, adamw, draw_of, normal, sgd, tokens, trains

WIDTH, CLASSES = 16, 5
Optimizer = torch.optim.Optimizer


def perceptron() -> nn.Module:
    return nn.Sequential(
        nn.Linear(WIDTH, 32), nn.GELU(), nn.LayerNorm(32), nn.Dropout(0.1), nn.Linear(32, 32), nn.SiLU(),
        nn.Linear(32, CLASSES),
    )  # fmt: skip


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(4, WIDTH, 3, padding=1), nn.BatchNorm1d(WIDTH), nn.ReLU(), nn.Conv1d(WIDTH, WIDTH, 3, 2),
        nn.Softplus(), nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(WIDTH, CLASSES),
    )  # fmt: skip


def row_loss(model: Any, draw: torch.Generator) -> torch.Tensor:
    return F.cross_entropy(model(normal(draw, 8, WIDTH)), torch.randint(CLASSES, (8,), generator=draw))


def sound_loss(model: Any, draw: torch.Generator) -> torch.Tensor:
    return F.cross_entropy(model(normal(draw, 6, 4, 20)), torch.randint(CLASSES, (6,), generator=draw))


def text_loss(model: Any, draw: torch.Generator) -> torch.Tensor:
    text = tokens(draw, 4, 9)
    return F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())


# Precision


class Attention(nn.Module):
    """Words, a norm, torch's own attention with dropout, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(97, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 4, dropout=0.1, batch_first=True)
        self.head = nn.Linear(WIDTH, 97)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        h = self.norm(self.embed(text))
        mask = nn.Transformer.generate_square_subsequent_mask(text.shape[1])
        return self.head(h + self.attention(h, h, h, attn_mask=mask, is_causal=True, need_weights=False)[0])


def autocast_loss(model: Any, draw: torch.Generator) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return text_loss(model, draw)


_SCALERS: WeakKeyDictionary[nn.Module, torch.amp.GradScaler] = WeakKeyDictionary()


def scaled_step(model: nn.Module, optimizer: Optimizer | None) -> None:
    """float16 with a scaled loss. The first scale is too large: that update is left out and the scale halved."""
    assert optimizer is not None
    if model not in _SCALERS:
        _SCALERS[model] = torch.amp.GradScaler("cpu", init_scale=2.0**18, growth_interval=2)
    scaler = _SCALERS[model]
    with torch.autocast("cpu", torch.float16):
        loss = sound_loss(model, draw_of(model))
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()


# Recomputation


def dear_products(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    """Keeps matrix products and computes the rest again."""
    dear = op in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
    return CheckpointPolicy.MUST_SAVE if dear else CheckpointPolicy.PREFER_RECOMPUTE


class Checkpointed(nn.Module):
    """Blocks with dropout whose activations are computed again, with the same random numbers."""

    def __init__(self, **how: Any) -> None:
        super().__init__()
        self.embed = nn.Embedding(97, WIDTH)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 32), nn.Tanh(), nn.Dropout(0.2), nn.Linear(32, WIDTH))
            for _ in range(3)
        )
        self.head = nn.Linear(WIDTH, 97)
        self.how = how

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        h = self.embed(text)
        for block in self.blocks:
            h = h + checkpoint(block, h, **self.how)
        return self.head(h)


def selective() -> nn.Module:
    return Checkpointed(use_reentrant=False, context_fn=partial(create_selective_checkpoint_contexts, dear_products))


# Accumulation and closures


def accumulating_step(model: nn.Module, optimizer: Optimizer | None) -> None:
    """Micro-batches of a shuffled loader, the last of them smaller; numbers from numpy, sharing its memory."""
    assert optimizer is not None
    draw = draw_of(model)
    random = np.random.default_rng(int(torch.randint(2**31, (), generator=draw)))
    rows = torch.from_numpy(random.standard_normal((10, WIDTH), dtype=np.float32))
    classes = torch.from_numpy(random.integers(0, CLASSES, 10))
    optimizer.zero_grad()
    for x, y in DataLoader(TensorDataset(rows, classes), batch_size=4, shuffle=True, generator=draw):
        (F.cross_entropy(model(x), y, reduction="sum") / len(rows)).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5, foreach=True)
    if torch.isfinite(norm):
        optimizer.step()


class GaussianProcess(nn.Module):
    """The evidence of a Gaussian process in double precision, through a Cholesky factor."""

    def __init__(self) -> None:
        super().__init__()
        self.logs = nn.Parameter(torch.zeros(3, dtype=torch.float64))  # of length, height and noise

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        length, height, noise = self.logs.exp()
        kernel = height * torch.exp(-0.5 * (torch.cdist(x, x) / length).square())
        factor = torch.linalg.cholesky(kernel + (noise + 1e-3) * torch.eye(len(x), dtype=x.dtype))
        solved = torch.cholesky_solve(y[:, None], factor).squeeze(1)
        return 0.5 * y @ solved + factor.diagonal().log().sum()


def closure_step(model: nn.Module, optimizer: Optimizer | None) -> None:
    """One call of the optimizer evaluates the model as often as its line search asks."""
    assert optimizer is not None
    draw = draw_of(model)
    x = torch.rand(12, 2, dtype=torch.float64, generator=draw)
    y = torch.sin(4 * x).sum(1) + 0.3 * normal(draw, 12)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x, y)
        loss.backward()
        return loss

    optimizer.step(closure)


def lbfgs(model: nn.Module) -> Optimizer:
    return torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=5, line_search_fn="strong_wolfe")


# Several optimizers


class Together(Optimizer):
    """Several optimizers in one, as training frameworks have it."""

    def __init__(self, *parts: Optimizer) -> None:
        self.parts = parts
        super().__init__([group for part in parts for group in part.param_groups], {})

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for part in self.parts:
            part.step(closure)


def sgd_and_adamw(model: nn.Module) -> Optimizer:
    """Momentum for what convolves, AdamW for the rest."""
    first = [p for module in model.modules() if isinstance(module, nn.Conv1d) for p in module.parameters()]
    rest = [p for module in model.modules() if not isinstance(module, nn.Conv1d) for p in module.parameters(False)]
    return Together(torch.optim.SGD(first, lr=1e-2, momentum=0.9), torch.optim.AdamW(rest, lr=1e-3))


def muon_and_adamw(model: Any) -> Optimizer:
    """Muon, which works in bfloat16, for inner matrices."""
    inner = [model[4].weight, model[0].weight]
    rest = [p for p in model.parameters() if not any(p is matrix for matrix in inner)]
    return Together(torch.optim.Muon(inner, lr=1e-2), torch.optim.AdamW(rest, lr=1e-3, fused=True))


def one_for_each(model: nn.Module) -> Optimizer:
    return Together(*(torch.optim.SGD([parameter], lr=1e-2, momentum=0.9) for parameter in model.parameters()))


def in_backward_step(model: nn.Module, optimizer: Optimizer | None) -> None:
    """Each parameter is updated as soon as its gradient is there, inside the backward pass, and the gradient freed."""
    assert isinstance(optimizer, Together)

    def update(part: Optimizer, _: torch.Tensor) -> None:
        part.step()
        part.zero_grad()

    hooks = [
        parameter.register_post_accumulate_grad_hook(partial(update, part))
        for parameter, part in zip(model.parameters(), optimizer.parts, strict=True)
    ]
    row_loss(model, draw_of(model)).backward()
    for hook in hooks:
        hook.remove()


def hooked_step(model: nn.Module, optimizer: Optimizer | None) -> None:
    """Hooks that change what they see: outputs, gradients of modules and tensors, and what is saved for backward."""
    assert optimizer is not None
    parts: Any = model
    hooks = [
        parts[1].register_forward_hook(lambda module, args, out: out * 0.5),
        parts[4].register_full_backward_hook(lambda module, before, after: (before[0].clamp(-0.01, 0.01),)),
        parts[0].weight.register_hook(lambda grad: grad - grad.mean(0, keepdim=True)),
    ]
    with torch.autograd.graph.saved_tensors_hooks(_narrowed, lambda saved: saved[0].to(saved[1])):
        loss = row_loss(model, draw_of(model))
    loss.backward()
    for hook in hooks:
        hook.remove()
    optimizer.step()
    optimizer.zero_grad()


def _narrowed(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype]:
    return (tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor), tensor.dtype


# More passes than one


class Averaged(nn.Module):
    """A network and the moving average of its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.net = perceptron()
        self.average = AveragedModel(self.net, multi_avg_fn=get_ema_multi_avg_fn(0.9)).requires_grad_(False)


def sharpness_step(model: nn.Module, optimizer: Optimizer | None) -> None:
    """Up the gradient, a second pass there, back, and the update; a warm-up, and the average at the end."""
    assert optimizer is not None
    parts: Any = model
    parameters, start = list(parts.net.parameters()), draw_of(model).get_state()
    row_loss(parts.net, draw_of(model)).backward()
    norm = torch.nn.utils.get_total_norm([p.grad for p in parameters])
    with torch.no_grad():
        moves = [p.grad * (0.05 / (norm + 1e-12)) for p in parameters]
        torch._foreach_add_(parameters, moves)
    optimizer.zero_grad()
    row_loss(parts.net, draw_of(model).set_state(start)).backward()  # the same rows
    for parameter, move in zip(parameters, moves, strict=True):
        parameter.data.sub_(move)
    for group in optimizer.param_groups:
        group["lr"].mul_(1.1)
    optimizer.step()
    optimizer.zero_grad()
    parts.average.update_parameters(parts.net)


def tensor_rate(model: nn.Module) -> Optimizer:
    """The learning rate is a tensor."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    return torch.optim.AdamW(parameters, lr=torch.tensor(1e-3), foreach=False)


TRAINING = (
    Network("autocast-bfloat16", Attention, trains(autocast_loss), adamw()),
    Network("grad-scaler", convolutions, scaled_step, sgd(momentum=0.9)),
    Network("checkpoint-reentrant", partial(Checkpointed, use_reentrant=True), trains(text_loss), adamw()),
    Network("checkpoint-non-reentrant", partial(Checkpointed, use_reentrant=False), trains(text_loss), adamw()),
    Network("checkpoint-selective", selective, trains(text_loss), adamw()),
    Network("accumulation-clipping", perceptron, accumulating_step, adamw()),
    Network("lbfgs-gaussian-process", GaussianProcess, closure_step, lbfgs),
    Network("sgd-and-adamw", convolutions, trains(sound_loss), sgd_and_adamw),
    Network("muon-and-adamw", perceptron, trains(row_loss), muon_and_adamw),
    Network("adamw-fused", perceptron, trains(row_loss), adamw(fused=True)),
    Network("adamw-foreach", convolutions, trains(sound_loss), adamw(foreach=True, amsgrad=True)),
    Network("sgd-fused", convolutions, trains(sound_loss), sgd(fused=True, momentum=0.9, nesterov=True)),
    Network("sgd-foreach", perceptron, trains(row_loss), sgd(foreach=True, momentum=0.9, weight_decay=1e-3)),
    Network("optimizer-in-backward", perceptron, in_backward_step, one_for_each),
    Network("hooks", perceptron, hooked_step, adamw()),
    Network("sharpness-average", Averaged, sharpness_step, tensor_rate),
)
