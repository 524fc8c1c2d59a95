"""Bugs of training: losses, backward passes, optimizers, running statistics."""

from __future__ import annotations

from typing import Any

import torch

from ..case import Case, Place, Planted, Truth, in_precisions, truth
from ..faults import losses, optimizers
from ..faults import weights as w
from .making import Maker

make = Maker("mlp")
LOSS, LOSS_GRAD = Place("loss", "loss", "out"), Place("lossgrad", "loss", "out")
GRADIENT = "gradient-formula"


def agrad(name: str) -> Place:
    return Place("agrad", name, "out")


def grad(name: str, port: str = "weight") -> Place:
    return Place("grad", name, port)


def after(name: str, port: str = "weight") -> Place:
    return Place("weight_after", name, port)


def state(name: str, port: str) -> Place:
    return Place("optim", name, port)


def backward(name: str, layer: int, place: Place, label: str | tuple[str, ...], *ids: str, **more: Any) -> Case:
    bug = more.pop("bug", name)
    return make.at(layer, name, "gradient", truth(place, label), {bug: True}, *ids, training=True, **more)


def step(name: str, said: Truth, theirs: Any, ours: Any, *ids: str, **more: Any) -> Case:
    return Case(
        f"mlp/{name}", "mlp", "optimizer", said, training=True, optimizer=ours, candidate_optimizer=theirs,
        catalogue=ids, **more,
    )  # fmt: skip


def loss(name: str, said: Truth, *ids: str, network: str = "mlp", **more: Any) -> Case:
    return Case(f"{network}/{name}", network, "loss", said, training=True, catalogue=ids, **more)


ZERO_CHANNEL = (w.altered("norm1.weight", lambda x: torch.cat((x[:8] * 0, x[8:]))),
                w.altered("norm1.bias", lambda x: torch.cat((x[:8] * 0, x[8:]))))  # fmt: skip

BACKWARD = [
    *in_precisions(backward("norm-grad-mean", 1, agrad("fc1"), GRADIENT), "fp32", "bf16"),
    backward("norm-grad-variance", 1, agrad("fc1"), GRADIENT, "N19"),
    backward("norm-grad-gain", 1, agrad("fc1"), GRADIENT),
    backward("norm2-grad-mean", 2, agrad("act2"), GRADIENT, bug="norm-grad-mean"),
    backward("gain-grad-of-input", 1, grad("norm1"), GRADIENT),
    backward("relu-grad-at-zero", 1, agrad("norm1"), GRADIENT, both_weights=ZERO_CHANNEL),
    backward("relu-grad-of-gradient", 1, agrad("norm1"), GRADIENT),
    *in_precisions(backward("silu-grad-term", 2, agrad("fc2"), GRADIENT), "fp32", "mixed"),
    backward("softmax-grad-diagonal", 2, agrad("gate"), GRADIENT),
    backward("linear-grad-untransposed", 2, agrad("act1"), (GRADIENT, "transpose")),
    backward("linear1-grad-untransposed", 1, agrad("embed"), (GRADIENT, "transpose"), bug="linear-grad-untransposed"),
    backward("linear-weight-grad-transposed", 2, grad("fc2"), ("transpose", GRADIENT, "axis-order")),
    *in_precisions(backward("linear-bias-grad-mean", 3, grad("fc3", "bias"), ("gradient-scale", "scale", GRADIENT)),
                   "fp32", "bf16"),
    backward("linear-weight-grad-last", 3, grad("fc3"), GRADIENT, "T04"),
    backward("linear-weight-grad-zero", 2, grad("fc2"), ("gradient-missing", "uninitialised"), bug="linear-frozen"),
    backward("embedding-grad-overwritten", 1, grad("embed"), GRADIENT, "P07"),
    backward("skip-grad-scaled", 1, agrad("act1"), (GRADIENT, "gradient-scale")),
    backward("skip-detached", 1, agrad("act1"), ("gradient-missing", GRADIENT)),
    backward("gate-detached", 1, agrad("soft"), "gradient-missing"),
    backward("embedding-detached", 1, agrad("embed"), "gradient-missing"),
    Case("gpt2/tied-gradient", "gpt2", "gradient",
         truth((grad("lm_head"), grad("wte")), ("tied-gradient", "gradient-missing")), Planted({"tied-gradient": True}),
         training=True),
]  # fmt: skip

