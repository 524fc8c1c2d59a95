"""Positions that are seen on their own: rotated tensors, tables, frequencies and numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from attention_models import Config, frequencies, noisy, rope, tables

from firstdrift.causes.evidence import Evidence, Nowhere
from firstdrift.causes.hypotheses import explain
from firstdrift.causes.position.rope import HYPOTHESES
from firstdrift.sites import Site

LLAMA = Config(theta=1e4)
LONG = replace(LLAMA, theta=5e5)
PARTIAL = replace(LLAMA, rotary=16)
PRECISIONS = [(torch.float32, 2e-7), (torch.float64, 1e-14)]

FREQUENCIES = [
    ("rope-theta", LLAMA, {"theta": 5e5}, {"theta": 5e5, "reference_theta": 1e4}),
    ("rope-theta", LLAMA, {"theta": 23456.0}, {}),
    ("rope-scaling", LLAMA, {"scaling": "linear"}, {"factor": 8.0}),
    ("rope-scaling", LLAMA, {"scaling": "linear", "rope_factor": 5.5}, {}),
    ("rope-scaling", replace(LLAMA, scaling="linear"), {"scaling": ""}, {}),
    ("rope-scaling", replace(LONG, scaling="llama3"), {"scaling": ""}, {}),
    ("rope-scaling", LONG, {"scaling": "llama3"}, {"kind": "llama3", "factor": 8.0}),
    ("rope-scaling", LLAMA, {"scaling": "tail"}, {}),
    ("rope-scaling", replace(LLAMA, scaling="tail"), {"scaling": ""}, {}),
    ("rope-precision", LLAMA, {"precision": "bf16 frequencies"}, {"dtype": "bf16"}),
]
TABLES = [
    *FREQUENCIES,
    ("rope-precision", LLAMA, {"precision": "bf16 angles"}, {"stage": "angles"}),
    ("rope-precision", LLAMA, {"precision": "bf16 tables"}, {"stage": "tables"}),
    ("rope-precision", LLAMA, {"precision": "f16 tables"}, {"dtype": "f16"}),
    ("position-shift", LLAMA, {"shift": 1}, {"shift": 1}),
    ("position-shift", LLAMA, {"shift": -2}, {"shift": -2}),
]
ROTATIONS = [
    *TABLES,
    ("rope-interleave", LLAMA, {"pairing": "interleaved"}, {"pairing": "interleaved"}),
    ("rope-interleave", replace(LLAMA, pairing="interleaved"), {"pairing": "half"}, {"pairing": "half"}),
    ("rope-partial", PARTIAL, {"rotary": 32}, {"rotary_dims": 32}),
    ("rope-partial", LLAMA, {"rotary": 16}, {"rotary_dims": 16}),
    ("rope-partial", PARTIAL, {"exponent": 32}, {}),
    ("skipped-op", LLAMA, {"theta": None}, {}),
]


def rotation(reference: Config, noise: float, dtype: torch.dtype, heads_first: bool = True, **changes: Any) -> Evidence:
    """The drift behind a rotation of a tensor that both sides have."""
    torch.manual_seed(0)
    x = torch.randn(2, 4, 40, 32, dtype=dtype)
    other = replace(reference, **changes)
    made = [x, rope(x, reference, reference.shift), x if other.theta is None else rope(x, other, other.shift)]
    before, expected, found = ((one if heads_first else one.transpose(1, 2)).double().numpy() for one in made)
    inputs = {"in.0": before}
    return Evidence(Site(0, "fwd", "rope", "out"), expected, found, noise, inputs=inputs, candidate_inputs=inputs)


def table(reference: Config, which: int, layout: str, noise: float, dtype: torch.dtype, **changes: Any) -> Evidence:
    """The drift of a table of cosines (0) or sines (1)."""
    made = []
    for config in (reference, replace(reference, **changes)):
        columns = tables(config, 32, torch.arange(64) + config.shift)[which]
        if layout == "twice":
            columns = torch.cat([columns, columns], dim=-1)
        elif layout == "repeated":
            columns = columns.repeat_interleave(2, dim=-1)
        made.append(columns.to(dtype).double().numpy()[None])
    return Evidence(Site(0, "fwd", "rotary_emb", f"out.{which}"), made[0], made[1], noise)


@pytest.mark.parametrize(("dtype", "noise"), PRECISIONS)
@pytest.mark.parametrize("heads_first", [True, False])
@pytest.mark.parametrize(("label", "reference", "changes", "parameters"), ROTATIONS)
def test_one_change_of_a_rotation_is_named(
    label: str, reference: Config, changes: dict[str, Any], parameters: dict[str, Any], heads_first: bool,
    dtype: torch.dtype, noise: float,
) -> None:  # fmt: skip
    cause = explain(rotation(reference, noise, dtype, heads_first, **changes), HYPOTHESES)
    assert cause.label == label
    assert {name: cause.parameters[name] for name in parameters} == parameters


@pytest.mark.parametrize(("dtype", "noise"), PRECISIONS)
@pytest.mark.parametrize("layout", ["once", "twice", "repeated"])
@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize(("label", "reference", "changes", "parameters"), TABLES)
def test_one_change_of_a_table_is_named(
    label: str, reference: Config, changes: dict[str, Any], parameters: dict[str, Any], which: int, layout: str,
    dtype: torch.dtype, noise: float,
) -> None:  # fmt: skip
    cause = explain(table(reference, which, layout, noise, dtype, **changes), HYPOTHESES)
    assert cause.label == label
    assert {name: cause.parameters[name] for name in parameters} == parameters


@pytest.mark.parametrize(("dtype", "noise"), PRECISIONS)
@pytest.mark.parametrize(("label", "reference", "changes", "parameters"), FREQUENCIES)
def test_one_change_of_frequencies_is_named(
    label: str, reference: Config, changes: dict[str, Any], parameters: dict[str, Any], dtype: torch.dtype, noise: float
) -> None:
    expected, found = (frequencies(config, 32) for config in (reference, replace(reference, **changes)))
    if "precision" in changes:
        found = found.float().bfloat16()
    arrays = [one.to(dtype).double().numpy() for one in (expected, found)]
    cause = explain(Evidence(Site(0, "weight", "rotary_emb", "inv_freq"), *arrays, noise), HYPOTHESES)
    assert cause.label == label
    assert {name: cause.parameters[name] for name in parameters} == parameters


@pytest.mark.parametrize(
    ("label", "changes"),
    [("rope-interleave", {"pairing": "interleaved"}), ("rope-theta", {"theta": 5e5}), ("position-shift", {"shift": 1})],
)
def test_one_change_of_a_rotation_is_named_under_the_noise_of_a_coarse_dtype(
    label: str, changes: dict[str, Any]
) -> None:
    given = rotation(LLAMA, 0.0, torch.float64, **changes)
    assert explain(noisy(given, 3e-3), HYPOTHESES).label == label


def sinusoids(base: float = 1e4, first: int = 0, over: int = 32) -> np.ndarray:
    angles = (np.arange(50) + first)[:, None] * base ** (-np.arange(0, 32, 2) / over)
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(1, 50, 32)


@pytest.mark.parametrize(
    ("label", "found"),
    [
        ("frequency-table", sinusoids(base=1e3)),
        ("frequency-table", sinusoids(over=64)),
        ("frequency-table", sinusoids(over=30)),
        ("position-shift", sinusoids(first=1)),
    ],
)
def test_sinusoids_of_other_frequencies_or_positions_are_named(label: str, found: np.ndarray) -> None:
    given = Evidence(Site(0, "weight", "positions", "table"), sinusoids(), found, 1e-7)
    assert explain(given, HYPOTHESES).label == label


@pytest.mark.parametrize(
    ("expected", "found"),
    [
        ([[0, 1, 2, 3]], [[1, 2, 3, 4]]),
        ([[2, 3, 4, 5]], [[0, 1, 2, 3]]),
        ([[0, 0, 0, 1, 2], [0, 1, 2, 3, 4]], [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4]]),
    ],
)
def test_positions_that_are_counted_otherwise_are_named(expected: list[list[int]], found: list[list[int]]) -> None:
    given = Evidence(Site(0, "fwd", "wpe", "in.0"), np.array(expected), np.array(found), 0.0)
    assert explain(given, HYPOTHESES).label == "position-shift"


@pytest.mark.parametrize("shift", [1, 2, -1])
def test_an_embedding_looked_up_at_other_positions_is_named(shift: int) -> None:
    torch.manual_seed(0)
    places, wpe = torch.arange(3, 12)[None], torch.nn.Embedding(30, 8)
    expected, found = (wpe(rows).detach().double().numpy() for rows in (places, places + shift))
    inputs = {"in.0": places.numpy()}
    given = Evidence(
        Site(0, "fwd", "wpe", "out"), expected, found, 1e-7, op="Embedding", inputs=inputs, candidate_inputs=inputs,
        parameters={"weight": wpe.weight.detach().double().numpy()},
    )  # fmt: skip
    cause = explain(given, HYPOTHESES)
    assert (cause.label, cause.parameters) == ("position-shift", {"shift": shift})


@pytest.mark.parametrize("ids", [[[5, 2, 9, 9]], [[1, 3, 5, 7]]])
def test_tokens_are_not_taken_for_positions(ids: list[list[int]]) -> None:
    wte = np.random.default_rng(0).normal(size=(30, 8))
    rows = np.array(ids)
    given = Evidence(
        Site(0, "fwd", "wte", "out"), wte[rows], wte[rows + 1], 1e-7, inputs={"in.0": rows},
        candidate_inputs={"in.0": rows}, parameters={"weight": wte},
    )  # fmt: skip
    assert explain(given, HYPOTHESES).label == "unknown"


@pytest.mark.parametrize("change", ["noise", "scaled", "not finite", "zeros"])
@pytest.mark.parametrize("kind", ["rotation", "table", "frequencies"])
def test_what_no_rotation_does_is_not_explained(kind: str, change: str) -> None:
    given = {
        "rotation": rotation(LLAMA, 1e-7, torch.float64),
        "table": table(LLAMA, 0, "twice", 1e-7, torch.float64),
        "frequencies": Evidence(Site(0, "weight", "r", "inv_freq"), *[frequencies(LLAMA, 32).numpy()] * 2, 1e-7),
    }[kind]
    x = given.expected
    found = {
        "noise": x + 0.1 * np.random.default_rng(0).normal(size=x.shape),
        "scaled": x * (1.0 + np.linspace(0, 1, x.shape[-1])),
        "not finite": x * np.nan,
        "zeros": x * 0,
    }[change]
    assert explain(replace(given, found=found), HYPOTHESES).label == "unknown"


def test_two_changes_of_a_rotation_are_not_called_one() -> None:
    given = rotation(LLAMA, 1e-7, torch.float64, pairing="interleaved", shift=3, scaling="tail")
    assert explain(given, HYPOTHESES).label == "unknown"


def positioned(x: torch.Tensor, config: Config, places: torch.Tensor) -> np.ndarray:
    """x (samples, heads, tokens, channels) turned at the places of its tokens."""
    made = [rope_at(one, config, place) for one, place in zip(x, places, strict=True)]
    return torch.stack(made).double().numpy()


def rope_at(x: torch.Tensor, config: Config, places: torch.Tensor) -> torch.Tensor:
    """One sample, turned token by token."""
    turned = [rope(x[None, :, [t]], config, int(place))[0] for t, place in enumerate(places)]
    return torch.cat(turned, 1)


def padded(pads: list[int], tokens: int, fill: int) -> torch.Tensor:
    """Positions counted after so many slots of padding, which are all at one place."""
    counted = torch.arange(tokens) - torch.tensor(pads)[:, None]
    return torch.where(counted < 0, fill, counted)


@pytest.mark.parametrize("heads_first", [True, False])
@pytest.mark.parametrize("fill", [0, 1])
@pytest.mark.parametrize("pads", [[0, 3, 5], [2, 2, 2], [4], [0, 9]])
@pytest.mark.parametrize("reverse", [False, True])
def test_positions_that_count_padding_are_off_by_what_each_sample_has_of_it(
    pads: list[int], fill: int, reverse: bool, heads_first: bool
) -> None:
    torch.manual_seed(1)
    x = torch.randn(len(pads), 4, 24, 32)
    plain = torch.arange(24).expand(len(pads), 24)
    made = [positioned(x, LLAMA, one) for one in (padded(pads, 24, fill), plain)]
    expected, found = made[::-1] if reverse else made
    before = x.double().numpy()
    if not heads_first:
        before, expected, found = (one.swapaxes(1, 2) for one in (before, expected, found))
    inputs = {"in.0": before}
    site = Site(0, "fwd", "rope", "out")
    said = explain(
        Evidence(site, expected, found, 2e-7, inputs=inputs, candidate_inputs=inputs, around=Nowhere()), HYPOTHESES
    )
    assert said.label == "position-shift", said
    sign = -1 if reverse else 1
    assert said.parameters["shifts"] == {str(i): sign * pad for i, pad in enumerate(pads) if pad}


def test_a_shift_beyond_what_is_tried_by_name_is_read_off() -> None:
    torch.manual_seed(1)
    x = torch.randn(2, 4, 40, 32)
    inputs = {"in.0": x.double().numpy()}
    expected, found = (rope(x, LLAMA, shift).double().numpy() for shift in (0, 23))
    said = explain(
        Evidence(Site(0, "fwd", "rope", "out"), expected, found, 2e-7, inputs=inputs, candidate_inputs=inputs),
        HYPOTHESES,
    )
    assert (said.label, said.sentence) == ("position-shift", "positions are off by +23")


def test_positions_in_no_order_are_not_called_a_shift() -> None:
    torch.manual_seed(1)
    x = torch.randn(2, 4, 24, 32)
    places = torch.stack([torch.arange(24), torch.randperm(24)])
    inputs = {"in.0": x.double().numpy()}
    expected, found = rope(x, LLAMA, 0).double().numpy(), positioned(x, LLAMA, places)
    said = explain(
        Evidence(Site(0, "fwd", "rope", "out"), expected, found, 2e-7, inputs=inputs, candidate_inputs=inputs),
        HYPOTHESES,
    )
    assert said.label != "position-shift"
