"""A small trained model in both formats, its tokenizer and its text, made once."""

from types import SimpleNamespace

import pytest
from tests.pretrain.worlds import NEVER, SMALL, TEXT, newest, pretrain, write_tokenizer


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    """`tokenizer`, `text`, `safetensors` (a directory) and `apr` (a file) of a model after forty steps."""
    root = tmp_path_factory.mktemp("world")
    tokenizer = write_tokenizer(root / "tokenizer")
    text = root / "text.txt"
    text.write_text(TEXT.read_text("utf-8")[:60_000])
    shared = ["--data", text, "--tokenizer", tokenizer, *SMALL, *NEVER, "--patience", "0"]
    run = pretrain("--config", "tiny", *shared, "--num-steps", 40, "--eval-every", 0, "--out", root / "base")
    assert run.exit_code == 1, run.output  # the target is out of reach on purpose
    base = newest(root / "base")
    run = pretrain(
        "--init", base, *shared, "--num-steps", 0, "--format", "apr", "--out", root / "apr", "--val-loss-target", 9
    )
    assert run.exit_code == 0, run.output
    return SimpleNamespace(
        root=root, tokenizer=tokenizer, text=text, safetensors=base, apr=newest(root / "apr") / "model.apr"
    )
