"""A training step in numpy, twice: as reference, and with other summation orders and one planted error.

`firstdrift selftest` runs every plant and shows that each is found where it was planted, and that the clean pair,
whose two sides sum in different orders, is called noise.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..judge.measure.result import Result
from ..store.writer import Writer
from .comparison import diff

F32 = NDArray[np.float32]
BATCH, WIDTH, CLASSES, LAYERS = 16, 96, 10, 3
EPS, RATE, MOMENTUM = np.float32(1e-5), np.float32(0.05), np.float32(0.9)


@dataclass(frozen=True, slots=True)
class Plant:
    """A known error: what it is, and the site where it must be found."""

    name: str
    phase: str | None
    site: str | None
    where: str = ""  # the value it changes, as the network names it
    change: Callable[[Any], Any] | None = None


def _scaled(factor: float) -> Callable[[F32], F32]:
    return lambda x: x * np.float32(factor)


def _one(value: float) -> Callable[[F32], F32]:
    def change(x: F32) -> F32:
        x = x.copy()
        x.reshape(-1)[x.size // 3] = value
        return x

    return change


def _channel(factor: float) -> Callable[[F32], F32]:
    def change(x: F32) -> F32:
        x = x.copy()
        x[..., 5] *= np.float32(factor)
        return x

    return change


PLANTS = (
    Plant("nothing", None, None),
    Plant("other input", "input", "input", "input", _one(0.5)),
    Plant("square weight transposed", "weight", "fc2", "fc2.weight", lambda w: w.T.copy()),
    Plant("weight never loaded", "weight", "fc3", "fc3.bias", lambda b: b * 0 + np.float32(0.3)),
    Plant("one weight off by 1e-3", "weight", "fc2", "fc2.weight", _one(1e-3)),
    Plant("bias left out", "fwd", "fc2", "fc2.out", lambda x: x - np.float32(0.01)),
    Plant("output 0.1 % too large", "fwd", "fc1", "fc1.out", _scaled(1.001)),
    Plant("one channel 1 % off", "fwd", "ln2", "ln2.out", _channel(1.01)),
    Plant("norm with eps 1e-3", "fwd", "ln1", "ln1.eps", lambda eps: np.float32(1e-3)),
    Plant("one NaN", "fwd", "relu2", "relu2.out", _one(np.nan)),
    Plant("one element wrong", "fwd", "ln3", "ln3.out", _one(9.0)),
    Plant("halves swapped", "fwd", "relu1", "relu1.out", lambda x: np.roll(x, WIDTH // 2, axis=-1)),
    Plant("loss not divided by the batch", "lossgrad", "loss", "lossgrad", _scaled(BATCH)),
    Plant("wrong ReLU backward", "agrad", "ln2", "relu2.mask", lambda mask: np.ones_like(mask)),
    Plant("norm backward lacks a term", "agrad", "fc3", "ln3.backward", lambda term: term * 0),
    Plant("gradient of one sample lost", "grad", "fc2", "fc2.grad", lambda pair: (pair[0][1:], pair[1][1:])),
    Plant("gradient 1 % too small", "grad", "fc1", "fc1.dweight", _scaled(0.99)),
    Plant("gradients clipped", "grad_scaled", "head", "clip", lambda factor: np.float32(0.5)),
    Plant("momentum with the wrong sign", "weight_after", "fc1", "momentum", lambda m: -m),
    Plant("learning rate 1 % off", "weight_after", "fc1", "rate", lambda rate: rate * np.float32(1.01)),
    Plant("optimizer changes nothing", "weight_after", "fc1", "rate", lambda rate: rate * np.float32(0)),
)  # fmt: skip


def record_pair(plant: Plant, directory: Path) -> tuple[Path, Path]:
    """Record both sides, the candidate with the error planted; returns where they are."""
    reference, candidate = directory / "reference", directory / "candidate"
    _Step(_blocked, Plant("nothing", None, None)).write(reference)
    _Step(_serial, plant).write(candidate)
    return reference, candidate


def found(plant: Plant, result: Result) -> bool:
    """Whether the result names what was planted."""
    if plant.phase is None:
        return result.exit_code == 0
    first = result.first_drift
    return result.exit_code == 1 and first is not None and (first.phase, first.name) == (plant.phase, plant.site)


def results() -> Iterator[tuple[Plant, Result, bool]]:
    """Every plant, its result, and whether it was found."""
    for plant in PLANTS:
        with tempfile.TemporaryDirectory(prefix="firstdrift-selftest-") as directory:
            result = diff(*record_pair(plant, Path(directory)))
            yield plant, result, found(plant, result)


def _blocked(a: F32, b: F32) -> F32:
    return a @ b


def _serial(a: F32, b: F32) -> F32:
    """The same product, summed backwards in four parts: another correct implementation."""
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for part in np.array_split(np.arange(a.shape[1])[::-1], 4):
        total += a[:, part] @ b[part]
    return total


class _Step:
    """A multilayer perceptron with LayerNorm and ReLU: forward, backward, SGD with momentum."""

    def __init__(self, matmul: Callable[[F32, F32], F32], plant: Plant) -> None:
        self.matmul = matmul
        self.plant = plant
        random = np.random.default_rng(7)
        self.x = self.at("input", random.standard_normal((BATCH, WIDTH)).astype(np.float32))
        self.labels = random.integers(0, CLASSES, BATCH)
        self.weights: dict[str, dict[str, F32]] = {}
        self.velocity: dict[str, dict[str, F32]] = {}
        for name, width in [(f"fc{n}", WIDTH) for n in range(1, LAYERS + 1)] + [("head", CLASSES)]:
            made = {"weight": random.standard_normal((WIDTH, width)) / 8, "bias": random.standard_normal(width) / 10}
            self.weights[name] = {p: self.at(f"{name}.{p}", v.astype(np.float32)) for p, v in made.items()}
            drawn = {p: random.standard_normal(v.shape) / 50 for p, v in self.weights[name].items()}
            self.velocity[name] = {p: v.astype(np.float32) for p, v in drawn.items()}

    def at(self, where: str, value: Any) -> Any:
        """The value, changed if this is where the error is planted."""
        return self.plant.change(value) if self.plant.change and self.plant.where == where else value

    def write(self, path: Path) -> None:
        reduction = {"reduction": "mean", "batch": BATCH}
        with Writer(path, overwrite=True, model="self-test", batch=BATCH, gradient_of=reduction) as writer:
            writer.put("input", "input", self.x, port="x")
            for name, parameters in self.weights.items():
                for port, value in parameters.items():
                    writer.put(name, "weight", value, port=port)
            self.backward(writer, *self.forward(writer))

    def forward(self, writer: Writer) -> tuple[list[tuple[F32, ...]], F32]:
        x: F32 = self.x
        kept: list[tuple[F32, ...]] = []
        for n in range(1, LAYERS + 1):
            entered = x
            x = self.linear(writer, f"fc{n}", x)
            mean = x.mean(1, keepdims=True, dtype=np.float32)
            spread = np.sqrt(((x - mean) ** 2).mean(1, keepdims=True) + self.at(f"ln{n}.eps", EPS))
            normal = self.at(f"ln{n}.out", (x - mean) / spread)
            writer.put(f"ln{n}", "fwd", normal, op="LayerNorm")
            x = self.at(f"relu{n}.out", np.maximum(normal, np.float32(0)))
            writer.put(f"relu{n}", "fwd", x, op="ReLU")
            kept.append((entered, normal, spread))
        kept.append((x,))
        return kept, self.linear(writer, "head", x)

    def linear(self, writer: Writer, name: str, x: F32) -> F32:
        out: F32 = self.at(f"{name}.out", self.matmul(x, self.weights[name]["weight"]) + self.weights[name]["bias"])
        writer.put(name, "fwd", out, op="Linear")
        return out

    def backward(self, writer: Writer, kept: list[tuple[F32, ...]], logits: F32) -> None:
        shifted = np.exp(logits - logits.max(1, keepdims=True))
        odds = shifted / shifted.sum(1, keepdims=True)
        rows = np.arange(BATCH)
        writer.put("loss", "loss", np.float32(-np.log(odds[rows, self.labels]).mean()))
        odds[rows, self.labels] -= 1
        flow: F32 = self.at("lossgrad", odds / np.float32(BATCH))
        writer.put("loss", "lossgrad", flow)
        writer.put("head", "agrad", flow)
        gradients = {"head": self.gradients("head", kept[-1][0], flow)}
        flow = self.matmul(flow, self.weights["head"]["weight"].T)
        for n in range(LAYERS, 0, -1):
            entered, normal, spread = kept[n - 1]
            writer.put(f"relu{n}", "agrad", flow)
            flow = flow * self.at(f"relu{n}.mask", (normal > 0).astype(np.float32))
            writer.put(f"ln{n}", "agrad", flow)
            centre = flow.mean(1, keepdims=True)
            along = self.at(f"ln{n}.backward", normal * (flow * normal).mean(1, keepdims=True))
            flow = (flow - centre - along) / spread
            writer.put(f"fc{n}", "agrad", flow)
            gradients[f"fc{n}"] = self.gradients(f"fc{n}", entered, flow)
            flow = self.matmul(flow, self.weights[f"fc{n}"]["weight"].T)
        self.update(writer, gradients)

    def gradients(self, name: str, x: F32, flow: F32) -> dict[str, F32]:
        x, flow = self.at(f"{name}.grad", (x, flow))
        return {"weight": self.at(f"{name}.dweight", self.matmul(x.T, flow)), "bias": flow.sum(0)}

    def update(self, writer: Writer, gradients: dict[str, dict[str, F32]]) -> None:
        factor, rate, momentum = self.at("clip", np.float32(1)), self.at("rate", RATE), self.at("momentum", MOMENTUM)
        for name, ports in gradients.items():
            for port, gradient in ports.items():
                writer.put(name, "grad", gradient, port=port)
                writer.put(name, "grad_scaled", gradient * factor, port=port)
                velocity = momentum * self.velocity[name][port] + gradient * factor
                writer.put(name, "weight_after", self.weights[name][port] - rate * velocity, port=port)
