"""Two engines that share no line compute the same, at every stage of every layer of every family."""

import pytest
from tests.decoder.checkpoints import converted, directory, traced, with_config

import firstdrift as fd
from firstdrift.core.stages import STAGES
from firstdrift.decoder.config_json import FAMILIES
from firstdrift.errors import CaptureError, WeightsError

MOE = {"moe_router", "moe_router_indices", "moe_ffn_out"}


MADE_OF = "all,weights"  # with the weights that stages were made with, each can be made again


def clean(result):
    """Whether every stage is the same to noise, and nothing is left open."""
    return result.exit_code == 0 and str(result.verdict) in ("noise", "same")


def stages_in(trace):
    return {record.details["stage"] for record in fd.open_trace(trace).records if "stage" in record.details}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("family", FAMILIES)
def test_every_stage_of_a_family_is_the_librarys_to_noise(family, seed, tmp_path):
    model = directory(tmp_path / "model", family, seed)
    theirs = traced(model, tmp_path / "theirs", stages=MADE_OF, engine="transformers")
    ours = traced(model, tmp_path / "ours", stages=MADE_OF)
    result = fd.diff(tmp_path / "theirs", tmp_path / "ours")
    assert clean(result), result.sentence
    assert not result.reference_only
    assert (result.coverage.phases["fwd"], result.coverage.phases["input"]) == (theirs.tensors, 1)
    assert theirs.chosen == ours.chosen
    assert stages_in(tmp_path / "ours") == set(STAGES) - (set() if family == "qwen3_moe" else MOE)


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "qwen3_moe"])
def test_generation_step_by_step_is_the_librarys_and_can_be_led(family, tmp_path):
    model = directory(tmp_path / "model", family, 1)
    theirs = traced(model, tmp_path / "theirs", stages=MADE_OF, engine="transformers", generate=6)
    ours = traced(model, tmp_path / "ours", stages=MADE_OF, generate=6)
    assert theirs.chosen == ours.chosen
    result = fd.diff(tmp_path / "theirs", tmp_path / "ours")
    assert clean(result), result.sentence
    assert {record.site.step for record in fd.open_trace(tmp_path / "ours").records} == set(range(6))

    text = ",".join(str((token + 1) % 97) for token in ours.chosen)  # what it would not have said itself
    for engine in ("transformers", "decoder"):
        led = traced(model, tmp_path / f"led-{engine}", stages=MADE_OF, engine=engine, teacher=text)
        assert led.asked.teacher == tuple(map(int, text.split(",")))
        assert led.agreeing < 6
    result = fd.diff(tmp_path / "led-transformers", tmp_path / "led-decoder")
    assert clean(result), result.sentence
    fed = fd.open_trace(tmp_path / "led-decoder")
    tokens = [fed.array(record).tolist() for record in fed.records if record.site.phase == "input"]
    assert tokens[1:] == [[[token]] for token in led.asked.teacher[:-1]]


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_narrow_dtypes_are_computed_and_recorded_as_such(dtype, tmp_path):
    model = directory(tmp_path / "model", "qwen2")
    for engine in ("transformers", "decoder"):
        traced(model, tmp_path / engine, stages=MADE_OF, engine=engine, dtype=dtype)
    result = fd.diff(tmp_path / "transformers", tmp_path / "decoder")
    assert result.first_drift is None, result.sentence
    assert clean(result), result.sentence
    kinds = {record.dtype for record in fd.open_trace(tmp_path / "decoder").records if record.site.phase == "fwd"}
    assert kinds == {dtype}


@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
def test_stages_without_the_weights_they_were_made_with_may_be_left_open_and_are_no_drift(family, tmp_path):
    model = directory(tmp_path / "model", family)
    for engine in ("transformers", "decoder"):
        traced(model, tmp_path / engine, engine=engine)
    result = fd.diff(tmp_path / "transformers", tmp_path / "decoder")
    undecided = [pair for pair in result.pairs if pair.verdict == "inconclusive"]
    assert result.first_drift is None, result.sentence
    assert result.exit_code == (2 if undecided else 0)
    assert len(undecided) <= 0.25 * len(result.pairs)


def test_led_by_its_own_tokens_it_repeats_itself(tmp_path):
    model = directory(tmp_path / "model")
    free = traced(model, tmp_path / "free", generate=4)
    led = traced(model, tmp_path / "led", teacher=",".join(map(str, free.chosen)))
    assert led.chosen == free.chosen
    assert led.agreeing == 4
    assert fd.diff(tmp_path / "free", tmp_path / "led").verdict == "same"


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3_moe", "gemma2"])
def test_an_apr_file_runs_through_both_engines_as_its_source_does(family, tmp_path):
    model = directory(tmp_path / "model", family)
    apr = converted(model, tmp_path / "model.apr")
    traced(model, tmp_path / "directory", stages=MADE_OF)
    traced(apr, tmp_path / "ours", stages=MADE_OF)
    traced(apr, tmp_path / "theirs", stages=MADE_OF, engine="transformers")
    assert fd.diff(tmp_path / "directory", tmp_path / "ours").verdict == "same"
    result = fd.diff(tmp_path / "theirs", tmp_path / "ours")
    assert clean(result), result.sentence


