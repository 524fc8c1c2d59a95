"""The bars of training: `python bench/pretrain.py`, or as part of `make bench`.

A step of `firstdrift pretrain`, its log line included, against the loop that everybody writes, with the same model, the
same AdamW, the same batches and the same clipping; and the same step while other steps are to be traced.
"""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from ratios import Row, median_ratio

from firstdrift.decoder.decoder_settings import DecoderConfig
from firstdrift.pretrain.building import build_trainer
from firstdrift.pretrain.data.windows import cut
from firstdrift.pretrain.run_checkpoints import Progress
from firstdrift.pretrain.run_record import Log, stamp_of
from firstdrift.pretrain.run_settings import Settings
from firstdrift.pretrain.training import Run

CONFIG = DecoderConfig(
    vocab_size=2048, hidden_size=256, intermediate_size=688, num_hidden_layers=4, num_attention_heads=4,
    num_key_value_heads=2, head_dim=64, max_position_embeddings=256, tie_word_embeddings=True,
)  # fmt: skip
SETTINGS = Settings.of("from-scratch", batch=8, seq_length=128, num_steps=10**6)
PAIRS = 25


def rows() -> Iterator[Row]:
    tokens = np.random.default_rng(0).integers(0, CONFIG.vocab_size, 1 << 18)
    with tempfile.TemporaryDirectory(prefix="firstdrift-bench-") as directory:
        plain, watchful = step_of(tokens, Path(directory), "a"), step_of(tokens, Path(directory), "b", {10**5})
        yield Row("training step vs a bare loop", median_ratio(plain, bare(tokens), PAIRS), 1.03, False)
        yield Row("a step that is not to be traced", median_ratio(watchful, plain, PAIRS), 1.01, False)


def step_of(tokens: np.ndarray, directory: Path, name: str, traced: set[int] = frozenset()) -> Callable[[], object]:
    """A step as a run does it."""
    trainer = build_trainer(SETTINGS, CONFIG)
    windows = cut((tokens,), SETTINGS, "tokens")
    log = Log(directory / f"{name}.jsonl")
    stamp = stamp_of(CONFIG, "model")
    return Run(directory, trainer, windows, stamp, log, Progress(), trace_steps=frozenset(traced))._step


def bare(tokens: np.ndarray) -> Callable[[], object]:
    """A step as it stands in every tutorial."""
    model = build_trainer(SETTINGS, CONFIG).model
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.01)
    windows = torch.from_numpy(tokens[: len(tokens) // 128 * 128].reshape(-1, 128))
    order = torch.randperm(len(windows))
    step = 0

    def work() -> float:
        nonlocal step
        batch = windows[order[step % 200 * 8 : step % 200 * 8 + 8]]
        loss = model.loss(batch, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        return loss.item()

    return work


if __name__ == "__main__":
    for row in rows():
        print(row, flush=True)
