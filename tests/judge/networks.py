"""Networks to be recorded twice and replayed, and how that is done."""

from __future__ import annotations

import copy

import torch
from torch import nn

import firstdrift as fd
from firstdrift.compare.comparison import align_traces
from firstdrift.core.dtypes import roundoff
from firstdrift.judge.replay.introducing import introduced_at
from firstdrift.judge.replay.programs import replays_for

OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "Adam": lambda p: torch.optim.Adam(p, weight_decay=0.01),
    "AdamW": lambda p: torch.optim.AdamW(p),
}


class Block(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.ln1, self.q, self.ln2 = nn.LayerNorm(width), nn.Linear(width, width), nn.LayerNorm(width)
        self.up, self.gate, self.act = nn.Linear(width, 24), nn.Linear(width, 24), nn.GELU()
        self.down = nn.Linear(24, width)

    def forward(self, x):
        x = x + self.q(self.ln1(x))
        y = self.ln2(x)
        return x + self.down(self.act(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    """Residual blocks under a tied head."""

    def __init__(self):
        super().__init__()
        self.emb, self.blocks, self.norm = nn.Embedding(20, 16), nn.Sequential(Block(), Block()), nn.RMSNorm(16, 1e-6)
        self.head = nn.Linear(16, 20, bias=False)
        self.head.weight = self.emb.weight

    def forward(self, x):
        return self.head(self.norm(self.blocks(self.emb(x)))).flatten(0, 1)


class ConvNet(nn.Module):
    """Convolutions of every kind, norms, pools, and a sum of two branches."""

    def __init__(self):
        super().__init__()
        self.c1, self.bn, self.act = nn.Conv2d(3, 8, 3, padding=1, stride=2), nn.BatchNorm2d(8), nn.ReLU()
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.c2, self.gn, self.silu = nn.Conv2d(8, 8, 3, groups=4, padding="same"), nn.GroupNorm(2, 8), nn.SiLU()
        self.avg = nn.AvgPool2d(2, 2, 1, count_include_pad=False)
        self.up, self.leaky = nn.ConvTranspose2d(8, 4, 3, 2, 1, 1), nn.LeakyReLU(0.2)
        self.gap, self.flat, self.fc = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5)

    def forward(self, x):
        x = self.pool(self.act(self.bn(self.c1(x))))
        x = self.avg(x + self.silu(self.gn(self.c2(x))))
        return self.fc(self.flat(self.gap(self.leaky(self.up(x)))))


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.rnn, self.fc = kind(6, 8, num_layers=2, bidirectional=True, batch_first=True), nn.Linear(16, 5)

    def forward(self, x):
        return self.fc(self.rnn(x)[0][:, -1])


def mlp():
    return nn.Sequential(
        nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 32), nn.ReLU(),
        nn.Linear(32, 5),
    )  # fmt: skip


NETWORKS = {
    "mlp": (mlp, lambda: torch.randn(16, 12)),
    "conv": (ConvNet, lambda: torch.randn(4, 3, 24, 24)),
    "decoder": (Decoder, lambda: torch.randint(0, 20, (3, 7))),
    "lstm": (lambda: Recurrent(nn.LSTM), lambda: torch.randn(4, 9, 6)),
    "gru": (lambda: Recurrent(nn.GRU), lambda: torch.randn(4, 9, 6)),
}


def made(name):
    """A network with weights that are not all ones and zeros, its input, and a target."""
    torch.manual_seed(7)
    make, fed = NETWORKS[name]
    model, x = make(), fed()
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    with torch.no_grad():
        logits = copy.deepcopy(model)(x)
    return model, x, torch.randint(0, logits.shape[-1], logits.shape[:-1])


def record(model, x, y, path, optimizer="SGD", steps=1, train=True):
    """Trace a few steps, or one pass in evaluation."""
    if not train:
        model.eval()
        with fd.trace(model, path), torch.no_grad():
            model(x)
        return
    make = OPTIMIZERS[optimizer] if isinstance(optimizer, str) else optimizer
    stepper = make(model.parameters())
    with fd.trace(model, path, optimizer=stepper):
        for _ in range(steps):
            stepper.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            stepper.step()


def replays_of(reference, candidate):
    """The reference's program, ready to be run on the candidate's tensors; and how the two line up."""
    opened = align_traces(reference, candidate)
    made = [pair.site for pair in opened.alignment.pairs if pair.site.phase not in ("input", "weight")]
    return replays_for(opened.reference, opened.candidate, opened.alignment.pairs, made), opened, made


def introduced(reference, candidate):
    """What every site's own operation added, by site, wherever it can be replayed; and the sites that cannot be."""
    replays, opened, made = replays_of(reference, candidate)
    pairs = {pair.site: pair for pair in opened.alignment.pairs}
    with replays.running():
        found = {
            site: introduced_at(pairs[site], replays, roundoff(*(one.dtype for one in pairs[site].candidate)))
            for site in made
        }
    return {site: one for site, one in found.items() if one is not None}, [s for s in made if found[s] is None]


def standing_out(found):
    """The places whose own error noise does not explain."""
    return {(site.phase, site.name, site.port) for site, one in found.items() if one.beyond}


def bare(path, target):
    """The same run as a harness in C would dump it: outputs and parameters, no operations, no graph, no inputs."""
    trace = fd.open_trace(path)
    with fd.Writer(target) as writer:
        for entry in trace.lines:
            site = entry.site
            if entry.at is not None and site.name and not site.port.startswith("in.") and site.phase != "optim":
                writer.put(site.name, site.phase, trace.array(entry), port=site.port, step=site.step, call=site.call)
    return target
