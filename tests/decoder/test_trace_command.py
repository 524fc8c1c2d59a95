"""`firstdrift trace MODEL --save-tensor STAGES`: the flags, the files, and what is refused."""

import json
import os
import pty
import shutil
import subprocess
import sys
from contextlib import contextmanager

import numpy as np
import pytest
from click.testing import CliRunner
from tests.decoder.checkpoints import HOW, IDS, converted, directory, said, stage
from tokenizers import Tokenizer, models, pre_tokenizers

import firstdrift as fd
from firstdrift.cli.main import cli
from firstdrift.core.stages import STAGES
from firstdrift.decoder.engines import load_decoder
from firstdrift.decoder.tracing_checkpoints import perform, prepare
from firstdrift.weights.open_checkpoint import open_checkpoint
from firstdrift.weights.writing import write_checkpoint

SENTINEL = 0xFFFFFFFF


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return directory(
        tmp_path_factory.mktemp("models") / "model", "qwen2", use_sliding_window=False, num_hidden_layers=3
    )


@pytest.fixture(scope="module")
def apr(model):
    return converted(model, model.parent / "model.apr")


def files(path):
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


@pytest.mark.falsifies("FALSIFY-APR-TRACE-SAVE-001")
def test_save_001_the_flags_are_in_the_help_with_the_contracts_names():
    text = said("--help").output
    for flag in ("--save-tensor ", "--save-tensor-dir", "--output", "--save-tensor-layers", "--layer"):
        assert flag in text
    assert all(name in text for name in STAGES)


@pytest.mark.falsifies("FALSIFY-APR-TRACE-SAVE-002")
@pytest.mark.parametrize("format", ["aprt", "trace"])
def test_save_002_two_runs_leave_the_same_bytes(model, format, tmp_path):
    for run in ("a", "b"):
        result = said(model, "--save-tensor", "all", "--tokens", IDS, "--output", tmp_path / run, "--format", format)
        assert result.exit_code == 0, result.output
    assert files(tmp_path / "a") == files(tmp_path / "b") != {}


QUERY = "model.layers.2.self_attn.q_proj.weight"


@pytest.mark.falsifies("FALSIFY-APR-TRACE-SAVE-003")
def test_save_003_the_gate_of_layer_3_tells_a_wrong_file_from_the_same_model_in_two_formats(tmp_path):
    """The contract's own measure, the largest difference in units of the standard deviation, and its own limit."""
    source = directory(tmp_path / "model", "llama", num_hidden_layers=4)
    right, gguf = converted(source, tmp_path / "right.apr"), converted(source, tmp_path / "model.gguf")
    with open_checkpoint(right) as checkpoint:
        tensors = {name: np.array(checkpoint.array(name)) for name in checkpoint.entries}
        tensors[QUERY] = np.roll(tensors[QUERY], 1, axis=0)
        write_checkpoint(tmp_path / "wrong.apr", tensors.items(), format="apr", metadata=dict(checkpoint.metadata))
    gates = {}
    for path in (right, gguf, tmp_path / "wrong.apr"):
        out = tmp_path / f"{path.name}-out"
        done = said(path, "--save-tensor", "ffn_gate", "--layer", "3..4", "--tokens", IDS, "--output", out)
        assert done.exit_code == 0, done.output
        gates[path.name] = out / "layer-3" / "ffn_gate.bin"
    for name, is_off in (("right.apr", False), ("wrong.apr", True)):
        compared = CliRunner().invoke(
            cli, ["diff", "--values", "--json", *map(str, (gates["model.gguf"], gates[name]))]
        )
        off = json.loads(compared.output)["max_over_std"]
        ours, theirs = (stage(gates[one])[3].astype(np.float64) for one in ("model.gguf", name))
        assert off == pytest.approx(np.abs(theirs - ours).max() / ours.std())
        assert (off > 0.05) == is_off