LOSSES = [
    *in_precisions(
        loss("loss-accumulation", truth(LOSS, ("reduction-scale", "scale"), factor=4.0), "T02",
             candidate_loss=losses.times(4.0)),
        "fp32", "bf16",
    ),
    loss("loss-halved", truth(LOSS, ("reduction-scale", "scale"), factor=0.5), "T04", candidate_loss=losses.times(0.5)),
    loss("loss-sum", truth(LOSS, ("reduction-scale", "scale")), "T01", candidate_loss=losses.summed),
    loss("loss-items", truth(LOSS, ("reduction-scale", "scale"), factor=40 / 36), "T03",
         candidate_loss=losses.mean_of_rows),
    loss("loss-padding-counted", truth(LOSS, ("reduction-scale", "loss-formula", "scale")), "T14", loss=losses.ignoring,
         candidate_loss=losses.ignoring_but_counting),
    loss("loss-smoothed", truth(LOSS, "loss-formula"), candidate_loss=losses.smoothed),
    loss("loss-softmax-twice", truth(LOSS, "loss-formula"), candidate_loss=losses.tempered),
    loss("loss-absolute", truth(LOSS, "loss-formula"), network="unet", candidate_loss=losses.absolute),
    *in_precisions(
        loss("labels-shifted", truth(LOSS, "label-shift"), "T05", candidate_target=lambda y: y.roll(-1, 1)),
        "fp32", "bf16",
    ),
    loss("labels-shifted", truth(LOSS, "label-shift"), "T05", network="llama",
         candidate_target=lambda y: y.roll(-1, 1)),
    loss("gradient-halved", truth(LOSS_GRAD, ("gradient-scale", "reduction-scale", "scale"), factor=0.5), "T12", "T13",
         candidate_loss=losses.gradient_times(0.5)),
    loss("gradient-summed-over-ranks", truth(LOSS_GRAD, ("gradient-scale", "reduction-scale", "scale"), factor=8.0),
         "T15", "T16", network="gpt2", candidate_loss=losses.gradient_times(8.0)),
]  # fmt: skip


def one_dimensional(name: str, parameter: torch.Tensor) -> bool:
    return parameter.ndim < 2


def second_linear(name: str, parameter: torch.Tensor) -> bool:
    return name.startswith("fc2")


