"""A decoder's stages can be replayed: each says its operation and settings, and its weights where asked for."""

import json

import pytest
from tests.decoder.checkpoints import directory, traced

import firstdrift as fd
from firstdrift.core.sites import Site
from firstdrift.decoder.config_json import FAMILIES
from firstdrift.errors import CaptureError, StageError
from firstdrift.program.building.op_fit import fit
from firstdrift.program.library import library_program

ENGINES = ("decoder", "transformers")
OFTEN = ("llama", "gemma2", "qwen3_moe")  # which have between them everything that a family can have
PLAIN = ("post_attn_residual", "post_ffn_residual", "ffn_silu", "ffn_swigl")


def without_call(path):
    """The stages that have no call which holds, and why."""
    trace = fd.open_trace(path)
    program = library_program(trace)
    sites = [record.site for record in trace if record.site.phase == "fwd"]
    return {str(site): why for site in sites if (why := program.why_not(site)) is not None}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "family", [family if family in OFTEN else pytest.param(family, marks=pytest.mark.slow) for family in FAMILIES]
)
def test_every_stage_of_every_step_has_a_call_that_holds(family, engine, tmp_path):
    model = directory(tmp_path / "model", family, 1)
    traced(model, tmp_path / "t", "all,weights", engine=engine, generate=3)
    assert without_call(tmp_path / "t") == {}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_stages_in_short_formats_hold_too(family, dtype, tmp_path):
    traced(directory(tmp_path / "model", family), tmp_path / "t", "all,weights", dtype=dtype, generate=2)
    assert without_call(tmp_path / "t") == {}


WRONG = {
    "RMSNorm": ("eps", 1e-2), "RoPE": ("theta", 20_000.0), "AttentionScores": ("scale", 0.5), "Heads": ("start", 8),
    "AttentionMix": ("kv_heads", 3),
}  # fmt: skip


@pytest.mark.parametrize("op", WRONG)
def test_a_stage_with_another_setting_does_not_hold(op, tmp_path):
    traced(directory(tmp_path / "model"), tmp_path / "t", "all,weights")
    index = tmp_path / "t" / "index.jsonl"
    lines = [json.loads(line) for line in index.read_text().splitlines()]
    changed = set()
    for line in lines:
        if line.get("op") == op:
            line["attrs"][WRONG[op][0]] = WRONG[op][1]
            changed.add(f"fwd {line['name']}:out step 0")
    index.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert changed
    assert without_call(tmp_path / "t").keys() == changed


def test_weights_are_recorded_only_where_they_are_asked_for_and_once(tmp_path):
    model = directory(tmp_path / "model")
    traced(model, tmp_path / "plain", generate=2)
    traced(model, tmp_path / "weights", "attn_norm, weights", "1..2", generate=2)
    assert not [record for record in fd.open_trace(tmp_path / "plain") if record.site.phase == "weight"]
    found = [record.site for record in fd.open_trace(tmp_path / "weights") if record.site.phase == "weight"]
    assert found == [Site(0, "weight", "model.layers.1.input_layernorm", "weight")]


def test_without_weights_everything_that_reads_none_holds(tmp_path):
    traced(directory(tmp_path / "model", "qwen2"), tmp_path / "t")
    without = without_call(tmp_path / "t")
    ops = {record.op for record in fd.open_trace(tmp_path / "t") if str(record.site) in without}
    assert ops == {"Embedding", "RMSNorm", "Linear", "BiasAdd"}
    assert {"no weight of it was recorded", "no bias of it was recorded"} < set(without.values())


def test_a_tied_table_is_recorded_under_both_names(tmp_path):
    model = directory(tmp_path / "model", tie_word_embeddings=True)
    traced(model, tmp_path / "t", "embedding,lm_head,final_norm,weights")
    weights = [record for record in fd.open_trace(tmp_path / "t") if record.site.phase == "weight"]
    assert [(record.site.name, record.aliases) for record in weights] == [
        ("model.embed_tokens", ("lm_head.weight",)), ("model.norm", ()),
    ]  # fmt: skip
    assert without_call(tmp_path / "t").keys() == {"fwd final_norm:out step 0"}  # what it reads was not selected


def test_two_engines_record_the_same_weights(tmp_path):
    model = directory(tmp_path / "model", "qwen3_moe")
    for engine in ENGINES:
        traced(model, tmp_path / engine, "all,weights", engine=engine)
    result = fd.diff(tmp_path / "transformers", tmp_path / "decoder")
    assert result.exit_code == 0, result.sentence
    assert not result.to_json()["unmatched"]["reference"]


def test_weights_alone_are_no_stage_and_no_stage_file(tmp_path):
    model = directory(tmp_path / "model")
    with pytest.raises(StageError, match="no stage is selected"):
        traced(model, tmp_path / "t", "weights")
    with pytest.raises(CaptureError, match="stage files hold no weights; use --format trace"):
        traced(model, tmp_path / "t", "all,weights", format="aprt")


def test_stage_files_have_calls_where_a_stage_needs_neither_settings_nor_weights(tmp_path):
    traced(directory(tmp_path / "model"), tmp_path / "aprt", format="aprt")
    without = {name.split(":")[0].rpartition(".")[2] for name in without_call(tmp_path / "aprt")}
    assert without.isdisjoint(PLAIN)


def test_a_stage_file_of_another_activation_has_no_call_until_it_is_inferred(tmp_path):
    traced(directory(tmp_path / "model", "gemma"), tmp_path / "aprt", format="aprt")
    trace = fd.open_trace(tmp_path / "aprt")
    activation = Site(0, "fwd", "layer-0.ffn_silu", "out")
    assert library_program(trace).why_not(activation) is not None
    assert str(fit(trace, activation)) == "GELU(approximate=tanh)"
