"""GGUF models as llama.cpp runs them: one call, every tensor under the name of the model the file was made from."""

import subprocess
import sys

import numpy as np
import pytest

import firstdrift as fd

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("gguf")

sys.path.insert(0, str(__import__("pathlib").Path(__file__).parent.parent))

from tests.decoder.gguf_files import write_gguf  # noqa: E402

TOKENS = [1, 5, 7, 2, 30]
pytestmark = pytest.mark.engines


def llama(**changes):
    config = transformers.LlamaConfig(**{
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 37, "max_position_embeddings": 64, "head_dim": 8,
        "rms_norm_eps": 1e-5, "tie_word_embeddings": False, **changes,
    })  # fmt: skip
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape))
    return model


def recorded(model, path):
    with torch.no_grad(), fd.trace(model, path):
        model(torch.tensor([TOKENS]), use_cache=False)
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llamacpp")
    write_gguf(
        folder / "m.gguf", llama(), vocab_size=37, tokenizer={"tokenizer.ggml.model": "no_vocab"},
    )  # fmt: skip
    fd.trace(folder / "m.gguf", folder / "cpp", inputs=TOKENS, kv_type="f32")
    recorded(llama(), folder / "reference")
    return folder


def test_modules_weights_and_settings_have_the_model_s_own_names(files):
    trace = fd.open_trace(files / "cpp")
    made = {record.site.name: record for record in trace if record.site.phase == "fwd"}
    held = {f"{record.site.name}.{record.site.port}" for record in trace if record.site.phase == "weight"}
    assert {"model.layers.1.mlp.down_proj", "model.layers.0.self_attn.v_proj", "model.norm", "lm_head"} <= made.keys()
    assert {"model.layers.1.mlp.up_proj.weight", "lm_head.weight", "model.norm.weight"} <= held
    assert made["norm-0"].attrs["eps"] == 1e-5
    assert made["lm_head"].shape == (5, 37)
    assert trace.complete
    assert trace.header["environment"]["threads"] >= 1


def test_every_producer_is_recorded(files):
    trace = fd.open_trace(files / "cpp")
    sites = {record.site for record in trace}
    assert {producer for record in trace for producer in record.producers or ()} <= sites


def test_places_of_the_cache_that_are_not_used_are_cut_off(files):
    scores = [record for record in fd.open_trace(files / "cpp") if record.site.name == "kq-0"]
    assert scores[0].shape == (4, 5, 5)


def test_a_clean_port_is_green_without_a_map(files):
    result = fd.diff(files / "reference", files / "cpp", explain=False)
    assert result.exit_code == 0, result.sentence


def test_a_weight_that_did_not_arrive_is_found_where_it_is(files, tmp_path):
    model = llama()
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight.mul_(1.01)
    recorded(model, tmp_path / "reference")
    result = fd.diff(tmp_path / "reference", files / "cpp", explain=False)
    assert result.exit_code == 1
    assert (result.first_drift.phase, result.first_drift.name) == ("weight", "model.layers.1.mlp.down_proj")


def test_a_cache_in_half_precision_is_recorded_and_shows_at_what_reads_it(files, tmp_path):
    fd.trace(files / "m.gguf", tmp_path / "half", inputs=TOKENS)
    assert fd.open_trace(tmp_path / "half").header["options"]["kv_type"] == "f16"
    result = fd.diff(files / "cpp", tmp_path / "half", explain=False)
    assert result.exit_code == 1
    assert result.first_drift.site.name in ("kq-0", "__fattn__-0")


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        ([1, 99], "token 99 is not in the model's vocabulary of 37"),
        ([0.5], "give one row of token ids"),
        ([], "give one"),
    ],
)
def test_tokens_that_it_cannot_read_are_refused_and_leave_no_trace(tokens, said, files, tmp_path):
    with pytest.raises(fd.CaptureError, match=said):
        fd.trace(files / "m.gguf", tmp_path / "trace", inputs=tokens)
    assert not (tmp_path / "trace").exists()


def test_what_is_no_gguf_file_is_refused(tmp_path):
    (tmp_path / "m.gguf").write_bytes(b"GGUFnothing")
    with pytest.raises(fd.CaptureError, match="llama.cpp does not load it"):
        fd.trace(tmp_path / "m.gguf", tmp_path / "trace", inputs=TOKENS)
    with pytest.raises(fd.CaptureError, match="there is no such file"):
        fd.trace(tmp_path / "absent.gguf", tmp_path / "trace", inputs=TOKENS)


def test_the_process_that_asks_loads_no_llama_cpp(files, tmp_path):
    code = (
        "import sys, firstdrift as fd\n"
        f"fd.trace({str(files / 'm.gguf')!r}, {str(tmp_path / 't')!r}, inputs={TOKENS})\n"
        "print('xllamacpp' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.strip() == "False"


def test_two_recordings_are_bit_equal(files, tmp_path):
    fd.trace(files / "m.gguf", tmp_path / "again", inputs=np.array([TOKENS]), kv_type="f32")
    assert fd.diff(files / "cpp", tmp_path / "again").verdict is fd.Verdict.SAME
