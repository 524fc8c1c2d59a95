"""More than eighty odd models run under a trace as they run without one, to the bit."""

import warnings
from contextlib import nullcontext

import pytest
import torch
from tests.odd_models.computing import COMPUTING
from tests.odd_models.differentiating import DIFFERENTIATING
from tests.odd_models.optimizing import OPTIMIZING
from tests.odd_models.ranks import PLANS, run_ranks
from tests.odd_models.shaping import SHAPING
from tests.odd_models.watching import WATCHING
from tests.run_bits import Bits, assert_same_bits, seed

import firstdrift as fd

MODELS = {**COMPUTING, **DIFFERENTIATING, **OPTIMIZING, **SHAPING, **WATCHING}
AT_LEAST, STEPS, EVERY = 80, 3, 6
HOW = {"modules": {}, "operations": {"granularity": "op"}, "statistics": {"keep": "stats"}}


def sampled():
    """Every sixth model in one way; the others, and the other ways, are slow."""
    for way, options in HOW.items():
        for number, name in enumerate(MODELS):
            quick = way == "modules" and number % EVERY == 0
            yield pytest.param(name, options, id=f"{name}, {way}", marks=() if quick else pytest.mark.slow)


def run(odd, path, options):
    """A few steps, traced where there is a path, and every bit of them."""
    seed()
    model = odd.make()
    optimizer = odd.optimizer(model) if odd.optimizer else None
    given = {"optimizer": optimizer} if optimizer else {}
    bits = Bits()
    with fd.trace(model, path, **given, **odd.options, **options) if path else nullcontext():
        for number in range(STEPS):
            bits.add(f"step {number}", odd.step(model, optimizer, number))
            bits.add(f"gradient {number}", {name: one.grad for name, one in model.named_parameters()})
    bits.add_run(model, *given.values())
    return bits


@pytest.mark.parametrize(("name", "options"), [*sampled()])
def test_an_odd_model_is_traced_and_untraced_the_same_to_the_bit(name, options, tmp_path, counted):
    odd = MODELS[name]
    with warnings.catch_warnings():
        if odd.warns:
            warnings.filterwarnings("ignore", message=odd.warns)
        plain = run(odd, None, {})
        traced = run(odd, tmp_path / "t", options)
    assert_same_bits(traced, plain)
    assert len(fd.open_trace(tmp_path / "t")) > 0
    if not options:
        counted("odd models traced as untraced", 1)


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_available(), reason="needs torch.distributed")
@pytest.mark.parametrize("plan", PLANS)
def test_ranks_are_traced_and_untraced_the_same_to_the_bit(plan, tmp_path, counted):
    plain = run_ranks(plan, None)
    assert_same_bits(run_ranks(plan, tmp_path / "t"), plain)
    for place in (tmp_path / "t", tmp_path / "t" / "rank-0001"):
        trace = fd.open_trace(place)
        if plan.startswith("FSDP2"):  # what a rank holds of a tensor is recorded, and nobody is asked for the rest
            held = [trace.array(fd.Site(0, phase, "0", "weight")) for phase in ("weight", "grad", "weight_after")]
            assert {one.shape for one in held} == {(4, 6)}
            assert all(one.any() for one in held)
    counted("odd models traced as untraced", 1)


def test_there_are_at_least_eighty():
    assert len(MODELS) + len(PLANS) >= AT_LEAST
    assert len(MODELS) == sum(map(len, (COMPUTING, DIFFERENTIATING, OPTIMIZING, SHAPING, WATCHING)))


def test_a_model_that_notices_the_trace_is_told():
    """The comparison is not blind: what depends on being traced differs."""
    odd = MODELS["tied weights"]
    other = run(odd, None, {})
    other["step 0.1"] += "?"
    with pytest.raises(AssertionError, match="step 0.1"):
        assert_same_bits(other, run(odd, None, {}))
