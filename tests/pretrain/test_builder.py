"""The library's builder: what it takes together, in which order it fails, and what it never does."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.pretrain.worlds import settings

import firstdrift as fd
from firstdrift.decoder.decoder_config import PRESETS, config_of
from firstdrift.errors import SelectionError, WeightsError
from firstdrift.pretrain import building
from firstdrift.pretrain.building import build_trainer, build_trainer_with_init
from firstdrift.weights.open_checkpoint import open_checkpoint

TINY = PRESETS["tiny"]


def encoder(world, tmp_path):
    config = json.loads((world.safetensors / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"architectures": ["RobertaForMaskedLM"]}))
    return fd.read_architecture(tmp_path / "config.json")


def weights(trainer):
    return {name: one.detach().numpy().tobytes() for name, one in trainer.model.state_dict().items()}


def test_a_config_without_a_path_or_a_path_without_a_config_is_refused(world):
    architecture = fd.read_architecture(world.apr)
    for given in ({"init_config": architecture}, {"init_path": world.apr}):
        with pytest.raises(SelectionError, match="they must both be given or both be None"):
            build_trainer_with_init(settings(), TINY, **given)


@pytest.mark.falsifies("FALSIFY-APR-PRETRAIN-ARCH-002")
def test_neither_a_config_nor_an_init_is_the_preset(monkeypatch):
    class BuiltError(Exception):
        pass

    def built(config, seed):  # without the memory that it takes
        assert config == PRESETS["llama-370m"]
        raise BuiltError

    monkeypatch.setattr(building, "random_decoder", built)
    with pytest.raises(BuiltError):
        build_trainer_with_init(settings())


@pytest.mark.falsifies("FALSIFY-APR-PRETRAIN-ARCH-007")
def test_an_encoder_fails_at_the_family_even_where_there_is_no_file(world, tmp_path):
    with pytest.raises(WeightsError, match=r"FALSIFY-APR-PRETRAIN-ARCH-007.*RobertaForMaskedLM.*Encoder.*decoder-only"):
        build_trainer_with_init(settings(), init_config=encoder(world, tmp_path), init_path=tmp_path / "missing.apr")


OTHER = {
    "vocab_size": 999, "hidden_size": 128, "num_attention_heads": 8, "num_kv_heads": 1, "intermediate_size": 99,
    "num_hidden_layers": 7, "max_position_embeddings": 2048, "rope_theta": 5e5, "rms_norm_eps": 0.1,
    "tie_word_embeddings": False,
}  # fmt: skip


@pytest.fixture
def nothing_loaded(monkeypatch):
    """Reading a tensor's values, or giving a model memory, is too early."""

    def refuse(*arguments):
        raise AssertionError("something was loaded")

    monkeypatch.setattr(building, "verify_init", refuse)
    monkeypatch.setattr(building, "empty_decoder", refuse)


@pytest.mark.falsifies("FALSIFY-APR-PRETRAIN-INIT-007")
@pytest.mark.parametrize("field", [*OTHER, "family"])
def test_every_field_that_contradicts_the_file_is_named_with_both_values(field, world, nothing_loaded):
    right = fd.read_architecture(world.apr)
    value = {**OTHER, "family": "qwen2"}[field]
    with pytest.raises(WeightsError) as caught:
        asked = replace(right, **{field: value})
        build_trainer_with_init(settings(), init_config=asked, init_path=world.apr)
    assert f"{field} {value!r} and {getattr(right, field)!r}" in str(caught.value)
    assert str(caught.value).startswith("FALSIFY-APR-PRETRAIN-INIT-007: init_config")
    assert [name for name in OTHER if f"{name} " in str(caught.value)] == ([field] if field in OTHER else [])


def test_all_ten_fields_are_named_at_once(world, nothing_loaded):
    asked = replace(fd.read_architecture(world.apr), **OTHER)
    with pytest.raises(WeightsError, match="FALSIFY-APR-PRETRAIN-INIT-007") as caught:
        build_trainer_with_init(settings(), init_config=asked, init_path=world.apr)
    assert len(OTHER) == 10
    assert all(f"{name} {value!r} and " in str(caught.value) for name, value in OTHER.items())


