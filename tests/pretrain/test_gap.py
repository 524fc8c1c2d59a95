"""The proof at step 0: the given weights against random ones on the same held-out windows."""

import json
import math

import numpy as np
import pytest
from tests.pretrain.worlds import FINETUNE, events, firstdrift, pretrain

from firstdrift.pretrain.gaps import Gap, check_scratch, refuse_failed
from firstdrift.pretrain.run_settings import GAP, LOSS, SCRATCH
from firstdrift.weights.open_checkpoint import open_checkpoint
from firstdrift.weights.writing import write_checkpoint


def tune(world, init, out, *more):
    shared = ["--data", world.text, "--tokenizer", world.tokenizer, *FINETUNE, "--out", out]
    return pretrain("--init", init, *shared, *more)


@pytest.mark.parametrize("form", ["apr", "safetensors"])
def test_trained_weights_are_far_better_than_random_ones_and_the_gap_is_printed_and_stored(form, world, tmp_path):
    done = tune(world, getattr(world, form), tmp_path / "run", "--num-steps", 0)
    assert done.exit_code == 0, done.output
    gap = json.loads((tmp_path / "run/run.json").read_text())["gap"]
    bounds = {check["id"]: check["bound"] for check in gap["checks"]}
    assert bounds == {
        LOSS: 6.0,
        SCRATCH: math.log(256) - 1.5,
        GAP: pytest.approx(3 * math.log(256) / math.log(151_936)),
    }
    assert gap["nats"] == gap["random"] - gap["given"] > bounds[GAP]
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
    for said in ("FALSIFY-APR-PRETRAIN-INIT-006-GAP:", "hardly better than random", "--allow-weak-init", str(init)):
        assert said in done.stderr
    assert not (tmp_path / "run/checkpoints").exists()
    assert not events(tmp_path / "run", "step")
    allowed = tune(world, init, tmp_path / "allowed", "--num-steps", 2, "--allow-weak-init")
    assert allowed.exit_code == 0, allowed.output
    checks = json.loads((tmp_path / "allowed/run.json").read_text())["gap"]["checks"]
    assert [check["id"] for check in checks if not check["holds"]] == [GAP]


def test_a_layer_in_the_wrong_order_of_rows_is_seen_by_the_loss(world, tmp_path):
    with open_checkpoint(world.apr) as checkpoint:
        metadata = dict(checkpoint.metadata)
        tensors = {name: np.array(checkpoint.array(name)) for name in checkpoint.entries}
    tensors["model.embed_tokens.weight"] = np.roll(tensors["model.embed_tokens.weight"], 1, axis=0)
    write_checkpoint(tmp_path / "shifted.apr", tensors.items(), format="apr", metadata=metadata)
    done = tune(world, tmp_path / "shifted.apr", tmp_path / "run", "--num-steps", 2)
    assert (done.exit_code, "FALSIFY-APR-PRETRAIN-INIT-006-GAP:" in done.stderr) == (1, True), done.output


def failing(gap):
    return [check.id for check in gap.checks if not check.holds]


# The contract's figures, on either side of each of them, at the vocabulary that they were written for.
@pytest.mark.falsifies("FALSIFY-APR-PRETRAIN-INIT-006")
@pytest.mark.parametrize(
    ("given", "random", "failed"),
    [
        (6.0, 11.0, []),
        (6.01, 11.0, [LOSS]),
        (2.5, math.log(151_936) - 1.5, []),
        (2.5, math.log(151_936) - 1.51, [SCRATCH]),
        (8.0, 11.0, [LOSS]),
        (8.01, 11.0, [LOSS, GAP]),
        (math.nan, 11.0, [LOSS, GAP]),
        (2.5, math.nan, [SCRATCH, GAP]),
    ],
)
def test_the_figures_of_step_0_have_their_bounds_and_their_own_ids(given, random, failed):
    gap = Gap(given, random, 151_936)
    assert failing(gap) == failed
    if not failed:
        refuse_failed(gap.checks, "init")
        return
    with pytest.raises(RuntimeError, match=f"^{' and '.join(failed)}: init"):
        refuse_failed(gap.checks, "init")


@pytest.mark.parametrize(("vocabulary", "nats"), [(151_936, 3.0), (49_152, 2.717), (256, 1.394), (4, 0.5)])
def test_the_gap_is_three_nats_at_qwens_vocabulary_and_its_share_of_guessing_at_others(vocabulary, nats):
    assert Gap(1.0, 1.0, vocabulary).checks[-1].bound == pytest.approx(nats, abs=1e-3)


def test_the_id_of_a_missing_gap_is_none_of_a_failed_load():
    from firstdrift.weights.loading.failures import LOAD

    assert len({LOAD, GAP, LOSS, SCRATCH}) == 4
    assert all(
        f"{one}:" not in f"{other}:" for one in (LOAD, GAP, LOSS) for other in (GAP, LOSS, SCRATCH) if one != other
    )


def test_random_weights_that_know_the_text_are_an_error_without_init_too(world, tmp_path, monkeypatch):
    from firstdrift.pretrain.trainer import Trainer

    assert check_scratch(math.log(256), 256).holds
    monkeypatch.setattr(Trainer, "evaluate", lambda self, windows: 4.0)
    shared = ["--config", "tiny", "--data", world.text, "--tokenizer", world.tokenizer, *FINETUNE, "--num-steps", 0]
    done = pretrain(*shared, "--out", tmp_path / "run")
    assert done.exit_code == 1, done.output
    assert "FALSIFY-APR-PRETRAIN-INIT-006-SCRATCH: step 0: validation loss with random ones 4.00 nats" in done.stderr
    assert pretrain(*shared, "--allow-weak-init", "--out", tmp_path / "meant").exit_code == 0


def test_both_are_evaluated_on_the_same_windows(world, tmp_path):
    from firstdrift.pretrain.gaps import measure_gap

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
    assert (gap.given, gap.random, gap.checks[-1].bound) == (1.0, 2.0, 0.5)
