"""A tagger: word vectors, a bidirectional LSTM, a linear layer. The candidate's LSTM is a loop."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ..case import Planted
from .network import Network, sequence_loss
from .parts import OwnEmbedding, OwnLinear
from .recurrent import OwnLSTM

WORDS, TAGS, WIDTH, HIDDEN = 60, 6, 18, 20


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.lstm = nn.LSTM(WIDTH, HIDDEN, batch_first=True, bidirectional=True)
        self.norm = nn.LayerNorm(2 * HIDDEN)
        self.tags = nn.Linear(2 * HIDDEN, TAGS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        states, _ = self.lstm(self.embed(words))
        return self.tags(self.norm(states))


class OwnTagger(nn.Module):
    def __init__(self, planted: Planted) -> None:
        super().__init__()
        self.embed = OwnEmbedding(WORDS, WIDTH, planted.bugs)
        self.lstm = OwnLSTM(WIDTH, HIDDEN, planted.bugs)
        self.norm = nn.LayerNorm(2 * HIDDEN)
        self.tags = OwnLinear(2 * HIDDEN, TAGS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        states, _ = self.lstm(self.embed(words))
        return self.tags(self.norm(states))


def inputs() -> tuple[Any, ...]:
    return (torch.randint(0, WORDS, (3, 9)),)


NETWORK = Network(Tagger, {"own": OwnTagger}, inputs, lambda: torch.randint(0, TAGS, (3, 9)), sequence_loss)
