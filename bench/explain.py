"""What it takes to explain one first drift of ten million elements: seconds of one core, and memory beyond the drift's.

Processor time, since what others do on the machine is not the explanation's.
"""

import multiprocessing
import os
import resource
import time
from collections.abc import Callable

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy reads it: threads that wait for work count as time

import numpy as np
from ratios import Row

from firstdrift.core.sites import Site
from firstdrift.explain.evidence import Evidence
from firstdrift.explain.relations.hypotheses import explain
from firstdrift.explain.relations.known import TABLE

SECONDS, GIBIBYTES = 5.0, 1.0
TOKENS, WIDTH, HEADS = 256, 1024, 16
SAMPLES = 40  # times tokens times width: ten million elements
OUT, IN = Site(0, "fwd", "layers.0.part", "out"), Site(0, "fwd", "layers.0.part.proj", "in.0")
NOISE = 1e-6

Floats = np.ndarray


def numbers(seed: int, *shape: int) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape)


def evidence(site: Site, expected: Floats, found: Floats, inputs: dict[str, Floats], **known: object) -> Evidence:
    return Evidence(
        site,
        expected,
        found,
        NOISE,
        True,
        inputs=inputs,
        candidate_inputs=inputs,
        **known,  # type: ignore[arg-type]
    )


def linear() -> tuple[Evidence, str]:
    """A bias that is not applied."""
    x, weight, bias = numbers(0, SAMPLES, TOKENS, WIDTH), numbers(1, WIDTH, WIDTH) / 32, numbers(2, WIDTH)
    found = x @ weight.T
    known = {"op": "Linear"}
    return evidence(OUT, found + bias, found, {"in.0": x}, **known), "missing-bias"


def norm() -> tuple[Evidence, str]:
    """A norm with another eps."""
    x = 1e-2 * numbers(0, SAMPLES, TOKENS, WIDTH)
    weights = {"weight": 1 + 0.1 * numbers(1, WIDTH)}
    square = (x * x).mean(-1, keepdims=True)
    expected, found = (x / np.sqrt(square + eps) * weights["weight"] for eps in (1e-6, 1e-5))
    known = {"op": "RMSNorm"}
    return evidence(OUT, expected, found, {"in.0": x}, **known), "norm-eps"


def glue() -> tuple[Evidence, str]:
    """A skip that is not added."""
    inputs = {f"layers.{name}": numbers(seed, SAMPLES, TOKENS, WIDTH) for seed, name in enumerate(("0", "1.attn"))}
    first, second = inputs.values()
    return evidence(IN, first + second, second.copy(), inputs), "missing-residual"


def attention() -> tuple[Evidence, str]:
    """A softmax of scores that are not scaled."""
    keys = [f"layers.0.part.{name}_proj" for name in "qkv"]
    inputs = {key: 0.3 * numbers(seed, SAMPLES, TOKENS, WIDTH) for seed, key in enumerate(keys)}
    expected, found = (_attended(*inputs.values(), scale) for scale in ((WIDTH / HEADS) ** -0.5, 1.0))
    return evidence(IN, expected, found, inputs, op="Attention"), "attention-scale"


def unknown() -> tuple[Evidence, str]:
    """Numbers of which nothing is known."""
    expected, found, x = (numbers(seed, SAMPLES, TOKENS, WIDTH) for seed in range(3))
    known = {"op": "Linear"}
    return evidence(OUT, expected, found, {"in.0": x}, **known), "unknown"


def unknown_attention() -> tuple[Evidence, str]:
    """Numbers that three projections might have been attended to, and were not."""
    inputs = {f"layers.0.part.{name}_proj": numbers(seed, SAMPLES, TOKENS, WIDTH) for seed, name in enumerate("qkv")}
    expected, found = (numbers(seed, SAMPLES, TOKENS, WIDTH) for seed in (3, 4))
    return evidence(IN, expected, found, inputs, op="Attention"), "unknown"


def unknown_glue() -> tuple[Evidence, str]:
    """Numbers that have nothing to do with the three tensors they are made of."""
    names = ("0", "1.attn", "1.mlp")
    inputs = {f"layers.{name}": numbers(seed, SAMPLES, TOKENS, WIDTH) for seed, name in enumerate(names)}
    expected, found = (numbers(seed, SAMPLES, TOKENS, WIDTH) for seed in (3, 4))
    return evidence(IN, expected, found, inputs), "unknown"


def _attended(q: Floats, k: Floats, v: Floats, scale: float) -> Floats:
    made = np.empty_like(q)
    for number in range(len(q)):
        a, b, c = (one[number].reshape(TOKENS, HEADS, -1).swapaxes(0, 1) for one in (q, k, v))
        scores = np.exp(scale * (a @ b.swapaxes(1, 2)))
        made[number] = (scores / scores.sum(-1, keepdims=True) @ c).swapaxes(0, 1).reshape(TOKENS, -1)
    return made


DRIFTS: tuple[Callable[[], tuple[Evidence, str]], ...] = (
    linear,
    norm,
    glue,
    attention,
    unknown,
    unknown_attention,
    unknown_glue,
)


def _measured(make: Callable[[], tuple[Evidence, str]]) -> tuple[float, float]:
    """Seconds, and GiB beyond what the drift itself takes; in a process of its own, whose peak is its own."""
    made, label = make()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    cause = explain(made, TABLE)
    took = time.process_time() - start
    if cause.label != label:
        raise AssertionError(f"{make.__name__}: {cause.label} instead of {label}: {cause.sentence}")
    return took, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20


def rows() -> list[Row]:
    found = []
    for make in DRIFTS:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            took, more = pool.apply(_measured, (make,))
        found.append(
            Row(f"explain a drift of 10 M elements: {make.__name__.replace('_', ' ')}", took, SECONDS, False, "s")
        )
        found.append(
            Row(f"  its memory beyond the drift's: {make.__name__.replace('_', ' ')}", more, GIBIBYTES, False, "GiB")
        )
    return found


if __name__ == "__main__":
    for row in rows():
        print(row, flush=True)
