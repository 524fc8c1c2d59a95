"""Sums, gates and concatenations between modules: what the candidate put together otherwise is named."""

import numpy as np
import pytest
import torch
from blame import BF16, FLOAT32, SITE, Run, blurred, cause, drift, numbers
from torch.nn import functional as F  # noqa: N812

from firstdrift.causes.activations.activated import activated_product, activated_sums, missing_summand
from firstdrift.causes.layout.packing import concatenated, packed_gate
from firstdrift.causes.sums.glue import sums
from firstdrift.sites import Site

IN = SITE._replace(name="layers.0.mlp", port="in.0")
A, B, C = (numbers(2, 9, 32, seed=seed) for seed in range(3))
RESIDUAL = {"embed": A, "layers.0.attn": B}
GATE = {"layers.0.mlp.gate": A, "layers.0.mlp.up": B}


def silu(x):
    return F.silu(torch.from_numpy(x)).numpy()


def gelu(x):
    return F.gelu(torch.from_numpy(x)).numpy()


def named(expected, formula, inputs, noise=FLOAT32, **known):
    """The cause where the candidate's own inputs carry noise, and so does what it makes of them."""
    theirs = {key: blurred(value, noise, seed) for seed, (key, value) in enumerate(inputs.items())}
    return cause(expected, formula(*theirs.values()), noise, IN, inputs=inputs, candidate_inputs=theirs, **known)


@pytest.mark.parametrize("noise", [FLOAT32, BF16])
@pytest.mark.parametrize(
    ("formula", "label"),
    [
        (lambda a, b: b, "missing-residual"),
        (lambda a, b: a, "missing-term"),
        (lambda a, b: a + 0.22 * b, "scale"),
        (lambda a, b: a + 2 * b, "scale"),
    ],
)
def test_a_residual_sum_with_a_term_missing_or_scaled_is_named(formula, label, noise):
    said = named(A + B, formula, RESIDUAL, noise)
    assert said.label == label, said


def test_a_missing_embedding_is_a_missing_term_and_no_skip():
    inputs = {"tokens": A, "positions": B[:1]}
    order = {Site(0, "fwd", name, "out"): value for name, value in inputs.items()}
    around = Run(order, ops={"tokens": "Embedding", "positions": "Embedding"})
    for kept in (lambda a, b: a, lambda a, b: np.broadcast_to(b, a.shape)):
        assert named(A + B[:1], kept, inputs, around=around).label == "missing-term"


def test_the_factor_of_a_scaled_term_is_fitted():
    said = named(A + B, lambda a, b: a + 0.22 * b, RESIDUAL)
    assert said.parameters["weights"]["layers.0.attn"] == pytest.approx(0.22, rel=1e-5)
    said = named(A + 0.22 * B, lambda a, b: a + b, RESIDUAL)
    assert said.parameters["reference_weights"]["layers.0.attn"] == pytest.approx(0.22, rel=1e-5)


@pytest.mark.parametrize("noise", [FLOAT32, BF16])
def test_a_skip_from_another_tensor_of_the_run_is_named(noise):
    normed = Site(0, "fwd", "layers.0.norm", "out")
    around = Run({Site(0, "fwd", "embed", "out"): A, normed: C, Site(0, "fwd", "layers.0.attn", "out"): B})
    said = named(A + B, lambda a, b: blurred(C, noise, 7) + b, RESIDUAL, noise, around=around)
    assert said.label == "residual-source", said
    assert said.parameters["site"][2] == "layers.0.norm"


def test_a_skip_from_another_producer_is_named():
    inputs = {"embed": A, "layers.0.attn": B, "layers.0.norm": C}
    said = named(A + B, lambda a, b, c: c + b, inputs)
    assert said.label == "residual-source"


def test_a_difference_the_wrong_way_round_has_swapped_operands():
    said = named(A - B, lambda a, b: b - a, {"x": A, "y": B})
    assert said.label in ("swapped-operands", "scale")  # a factor of -1 says the same


def test_a_factor_applied_to_one_term_instead_of_the_sum_is_an_order_of_operations():
    said = named(8.0 * (A + B), lambda a, b: 8.0 * a + b, {"tokens": A, "positions": B})
    assert said.label == "op-order"