PLANTED = {
    "theta": ({"rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0}}, "q_post_rope", "rope-theta"),
    "eps": ({"rms_norm_eps": 1e-2}, "attn_norm", None),
    "activation": ({"hidden_act": "relu"}, "ffn_silu", None),
}


@pytest.mark.parametrize("kind", PLANTED)
def test_a_planted_error_is_found_where_it_is_made_and_named(kind, tmp_path):
    plain = {"rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0}}
    model = directory(tmp_path / "model", "llama", **plain, rms_norm_eps=1e-5)
    changes, stage, label = PLANTED[kind]
    traced(model, tmp_path / "reference")
    traced(with_config(model, tmp_path / "other", **changes), tmp_path / "candidate", engine="transformers")
    result = fd.diff(tmp_path / "reference", tmp_path / "candidate")
    assert (result.verdict, result.first_drift.name) == ("drift", f"layer-0.{stage}")
    if label:
        assert result.first_drift.cause.label == label


def test_weights_that_the_library_would_make_up_are_refused(tmp_path):
    from safetensors.numpy import load_file, save_file

    model = directory(tmp_path / "model")
    state = load_file(model / "model.safetensors")
    del state["model.layers.0.self_attn.q_proj.weight"]
    save_file(state, model / "model.safetensors", {"format": "pt"})
    with pytest.raises(
        WeightsError, match=r"found no weights for 1 tensors \(model.layers.0.self_attn.q_proj.weight\)"
    ):
        traced(model, tmp_path / "trace", engine="transformers")
    with pytest.raises(WeightsError, match="model.layers.0.self_attn.q_proj.weight: not present"):
        traced(model, tmp_path / "trace", force=True)


def test_a_rotation_that_the_library_has_not_is_refused_by_that_engine_alone(tmp_path):
    from firstdrift.weights.open_checkpoint import open_checkpoint
    from firstdrift.weights.writing import write_checkpoint

    model = directory(tmp_path / "model")
    with open_checkpoint(converted(model, tmp_path / "plain.apr")) as checkpoint:
        tensors = [(name, checkpoint.array(name)) for name in checkpoint.entries]
        metadata = dict(checkpoint.metadata) | {"rope_type": 0}
        write_checkpoint(tmp_path / "adjacent.apr", tensors, format="apr", metadata=metadata)
    traced(tmp_path / "adjacent.apr", tmp_path / "ours")
    with pytest.raises(CaptureError, match="use --engine decoder"):
        traced(tmp_path / "adjacent.apr", tmp_path / "theirs", engine="transformers")


def test_a_model_that_cannot_be_read_leaves_no_trace(tmp_path):
    model = directory(tmp_path / "model")
    (model / "model.safetensors").write_bytes((model / "model.safetensors").read_bytes()[:-100])
    with pytest.raises(fd.FirstdriftError):
        traced(model, tmp_path / "trace")
    assert not (tmp_path / "trace").exists()


def test_what_the_library_loads_and_cannot_run_is_one_sentence(tmp_path):
    from tests.decoder.families import config_json, theirs
    from tests.decoder.gguf_files import write_gguf

    plain = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}, "use_sliding_window": False}
    model = theirs(config_json("qwen3", **plain, head_dim=16))  # the library takes 128 for it, whatever GGUF says
    path = write_gguf(tmp_path / "model.gguf", model)
    with pytest.raises(CaptureError, match="cannot run it .*; use --engine decoder"):
        traced(path, tmp_path / "theirs", engine="transformers")


@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
def test_a_trace_and_stage_files_of_one_model_can_be_compared(family, tmp_path):
    model = directory(tmp_path / "model", family)
    traced(model, tmp_path / "trace")
    traced(model, tmp_path / "files", format="aprt")
    for one, other in (("trace", "files"), ("files", "trace")):
        result = fd.diff(tmp_path / one, tmp_path / other, allow_missing=["input", "*_pre_rope"])
        assert (result.verdict, result.exit_code) == ("same", 0), result.sentence
    traced(with_config(model, tmp_path / "other", rms_norm_eps=1e-2), tmp_path / "wrong", format="aprt")
    result = fd.diff(tmp_path / "trace", tmp_path / "wrong", allow_missing=["input", "*_pre_rope"])
    assert result.first_drift.site.name == "layer-0.attn_norm", result.sentence
