"""What is trained where nothing is said, Llama-370M with its own band; and how far a run goes without any weights."""

import json

import numpy as np
import pytest
from tests.pretrain.worlds import FINETUNE, NEVER, SMALL, events, pretrain

from firstdrift.decoder.decoder_config import PRESETS
from firstdrift.errors import SelectionError
from firstdrift.pretrain import building, preparing
from firstdrift.pretrain.preparing import check_band, parse_band
from firstdrift.pretrain.run_checkpoints import Progress
from firstdrift.pretrain.run_settings import Settings
from firstdrift.weights.loading.architecture import LLAMA_370M_BAND


def asked(*more):
    done = pretrain("--synthetic", "--json", "--device", "cpu", *more)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.mark.falsifies("FALSIFY-APR-PRETRAIN-ARCH-002", "FALSIFY-APR-PRETRAIN-INIT-002")
def test_without_init_and_config_it_is_the_preset_field_for_field(world):
    said, named = asked(), asked("--config", "llama-370m")
    assert said["config"] == named["config"]
    assert said["stamp"] == {"name": "llama-370m-pretrain", "architecture": "LlamaForCausalLM"}
    config = said["config"]
    published = {
        "vocab_size": 50_257, "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16,
        "num_key_value_heads": 4, "head_dim": 64, "intermediate_size": 2816, "max_position_embeddings": 4096,
        "rope_theta": 10_000.0, "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "attention_bias": False,
    }  # fmt: skip
    assert {key: config[key] for key in published} == published
    assert any("the preset llama-370m" in note for note in said["notes"])
    assert asked("--init", world.apr, *FINETUNE)["config"]["hidden_size"] == 64


def test_the_defaults_are_those_of_the_modes():
    numbers = asked()["settings"]
    wanted = {
        "mode": "from-scratch", "lr": 3e-4, "warmup": 1000, "val_loss_target": 3.0, "clip": 1.0, "weight_decay": 0.01,
        "patience": 5, "min_epochs": 3,
    }  # fmt: skip
    assert {key: numbers[key] for key in wanted} == wanted
    assert Settings.of("finetune").lr_min == pytest.approx(5e-7)
    assert Settings.of("finetune", lr=1e-6).lr_min == 1e-7


@pytest.mark.falsifies("FALSIFY-APR-PRETRAIN-ARCH-006")
def test_the_default_wants_its_own_vocabulary_exactly(world, tmp_path):
    np.save(tmp_path / "tokens.npy", np.arange(2000, dtype="u2"))
    (tmp_path / "tokenizer").mkdir()
    for entries, passes in ((50_257, True), (151_665, False), (50_256, False)):
        (tmp_path / "tokenizer/vocab.json").write_text(json.dumps({f"t{n}": n for n in range(entries)}))
        shared = ["--data", tmp_path / "tokens.npy", "--tokenizer", tmp_path / "tokenizer", *SMALL]
        done = pretrain(*shared, "--dry-run")
        assert done.exit_code == (0 if passes else 2), done.output
        assert passes or "INV-ARCH-370M-006:" in done.stderr


# The band.


def test_the_band_holds_for_the_preset_with_its_output_layer_counted():
    check_band(PRESETS["llama-370m"], LLAMA_370M_BAND)
    check_band(PRESETS["llama-370m"], (373_509_120, 373_509_120))
    for band in ((373_509_121, 374_000_000), (366_000_000, 373_509_119), (322_045_952, 322_045_952)):
        with pytest.raises(SelectionError, match=r"373,509,120 parameters, the tied output layer counted too"):
            check_band(PRESETS["llama-370m"], band)


@pytest.mark.parametrize(
    ("text", "band"), [("366M..374M", LLAMA_370M_BAND), ("1..2", (1, 2)), (" 0.1M..0.2M ", (100_000, 200_000))]
)
def test_a_band_is_read_as_it_is_written(text, band):
    assert parse_band(text) == band


@pytest.mark.parametrize("text", ["", "1", "2..1", "-1..2", "1...2", "1M-2M", "1e6..2e6", "M..B", "..3"])
def test_what_is_no_band_is_refused(text):
    with pytest.raises(SelectionError, match="is no range"):
        parse_band(text)


