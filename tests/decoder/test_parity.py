"""The decoder is the library's model, for every family: logits, every layer, every gradient."""

import pytest
import torch
from tests.decoder.families import checkpoint_names, config_json, ours, pair, theirs, tokens
from torch.nn import functional

import firstdrift as fd
from firstdrift.decoder.config_json import FAMILIES, from_config, to_config
from firstdrift.decoder.decoder_config import PRESETS
from firstdrift.decoder.model import Decoder, initialise

# What the library has and we have not: tables of angles, arguments, activations as modules, experts joined in one.
THEIRS_ALONE = ("*rotary_emb*", "*act_fn*", "*.mlp.experts*", "*.mlp.gate*", "*self_attn", "*.mlp", "model.layers.?")


def recorded(model, path, batch):
    model.zero_grad()
    with fd.trace(model, path, overwrite=True):
        said = model(batch)
        logits = getattr(said, "logits", said)
        loss = functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
    return loss


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_layers_and_gradients_are_the_librarys_to_noise(family, seed, tmp_path):
    reference, candidate = pair(family, seed)
    batch = tokens()
    recorded(reference, tmp_path / "theirs", batch)
    recorded(candidate, tmp_path / "ours", batch)
    result = fd.diff(tmp_path / "theirs", tmp_path / "ours", allow_missing=THEIRS_ALONE)
    # On some processors one gradient ends just beyond its limit; what is wrong in a decoder is off by far more.
    beyond = [one for one in result.pairs if one.verdict == "drift"]
    assert all(one.error <= 2 * one.limit for one in beyond[:1]), result.sentence
    assert len(beyond) <= 1
    assert result.verdict in ("noise", "same") or beyond, result.sentence
    judged = {(one.site.phase, one.site.name, one.site.port) for one in result.pairs}
    layers = range(candidate.config.num_hidden_layers)
    assert {("fwd", f"model.layers.{layer}", "out") for layer in layers} <= judged
    assert ("fwd", "", "out.logits") in judged or ("fwd", "lm_head", "out") in judged
    named = {name for name, _ in candidate.named_parameters() if ".experts." not in name and ".mlp.gate" not in name}
    gradients = {f"{name}.{port}".lstrip(".") for phase, name, port in judged if phase == "grad"}
    assert named <= gradients


def test_experts_have_the_librarys_gradients():
    reference, candidate = pair("qwen3_moe", 1)
    batch = tokens()
    for model in (reference, candidate):
        said = model(batch)
        functional.cross_entropy(getattr(said, "logits", said).flatten(0, 1), batch.flatten()).backward()
    wanted = checkpoint_names({name: one.grad for name, one in reference.named_parameters()})
    found = {
        name: torch.zeros_like(one) if one.grad is None else one.grad for name, one in candidate.named_parameters()
    }
    assert set(found) == set(wanted)
    assert any(".experts." in name for name in found)
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, wanted[name], rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_is_the_librarys_too(family):
    said = config_json(family)
    reference = theirs(said).bfloat16()
    candidate = ours(said, reference).bfloat16()
    batch = tokens()
    with torch.no_grad():
        wanted, found = reference(batch).logits.float(), candidate(batch).float()
    assert (found - wanted).norm() < 0.02 * wanted.norm()


def test_the_loss_is_the_librarys():
    reference, candidate = pair("llama")
    batch = tokens()
    labels = batch.clone()
    labels[0, 4:7] = -100
    torch.testing.assert_close(candidate.loss(batch, labels), reference(batch, labels=labels).loss)


@pytest.mark.falsifies("FALSIFY-APR-PRETRAIN-ARCH-004")
def test_seven_query_heads_on_one_are_seven_on_seven_equal_ones():
    said = config_json("llama", num_attention_heads=7, num_key_value_heads=1, hidden_size=56, head_dim=8)
    grouped = ours(said, theirs(said))
    state = dict(grouped.state_dict())
    for name, value in state.items():
        if "k_proj" in name or "v_proj" in name:
            state[name] = value.repeat(7, *[1] * (value.dim() - 1))
    full = Decoder(from_config(said | {"num_key_value_heads": 7}, "config.json"))
    full.load_state_dict(state)
    with torch.no_grad():
        a, b = grouped(tokens()).flatten(), full(tokens()).flatten()
    assert functional.cosine_similarity(a, b, dim=0) >= 0.9999
    torch.testing.assert_close(a, b)