@pytest.mark.parametrize(
    "formula",
    [
        lambda a, b: np.maximum(a, 0) + b,
        lambda a, b: a + np.maximum(b, 0),
        lambda a, b: np.maximum(a, 0) + np.maximum(b, 0),
    ],
)
def test_an_activation_before_the_sum_instead_of_after_it_is_an_order_of_operations(formula):
    assert named(np.maximum(A + B, 0), formula, RESIDUAL).label == "op-order"


@pytest.mark.parametrize("noise", [FLOAT32, BF16])
@pytest.mark.parametrize(
    ("formula", "label"),
    [
        (lambda g, u: silu(u) * g, "swapped-operands"),
        (lambda g, u: gelu(g) * u, "activation-variant"),
        (lambda g, u: g * u, "skipped-op"),
        (lambda g, u: silu(g), "skipped-op"),
        (lambda g, u: u, "skipped-op"),
    ],
)
def test_a_gate_that_is_wrong_is_named(formula, label, noise):
    said = named(silu(A) * B, formula, GATE, noise)
    assert said.label == label, said


@pytest.mark.parametrize("noise", [FLOAT32, BF16])
@pytest.mark.parametrize(
    ("formula", "label"),
    [
        (lambda x: silu(x[..., 16:]) * x[..., :16], "swapped-halves"),
        (lambda x: silu(x[..., ::2].copy()) * x[..., 1::2], "interleave"),
        (lambda x: gelu(x[..., :16].copy()) * x[..., 16:], "activation-variant"),
    ],
)
def test_a_packed_gate_whose_halves_are_taken_otherwise_is_named(formula, label, noise):
    said = named(silu(A[..., :16].copy()) * A[..., 16:], formula, {"layers.0.mlp.gate_up": A}, noise)
    assert said.label == label, said


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_concatenation_in_another_order_is_named(axis):
    inputs = {"left": A, "right": B}
    said = named(np.concatenate([A, B], axis), lambda a, b: np.concatenate([b, a], axis), inputs)
    assert said.label == "concat-order", said


def test_parts_of_different_sizes_in_another_order_are_named():
    inputs = {"a": A, "b": B[..., :5], "c": C[..., :11]}
    said = named(np.concatenate(list(inputs.values()), -1), lambda a, b, c: np.concatenate([b, c, a], -1), inputs)
    assert said.parameters["order"] == ["b", "c", "a"]


def test_queries_keys_and_values_put_together_in_another_order_are_named():
    inputs = {"attn.q_proj": A, "attn.k_proj": B, "attn.v_proj": C}
    said = named(np.concatenate([A, B, C], -1), lambda q, k, v: np.concatenate([k, q, v], -1), inputs)
    assert said.label == "qkv-order"


@pytest.mark.parametrize("noise", [FLOAT32, BF16])
@pytest.mark.parametrize("found", [C, np.zeros_like(C), np.full_like(C, np.nan), (A + B)[..., ::-1]])
def test_what_is_not_made_of_the_terms_is_not_explained_by_them(found, noise):
    inputs = dict(RESIDUAL)
    evidence = drift(A + B, found, noise, IN, inputs=inputs)
    for hypothesis in (sums, activated_sums, missing_summand, activated_product, concatenated, packed_gate):
        assert list(hypothesis(evidence)) == []


@pytest.mark.parametrize(
    "hypothesis", [sums, activated_sums, missing_summand, activated_product, concatenated, packed_gate]
)
def test_nothing_is_said_where_the_reference_is_not_made_of_the_terms(hypothesis):
    evidence = drift(C, A, FLOAT32, IN, inputs=RESIDUAL)
    assert list(hypothesis(evidence)) == []


def test_terms_that_cannot_be_told_apart_are_not_judged():
    inputs = {"x": A, "same": A + 1e-9 * B}
    assert list(sums(drift(2 * A + 1e-9 * B, lambda _: A, FLOAT32, IN, inputs=inputs))) == []