@pytest.mark.falsifies("FALSIFY-APR-TRACE-SAVE-004")
def test_save_004_a_stage_file_says_its_layer_and_its_size(model, tmp_path):
    said(model, "--save-tensor", "ffn_gate", "--tokens", IDS, "--output", tmp_path, "--layer", "1..2")
    config = json.loads((model / "config.json").read_text())
    magic, layer, count, values = stage(tmp_path / "layer-1" / "ffn_gate.bin")
    assert (magic, layer, count) == (b"APRT", 1, 9 * config["intermediate_size"])
    assert values.size == count
    assert np.isfinite(values).all()


@pytest.mark.falsifies("FALSIFY-APR-TRACE-SAVE-005")
def test_save_005_three_stages_are_three_files_in_each_layer(model, tmp_path):
    chosen = "embedding, ffn_gate ,LAYER_OUTPUT"
    said(model, "--save-tensor", chosen, "--tokens", IDS, "--save-tensor-dir", tmp_path, "--save-tensor-layers", "0..1")
    assert sorted(files(tmp_path)) == [f"layer-0/{name}.bin" for name in ("embedding", "ffn_gate", "post_ffn_residual")]


@pytest.mark.falsifies("FALSIFY-APR-TRACE-SAVE-006")
@pytest.mark.parametrize("engine", ["decoder", "transformers"])
def test_save_006_the_bits_of_a_nan_are_kept(engine, tmp_path):
    """Weights with NaN are no weights, so that NaN comes by overflow: the largest embedding, squared by the norm."""
    from safetensors.numpy import load_file, save_file

    model = directory(tmp_path / "model", "llama")
    state = load_file(model / "model.safetensors")
    state["model.layers.0.self_attn.q_proj.weight"] = np.full_like(
        state["model.layers.0.self_attn.q_proj.weight"], 3e38
    ) * np.where(np.arange(state["model.layers.0.self_attn.q_proj.weight"].shape[1]) % 2, 1, -1).astype(np.float32)
    save_file(state, model / "model.safetensors", {"format": "pt"})
    result = said(
        model, "--save-tensor", "qkv_matmul,q_post_rope,lm_head", "--tokens", IDS, "--output", tmp_path / "t",
        "--engine", engine,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    _, _, count, values = stage(tmp_path / "t" / "lm_head.bin")
    assert count == 9 * 97
    assert np.isnan(values).all()
    assert "none, for logits are NaN" in result.output
    bits = stage(tmp_path / "t" / "layer-0" / "q_post_rope.bin")[3].view("<u4")
    assert set(bits[np.isnan(bits.view("<f4"))].tolist()) <= {0x7FC00000, 0xFFC00000}


@pytest.mark.falsifies("FALSIFY-APR-TRACE-SAVE-006")
def test_save_006_a_payload_that_is_observed_is_written_as_it_is(tmp_path):
    import torch

    from firstdrift.decoder.stage_recording import StageFiles

    bits = np.array([0x7FC00000, 0x7F800001, 0xFFC12345, 0x80000000, 0xFF800000], "<u4")
    recording = StageFiles(tmp_path)
    recording.see("ffn_norm", 2, torch.from_numpy(bits.view("<f4").copy())[None])
    recording.close()
    assert stage(tmp_path / "layer-2" / "ffn_norm.bin")[3].view("<u4").tolist() == bits.tolist()


@pytest.mark.falsifies("FALSIFY-APR-TRACE-SAVE-007")
def test_save_007_only_the_layers_that_are_asked_for(model, tmp_path):
    said(model, "--save-tensor", "attn_norm,embedding", "--tokens", IDS, "--output", tmp_path, "--layer", "1..3")
    assert sorted(files(tmp_path)) == []  # the first layer alone has an embedding
    result = said(model, "--save-tensor", "attn_norm", "--tokens", IDS, "--output", tmp_path, "--layer", "1..3")
    assert result.exit_code == 0
    assert sorted(files(tmp_path)) == ["layer-1/attn_norm.bin", "layer-2/attn_norm.bin"]


@pytest.mark.falsifies("FALSIFY-APR-TRACE-SAVE-009")
def test_save_009_diff_values_reads_what_is_written(model, tmp_path):
    from click.testing import CliRunner

    from firstdrift.cli.main import cli

    for engine in ("decoder", "transformers"):
        said(model, "--save-tensor", "ffn_gate", "--tokens", IDS, "--output", tmp_path / engine, "--engine", engine)
    a, b = (str(tmp_path / engine / "layer-0" / "ffn_gate.bin") for engine in ("transformers", "decoder"))
    result = CliRunner().invoke(cli, ["diff", a, b, "--values", "--json"])
    assert result.exit_code == 0
    assert json.loads(result.output)["schema"] == "apr-stage-diff-v1"


@pytest.mark.falsifies("FALSIFY-APR-TRACE-SAVE-010")
def test_save_010_logits_lie_at_the_root_with_the_sentinel_only_when_selected(model, tmp_path):
    said(model, "--save-tensor", "lm_head,attn_norm", "--tokens", IDS, "--output", tmp_path / "with", "--layer", "2..3")
    assert sorted(files(tmp_path / "with")) == ["layer-2/attn_norm.bin", "lm_head.bin"]
    magic, layer, count, _ = stage(tmp_path / "with" / "lm_head.bin")
    assert (magic, layer, count) == (b"APRT", SENTINEL, 9 * 97)
    said(model, "--save-tensor", "attn_norm", "--tokens", IDS, "--output", tmp_path / "without")
    assert sorted(files(tmp_path / "without")) == ["layer-0/attn_norm.bin"]


def bpe():
    """A tokenizer of single characters, as a tokenizer.json."""
    alphabet = ["<unk>", *sorted(pre_tokenizers.ByteLevel.alphabet())][:97]
    made = Tokenizer(models.BPE({token: number for number, token in enumerate(alphabet)}, [], unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return made, alphabet


@pytest.mark.falsifies("FALSIFY-APR-TRACE-SAVE-011")
def test_save_011_from_an_apr_file_with_its_own_tokenizer_to_stage_files(apr, tmp_path):
    with open_checkpoint(apr) as checkpoint:
        tensors = [(name, checkpoint.array(name)) for name in checkpoint.entries]
        metadata = dict(checkpoint.metadata) | {"tokenizer.vocabulary": bpe()[1], "tokenizer.merges": []}
        write_checkpoint(tmp_path / "bar.apr", tensors, format="apr", metadata=metadata)
    result = said(tmp_path / "bar.apr", "--save-tensor", "all")
    assert result.exit_code == 0, result.output
    written = files(tmp_path / "bar-trace")
    assert sorted(written) == sorted(
        [f"layer-0/{name}.bin" for name in STAGES[:18]] + ["final_norm.bin", "lm_head.bin"]
    )
    for name, data in written.items():
        shown = next(line for line in result.output.splitlines() if line.startswith(f"{name} "))
        assert f"{len(data)} B" in shown or "KiB" in shown
    assert stage(tmp_path / "bar-trace" / "layer-0" / "embedding.bin")[2] % len("What is 2+2?") == 0
    said(tmp_path / "bar.apr", "--save-tensor", "all", "--prompt", "2+2?", "--output", tmp_path / "short")
    assert stage(tmp_path / "short" / "lm_head.bin")[2] == 4 * 97


def test_a_prompt_goes_through_the_directorys_tokenizer(model, tmp_path):
    copy = tmp_path / "model"
    shutil.copytree(model, copy)
    made, _ = bpe()
    made.save(str(copy / "tokenizer.json"))
    result = said(copy, "--save-tensor", "lm_head", "--prompt", "2+2?", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    assert found["prompt"] == made.encode("2+2?").ids
    assert found["files"] == [{"path": "lm_head.bin", "bytes": 12 + 4 * 4 * 97}]
    assert found["schema"] == "firstdrift-trace-v1"
    assert found["directory"] == str(tmp_path / "model-trace")
    assert found["text"] is not None
    nothing = said(copy, "--save-tensor", "lm_head", "--prompt", "")
    assert (nothing.exit_code, "the prompt has no tokens" in nothing.output) == (2, True)


@pytest.mark.parametrize("kind", ["directory", "safetensors", "apr", "gguf"])
def test_every_kind_of_checkpoint_gives_the_same_tensors(kind, model, apr, tmp_path):
    source = {
        "directory": model, "safetensors": model / "model.safetensors", "apr": apr,
        "gguf": converted(model, tmp_path / "model.gguf") if kind == "gguf" else None,
    }[kind]  # fmt: skip
    for path, out in ((model, "wanted"), (source, "found")):
        result = said(path, "--save-tensor", "all", "--tokens", IDS, "--output", tmp_path / out, "--layer", "0..3")
        assert result.exit_code == 0, result.output
    result = fd.diff(tmp_path / "wanted", tmp_path / "found")
    assert result.verdict == "same"
    assert result.exit_code == 0


def test_steps_have_a_directory_each_in_stage_files_and_a_number_in_a_trace(model, tmp_path):
    said(model, "--save-tensor", "lm_head", "--tokens", IDS, "--generate", "2", "--output", tmp_path / "files")
    assert sorted(files(tmp_path / "files")) == ["step-0/lm_head.bin", "step-1/lm_head.bin"]
    assert stage(tmp_path / "files" / "step-1" / "lm_head.bin")[2] == 97
    said(
        model,
        "--save-tensor",
        "lm_head",
        "--tokens",
        IDS,
        "--generate",
        "2",
        "--output",
        tmp_path / "t",
        "--format",
        "trace",
    )
    trace = fd.open_trace(tmp_path / "t")
    shapes = {record.site.step: record.shape for record in trace.records if record.site.name == "lm_head"}
    assert shapes == {0: (1, 9, 97), 1: (1, 1, 97)}


def test_a_trace_is_overwritten_only_when_asked_and_formats_do_not_mix(model, tmp_path):
    arguments = (model, "--save-tensor", "lm_head", "--tokens", IDS, "--output", tmp_path / "t")
    assert said(*arguments, "--format", "trace").exit_code == 0
    again = said(*arguments, "--format", "trace")
    assert (again.exit_code, "holds a trace already" in again.output) == (2, True)
    assert said(*arguments, "--format", "trace", "--force").exit_code == 0
    mixed = said(*arguments)
    assert (mixed.exit_code, "holds a trace, not stage files" in mixed.output) == (2, True)


def test_stage_files_of_an_earlier_run_stay_and_are_mentioned(model, tmp_path):
    arguments = ("--tokens", IDS, "--output", tmp_path)
    said(model, "--save-tensor", "lm_head", *arguments)
    result = said(model, "--save-tensor", "attn_norm", *arguments)
    assert "note: 1 stage files of an earlier run are still in" in result.output
    assert "lm_head.bin" not in result.output


REFUSED = {
    "unknown stage": (("--save-tensor", "attn_norms"), "valid stages are embedding, attn_norm, qkv_matmul, qkv_bias"),
    "empty stage": (("--save-tensor", "attn_norm,,lm_head"), "empty stage name"),
    "no stage": (("--save-tensor", " "), "no stage is selected"),
    "all in a list": (("--save-tensor", "lm_head,all"), "unknown stage 'all'"),
    "no dots": (("--save-tensor", "all", "--layer", "0-3"), "expected START..END"),
    "no start": (("--save-tensor", "all", "--layer", "..3"), "START '' is not a whole number"),
    "no end": (("--save-tensor", "all", "--layer", "3.."), "END '' is not a whole number"),
    "inclusive": (("--save-tensor", "all", "--layer", "0..=3"), "END '=3' is not a whole number"),
    "empty range": (("--save-tensor", "all", "--layer", "3..3"), "END 3 must be above START 3"),
    "beyond": (("--save-tensor", "all", "--layer", "3..5"), "the model has the layers 0..3 (END is exclusive)"),
    "not there": (
        ("--save-tensor", "lm_head,moe_router"),
        "this model has no moe_router; the stages there are embedding",
    ),
    "not in these layers": (
        ("--save-tensor", "embedding", "--layer", "1..2"),
        "the selected layers have no embedding; the stages there are attn_norm",
    ),
    "outside": (
        ("--save-tensor", "all", "--tokens", "1,97"),
        "--tokens: token 97 is outside of the vocabulary, which has 97",
    ),
    "outside teacher": (
        ("--save-tensor", "all", "--tokens", "1", "--teacher", "5,99"),
        "--teacher: token 99 is outside",
    ),
    "no numbers": (("--save-tensor", "all", "--tokens", "1,x"), "'x' is no token id"),
    "negative": (("--save-tensor", "all", "--tokens", "-1"), "'-1' is no token id"),
    "no tokens": (("--save-tensor", "all", "--tokens", ""), "'' is no token id"),
    "too long": (
        ("--save-tensor", "all", "--tokens", ",".join("1" * 65)),
        "the prompt has 65 tokens, and the model has 64 positions",
    ),
    "too long together": (
        ("--save-tensor", "all", "--tokens", ",".join("1" * 60), "--generate", "6"),
        "has 60 tokens and 5 more, and the model has 64",
    ),
    "both": (("--save-tensor", "all", "--tokens", "1", "--prompt", "x"), "give one"),
    "counts": (("--save-tensor", "all", "--tokens", "1", "--generate", "3", "--teacher", "1"), "give one of them"),
    "no tokenizer": (
        ("--save-tensor", "all", "--prompt", "Hi"),
        "has no tokenizer, neither inside nor as tokenizer.json or vocab.json",
    ),
    "rounded": (("--save-tensor", "all", "--tokens", "1", "--dtype", "f64"), "use --format trace"),
    "rounded inside": (
        ("--save-tensor", "all", "--tokens", "1", "--dtype", "f64", "--format", "trace", "--engine", "transformers"),
        "use --engine decoder for --dtype f64",
    ),
    "no stages": ((), "Missing option '--save-tensor'"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_is_refused_in_one_sentence_before_weights_are_read(kind, model, tmp_path):
    empty = tmp_path / "model"  # without any weights: whoever looks for them fails otherwise
    empty.mkdir()
    shutil.copy(model / "config.json", empty)
    source = model if kind == "no tokenizer" else empty
    arguments, sentence = REFUSED[kind]
    result = said(
        source, *(("--tokens", "1") if "--tokens" not in arguments and "--prompt" not in arguments else ()), *arguments
    )
    assert result.exit_code == 2
    assert sentence in result.output
    assert not list(tmp_path.rglob("*-trace"))


MODELS = {
    "encoder": ({"architectures": ["BertModel"], "model_type": "bert"}, "BertModel is an encoder"),
    "roberta": ({"architectures": ["XLMRobertaModel"], "model_type": "xlm-roberta"}, "XLMRobertaModel is an encoder"),
    "unknown": (
        {"architectures": ["MambaForCausalLM"], "model_type": "mamba"},
        "the architecture MambaForCausalLM is not supported",
    ),
    "by type": ({"architectures": None, "model_type": "t5"}, "the architecture t5 is not supported"),
    "nameless": ({"architectures": None, "model_type": None}, "names no architecture"),
    "classifier": (
        {"architectures": ["LlamaForSequenceClassification"]},
        "LlamaForSequenceClassification is not supported",
    ),
}


@pytest.mark.parametrize("kind", MODELS)
def test_a_model_that_is_no_decoder_is_refused_with_what_is_supported(kind, model, tmp_path):
    changes, sentence = MODELS[kind]
    config = json.loads((model / "config.json").read_text()) | changes
    (tmp_path / "config.json").write_text(json.dumps(config))
    result = said(tmp_path, "--save-tensor", "all", "--tokens", "1")
    assert result.exit_code == 2
    assert sentence in result.output
    assert "supported are llama (LlamaForCausalLM), mistral (MistralForCausalLM)" in result.output


def test_weights_without_a_config_json_and_what_is_not_there_are_refused(model, tmp_path):
    shutil.copy(model / "model.safetensors", tmp_path / "alone.safetensors")
    result = said(tmp_path / "alone.safetensors", "--save-tensor", "all", "--tokens", "1")
    assert (result.exit_code, "no config.json beside them" in result.output) == (2, True)
    result = said(tmp_path / "nothing.apr", "--save-tensor", "all", "--tokens", "1")
    assert (result.exit_code, "check that it exists" in result.output) == (2, True)


def test_the_bytes_of_a_stage_do_not_depend_on_what_else_is_selected(model, tmp_path):
    said(model, "--save-tensor", "all", "--tokens", IDS, "--output", tmp_path / "all", "--layer", "0..3")
    whole = files(tmp_path / "all")
    for name in ("attention", "qkv_bias", "attn_softmax", "lm_head"):
        said(model, "--save-tensor", name, "--tokens", IDS, "--output", tmp_path / name, "--layer", "0..3")
        assert files(tmp_path / name).items() <= whole.items()
        assert files(tmp_path / name)


def test_a_directory_that_cannot_be_written_is_one_sentence(model, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    result = said(model, "--save-tensor", "all", "--tokens", "1", "--output", blocked)
    assert result.exit_code == 2
    assert "cannot write the stage file" in result.output


@pytest.mark.parametrize(("library", "arguments", "sentence"), [
    ("torch", (), "running a model needs PyTorch; pip install 'firstdrift[decoder]'"),
    ("transformers", ("--engine", "transformers"), "needs the transformers library; pip install transformers"),
    ("tokenizers", ("--prompt", "Hi"), "needs the tokenizers library; pip install 'firstdrift[decoder]'"),
])  # fmt: skip
def test_a_library_that_is_not_installed_is_asked_for(library, arguments, sentence, model, tmp_path):
    (model / "tokenizer.json").write_text("{}")
    code = (
        f"import sys\nsys.modules[{library!r}] = None\nfrom firstdrift.cli.main import main\n"
        f"sys.argv = ['firstdrift', 'trace', *sys.argv[1:]]\nmain()"
    )
    asked = arguments if "--prompt" in arguments else ("--tokens", "1", *arguments)
    command = [
        sys.executable,
        "-c",
        code,
        str(model),
        "--save-tensor",
        "lm_head",
        "--output",
        str(tmp_path / "t"),
        *asked,
    ]
    result = subprocess.run(command, capture_output=True, text=True)
    (model / "tokenizer.json").unlink()
    assert result.returncode == 2
    assert sentence in result.stderr


def test_help_and_a_refused_plan_load_no_framework(model):
    code = (
        "import sys\nfrom click.testing import CliRunner\nfrom firstdrift.cli.main import cli\n"
        "assert CliRunner().invoke(cli, ['trace', '--help']).exit_code == 0\n"
        "said = CliRunner().invoke(cli, ['trace', sys.argv[1], '--save-tensor', 'moe_router', '--tokens', '1'])\n"
        "assert said.exit_code == 2, said.output\nassert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(model)], check=True)


@pytest.mark.parametrize("format", ["aprt", "trace"])
def test_bars_are_told_of_every_byte_loaded_and_every_tensor_recorded(tmp_path, format):
    bars = {}

    @contextmanager
    def bar(description, total):
        bars[description] = [total, 0]

        def advance(done):
            bars[description][1] += done

        yield advance

    model = directory(tmp_path / "model", tie_word_embeddings=True)
    asked = prepare(model, "all", "0..9", tmp_path / "out", tokens=IDS, **(HOW | {"format": format}))
    perform(asked, loading=bar, recording=bar)
    held = sum(one.nbytes for one in load_decoder(model).parameters())
    assert bars == {"loading": [held, held], "stages": [asked.selection.count] * 2}


def on_a_terminal(*arguments):
    """What the command draws on a terminal."""
    ours, its = pty.openpty()
    command = [sys.executable, "-m", "firstdrift", *map(str, arguments)]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=its, env=os.environ | {"TERM": "xterm"}
    ) as process:
        os.close(its)
        drawn = b""
        while True:
            try:
                drawn += os.read(ours, 65536)
            except OSError:  # how a terminal says that its last user is gone
                break
        assert process.wait() == 0, drawn.decode()
    os.close(ours)
    return drawn.decode()


def test_a_terminal_shows_a_bar_for_both_engines(tmp_path):
    model = directory(tmp_path / "model", vocab_size=20_000, hidden_size=1024)  # 156 MiB: what loads at once shows none
    for engine in ("decoder", "transformers"):
        shown = on_a_terminal(
            "trace", model, "--save-tensor", "lm_head", "--tokens", "1,2", "--engine", engine, "--output",
            tmp_path / engine,
        )  # fmt: skip
        assert "loading" in shown, engine
        assert "stages" in shown, engine


@pytest.mark.parametrize("format", ["aprt", "trace"])
@pytest.mark.parametrize("engine", ["decoder", "transformers"])
@pytest.mark.parametrize("when", ["loading", "running"])
def test_a_failed_trace_leaves_nothing_in_the_way_of_the_next_try(tmp_path, monkeypatch, format, engine, when):
    model = directory(tmp_path / "model")
    arguments = (
        model, "--save-tensor", "all", "--tokens", IDS, "--generate", 2, "--output", tmp_path / "out",
        "--format", format, "--engine", engine,
    )  # fmt: skip
    with monkeypatch.context() as broken:
        if when == "loading":
            broken.setattr("firstdrift.decoder.tracing_checkpoints._engine", failing)
        else:
            broken.setattr("firstdrift.decoder.stage_recording.NativeTrace.begin", failing_from_the_second_step)
            broken.setattr("firstdrift.decoder.stage_recording.StageFiles.begin", failing_from_the_second_step)
        failed = said(*arguments)
    assert (failed.exit_code, failed.output) == (2, "firstdrift: it does not work; mend it\n")
    assert not (tmp_path / "out").exists()
    again = said(*arguments)
    assert again.exit_code == 0, again.output
    assert "earlier run" not in again.output


def failing(*arguments):
    raise fd.CaptureError("it does not work; mend it")


def failing_from_the_second_step(recording, step, tokens):
    if step:
        raise fd.CaptureError("it does not work; mend it")
    recording._step, recording._at = step, recording._directory / "step-0"


def test_a_model_that_cannot_be_loaded_does_not_cost_the_trace_that_was_there(tmp_path, monkeypatch):
    model = directory(tmp_path / "model")
    arguments = (model, "--save-tensor", "lm_head", "--tokens", IDS, "--output", tmp_path / "t", "--format", "trace")
    assert said(*arguments).exit_code == 0
    before = (tmp_path / "t" / "index.jsonl").read_bytes()
    monkeypatch.setattr("firstdrift.decoder.tracing_checkpoints._engine", failing)
    assert said(*arguments, "--force").exit_code == 2
    assert (tmp_path / "t" / "index.jsonl").read_bytes() == before
    assert "holds a trace already" in said(*arguments).output


def test_a_directory_that_was_there_stays_with_what_others_put_in_it(tmp_path, monkeypatch):
    model = directory(tmp_path / "model")
    (tmp_path / "out" / "layer-0").mkdir(parents=True)
    (tmp_path / "out" / "layer-0" / "notes.txt").write_text("mine")
    monkeypatch.setattr("firstdrift.decoder.stage_recording.StageFiles.begin", failing_from_the_second_step)
    arguments = ("--save-tensor", "all", "--tokens", IDS, "--generate", 2, "--output", tmp_path / "out")
    assert said(model, *arguments).exit_code == 2
    assert [path.name for path in (tmp_path / "out").rglob("*")] == ["layer-0", "notes.txt"]