def test_a_part_of_each_head_turns_as_in_a_family_that_has_it():
    import transformers

    config = transformers.Phi3Config(
        vocab_size=97, hidden_size=48, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        sliding_window=None,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5},
    )  # fmt: skip
    torch.manual_seed(0)
    reference = transformers.Phi3ForCausalLM._from_config(config, attn_implementation="eager").eval()
    said = config_json(
        "llama", hidden_size=48, num_attention_heads=4, num_key_value_heads=2, head_dim=12, intermediate_size=40,
        num_hidden_layers=2, rms_norm_eps=config.rms_norm_eps, rope_parameters=config.rope_parameters,
        attention_bias=False, mlp_bias=False, tie_word_embeddings=False,
    )  # fmt: skip
    candidate = Decoder(from_config(said, "config.json"))
    q = "self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"
    mapping = {
        "model.layers.{}.self_attn.qkv_proj.weight": {"to": [f"model.layers.{{}}.{one}" for one in q], "split": 0},
        "model.layers.{}.mlp.gate_up_proj.weight": {
            "to": ["model.layers.{}.mlp.gate_proj.weight", "model.layers.{}.mlp.up_proj.weight"], "split": 0
        },
    }  # fmt: skip
    fd.load_weights(candidate, reference.state_dict(), mapping)
    assert candidate.config.rope.partial == 0.5
    with torch.no_grad():
        torch.testing.assert_close(candidate(tokens()), reference(tokens()).logits)


def test_adjacent_pairs_turn_as_split_halves_do_with_the_rows_reordered():
    from dataclasses import replace

    config = PRESETS["tiny"]
    halves, adjacent = Decoder(config), Decoder(replace(config, rope=replace(config.rope, adjacent=True)))
    initialise(halves, 0, std=0.2)
    state = dict(halves.state_dict())
    for name, value in state.items():
        if "q_proj" in name or "k_proj" in name:  # row i of a half becomes row 2i or 2i + 1
            state[name] = value.unflatten(0, (-1, 2, config.head_dim // 2)).transpose(1, 2).flatten(0, 2)
    adjacent.load_state_dict(state)
    with torch.no_grad():
        torch.testing.assert_close(adjacent(tokens()), halves(tokens()))
        assert not torch.allclose(adjacent(tokens()), Decoder(config)(tokens()))


@pytest.mark.falsifies("FALSIFY-APR-PRETRAIN-INIT-POPULATE-COVERAGE-001")
def test_qwen2_half_a_billion_has_290_named_parameters_and_llama_370m_218():
    with torch.device("meta"):
        qwen, llama = Decoder(PRESETS["qwen2-0.5b"]), Decoder(PRESETS["llama-370m"])
    assert len(list(qwen.named_parameters())) == 290
    assert sum(one.numel() for one in qwen.parameters()) == 494_032_768
    assert len(list(llama.named_parameters())) == 218
    assert qwen.lm_head.weight is qwen.model.embed_tokens.weight


@pytest.mark.parametrize("family", FAMILIES)
def test_parameters_have_the_names_of_the_librarys_checkpoints(family):
    reference, candidate = pair(family)
    assert set(candidate.state_dict()) == set(checkpoint_names(reference.state_dict()))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("family", FAMILIES)
def test_a_config_json_says_all_of_a_decoder(family, seed):
    config = from_config(config_json(family, seed), "config.json")
    assert from_config(to_config(config), "config.json") == config


def test_a_seed_gives_the_same_numbers_every_time_and_norms_are_neutral():
    one, two, three = (Decoder(PRESETS["tiny"]) for _ in range(3))
    initialise(one, 5)
    torch.rand(3)
    initialise(two, 5)
    initialise(three, 6)
    for name, value in one.state_dict().items():
        assert torch.equal(value, two.state_dict()[name])
        assert name.endswith("norm.weight") or not torch.equal(value, three.state_dict()[name])
    gemma = Decoder(from_config(config_json("gemma"), "config.json"))
    initialise(gemma, 0)
    assert not gemma.model.norm.weight.any()
    assert one.model.norm.weight.eq(1).all()
    assert abs(float(one.model.embed_tokens.weight.detach().std()) - 0.02) < 0.001


@pytest.mark.parametrize("family", FAMILIES)
def test_with_a_cache_token_by_token_gives_the_same_logits(family):
    from firstdrift.decoder.decoder_layers import Cache

    _, model = pair(family, 1)
    batch = tokens()
    cache = Cache()
    with torch.no_grad():
        whole = model(batch)
        parts = [model(batch[:, :4], cache=cache)]
        parts += [model(batch[:, at : at + 1], cache=cache) for at in range(4, batch.shape[1])]
    assert cache.length == batch.shape[1]
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-4, atol=1e-5)
