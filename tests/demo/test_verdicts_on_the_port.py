"""What `diff` says of the real port: a clean one is clean, and every bug is found where the mistake is."""

from pathlib import Path

import pytest
import torch

import firstdrift as fd
from firstdrift.demo.port import known_bugs

# Where each mistake must first show, from what it means: forward mistakes at the first layer of their kind, backward
# mistakes at the gradient that the last such layer hands on, mistakes in parameters' gradients at the last such layer.
# (step, phase, name, port, sample)
SITES = {
    "clip-off-by-one": (0, "input", "input", "audio", 0),
    "weight-layout": (0, "weight", "conv2", "weight", None),  # conv1 has one input channel, and no layout to get wrong
    "avgpool-divisor": (0, "fwd", "avgpool", "out", 0),
    "conv-flip": (0, "fwd", "conv1", "out", 0),
    "conv-pad": (0, "fwd", "conv1", "out", 0),
    "ln-eps": (0, "fwd", "ln1", "out", 0),
    "ln-variance": (0, "fwd", "ln1", "out", 0),
    "maxpool-window": (0, "fwd", "pool1", "out", 0),
    "gap-divisor": (0, "fwd", "gap", "out", 0),
    "softmax-base": (0, "fwd", "softmax", "out", 0),
    "label-off-by-one": (0, "loss", "loss", "out", None),
    "loss-grad": (0, "lossgrad", "loss", "out", 0),
    "gap-grad": (0, "agrad", "pool3", "out", 0),
    "maxpool-grad-first": (0, "agrad", "relu3", "out", 0),
    "maxpool-tie": (0, "agrad", "relu3", "out", 0),
    "stale-buffer": (0, "agrad", "relu3", "out", 1),  # the first sample has its own maxima
    "relu-mask": (0, "agrad", "ln3", "out", 0),
    "ln-grad-mean": (0, "agrad", "conv3", "out", 0),
    "ln-grad-gamma": (0, "agrad", "conv3", "out", 0),
    "conv-grad-border": (0, "agrad", "pool2", "out", 0),
    "conv-grad-weight": (0, "grad", "conv3", "weight", None),
    "linear-grad": (0, "grad", "fc", "weight", None),
    "bias-grad": (0, "grad", "conv3", "bias", None),
    "gamma-grad": (0, "grad", "ln3", "weight", None),
    "missing-mean-scale": (0, "grad_scaled", "fc", "weight", None),
    "momentum-sign": (0, "weight_after", "conv1", "weight", None),
    "dampening": (0, "weight_after", "conv1", "weight", None),
    "rate-twice": (0, "weight_after", "conv1", "weight", None),
    "no-momentum": (1, "weight_after", "conv1", "weight", None),  # there is none yet in the first step
    "grad-not-zeroed": (1, "grad", "fc", "weight", None),
}


def check(laboratory, bug, site, **where):
    steps = known_bugs()[bug].steps
    reference = laboratory.reference(steps=steps, **where)
    result = fd.diff(reference, laboratory.candidate(bug=bug, steps=steps, samples=where["batch"], **where))
    first = result.first_drift
    assert first is not None, result.sentence
    assert (first.step, first.phase, first.name, first.port, first.sample) == site, result.sentence
    assert result.exit_code == 1


def test_every_bug_has_its_site():
    assert SITES.keys() == known_bugs().keys() - {"none"}


@pytest.mark.parametrize(("bug", "site"), SITES.items(), ids=list(SITES))
def test_a_bug_is_found_where_the_mistake_is(laboratory, bug, site):
    check(laboratory, bug, site, batch=4)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 7])
@pytest.mark.parametrize(("bug", "site"), SITES.items(), ids=list(SITES))
def test_a_bug_is_found_with_other_weights_and_clips(laboratory, bug, site, seed):
    check(laboratory, bug, site, batch=3, seed=seed, start=40)


def clean(laboratory, **where):
    samples = where.get("samples", where["batch"])
    reference = laboratory.reference(**where | {"samples": samples})
    result = fd.diff(reference, laboratory.candidate(**where | {"samples": samples}))
    assert result.verdict in (fd.Verdict.NOISE, fd.Verdict.FLIP), result.sentence
    assert result.exit_code == 0
    return result


@pytest.mark.parametrize("start", range(0, 320, 32))
def test_the_clean_port_is_clean_in_every_batch_of_the_demo(laboratory, start):
    clean(laboratory, batch=32, start=start)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_clean_port_is_clean_with_other_seeds(laboratory, seed):
    clean(laboratory, batch=8, start=16 * seed, seed=seed)


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "start"), [(1, 64), (2, 96), (2, 160), (3, 32), (3, 128), (6, 192)])
def test_batches_in_which_flips_were_seen_are_clean(laboratory, seed, start):
    clean(laboratory, batch=32, seed=seed, start=start)


def test_a_flip_between_two_right_implementations_is_no_drift(laboratory):
    clean(laboratory, batch=2, start=86)  # a max-pool of clip 87 has a near-tie


def test_a_flip_in_a_sample_that_was_not_recorded_is_no_drift(laboratory):
    reference, candidate = (side(batch=2, start=86, samples=1) for side in (laboratory.reference, laboratory.candidate))
    assert fd.diff(reference, candidate).exit_code != 1


def test_the_clean_port_is_clean_over_several_steps(laboratory):
    clean(laboratory, batch=4, steps=3)


def test_some_samples_of_a_batch_are_enough_and_it_is_said(laboratory):
    result = clean(laboratory, batch=8, samples=3)
    assert "only 3 of the 8 samples of a batch were compared" in result.notes


def test_parameters_alone_are_judged_without_a_false_alarm(laboratory):
    """What gradients were made of is not on record: those that are further apart than any operation leaves two tensors
    are left open."""
    sides = (side(batch=32, samples=0) for side in (laboratory.reference, laboratory.candidate))
    result = fd.diff(*sides)
    undecided = {pair.site.phase for pair in result.pairs if pair.verdict == "inconclusive"}
    assert (result.exit_code, result.first_drift) == (2, None)
    assert undecided <= {"grad", "optim", "weight_after"}


def test_a_batch_that_is_no_power_of_two_is_clean(laboratory):
    clean(laboratory, batch=7, start=313)


def test_the_float64_twin_is_a_reference(laboratory):
    assert fd.diff(laboratory.reference(batch=4, dtype=torch.float64), laboratory.candidate(batch=4)).exit_code == 0


def test_the_float64_twin_is_an_arbiter(laboratory):
    truth, reference = laboratory.reference(batch=4, dtype=torch.float64), laboratory.reference(batch=4)
    wrong = laboratory.candidate(batch=4, bug="loss-grad")
    assert fd.diff(reference, wrong, truth=truth).exit_code == 1


def test_an_arbiter_acquits_a_serial_sum(laboratory):
    truth, reference = laboratory.reference(batch=4, dtype=torch.float64), laboratory.reference(batch=4)
    assert fd.diff(reference, laboratory.candidate(batch=4), truth=truth).exit_code == 0


def test_the_page_lists_every_bug_with_its_site():
    page = (Path(__file__).parents[2] / "examples" / "README.md").read_text("utf-8")
    for bug, (step, phase, name, port, sample) in SITES.items():
        place = f"{phase} {name}" + (f":{port}" if port == "bias" else "")
        place += (f", step {step}" if step else "") + (f", sample {sample}" if sample else "")
        assert f"| `{bug}` | {known_bugs()[bug].what} | {place} |\n" in page