def test_another_preset_in_its_place_is_outside_the_band_and_the_band_can_be_given(monkeypatch):
    changed = {**PRESETS, "llama-370m": PRESETS["tiny"]}
    monkeypatch.setattr(preparing, "PRESETS", changed)
    shared = ["--synthetic", "--device", "cpu", "--seq-length", 64]
    done = pretrain(*shared)
    assert done.exit_code == 2
    for said in ("125,248 parameters", "366,000,000 to 374,000,000", "--parameters"):
        assert said in done.stderr
    assert pretrain(*shared, "--parameters", "125K..126K").exit_code == 0
    assert pretrain(*shared, "--config", "tiny").exit_code == 0  # no other preset has one


def test_a_band_is_for_checkpoints_too(world):
    shared = ["--init", world.apr, "--synthetic", "--force-under-provisioned", "--device", "cpu", "--seq-length", 64]
    assert pretrain(*shared, "--parameters", "0.1M..0.2M").exit_code == 0
    assert pretrain(*shared, "--parameters", "1M..2M").exit_code == 2


# Without weights and without data.


def test_synthetic_stops_before_weights_and_data(world, tmp_path, monkeypatch):
    def touched(*arguments, **more):
        raise AssertionError("weights or data were touched")

    for module, name in (
        (preparing, "open_tokenizer"), (preparing, "read_data"), (building, "verify_init"), (building, "empty_decoder"),
        (building, "random_decoder"),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, touched)
    done = pretrain(
        "--init", world.apr, "--data", tmp_path / "none", "--tokenizer", tmp_path, *FINETUNE, "--synthetic", "--out",
        tmp_path / "run",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "neither weights nor data were touched" in done.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--init", "missing.apr"], "FALSIFY-APR-PRETRAIN-INIT-003"),
        (["--val-loss-target", 0], "--val-loss-target 0"),
        (["--num-steps", -1], "--num-steps -1"),
    ],
)
def test_synthetic_still_refuses_what_comes_before(given, said):
    done = pretrain("--synthetic", "--device", "cpu", *given)
    assert (done.exit_code, said in done.stderr) == (2, True), done.output


def test_synthetic_asks_for_the_token_budget_of_an_init(world):
    done = pretrain("--synthetic", "--init", world.apr, *SMALL, "--num-steps", 2)
    assert (done.exit_code, "token budget" in done.stderr) == (2, True)
    done = pretrain("--synthetic", "--resume", "run")
    assert (done.exit_code, "--synthetic cannot be given with --resume" in done.stderr) == (2, True)


# Epochs.


def test_steps_per_epoch_are_the_steps_between_evaluations(world, tmp_path):
    shared = ["--config", "tiny", "--data", world.text, "--tokenizer", world.tokenizer, *SMALL, *NEVER[2:]]
    done = pretrain(*shared, "--num-steps", 6, "--steps-per-epoch", 2, "--out", tmp_path / "run")
    assert done.exit_code == 0, done.output
    assert [one["step"] for one in events(tmp_path / "run", "eval")] == [0, 2, 4, 6]


@pytest.mark.parametrize(("min_epochs", "ends_at"), [(0, 2), (2, 2), (3, 3), (5, 5)])
def test_a_run_is_given_its_epochs_before_it_counts_as_stuck(min_epochs, ends_at, world, tmp_path, monkeypatch):
    from firstdrift.pretrain.trainer import Trainer

    monkeypatch.setattr(Trainer, "evaluate", lambda self, windows: 5.0)
    shared = ["--config", "tiny", "--data", world.text, "--tokenizer", world.tokenizer, *SMALL, "--patience", 1]
    done = pretrain(
        *shared, "--num-steps", 9, "--steps-per-epoch", 1, "--min-epochs", min_epochs, "--out", tmp_path / "run"
    )
    assert done.exit_code == 0, done.output
    (end,) = events(tmp_path / "run", "end")
    assert (end["reason"], end["step"]) == ("no improvement", ends_at)


def test_one_epoch_without_a_better_one_is_patience_of_one():
    progress = Progress().after(5.0).after(5.0)
    assert progress.is_stuck(1, 2)
    assert not progress.is_stuck(1, 3)
    assert not progress.is_stuck(2, 2)
    assert not progress.is_stuck(0, 0)
