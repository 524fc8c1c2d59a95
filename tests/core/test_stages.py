"""Stage names, lists, ranges and plans, as aprender's flags are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from firstdrift import SavePlan, StageError
from firstdrift.core.stages import (
    EXECUTION_RANK,
    INDEX_PAYLOAD,
    INPUT,
    PRODUCERS,
    STAGES,
    WHOLE_MODEL,
    default_directory,
    parse_layer_range,
    parse_stage,
    parse_stages,
)

CANONICAL = [
    "embedding", "attn_norm", "qkv_matmul", "qkv_bias", "q_post_rope", "k_post_rope", "attn_scores",
    "attn_softmax", "attention", "attn_out", "post_attn_residual", "ffn_norm", "ffn_gate", "ffn_up", "ffn_silu",
    "ffn_swigl", "ffn_out", "post_ffn_residual", "moe_router", "moe_ffn_out", "moe_router_indices",
    "final_norm", "lm_head",
]  # fmt: skip


def test_the_23_names_stand_in_canonical_order():
    assert list(STAGES) == CANONICAL
    assert {"final_norm", "lm_head"} == WHOLE_MODEL
    assert {"moe_router_indices"} == INDEX_PAYLOAD


@pytest.mark.parametrize("name", CANONICAL)
def test_a_name_is_trimmed_and_read_in_any_case(name):
    assert parse_stage(f"  {name.upper()}\t") == name


@pytest.mark.parametrize("alias", ["layer_output", " Layer_Output "])
def test_the_alias_is_the_residual(alias):
    assert parse_stage(alias) == "post_ffn_residual"


def test_an_unknown_stage_is_shown_as_given_with_all_that_are_valid():
    with pytest.raises(StageError, match=f"unknown stage 'Ffn_Swiglu'.*{', '.join(CANONICAL)}"):
        parse_stage("  Ffn_Swiglu ")


@pytest.mark.parametrize("text", ["", "   ", "\t"])
def test_an_empty_token_is_an_error_and_an_empty_list_selects_nothing(text):
    assert parse_stages(text) == ()
    with pytest.raises(StageError, match="empty stage name"):
        parse_stage(text)


@pytest.mark.parametrize("text", ["ffn_up,", ",ffn_up", "ffn_up,,ffn_gate", "ffn_up, ,ffn_gate", ","])
def test_an_empty_token_inside_a_list_is_an_error(text):
    with pytest.raises(StageError, match="empty stage name"):
        parse_stages(text)


def test_a_list_keeps_order_and_duplicates():
    assert parse_stages(" lm_head ,FFN_UP,layer_output,ffn_up") == ("lm_head", "ffn_up", "post_ffn_residual", "ffn_up")


def test_the_first_error_of_a_list_wins():
    with pytest.raises(StageError, match="unknown stage 'one'"):
        parse_stages("ffn_up,one,,two")


@pytest.mark.parametrize("text", ["all", " ALL ", "All"])
def test_all_is_every_stage(text):
    assert list(parse_stages(text)) == CANONICAL


def test_all_inside_a_list_is_unknown():
    with pytest.raises(StageError, match="unknown stage 'all'"):
        parse_stages("all,ffn_up")


@pytest.mark.parametrize(
    ("text", "layers"),
    [
        ("0..1", range(1)),
        (" 2 .. 5 ", range(2, 5)),
        ("+1..+3", range(1, 3)),
        ("007..008", range(7, 8)),
        ("0..4294967295", range(2**32 - 1)),
        ("0" * 5000 + "1..2", range(1, 2)),
    ],
    ids=lambda item: str(item)[-12:],
)
def test_a_range_excludes_its_end(text, layers):
    assert parse_layer_range(text) == layers


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("3", r"START\.\.END"),
        ("0-3", r"START\.\.END"),
        ("", r"START\.\.END"),
        ("..3", "START '' is not"),
        ("-1..3", "START '-1' is not"),
        ("x..3", "START 'x' is not"),
        ("٣..4", "START '٣' is not"),
        ("4294967296..4294967297", "START 4294967296 is above 4294967295"),
        ("3..", "END '' is not"),
        ("0..=3", "END '=3' is not"),
        ("0...3", r"END '\.3' is not"),
        ("0..1 2", "END '1 2' is not"),
        ("0..4294967296", "END 4294967296 is above"),
        ("0.." + "9" * 5000, "END 9+ is above"),
        ("3..3", "END 3 must be above START 3"),
        ("4..2", "END 2 must be above START 4"),
    ],
    ids=lambda item: str(item)[:16],
)
def test_a_bad_range_says_which_bound_and_why(text, reason):
    with pytest.raises(StageError, match=f"layer range '.*': .*{reason}"):
        parse_layer_range(f" {text} ")


def test_the_reason_shows_the_range_trimmed():
    with pytest.raises(StageError, match="layer range '5': "):
        parse_layer_range("  5 ")


def test_a_plan_reads_the_stages_before_the_range():
    with pytest.raises(StageError, match="unknown stage"):
        SavePlan.from_cli("nonsense", "nonsense", "out")
    with pytest.raises(StageError, match="layer range"):
        SavePlan.from_cli("all", "nonsense", "out")


@pytest.mark.parametrize(
    ("stage", "layer", "saved"),
    [
        ("ffn_gate", 1, False),
        ("ffn_gate", 2, True),
        ("ffn_gate", 3, True),
        ("ffn_gate", 4, False),
        ("ffn_up", 2, False),
        ("lm_head", 0, True),
        ("lm_head", 99, True),
        ("final_norm", 2, False),
    ],
)
def test_a_plan_saves_selected_stages_of_selected_layers(stage, layer, saved):
    assert SavePlan.from_cli("ffn_gate,lm_head", "2..4", "out").should_save(stage, layer) is saved


def test_an_alias_selects_what_it_means():
    assert SavePlan.from_cli("layer_output", "0..1", "out").should_save("post_ffn_residual", 0)
    assert SavePlan.from_cli("post_ffn_residual", "0..1", "out").should_save("layer_output", 0)


@pytest.mark.parametrize(
    ("model", "directory"),
    [
        ("bar.apr", "./bar-trace"),
        ("a/b/foo.q4.apr", "a/b/foo.q4-trace"),
        ("/m/x", "/m/x-trace"),
        ("", "trace-trace"),
        ("..", "trace-trace"),
        ("a/\udcff.apr", "a/trace-trace"),
    ],
)
def test_the_default_directory_lies_beside_the_model(model, directory):
    assert default_directory(model) == Path(directory)


def test_every_producer_is_computed_before_its_consumer():
    for stage, producers in PRODUCERS.items():
        for producer in set(producers) - {INPUT}:
            assert EXECUTION_RANK[producer] < EXECUTION_RANK[stage], (producer, stage)


def test_experts_run_after_the_norm_and_before_the_residual():
    order = sorted(STAGES, key=EXECUTION_RANK.__getitem__)
    experts = ["moe_router", "moe_router_indices", "moe_ffn_out"]
    assert [stage for stage in order if stage in experts] == experts
    assert order.index("ffn_norm") < order.index("moe_router")
    assert order.index("moe_ffn_out") < order.index("post_ffn_residual")