def test_a_sum_that_is_not_all_of_the_reference_is_not_judged():
    assert list(sums(drift(A + B + 0.06 * C, A, BF16, IN, inputs=RESIDUAL))) == []


def test_a_packed_gate_with_two_things_changed_is_not_explained():
    first, second = A[..., :16].copy(), A[..., 16:].copy()
    evidence = drift(silu(first) * second, gelu(second) * first, FLOAT32, IN, inputs={"gate_up": A})
    assert list(packed_gate(evidence)) == []


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


@pytest.mark.parametrize("noise", [FLOAT32, BF16])
def test_a_tensor_that_is_recorded_twice_does_not_hide_what_is_missing(noise):
    inputs = {"layers.0": A, "layers.1.attn": B, "layers.1.attn.o_proj": B}
    theirs = {key: blurred(value, noise, 0 if value is A else 1) for key, value in inputs.items()}
    found = theirs["layers.1.attn"]
    assert cause(A + B, found, noise, IN, inputs=inputs, candidate_inputs=theirs).label == "missing-residual"


GAIN = numbers(32, seed=11) * 0.2 + 0.5


@pytest.mark.parametrize("noise", [FLOAT32, BF16])
@pytest.mark.parametrize(
    ("formula", "label"),
    [
        (lambda a, b: a + b, "skipped-op"),
        (lambda a, b: a, "missing-term"),
        (lambda a, b: GAIN * b, "missing-residual"),
        (lambda a, b: a + 2 * GAIN * b, "scale"),
    ],
)
def test_a_branch_that_a_parameter_scales_is_told_apart(formula, label, noise):
    said = named(A + GAIN * B, formula, RESIDUAL, noise, parameters={"gamma": GAIN})
    assert said.label == label, said


MAP, TIME = numbers(2, 6, 8, 8, seed=5), numbers(2, 6, seed=6)


@pytest.mark.parametrize(
    ("times", "label"),
    [(0, "missing-term"), (2, "double-bias")],
)
def test_a_vector_added_to_every_pixel_is_missing_or_counted_twice(times, label):
    inputs = {"block.conv": MAP, "block.time": TIME}
    said = named(MAP + TIME[:, :, None, None], lambda x, t: x + times * t[:, :, None, None], inputs)
    assert said.label == label, said


@pytest.mark.parametrize("noise", [FLOAT32, BF16])
@pytest.mark.parametrize(
    ("formula", "label"),
    [
        (lambda x, h, g: x + h, "skipped-op"),
        (lambda x, h, g: x + g * h, "skipped-op"),
        (lambda x, h, g: x + np.tanh(g) * h, "activation-variant"),
        (lambda x, h, g: x, "missing-term"),
    ],
)
def test_a_gated_summand_that_is_wrong_is_named(formula, label, noise):
    gate = numbers(2, 9, 1, seed=7)
    inputs = {"routed": A, "shared": B, "shared_gate": gate}
    said = named(A + sigmoid(gate) * B, formula, inputs, noise)
    assert said.label == label, said


def test_a_modulation_without_its_one_lacks_a_term():
    inputs = {"norm": A, "shift": B[:, :1], "scale": C[:, :1]}
    said = named(A * (1 + C[:, :1]) + B[:, :1], lambda x, shift, scale: x * scale + shift, inputs)
    assert said.label == "missing-term", said


def test_a_mixture_of_two_by_a_gate_with_the_other_gate_is_not_called_a_residual():
    inputs = {"old": A, "new": B, "gate": C}
    gate = sigmoid(C)
    said = named(gate * A + (1 - gate) * B, lambda a, b, c: (1 - sigmoid(c)) * a + sigmoid(c) * b, inputs)
    assert said.label not in ("missing-residual", "residual-source", "missing-term"), said


@pytest.mark.parametrize("noise", [FLOAT32, BF16])
def test_a_factor_of_what_came_before_that_is_not_applied_is_a_scale(noise):
    said = named(5.6568542 * A, lambda a: a, {"embed": A}, noise)
    assert said.label == "scale", said
    assert said.parameters["factor"] == pytest.approx(1 / 5.6568542, rel=1e-2)


def step(name, port="out"):
    return Site(0, "fwd", name, port)


