"""A decoder from a checkpoint: every number proven, in the dtype that was asked for, and no memory for claims."""

import json
import resource
import subprocess
import sys

import numpy as np
import pytest
import torch
from tests.decoder.checkpoints import converted, directory, with_config
from tests.decoder.families import checkpoint_names, config_json, theirs, tokens

from firstdrift.decoder.decoder_config import PRESETS
from firstdrift.decoder.decoder_layers import OFF, Taps
from firstdrift.decoder.engines import load_decoder
from firstdrift.decoder.model import Decoder, initialise
from firstdrift.errors import WeightsError


@pytest.mark.parametrize("family", ["llama", "qwen3_moe", "gemma2"])
def test_every_parameter_holds_what_the_file_says(family, tmp_path):
    model = theirs(config_json(family))
    model.save_pretrained(tmp_path / "model")
    for path in (tmp_path / "model", converted(tmp_path / "model", tmp_path / "model.apr")):
        loaded = load_decoder(path)
        assert not loaded.training
        wanted = checkpoint_names(model.state_dict())
        assert set(loaded.state_dict()) == set(wanted)
        assert all(torch.equal(value, wanted[name]) for name, value in loaded.state_dict().items())


def test_tied_weights_stay_one(tmp_path):
    loaded = load_decoder(directory(tmp_path / "model", tie_word_embeddings=True))
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, None])
def test_the_dtype_is_the_files_unless_another_is_asked_for(dtype, tmp_path):
    model = theirs(config_json("llama")).bfloat16()
    model.save_pretrained(tmp_path / "model")
    loaded = load_decoder(tmp_path / "model", dtype=dtype)
    assert {one.dtype for one in loaded.parameters()} == {dtype or torch.bfloat16}
    name = "model.layers.0.mlp.up_proj.weight"
    wanted = model.state_dict()[name].to(loaded.state_dict()[name].dtype)
    assert torch.equal(loaded.state_dict()[name], wanted)


def test_settings_that_claim_another_shape_are_refused_before_memory_is_taken(tmp_path):
    model = directory(tmp_path / "model", tie_word_embeddings=False)
    huge = with_config(model, tmp_path / "huge", hidden_size=2**20, intermediate_size=2**30, vocab_size=2**30)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(WeightsError, match="does not hold the model that its settings describe") as caught:
        load_decoder(huge)
    assert any(line.startswith("model.embed_tokens.weight: init length") for line in caught.value.problems)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10


def test_a_claim_of_many_layers_or_experts_is_refused_before_they_are_built(tmp_path):
    model = directory(tmp_path / "model", "qwen3_moe", mlp_only_layers=[])
    for key, sentence in {"num_hidden_layers": "say 60000 layers", "num_experts": "say 60000 experts"}.items():
        claims = with_config(model, tmp_path / key, **{key: 60_000}, num_local_experts=60_000, layer_types=None)
        before = resource.getrusage(resource.RUSAGE_SELF)
        with pytest.raises(WeightsError, match=sentence):
            load_decoder(claims)
        after = resource.getrusage(resource.RUSAGE_SELF)
        assert after.ru_maxrss - before.ru_maxrss < 100 << 10
        assert after.ru_utime - before.ru_utime < 5


def test_damage_is_named_and_a_layer_too_many_is_missing(tmp_path):
    from safetensors.numpy import load_file, save_file

    model = directory(tmp_path / "model")
    more = with_config(model, tmp_path / "more", num_hidden_layers=5)
    with pytest.raises(WeightsError, match=r"model.layers.4.self_attn.q_proj.weight: not present"):
        load_decoder(more)
    state = load_file(model / "model.safetensors")
    state["model.norm.weight"][0] = np.nan
    save_file(state, model / "model.safetensors", {"format": "pt"})
    with pytest.raises(WeightsError, match="model.norm.weight: 1 NaN among"):
        load_decoder(model)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_loading_takes_little_more_memory_than_the_model(tmp_path):
    said = {
        "hidden_size": 1024, "intermediate_size": 4096, "vocab_size": 8192, "num_hidden_layers": 4, "head_dim": 64,
        "num_attention_heads": 16, "num_key_value_heads": 16, "tie_word_embeddings": False,
    }  # fmt: skip
    directory(tmp_path / "model", **said)
    size = (tmp_path / "model" / "model.safetensors").stat().st_size / 2**20
    code = (
        "import re, sys, threading, time\nfrom firstdrift.decoder.engines import load_decoder\n"
        "def anonymous(): return int(re.search(r'RssAnon:\\s+(\\d+) kB', open('/proc/self/status').read())[1]) / 1024\n"
        "base = peak = anonymous()\ndone = False\n"
        "def watch():\n    global peak\n    while not done: peak = max(peak, anonymous()); time.sleep(0.001)\n"
        "watcher = threading.Thread(target=watch); watcher.start()\n"
        "model = load_decoder(sys.argv[1])\ndone = True; watcher.join()\nprint(peak - base)\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "model")], capture_output=True, text=True, check=True
    )
    assert 0.9 * size < float(found.stdout) < 1.3 * size


def test_taps_change_nothing_but_roundings_and_ask_before_they_compute():
    model = Decoder(PRESETS["tiny"])
    initialise(model, 0, std=0.2)
    seen = []
    with torch.no_grad():
        plain = model(tokens())
        model.taps = Taps(
            lambda stage, layer: stage == "ffn_up", lambda stage, layer, tensor: seen.append((stage, layer))
        )
        watched = model(tokens())
        model.taps = OFF
        again = model(tokens())
    assert seen == [("ffn_up", 0), ("ffn_up", 1)]
    assert torch.equal(plain, again)
    torch.testing.assert_close(watched, plain)


def test_gradients_flow_while_taps_watch():
    model = Decoder(PRESETS["tiny"])
    initialise(model, 0, std=0.2)
    model.loss(tokens(), tokens()).backward()
    plain = {name: one.grad.clone() for name, one in model.named_parameters()}
    model.zero_grad()
    model.taps = Taps(lambda stage, layer: True, lambda stage, layer, tensor: None)
    model.loss(tokens(), tokens()).backward()
    for name, one in model.named_parameters():
        torch.testing.assert_close(one.grad, plain[name], rtol=1e-4, atol=1e-6, msg=name)


def test_the_presets_are_what_a_config_json_of_them_builds(tmp_path):
    from firstdrift.decoder.config_json import to_config
    from firstdrift.decoder.decoder_config import config_of

    for name, config in PRESETS.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(to_config(config)))
        assert config_of(tmp_path / f"{name}.json") == config