def test_settings_of_a_decoder_that_are_not_the_files_are_refused_too(world, nothing_loaded):
    for changed in ({"hidden_size": 128}, {"sliding_window": 4, "family": "mistral"}, {"qkv_bias": True}):
        with pytest.raises(WeightsError, match="FALSIFY-APR-PRETRAIN-INIT-007: init_config"):
            asked = replace(config_of(world.apr), **changed)
            build_trainer_with_init(settings(), init_config=asked, init_path=world.apr)


def test_a_number_that_a_format_keeps_in_32_bits_is_no_contradiction(world):
    right = fd.read_architecture(world.apr)
    rounded = replace(right, rms_norm_eps=float(np.float32(right.rms_norm_eps)), family=None)
    assert rounded != right
    assert build_trainer_with_init(settings(), init_config=rounded, init_path=world.apr).loaded == 20


@pytest.mark.falsifies("FALSIFY-APR-PRETRAIN-INIT-006")
@pytest.mark.parametrize("content", [None, b"", b"APR\0" + bytes(100)])
def test_a_decoder_passes_the_family_and_fails_at_tensor_load(content, world, tmp_path):
    path = tmp_path / "init.apr"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(fd.FirstdriftError, match="FALSIFY-APR-PRETRAIN-INIT-006") as error:
        build_trainer_with_init(settings(), init_config=fd.read_architecture(world.apr), init_path=path)
    assert "ARCH-007" not in str(error.value)


@pytest.mark.falsifies("FALSIFY-APR-PRETRAIN-INIT-002")
def test_no_init_is_the_plain_builder_byte_for_byte():
    for seed in (0, 42):
        plain, other = build_trainer(settings(seed=seed), TINY), build_trainer_with_init(settings(seed=seed), TINY)
        assert weights(plain) == weights(other)
    assert weights(build_trainer(settings(seed=1), TINY)) != weights(plain)


@pytest.mark.falsifies("FALSIFY-APR-PRETRAIN-ARCH-003")
@pytest.mark.parametrize("form", ["apr", "safetensors"])
def test_every_number_of_a_checkpoint_is_in_the_trainer(form, world):
    path = getattr(world, form)
    for config in (fd.read_architecture(path), config_of(path)):
        trainer = build_trainer_with_init(settings(), init_config=config, init_path=path)
        with open_checkpoint(path) as checkpoint:
            for name, held in trainer.model.named_parameters():
                assert np.array_equal(held.detach().numpy(), checkpoint.array(name)), name
            assert trainer.loaded == len(checkpoint.entries)
        assert trainer.model.lm_head.weight is trainer.model.model.embed_tokens.weight
        assert all(one.requires_grad for one in trainer.model.parameters())


@pytest.mark.falsifies("FALSIFY-APR-PRETRAIN-INIT-009")
def test_the_optimizer_starts_fresh_whatever_the_weights_are(world):
    trainer = build_trainer_with_init(settings(), init_config=config_of(world.apr), init_path=world.apr)
    assert trainer.step == 0
    assert not trainer.optimizer.state  # nothing is remembered: m, v and t are zero
    rows = np.arange(4 * 32).reshape(4, 32) % 256
    trainer.train_step([rows])
    for parameter in trainer.model.parameters():
        state, group = trainer.optimizer.state[parameter], trainer.optimizer.param_groups[0]
        assert state["step"] == 1
        assert torch.allclose(state["exp_avg"].abs().max(), (1 - group["betas"][0]) * _largest(state), rtol=1e-3)


def _largest(state):
    """The largest gradient, from the second moment, which began at zero too."""
    return (state["exp_avg_sq"].max() / 1e-3).sqrt()


@pytest.mark.falsifies("FALSIFY-APR-PRETRAIN-INIT-POPULATE-COVERAGE-001")
@pytest.mark.falsifies("FALSIFY-APR-PRETRAIN-INIT-POPULATE-COVERAGE-002")
@pytest.mark.parametrize(("preset", "count"), [("qwen2-0.5b", 290), ("llama-370m", 2 + 24 * 9)])
def test_a_preset_has_as_many_parameters_to_fill_as_published(preset, count):
    from firstdrift.decoder.model import Decoder

    with torch.device("meta"):
        names = [name for name, _ in Decoder(PRESETS[preset]).named_parameters()]
    assert len(names) == count
    biases = {f"model.layers.{n}.self_attn.{p}_proj.bias" for n in range(24) for p in "qkv"}
    assert {name for name in names if name.endswith("bias")} == (biases if preset == "qwen2-0.5b" else set())