def torch_adamw(groups: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(groups, 1e-2, weight_decay=0.1)


def own_adamw(groups: Any) -> torch.optim.Optimizer:
    return optimizers.OwnAdamW(groups, 1e-2, weight_decay=0.1)


FIRST = (after("embed"),)
SEEN = Place("grad_scaled", "fc3", "weight")  # what the optimizer is handed, in the order of the backward pass
MOMENTUM = state("embed", "weight.momentum_buffer")
AVERAGE = state("embed", "weight.exp_avg")
NO_DECAY = {"weight_decay": 0.0}

OPTIMIZERS = [
    step("adam-eps-early", truth(FIRST, "optimizer-eps"), optimizers.own_adamw(eps=1e-5, bugs={"eps-early": True}),
         optimizers.adamw(eps=1e-5), "T11"),
    step("adam-eps-inside", truth(FIRST, "optimizer-eps"), optimizers.own_adamw(eps=1e-6, bugs={"eps-inside": True}),
         optimizers.adamw(eps=1e-6), "T11"),
    step("adam-no-bias-correction", truth(FIRST, "optimizer-bias-correction"),
         optimizers.own_adamw(bugs={"no-bias-correction": True}), optimizers.adamw()),
    step("adam-step-off-by-one", truth(FIRST, "optimizer-bias-correction"),
         optimizers.own_adamw(bugs={"step-shift": 1}), optimizers.adamw()),
    step("adam-coupled-decay", truth(AVERAGE, "weight-decay-coupling"),
         optimizers.own_adamw(weight_decay=0.1, bugs={"coupled": True}), optimizers.adamw(weight_decay=0.1)),
    step("adam-beta1", truth(AVERAGE, ("optimizer-momentum", "scale")),
         optimizers.own_adamw(bugs={"betas": (0.95, 0.999)}),
         optimizers.adamw(), steps=2),
    step("adam-decay-without-rate", truth(FIRST, ("weight-decay-coupling", "optimizer-lr")),
         optimizers.own_adamw(weight_decay=0.1, bugs={"decay-without-rate": True}), optimizers.adamw(weight_decay=0.1)),
    step("decay-on-norms", truth((after("fc1", "bias"),), "weight-decay-norms"),
         optimizers.own_adamw(weight_decay=0.1), optimizers.grouped(torch_adamw, one_dimensional, NO_DECAY),
         "T09", "T10"),
    step("group-rate", truth(after("fc2"), "optimizer-lr"), optimizers.own_adamw(weight_decay=0.1),
         optimizers.grouped(torch_adamw, second_linear, {"lr": 2e-2})),
    step("adam-rate", truth(FIRST, "optimizer-lr"), optimizers.own_adamw(lr=3e-3), optimizers.adamw(lr=1e-2)),
    step("sgd-rate-twice", truth(FIRST, ("optimizer-lr", "scale")), optimizers.own_sgd(bugs={"rate-twice": True}),
         optimizers.sgd()),
    step("sgd-nesterov", truth(FIRST, "optimizer-momentum"), optimizers.own_sgd(momentum=0.9, bugs={"nesterov": True}),
         optimizers.sgd(momentum=0.9)),
    step("sgd-dampening", truth(MOMENTUM, "optimizer-momentum", 1),
         optimizers.own_sgd(momentum=0.9, bugs={"dampening": 0.9}), optimizers.sgd(momentum=0.9), steps=2),
    step("sgd-momentum-forgotten", truth(MOMENTUM, "optimizer-momentum", 1),
         optimizers.own_sgd(momentum=0.9, bugs={"momentum-forgotten": True}), optimizers.sgd(momentum=0.9), steps=2),
    step("sgd-decay-missing", truth(FIRST, ("weight-decay-coupling", "missing-term")),
         optimizers.own_sgd(), optimizers.sgd(weight_decay=0.1)),
    step("clip-missing", truth(SEEN, ("clip-norm", "scale")), optimizers.own_sgd(),
         optimizers.Clipped(optimizers.sgd(), 0.1), "T06"),
    step("clip-each", truth(SEEN, "clip-norm"), optimizers.Clipped(optimizers.own_sgd(), 0.1, "each"),
         optimizers.Clipped(optimizers.sgd(), 0.1), "T07"),
    step("clip-scaled", truth(SEEN, ("clip-norm", "scale")), optimizers.Clipped(optimizers.own_sgd(), 0.1, scale=0.25),
         optimizers.Clipped(optimizers.sgd(), 0.1), "T06", "T08"),
]  # fmt: skip

TRAINED = {"training": True, "train_mode": True, "optimizer": optimizers.sgd(0.05), "catalogue": ("N13", "N14")}
STATISTICS = [
    Case("spotter/bn-momentum", "spotter", "optimizer",
         truth(after("bn1", "running_mean"), "batchnorm-momentum", momentum=0.9), Planted({"bn-momentum": 0.9}),
         **TRAINED),
    Case("spotter/bn-momentum-second", "spotter", "optimizer",
         truth(after("bn2", "running_mean"), "batchnorm-momentum", momentum=0.01), Planted({"bn-momentum": 0.01}, {1}),
         **TRAINED),
    Case("spotter/bn-biased", "spotter", "optimizer", truth(after("bn1", "running_var"), "batchnorm-unbiased"),
         Planted({"bn-biased": True}), **TRAINED),
    Case("resnet/bn-biased", "resnet", "optimizer", truth(after("blocks.2.bn1", "running_var"), "batchnorm-unbiased"),
         Planted({"bn-biased": True}, {2}), **TRAINED),
    Case("resnet/bn-frozen", "resnet", "optimizer",
         truth(after("blocks.1.bn1", "running_mean"), ("batchnorm-momentum", "batchnorm-mode", "stale-buffer")),
         Planted({"bn-frozen": True}, {1}), **TRAINED),
]  # fmt: skip

FORWARD_IN_TRAINING = [
    Case("llama/training-gqa-tile", "llama", "attention", truth(Place("fwd", "layers.1.attn.o_proj", "in.0"),
                                                                "gqa-order"),
         Planted({"gqa-order": True}, {1}), training=True, optimizer=optimizers.adamw(1e-3), steps=2,
         catalogue=("A14",)),
    Case("gpt2/training-gelu", "gpt2", "mlp", truth(Place("fwd", "h.1.mlp.act", "out"), "activation-variant"),
         Planted({"activation": torch.nn.functional.relu}, {1}), training=True, optimizer=optimizers.sgd(),
         catalogue=("M03",)),
    Case("moe/training-renorm", "moe", "moe", truth(Place("fwd", "layers.1.mlp.router", "out.0"), "router-renorm"),
         Planted({"router-renorm": True}, {1}), training=True, optimizer=optimizers.adamw(1e-3), catalogue=("M08",)),
    Case("resnet/training-padding", "resnet", "layout", truth(Place("fwd", "blocks.1.conv1", "out"), "padding"),
         Planted({"padding": (0, 2)}, {1}), training=True, train_mode=True, optimizer=optimizers.sgd(),
         catalogue=("L02",)),
]  # fmt: skip

CASES = [*BACKWARD, *LOSSES, *OPTIMIZERS, *STATISTICS, *FORWARD_IN_TRAINING]
