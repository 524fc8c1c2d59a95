"""The proof at step 0: the given weights against random ones on the same held-out windows."""

import json
import math

import numpy as np
import pytest

from firstdrift.checkpoints.opening import open_checkpoint
from firstdrift.checkpoints.writing import write_checkpoint
from firstdrift.pretraining.gaps import Gap, refuse_weak

from .worlds import FINETUNE, events, firstdrift, pretrain


def tune(world, init, out, *more):
    shared = ["--data", world.text, "--tokenizer", world.tokenizer, *FINETUNE, "--out", out]
    return pretrain("--init", init, *shared, *more)


@pytest.mark.parametrize("form", ["apr", "safetensors"])
def test_trained_weights_are_far_better_than_random_ones_and_the_gap_is_printed_and_stored(form, world, tmp_path):
    done = tune(world, getattr(world, form), tmp_path / "run", "--num-steps", 0)
    assert done.exit_code == 0, done.output
    gap = json.loads((tmp_path / "run/run.json").read_text())["gap"]
    assert gap["nats"] == gap["random"] - gap["given"] > gap["required"] == pytest.approx(0.25 * math.log(256))
    assert abs(gap["random"] - math.log(256)) < 0.5
    assert f"gap {gap['nats']:.2f} nats" in done.stdout
    (logged,) = events(tmp_path / "run", "gap")
    assert logged == {"event": "gap", "step": 0, **gap}
    assert f"gap {gap['nats']:.2f}" in firstdrift("show", tmp_path / "run").stdout


def random_init(world, tmp_path):
    """A checkpoint that is whole and right in every way, but was never trained."""
    shared = ["--data", world.text, "--tokenizer", world.tokenizer, *FINETUNE, "--num-steps", 0, "--format", "apr"]
    assert pretrain("--config", "tiny", *shared, "--seed", 7, "--out", tmp_path / "random").exit_code == 0
    return tmp_path / "random/checkpoints/step-000000/model.apr"


def test_weights_that_are_no_better_than_random_ones_are_an_error_unless_they_are_meant(world, tmp_path):
    init = random_init(world, tmp_path)
    done = tune(world, init, tmp_path / "run", "--num-steps", 2)
    assert done.exit_code == 1
    for said in ("FALSIFY-APR-PRETRAIN-INIT-006", "hardly better than random", "--allow-weak-init", str(init)):
        assert said in done.stderr
    assert not (tmp_path / "run/checkpoints").exists()
    assert not events(tmp_path / "run", "step")
    allowed = tune(world, init, tmp_path / "allowed", "--num-steps", 2, "--allow-weak-init")
    assert allowed.exit_code == 0, allowed.output
    assert json.loads((tmp_path / "allowed/run.json").read_text())["gap"]["wide_enough"] is False


def test_a_layer_in_the_wrong_order_of_rows_is_seen_by_the_loss(world, tmp_path):
    with open_checkpoint(world.apr) as checkpoint:
        metadata = dict(checkpoint.metadata)
        tensors = {name: np.array(checkpoint.array(name)) for name in checkpoint.entries}
    tensors["model.embed_tokens.weight"] = np.roll(tensors["model.embed_tokens.weight"], 1, axis=0)
    write_checkpoint(tmp_path / "shifted.apr", tensors.items(), format="apr", metadata=metadata)
    done = tune(world, tmp_path / "shifted.apr", tmp_path / "run", "--num-steps", 2)
    assert (done.exit_code, "FALSIFY-APR-PRETRAIN-INIT-006" in done.stderr) == (1, True), done.output


def test_the_gap_needs_half_a_nat_or_a_quarter_of_what_guessing_costs():
    refuse_weak(Gap(given=2.0, random=2.5, required=0.5), "init")
    for given in (2.01, math.nan):
        with pytest.raises(RuntimeError, match="FALSIFY-APR-PRETRAIN-INIT-006: init"):
            refuse_weak(Gap(given=given, random=2.5, required=0.5), "init")


def test_both_are_evaluated_on_the_same_windows(world, tmp_path):
    from firstdrift.pretraining.gaps import measure_gap

    seen = []

    class Trainer:
        model = type("Model", (), {"config": type("Config", (), {"vocab_size": 4})})

        def evaluate(self, windows):
            seen.append(windows)
            return float(len(seen))

        def random_twin(self):
            return self

    gap = measure_gap(Trainer(), "windows")
    assert seen == ["windows", "windows"]
    assert (gap.given, gap.random, gap.required) == (1.0, 2.0, 0.5)
