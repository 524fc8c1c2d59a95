"""The numbers of a run: what a mode means, what is refused, the schedule and the token budget."""

from dataclasses import replace

import pytest

from firstdrift.decoder.decoder_config import PRESETS
from firstdrift.errors import SelectionError
from firstdrift.pretrain.preparing import check_budget, estimated_parameters
from firstdrift.pretrain.run_settings import Settings, learning_rate, parse_steps
from firstdrift.pretrain.trainer import resolve_device


@pytest.mark.parametrize(
    ("mode", "lr", "warmup", "target"), [("finetune", 5e-5, 100, 2.2), ("from-scratch", 3e-4, 1000, 3.0)]
)
def test_a_mode_has_its_own_defaults_and_what_is_given_wins(mode, lr, warmup, target):
    settings = Settings.of(mode)
    assert (settings.lr, settings.warmup, settings.val_loss_target) == (lr, warmup, target)
    assert (settings.clip, settings.weight_decay, settings.patience) == (1.0, 0.01, 5)
    assert Settings.of(mode, lr=1.0).lr == 1.0
    assert Settings.of(mode, lr=1.0).warmup == warmup


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("val_loss_target", 0), ("val_loss_target", float("nan")), ("num_steps", -1), ("num_steps", 1.5), ("batch", 0),
        ("seq_length", 1), ("accumulate", 0), ("lr", 0), ("lr", float("inf")), ("clip", -1), ("weight_decay", -0.1),
        ("seed", -1), ("seed", 2**63), ("dtype", "f16"), ("format", "pt"), ("eval_every", -1), ("warmup", True),
    ],
)  # fmt: skip
def test_a_number_that_no_run_can_have_is_refused_by_its_option(name, value):
    with pytest.raises(SelectionError, match=f"--{name.replace('_', '-')} {value!r}"):
        Settings.of("finetune", **{name: value}).check()


def test_no_steps_are_allowed():
    Settings.of("finetune", num_steps=0).check()


def test_an_unknown_mode_or_setting_is_refused():
    with pytest.raises(SelectionError, match="--mode 'half'"):
        Settings.of("half")
    with pytest.raises(SelectionError, match="learning_rate: no such setting"):
        Settings.of("finetune", learning_rate=1)


def test_settings_come_back_from_json_as_they_were():
    settings = Settings.of("from-scratch", num_steps=7, seed=3)
    assert Settings.from_json(settings.to_json(), "run.json") == settings
    with pytest.raises(ValueError, match="run.json"):
        Settings.from_json({**settings.to_json(), "batch": "16"}, "run.json")
    with pytest.raises(ValueError, match="run.json"):
        Settings.from_json({"batch": 16}, "run.json")


def test_the_learning_rate_rises_in_a_line_and_falls_in_a_cosine():
    settings = Settings.of("finetune", lr=1e-3, warmup=10, num_steps=111)
    assert [learning_rate(settings, step) for step in (0, 4, 9)] == pytest.approx([1e-4, 5e-4, 1e-3])
    assert learning_rate(settings, 10) == 1e-3
    assert learning_rate(settings, 60) == pytest.approx((1e-3 + 1e-5) / 2)
    assert learning_rate(settings, 110) == pytest.approx(1e-5)
    rates = [learning_rate(settings, step) for step in range(10, 111)]
    assert rates == sorted(rates, reverse=True)


def test_the_learning_rate_never_falls_below_its_least():
    assert Settings.of("finetune", lr=1e-3).lr_min == 1e-5
    assert Settings.of("finetune", lr=2e-6).lr_min == 1e-7
    assert Settings.of("finetune", lr=1e-9).lr_min == 1e-9


def test_the_gates_estimate_is_the_published_one():
    assert estimated_parameters(PRESETS["qwen2-0.5b"]) == 526_992_256


@pytest.mark.parametrize(
    ("tokens_a_parameter", "forced", "outcome"),
    [
        (9.99, False, "error"),
        (9.99, True, "warning"),
        (10, False, "warning"),
        (19.9, False, "warning"),
        (20, False, ""),
    ],
)
def test_too_few_tokens_are_refused_and_few_are_warned_of(tokens_a_parameter, forced, outcome):
    config = PRESETS["tiny"]
    parameters = estimated_parameters(config)
    settings = Settings.of("finetune", num_steps=int(parameters * tokens_a_parameter) + 1, batch=1, seq_length=1)
    if outcome == "error":
        with pytest.raises(SelectionError, match=r"token budget: .*--force-under-provisioned"):
            check_budget(config, settings, forced=forced)
        return
    budget, warning = check_budget(config, settings, forced=forced)
    assert budget["parameters"] == parameters
    assert bool(warning) == (outcome == "warning")


def test_accumulated_batches_count_and_no_steps_need_no_tokens():
    config = PRESETS["tiny"]
    settings = Settings.of("finetune", num_steps=100)
    budget, _ = check_budget(config, replace(settings, accumulate=3), forced=True)
    assert budget["tokens"] == 100 * 16 * 512 * 3
    assert check_budget(config, replace(settings, num_steps=0), forced=False)[1] is None


def test_steps_to_trace_are_a_list():
    assert parse_steps("100, 0,100") == (0, 100)
    assert parse_steps(None) == ()
    for wrong in ("", "a", "1-3", "-1", "1,,2"):
        with pytest.raises(SelectionError, match="--trace-steps"):
            parse_steps(wrong)


def test_cuda_by_name_is_had_or_an_error_and_auto_says_what_it_chose(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SelectionError, match=r"GATE-GPUTRAIN-002.*--device cuda"):
        resolve_device("cuda")
    assert resolve_device("auto") == ("cpu", "--device auto chose cpu")
    assert resolve_device("cpu") == ("cpu", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert resolve_device("auto") == ("cuda", "--device auto chose cuda")
    assert resolve_device("cuda") == ("cuda", None)
    with pytest.raises(SelectionError, match="--device 'gpu'"):
        resolve_device("gpu")
