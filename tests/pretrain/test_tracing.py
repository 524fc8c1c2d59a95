"""Traced steps: the ones asked for and no other, and two runs that differ in one way are told apart."""

import json

import numpy as np
import pytest
import torch
from tests.pretrain.worlds import FINETUNE, NEVER, events, files_of, firstdrift, newest, pretrain, settings

import firstdrift as fd
from firstdrift.decoder.decoder_config import config_of
from firstdrift.pretrain.building import build_trainer_with_init
from firstdrift.pretrain.training import recorded


def tune(world, out, *more):
    shared = ["--init", world.apr, "--data", world.text, "--tokenizer", world.tokenizer, *FINETUNE, *NEVER]
    return pretrain(*shared, "--eval-every", 0, "--num-steps", 6, "--out", out, *more)


@pytest.fixture(scope="module")
def traced(world, tmp_path_factory):
    out = tmp_path_factory.mktemp("traced") / "run"
    assert tune(world, out, "--trace-steps", "0,4", "--checkpoint-every", 3).exit_code == 1
    return out


def test_the_steps_asked_for_are_recorded_under_their_own_numbers(traced):
    assert sorted(path.name for path in (traced / "traces").iterdir()) == ["step-000000", "step-000004"]
    for step in (0, 4):
        trace = fd.open_trace(traced / "traces" / f"step-{step:06d}")
        assert trace.complete, trace.problems
        assert {record.site.step for record in trace} == {step}
        phases = {record.site.phase for record in trace}
        assert phases >= {"input", "weight", "fwd", "lossgrad", "agrad", "grad", "grad_scaled", "optim", "weight_after"}
        assert trace.header["training"]["lr"] == 3e-3
    assert "traces: step-000000, step-000004" in firstdrift("show", traced).stdout


def test_recording_changes_nothing_of_the_run(traced, world, tmp_path):
    tune(world, tmp_path / "plain")
    assert files_of(newest(traced)) == files_of(newest(tmp_path / "plain"))


def test_a_step_after_going_on_is_recorded_as_it_was(traced, world, tmp_path):
    tune(world, tmp_path / "run", "--checkpoint-every", 3)
    done = pretrain("--resume", tmp_path / "run/checkpoints/step-000003", "--trace-steps", "4")
    assert done.exit_code == 1, done.output
    result = fd.diff(traced / "traces/step-000004", tmp_path / "run/traces/step-000004")
    assert result.verdict == "same"


@pytest.mark.parametrize("steps", ["6", "0,7"])
def test_a_step_that_will_not_come_cannot_be_recorded(steps, world, tmp_path):
    done = tune(world, tmp_path / "run", "--trace-steps", steps)
    assert (done.exit_code, "this run has 6 steps, counted from 0" in done.stderr) == (2, True), done.output
    assert not (tmp_path / "run").exists()


def one_step(world, path, plant=lambda trainer: None, skipped=0):
    """One recorded step of four batches, in which something may be different."""
    trainer = build_trainer_with_init(
        settings(batch=2, accumulate=4), init_config=config_of(world.apr), init_path=world.apr
    )
    plant(trainer)
    rows = np.random.default_rng(0).integers(32, 127, (4, 2, 32))
    with recorded(trainer, path):
        trainer.train_step(rows[: 4 - skipped])
    return path


def decay_on_norms(trainer):
    trainer.optimizer.param_groups[1]["weight_decay"] = 0.01


def large_eps(trainer):
    for group in trainer.optimizer.param_groups:
        group["eps"] = 1e-6


@pytest.mark.parametrize(
    ("plant", "skipped", "phase", "label"),
    [
        (decay_on_norms, 0, "weight_after", "weight-decay-norms"),
        (large_eps, 0, "weight_after", "optimizer-eps"),
        (lambda trainer: None, 1, "agrad", "gradient-missing"),
    ],
    ids=["decay on norms", "eps", "accumulation off by one"],
)
def test_two_runs_that_differ_in_one_way_are_told_apart(plant, skipped, phase, label, world, tmp_path):
    reference = one_step(world, tmp_path / "reference")
    candidate = one_step(world, tmp_path / "candidate", plant, skipped)
    done = firstdrift("diff", reference, candidate, "--json")
    assert done.exit_code == 1, done.output
    first = json.loads(done.stdout)["first_drift"]
    assert (first["phase"], first["cause"]["label"]) == (phase, label)
    if skipped:
        assert first["call"] == 3
    if plant is decay_on_norms:
        assert first["name"].endswith("layernorm")


def test_two_runs_that_do_not_differ_are_the_same(world, tmp_path):
    same = firstdrift("diff", one_step(world, tmp_path / "a"), one_step(world, tmp_path / "b"))
    assert (same.exit_code, same.stdout.startswith("same")) == (0, True), same.stdout


# A loss that is not finite.


@pytest.fixture
def diverging(monkeypatch):
    """A model whose third step in training computes an infinity."""
    from firstdrift.decoder.model import Decoder

    forward = Decoder.forward

    def broken(self, tokens, **more):
        logits = forward(self, tokens, **more)
        self.calls = getattr(self, "calls", 0) + (self.training and torch.is_grad_enabled())
        return logits * float("inf") if self.calls >= 3 and self.training else logits

    monkeypatch.setattr(Decoder, "forward", broken)


@pytest.mark.parametrize("traced", [False, True])
def test_a_loss_that_is_not_finite_stops_the_run_with_its_step_and_a_trace_on_request(
    traced, diverging, world, tmp_path
):
    out = tmp_path / "run"
    done = tune(world, out, "--checkpoint-every", 1, *(["--trace-nonfinite"] * traced))
    assert done.exit_code == 1, done.output
    assert "step 2: the loss is nan" in done.stderr
    assert "finished" not in done.stdout
    assert newest(out).name == "step-000002"  # the weights from before
    assert (out / "traces/step-000002").exists() == traced
    assert "stopped (not finite), 2 of 6 steps" in firstdrift("show", out).stdout
    if traced:
        trace = fd.open_trace(out / "traces/step-000002")
        assert {record.site.step for record in trace} == {2}
        gradients = [trace.array(one) for one in trace if one.site.phase == "lossgrad"]
        assert gradients
        assert not any(np.isfinite(one).all() for one in gradients)


def test_a_run_that_its_loss_has_stopped_goes_on_when_the_reason_is_gone(diverging, monkeypatch, world, tmp_path):
    out = tmp_path / "run"
    assert tune(world, out, "--checkpoint-every", 1).exit_code == 1
    monkeypatch.undo()
    assert "finished, 6 of 6 steps" in pretrain("--resume", out).stdout
    tune(world, tmp_path / "whole", "--checkpoint-every", 1)
    assert files_of(newest(out)) == files_of(newest(tmp_path / "whole"))
    assert "stopped" not in firstdrift("show", out).stdout
    assert not events(out, "not finite")