def test_matrices_decay_and_norms_and_biases_do_not():
    from firstdrift.decoder.model import Decoder
    from firstdrift.pretrain.trainer import make_optimizer

    model = Decoder(replace(PRESETS["tiny"], qkv_bias=True, family="qwen2"))
    optimizer = make_optimizer(model, settings(weight_decay=0.125))
    names = {id(one): name for name, one in model.named_parameters()}
    decay = {names[id(one)]: group["weight_decay"] for group in optimizer.param_groups for one in group["params"]}
    assert set(decay) == set(names.values())
    for name, value in decay.items():
        assert value == (0.0 if name.endswith((".bias", "norm.weight")) else 0.125), name


def test_accumulated_batches_are_one_large_batch():
    rows = np.random.default_rng(0).integers(0, 256, (4, 32))
    whole, parts = build_trainer(settings(batch=4), TINY), build_trainer(settings(batch=1, accumulate=4), TINY)
    one, other = whole.train_step([rows]), parts.train_step([row[None] for row in rows])
    assert other.loss == pytest.approx(one.loss, rel=1e-6)
    assert other.gradient_norm == pytest.approx(one.gradient_norm, rel=1e-5)


def test_steps_take_their_batches_one_after_another():
    from firstdrift.pretrain.data.windows import batch_at, cut

    chosen = settings(batch=2, accumulate=3, seq_length=8)
    windows = cut((np.arange(8 * 60) % 256,), chosen, "data")
    trainer = build_trainer(chosen, TINY)
    taken = np.concatenate([rows for step in range(5) for rows in trainer.batches(windows, step)])
    assert np.array_equal(taken, batch_at(windows, chosen.seed, 0, 30))


def test_gradients_are_clipped_to_the_norm_that_was_asked_for():
    trainer = build_trainer(settings(clip=1e-3), TINY)
    rows = np.random.default_rng(0).integers(0, 256, (4, 32))
    seen = []
    trainer.optimizer.register_step_pre_hook(
        lambda *_: seen.append(torch.stack([p.grad.norm() for p in trainer.model.parameters()]).norm().item())
    )
    step = trainer.train_step([rows])
    assert step.gradient_norm > 1e-3
    assert seen == [pytest.approx(1e-3, rel=1e-4)]


def test_half_precision_computes_in_it_and_keeps_the_weights():
    trainer = build_trainer(settings(dtype="bf16"), TINY)
    rows = np.random.default_rng(0).integers(0, 256, (4, 32))
    exact = build_trainer(settings(), TINY).loss(rows).item()
    rounded = trainer.loss(rows).item()
    assert rounded != exact
    assert rounded == pytest.approx(exact, rel=1e-2)
    trainer.train_step([rows])
    assert {one.dtype for one in trainer.model.parameters()} == {torch.float32}


def test_a_gradient_or_a_loss_that_is_not_finite_changes_nothing():
    from firstdrift.pretrain.trainer import NotFiniteError

    trainer = build_trainer(settings(), TINY)
    rows = np.random.default_rng(0).integers(0, 256, (4, 32))
    with torch.no_grad():
        trainer.model.model.norm.weight[0] = float("inf")
    before = weights(trainer)
    with pytest.raises(NotFiniteError, match="step 0: the loss is nan"):
        trainer.train_step([rows])
    with torch.no_grad():
        trainer.model.model.norm.weight[0] = 1.0
    handle = trainer.model.model.norm.weight.register_hook(lambda grad: grad * float("inf"))
    between = weights(trainer)
    with pytest.raises(NotFiniteError, match="step 0: the norm of the gradient is"):
        trainer.train_step([rows])
    handle.remove()
    assert weights(trainer) == between
    assert before != between
    assert not trainer.optimizer.state
    assert trainer.train_step([rows]).step == 0