def block_run(ops=None, facts=None, **tensors):
    """A block: x -> conv -> act -> conv2, and what else reads x; the drift is at its sum."""
    chain = {step("x"): A, step("b.conv"): C, step("b.act"): C, step("b.conv2"): B, **tensors.pop("more", {})}
    producers = {
        step("b.conv"): [step("x")], step("b.act"): [step("b.conv")], step("b.conv2"): [step("b.act")],
        **tensors.pop("producers", {}),
    }  # fmt: skip
    return Run({**chain, IN: A}, ops=ops, facts=facts, producers=producers)


def test_the_input_of_a_branch_goes_around_it():
    said = named(A + B, lambda a, b: b, {"x": A, "b.conv2": B}, around=block_run())
    assert said.label == "missing-residual"


def test_a_projection_of_the_input_goes_around_a_longer_branch():
    down = numbers(2, 9, 32, seed=8)
    run = block_run(more={step("b.down"): down}, producers={step("b.down"): [step("x")]})
    inputs = {"b.conv2": B, "b.down": down}
    assert named(B + down, lambda b, d: b, inputs, around=run).label == "missing-residual"
    assert named(B + down, lambda b, d: d, inputs, around=run).label == "missing-term"


def test_a_branch_as_long_as_the_other_is_no_skip():
    up, other = numbers(2, 9, 32, seed=8), numbers(2, 9, 32, seed=9)
    run = block_run(
        more={step("s.up"): up, step("s.act"): up, step("s.down"): other},
        producers={step("s.up"): [step("x")], step("s.act"): [step("s.up")], step("s.down"): [step("s.act")]},
    )
    assert named(B + other, lambda b, s: b, {"b.conv2": B, "s.down": other}, around=run).label == "missing-term"


def test_both_parts_of_a_stream_that_a_later_branch_read_are_its_skip():
    late = numbers(2, 9, 32, seed=8)
    run = block_run(more={step("b.mlp"): late}, producers={step("b.mlp"): [step("x"), step("b.conv2")]})
    inputs = {"b.mlp": late, "b.conv2": B, "x": A}
    assert named(A + B + late, lambda m, b, x: m, inputs, around=run).label == "missing-residual"
    assert named(A + B + late, lambda m, b, x: x + m, inputs, around=run).label == "residual-source"


def test_a_term_that_the_candidate_never_computes_is_missing():
    shortcut = step("b.skip")
    run = block_run(
        facts={"reference_only": (shortcut,)},
        more={shortcut: C},
        producers={shortcut: [step("x")], IN: [step("b.conv2")]},
    )
    said = named(B + C, lambda b: b, {"b.conv2": B}, around=run)
    assert (said.label, said.parameters) == ("missing-residual", {"term": "b.skip"})


def test_a_stream_added_before_a_norm_instead_of_after_it_is_an_order_of_operations():
    norm, later = step("b.norm", "in.0"), step("b.mlp", "in.0")
    reference = {step("x"): A, step("b.attn"): B, norm: B, step("b.norm"): C, later: A + C}
    run = Run(reference, producers={norm: [step("b.attn")], later: [step("x"), step("b.norm")]})
    said = cause(B, blurred(A + B, FLOAT32), FLOAT32, norm, inputs={"b.attn": B}, around=run)
    assert said.label == "op-order", said


@pytest.mark.parametrize("found", [A * 1.01 + B[:, ::-1], numbers(2, 9, 32, seed=30), A + B + 0.3 * A * B])
def test_what_no_single_change_of_a_sum_makes_is_not_called_one(found):
    said = cause(A + B, found, FLOAT32, IN, inputs=RESIDUAL)
    assert said.label in ("unknown", "permutation"), said


def test_a_term_that_counts_twice_as_much_is_not_the_sum_added_to_itself():
    own = Run({Site(0, "fwd", "layers.0.mlp", "in.0"): A + 2 * B, Site(0, "fwd", "layers.0.mlp.up", "in.0"): A + 2 * B})
    said = named(A + 2 * B, lambda a, b: a + 4 * b, RESIDUAL, around=own)
    assert said.label == "scale", said
