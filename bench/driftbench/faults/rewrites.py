"""Legal changes of weights: the function stays as it is."""

from __future__ import annotations

import torch

from ..case import Change


def folded_batchnorm(conv: str, norm: str, eps: float = 1e-5) -> Change:
    """The statistics and gain of a batch norm moved into the convolution before it."""

    def apply(state: dict[str, torch.Tensor]) -> None:
        factor = state[f"{norm}.weight"] / (state[f"{norm}.running_var"] + eps).sqrt()
        shape = (-1,) + (1,) * (state[f"{conv}.weight"].ndim - 1)
        state[f"{conv}.weight"] = state[f"{conv}.weight"] * factor.view(shape)
        state[f"{conv}.bias"] = (state[f"{conv}.bias"] - state[f"{norm}.running_mean"]) * factor + state[f"{norm}.bias"]
        state[f"{norm}.weight"] = torch.full_like(factor, (1 + eps) ** 0.5)
        state[f"{norm}.bias"] = torch.zeros_like(factor)
        state[f"{norm}.running_mean"] = torch.zeros_like(factor)
        state[f"{norm}.running_var"] = torch.ones_like(factor)

    return apply


def folded_gain(norm: str, *linears: str) -> Change:
    """The gain of an RMSNorm moved into the linear layers that read it."""

    def apply(state: dict[str, torch.Tensor]) -> None:
        gain = state[f"{norm}.weight"]
        for linear in linears:
            state[f"{linear}.weight"] = state[f"{linear}.weight"] * gain
        state[f"{norm}.weight"] = torch.ones_like(gain)

    return apply


def migrated_scale(before: str, behind: str) -> Change:
    """Each channel between two linear layers gets another scale, which the second takes back; powers of two and not."""

    def apply(state: dict[str, torch.Tensor]) -> None:
        first = state[f"{before}.weight"]
        scale = torch.exp(torch.linspace(-1, 1, len(first)))
        state[f"{before}.weight"] = first * scale[:, None]
        if f"{before}.bias" in state:
            state[f"{before}.bias"] = state[f"{before}.bias"] * scale
        state[f"{behind}.weight"] = state[f"{behind}.weight"] / scale

    return apply


def permuted_units(before: tuple[str, ...], behind: str, order: list[int]) -> Change:
    """The units between linear layers in another order."""

    def apply(state: dict[str, torch.Tensor]) -> None:
        index = torch.tensor(order)
        for name in before:
            state[f"{name}.weight"] = state[f"{name}.weight"][index]
            if f"{name}.bias" in state:
                state[f"{name}.bias"] = state[f"{name}.bias"][index]
        state[f"{behind}.weight"] = state[f"{behind}.weight"][:, index]

    return apply


def moved_key_bias(key: str, value: float = 0.7) -> Change:
    """A key bias shifts all scores of a query alike, and the softmax does not see it."""

    def apply(state: dict[str, torch.Tensor]) -> None:
        state[f"{key}.bias"] = state[f"{key}.bias"] + value

    return apply


def fused(into: str, *parts: str) -> Change:
    """Several linear layers stored as one under another name."""

    def apply(state: dict[str, torch.Tensor]) -> None:
        for port in ("weight", "bias"):
            state[f"{into}.{port}"] = torch.cat([state.pop(f"{part}.{port}") for part in parts])

    return apply


def cancelling(first: str, second: str) -> Change:
    """Columns of two matrices in pairs that nearly cancel in each product."""

    def apply(state: dict[str, torch.Tensor]) -> None:
        vectors, matrix = state[first].clone(), state[second].clone()
        vectors[:, 1::2] = vectors[:, 0::2]
        matrix[:, 1::2] = -matrix[:, 0::2] * (1 + 3e-4)
        state[first], state[second] = vectors, matrix

    return apply
