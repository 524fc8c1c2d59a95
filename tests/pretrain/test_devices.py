"""Where a run computes, on a machine that need not have CUDA: what was asked for is had, or it is an error."""

import json

import numpy as np
import pytest
import torch
from tests.pretrain.worlds import FINETUNE, pretrain, settings

import firstdrift as fd
from firstdrift.decoder.decoder_config import PRESETS
from firstdrift.decoder.model import Decoder
from firstdrift.errors import SelectionError, WeightsError
from firstdrift.pretrain.building import build_trainer, build_trainer_with_init
from firstdrift.pretrain.run_checkpoints import CUDA_RNG, _random_state, _restore_random
from firstdrift.pretrain.trainer import Trainer, check_device, resolve_device
from firstdrift.weights.loading.arriving import held_crc32
from firstdrift.weights.loading.load import in_memory

TINY = PRESETS["tiny"]
NO_CUDA, NOT_UPLOADED = "GATE-GPUTRAIN-002", "FALSIFY-APR-PRETRAIN-INIT-CUDA-001"
needs_no_cuda = pytest.mark.skipif(
    torch.cuda.is_available(), reason="this machine has the device that must not be there"
)


@pytest.mark.parametrize(
    ("asked", "there", "chosen", "said"),
    [
        ("cpu", True, "cpu", None),
        ("cpu", False, "cpu", None),
        ("cuda", True, "cuda", None),
        ("auto", True, "cuda", "--device auto chose cuda"),
        ("auto", False, "cpu", "--device auto chose cpu"),
    ],
)
def test_only_auto_chooses_and_it_says_what(asked, there, chosen, said, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    assert resolve_device(asked) == (chosen, said)


def test_cuda_that_is_not_there_is_an_error(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SelectionError, match=f"{NO_CUDA}: --device cuda"):
        resolve_device("cuda")


def start(kind, world, out):
    source = ["--init", world.apr] if kind == "init" else ["--config", "tiny"]
    shared = ["--data", world.text, "--tokenizer", world.tokenizer, *FINETUNE, "--num-steps", 1, "--device", "cuda"]
    return pretrain(*source, *shared, "--out", out)


@pytest.mark.falsifies("FALSIFY-APR-PRETRAIN-INIT-CUDA-001", "GATE-GPUTRAIN-002")
@needs_no_cuda
@pytest.mark.parametrize(("kind", "identifier"), [("init", NOT_UPLOADED), ("scratch", NO_CUDA)])
def test_a_device_that_says_it_is_there_and_takes_no_model_is_an_error(kind, identifier, world, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    done = start(kind, world, tmp_path / "run")
    assert done.exit_code == 2, done.output
    assert f"{identifier}: the model cannot be put on --device cuda" in done.stderr
    assert not (tmp_path / "run/checkpoints").exists()


@pytest.mark.falsifies("FALSIFY-APR-PRETRAIN-INIT-CUDA-001", "GATE-GPUTRAIN-002")
@pytest.mark.parametrize(("kind", "identifier"), [("init", NOT_UPLOADED), ("scratch", NO_CUDA)])
def test_a_model_that_stays_on_the_cpu_is_never_trained_there_instead(kind, identifier, world, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(Decoder, "to", lambda self, device: self)
    done = start(kind, world, tmp_path / "run")
    assert done.exit_code == 2, done.output
    assert f"{identifier}: model.embed_tokens.weight is on cpu, and not on cuda" in done.stderr


def test_numbers_that_change_on_their_way_to_a_device_are_an_error(world):
    trainer = build_trainer_with_init(settings(), init_config=fd.read_architecture(world.apr), init_path=world.apr)
    checksums = {name: held_crc32(one) for name, one in trainer.model.named_parameters()}
    check_device(trainer, NOT_UPLOADED, checksums)
    with torch.no_grad():
        trainer.model.model.norm.weight[3] += 1
    with pytest.raises(WeightsError, match=f"{NOT_UPLOADED}: model.norm.weight has other numbers on cpu"):
        check_device(trainer, NOT_UPLOADED, checksums)


def test_everything_that_a_step_needs_is_put_on_the_device():
    """Without memory and without numbers, which is a device too: what is left on the cpu cannot be mixed with it."""
    trainer = build_trainer(settings(), TINY, "meta")
    loss = trainer.loss(np.zeros((4, 32), np.int64))
    loss.backward()
    assert loss.device.type == "meta"
    assert {one.grad.device.type for one in trainer.model.parameters()} == {"meta"}
    trainer.optimizer.step()
    moments = [state[key] for state in trainer.optimizer.state.values() for key in ("exp_avg", "exp_avg_sq")]
    assert {one.device.type for one in moments} == {"meta"}
    assert trainer.random_twin().device == "meta"


@needs_no_cuda
def test_a_run_that_began_on_cuda_goes_on_nowhere_else(world, tmp_path):
    shared = ["--data", world.text, "--tokenizer", world.tokenizer, *FINETUNE]
    assert pretrain("--init", world.apr, *shared, "--num-steps", 1, "--out", tmp_path / "run").exit_code == 0
    record = tmp_path / "run/run.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | {"device": "cuda"}))
    done = pretrain("--resume", tmp_path / "run", "--num-steps", 2)
    assert (done.exit_code, NO_CUDA in done.stderr) == (2, True), done.output


def test_random_numbers_of_the_device_are_kept_and_come_back(monkeypatch):
    state = torch.arange(16, dtype=torch.uint8)
    given = []
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda: state)
    monkeypatch.setattr(torch.cuda, "set_rng_state", given.append)
    kept = _random_state("cuda")
    assert torch.equal(kept[CUDA_RNG], state)
    assert CUDA_RNG not in _random_state("cpu")
    trainer = Trainer.__new__(Trainer)
    trainer.device = "cuda"
    _restore_random(trainer, in_memory(kept))
    assert torch.equal(given[0], state)
