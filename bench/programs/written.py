"""Networks written by hand whose layers or views are of note: recurrent, convolutional, in place, strided."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from .network import Network, adamw, normal, sgd, tokens, trains

WIDTH, CLASSES = 16, 5


def labels(draw: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randint(CLASSES, shape, generator=draw)


# Recurrent


class Tagger(nn.Module):
    """Two LSTM layers in both directions and a GRU over packed rows of different lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(97, WIDTH, padding_idx=0)
        self.lstm = nn.LSTM(WIDTH, 12, num_layers=2, bidirectional=True, batch_first=True, dropout=0.2)
        self.gru = nn.GRU(24, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, words: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = pack_padded_sequence(self.embed(words), lengths, batch_first=True, enforce_sorted=False)
        states: PackedSequence = self.gru(self.lstm(packed)[0])[0]
        padded, _ = pad_packed_sequence(states, batch_first=True, total_length=words.shape[1])
        return self.head(padded)


def tagger_loss(model: Any, draw: torch.Generator) -> torch.Tensor:
    lengths = torch.randint(2, 10, (4,), generator=draw)
    mask = torch.arange(9) < lengths[:, None]
    wanted = labels(draw, 4, 9).masked_fill(~mask, -100)
    return F.cross_entropy(model(tokens(draw, 4, 9) * mask, lengths).flatten(0, 1), wanted.flatten())


class OwnCell(nn.Module):
    """A gated cell from its formulas, in a loop that keeps a running state between steps of training."""

    memory: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.gates = nn.Linear(2 * WIDTH, 2 * WIDTH)
        self.start = nn.Parameter(torch.zeros(WIDTH))
        self.head = nn.Linear(WIDTH, CLASSES)
        self.register_buffer("memory", torch.zeros(3, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state, outputs = self.memory + self.start, []
        for now in x.unbind(1):
            keep, new = self.gates(torch.cat([now, state], -1)).chunk(2, -1)
            state = torch.lerp(torch.tanh(new), state, torch.sigmoid(keep))
            outputs.append(state)
        self.memory = state.detach()  # truncated: the next step starts from here
        return self.head(torch.stack(outputs, 1))


def cell_loss(model: Any, draw: torch.Generator) -> torch.Tensor:
    return F.cross_entropy(model(normal(draw, 3, 10, WIDTH)).transpose(1, 2), labels(draw, 3, 10))


# Convolutional


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, groups=4, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.down = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if stride > 1 else nn.Identity()
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        y += self.down(x)
        return self.relu(y)


def resnet() -> nn.Module:
    """Weights and pictures with channels last in memory, batch norm in training."""
    model = nn.Sequential(
        nn.Conv2d(3, 16, 7, 2, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1),
        Residual(16, 16, 1), Residual(16, 32, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, CLASSES),
    )  # fmt: skip
    return model.to(memory_format=torch.channels_last)


def resnet_loss(model: Any, draw: torch.Generator) -> torch.Tensor:
    """From bytes, as loaders give pictures, some of them flipped."""
    pixels = torch.randint(256, (4, 3, 32, 32), dtype=torch.uint8, generator=draw)
    pictures = pixels.to(memory_format=torch.channels_last).float().div_(255).sub_(0.5)
    flip = torch.rand(4, generator=draw) < 0.5
    pictures[flip] = pictures[flip].flip(-1)
    return F.cross_entropy(model(pictures), labels(draw, 4), label_smoothing=0.1)


class Segmenter(nn.Module):
    """Down and up again with skips: pixel shuffles, transposed convolutions, resizing, warping, unpooling."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(12, 16, 3, padding=2, dilation=2, padding_mode="reflect")
        self.up = nn.ConvTranspose2d(16, 16, 4, 2, 1)
        self.depth = nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.norm = nn.GroupNorm(4, 16, affine=True)
        self.where = nn.Linear(16, 6)
        self.head = nn.Conv2d(16, CLASSES * 4, 1)
        nn.init.zeros_(self.where.weight)
        with torch.no_grad():
            self.where.bias.copy_(torch.tensor([1.0, 0, 0, 0, 1, 0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        small = F.leaky_relu(self.down(F.pixel_unshuffle(x, 2)))
        pooled, indices = F.max_pool2d(small, 2, return_indices=True)
        grid = F.affine_grid(self.where(pooled.mean((2, 3))).view(-1, 2, 3), list(pooled.shape), align_corners=False)
        warped = F.grid_sample(pooled, grid, padding_mode="border", align_corners=False)
        again = F.max_unpool2d(warped, indices, 2)
        sized = F.interpolate(F.avg_pool2d(small, 3, 2, 1), scale_factor=2, mode="bilinear", align_corners=False)
        mixed = self.norm(F.hardswish(self.depth(again + sized))) + self.up(pooled)
        return F.pixel_shuffle(self.head(mixed), 2)


def segmenter_loss(model: Any, draw: torch.Generator) -> torch.Tensor:
    return F.cross_entropy(model(normal(draw, 2, 3, 16, 16)), labels(draw, 2, 16, 16))


# In place, and unusual views


class InPlace(nn.Module):
    """Changes what it computes where it stands: halves of rows, masked places, a buffer that it fills, chosen rows."""

    workspace: torch.Tensor
    seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.bias = nn.Parameter(torch.zeros(WIDTH))
        self.part = nn.Linear(WIDTH, WIDTH // 2)
        self.head = nn.Linear(WIDTH, CLASSES)
        self.register_buffer("workspace", torch.zeros(4, 6, WIDTH), persistent=False)
        self.register_buffer("seen", torch.zeros(CLASSES, dtype=torch.long))

    def forward(self, x: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        h = self.inner(x).relu_() + self.bias  # a sum of its own: backward needs what relu_ gave
        h[:, :, : WIDTH // 2] += self.part(h.clone())
        h.masked_fill_(padding[..., None], 0.0)
        h[:, 1:].transpose(1, 2).mul_(1.5)
        buffer = torch.empty_like(h)
        buffer.copy_(h).clamp_(max=4.0)
        rows = torch.tensor([0, 2, 2])  # one of them twice, and summed
        buffer.index_put_((rows, torch.tensor([1, 0, 0])), h[rows, -1], accumulate=True)
        with torch.no_grad():
            self.workspace.zero_()
            self.workspace[:, ::2].copy_(buffer[:, ::2])
            self.workspace.unsqueeze_(0).squeeze_(0)
            torch.add(self.workspace, 1.0, out=self.workspace)
        out = self.head(buffer + self.workspace.detach().clone())
        with torch.no_grad():
            self.seen.scatter_add_(0, out.argmax(-1).flatten(), torch.ones(24, dtype=torch.long))
        return out


def in_place_loss(model: Any, draw: torch.Generator) -> torch.Tensor:
    padding = torch.rand(4, 6, generator=draw) < 0.2
    out = model(normal(draw, 4, 6, WIDTH), padding).sub_(0.1)
    losses = F.cross_entropy(out.flatten(0, 1), labels(draw, 24), reduction="none")
    return losses.masked_fill_(padding.flatten(), 0).mean()


class Strides(nn.Module):
    """Overlapping windows as views, a band of a matrix, rolled and flipped rows, sums by index, named products."""

    def __init__(self) -> None:
        super().__init__()
        self.lift = nn.Linear(WIDTH, WIDTH)
        self.query = nn.Parameter(torch.randn(4, 5, WIDTH) * 0.3)
        self.mix = nn.Bilinear(WIDTH, 4, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
        x = self.lift(x)  # so that views have backward passes
        batch, length, width = x.shape
        windows = F.pad(x, (0, 0, 2, 2)).unfold(1, 5, 1)  # batch, length, width, window
        scores = torch.einsum("blcw,hwc->blh", windows, self.query).softmax(-1)
        band = x.contiguous().as_strided((batch, length, 4), (length * width, width - 1, 1), 4)
        h = self.mix(torch.roll(x, (1, -2), (1, 2)).flip(1), scores + band)
        index = groups[..., None].expand(-1, -1, width)  # strides of zero
        summed = torch.zeros(batch, 3, width).scatter_add(1, index, h)
        back = summed.gather(1, index)
        patches = F.unfold(back.mT[:, :, None], (1, 3), padding=(0, 1))
        blurred = F.fold(patches, (1, length), (1, 3), padding=(0, 1))[:, :, 0].mT
        earlier = torch.einsum("bld,bmd->blm", h, back).tril(-1).diagonal_scatter(scores.mean(-1), 0, 1, 2)
        return self.head(earlier @ blurred + torch.cumsum(h, 1)[..., ::2].repeat_interleave(2, -1))


def strides_loss(model: Any, draw: torch.Generator) -> torch.Tensor:
    groups = torch.randint(3, (3, 8), generator=draw)
    return F.multi_margin_loss(model(normal(draw, 3, 8, WIDTH), groups).flatten(0, 1), labels(draw, 24))


WRITTEN = (
    Network("packed-tagger", Tagger, trains(tagger_loss), adamw()),
    Network("own-cell", OwnCell, trains(cell_loss), lambda model: torch.optim.RMSprop(model.parameters(), lr=1e-3)),
    Network("resnet-channels-last", resnet, trains(resnet_loss), sgd(momentum=0.9, weight_decay=1e-4)),
    Network("segmenter", Segmenter, trains(segmenter_loss), adamw(amsgrad=True)),
    Network("in-place", InPlace, trains(in_place_loss), sgd()),
    Network("strides", Strides, trains(strides_loss), lambda model: torch.optim.NAdam(model.parameters(), lr=1e-3)),
)
