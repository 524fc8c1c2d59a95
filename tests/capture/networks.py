"""Small networks of every kind, and one way to train them whose every bit is looked at."""

import errno
import functools
from contextlib import nullcontext

import torch
import torch.nn.functional as F  # noqa: N812
from tests.run_bits import Bits, seed
from torch import nn
from torch.utils.checkpoint import checkpoint

import firstdrift as fd
from firstdrift.store import files

WORDS, LENGTH, BATCH = 29, 7, 3


class Conv(nn.Module):
    """Convolutions with batch norm, running in place where that is usual."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(inplace=True))
        self.block = nn.Sequential(nn.Conv2d(6, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.Dropout2d(0.2))
        self.norm = nn.GroupNorm(2, 6)
        self.head = nn.Linear(6 * 4 * 4, 5)

    def forward(self, x):
        x = self.stem(x)
        x = F.max_pool2d(self.norm(x + self.block(x)), 2)
        return self.head(x.flatten(1))


class Recurrent(nn.Module):
    """An LSTM that returns its state as well."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 8, padding_idx=0)
        self.lstm = nn.LSTM(8, 10, num_layers=2, dropout=0.2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(20, WORDS)

    def forward(self, tokens):
        hidden, state = self.lstm(self.embedding(tokens))
        return {"logits": self.head(hidden), "state": state}


class Block(nn.Module):
    """Attention and a feed-forward part, with dropout in both."""

    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down, self.dropout = nn.Linear(width, 2 * width), nn.Linear(2 * width, width), nn.Dropout(0.1)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (part.view(batch, length, 2, -1).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1))
        fd.tap("queries", q)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.1 if self.training else 0.0)
        x = x + self.dropout(self.out(mixed.transpose(1, 2).reshape(batch, length, width)))
        return x + self.dropout(self.down(F.gelu(self.up(self.norm2(x)))))


class Transformer(nn.Module):
    """A decoder with dropout, tied embeddings, a frozen parameter, a buffer, a block that runs twice, `no_grad`."""

    def __init__(self, width=16):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, width)
        self.position = nn.Parameter(torch.randn(LENGTH, width) * 0.02)
        self.scale = nn.Parameter(torch.ones(()), requires_grad=False)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, WORDS, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        with torch.no_grad():
            self.seen += tokens.numel()
        x = self.embedding(tokens) * self.scale + self.position
        for block in (*self.blocks, self.blocks[0]):
            x = block(x)
        return self.head(self.norm(x))


class Encoder(nn.Module):
    """torch's own encoder, which has a fast path for evaluation."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 5)

    def forward(self, x):
        return self.head(self.encoder(x)[:, 0])


def mlp():
    return nn.Sequential(
        nn.Linear(6, 16), nn.ReLU(inplace=True), nn.Linear(16, 16), nn.GELU(), nn.Dropout(0.3), nn.Linear(16, 5)
    )  # fmt: skip


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=WORDS, n_positions=LENGTH, n_embd=16, n_layer=2, n_head=2, bos_token_id=1, eos_token_id=2,
        use_cache=False,
    )  # fmt: skip
    return GPT2LMHeadModel(config).train()


NETWORKS = {"mlp": mlp, "conv": Conv, "lstm": Recurrent, "transformer": Transformer, "encoder": Encoder, "gpt2": gpt2}
SHAPES = {"mlp": (BATCH, 6), "conv": (BATCH, 3, 8, 8), "encoder": (BATCH, LENGTH, 16)}  # the others read words
CHECKPOINTED = {"mlp": "2", "conv": "block", "lstm": "lstm", "transformer": "blocks.1", "encoder": "encoder.layers.1"}


def batch(name, number):
    """An input and its target, without touching anyone's random numbers."""
    generator = torch.Generator().manual_seed(number)
    if name in SHAPES:
        x = torch.randn(SHAPES[name], generator=generator)
        return x, torch.randint(5, (BATCH,), generator=generator)
    tokens = torch.randint(WORDS, (BATCH, LENGTH), generator=generator)
    return tokens, tokens


def forward(name, model, x, y):
    """What the model returns, and the loss."""
    if name == "gpt2":
        output = model(input_ids=x, labels=y)
        return output.logits, output.loss
    output = model(x)
    logits = output["logits"] if name == "lstm" else output
    return logits, F.cross_entropy(logits.flatten(0, -2), y.flatten())


def with_checkpoints(name, model, *, reentrant):
    """The model with activation checkpoints around some of it."""
    if name == "gpt2":
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
        return model
    block = model.get_submodule(CHECKPOINTED[name])
    plain = block.forward

    def checkpointed(*args, **kwargs):
        return checkpoint(functools.partial(plain, **kwargs), *args, use_reentrant=reentrant)

    block.forward = checkpointed
    return model


OPTIMIZERS = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, 1e-2),
    "foreach": lambda parameters: torch.optim.AdamW(parameters, 1e-2, foreach=True, amsgrad=True),
    "fused": lambda parameters: torch.optim.AdamW(parameters, 1e-2, fused=True),
    "sgd": lambda parameters: torch.optim.SGD(parameters, 1e-2, momentum=0.9, nesterov=True),
    "lbfgs": lambda parameters: torch.optim.LBFGS(parameters, 0.1, max_iter=3, history_size=4),
}
SETTINGS = {
    "plain": {},
    "autocast": {"autocast": True},
    "scaler": {"scaler": True},
    "scaler and fused": {"scaler": True, "optimizer": "fused"},
    "accumulation": {"accumulate": 3},
    "checkpoint": {"reentrant": False},
    "reentrant checkpoint": {"reentrant": True},
    "everything at once": {"autocast": True, "scaler": True, "accumulate": 2, "reentrant": False},
    "operations": {"granularity": "op"},
    "verification": {"verify": True},
    "foreach": {"optimizer": "foreach"},
    "fused": {"optimizer": "fused"},
    "sgd": {"optimizer": "sgd"},
    "lbfgs": {"optimizer": "lbfgs"},
    "no_grad": {"inference": "no_grad"},
    "no_grad, operations": {"inference": "no_grad", "granularity": "op"},
    "inference_mode": {"inference": "inference_mode"},
}
TRACE_OPTIONS = ("granularity", "verify")


def run(name, setting, *, count, path=None, **options):
    """Build and train a network, traced if there is a path, and return all its bits."""
    said = SETTINGS[setting]
    seed()
    model = NETWORKS[name]()
    if "reentrant" in said:
        model = with_checkpoints(name, model, reentrant=said["reentrant"])
    if "inference" in said:
        return _infer(name, model, said, count, path, options)
    optimizer = OPTIMIZERS[said.get("optimizer", "adamw")](model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=7) if said.get("scaler") else None
    bits = Bits()
    with _traced(model, path, said, {"optimizer": optimizer, "scaler": scaler, **options}):
        for step in range(count):
            _train(name, model, optimizer, scaler, said, step, bits)
    bits.add_run(model, optimizer)
    if scaler is not None:
        bits.add("scaler", scaler.state_dict())
    return bits


def _traced(model, path, said, options):
    if path is None:
        return nullcontext()
    return fd.trace(model, path, **{key: said[key] for key in TRACE_OPTIONS if key in said}, **options)


def _train(name, model, optimizer, scaler, said, step, bits):
    def evaluate():
        optimizer.zero_grad()
        loss = 0.0
        accumulate = said.get("accumulate", 1)
        for part in range(accumulate):
            x, y = batch(name, step * accumulate + part)
            with torch.autocast("cpu", torch.bfloat16, enabled="autocast" in said):
                logits, loss = forward(name, model, x, y)
                loss = loss / accumulate
            if scaler is not None and step == 5:
                loss = loss * float("inf")  # a step that the scaler skips
            (loss if scaler is None else scaler.scale(loss)).backward()
            bits.add(f"output {step}.{part}", logits)
            bits.add(f"loss {step}.{part}", loss)
        bits.add(f"gradient {step}", {key: one.grad for key, one in model.named_parameters()})
        return loss

    if said.get("optimizer") == "lbfgs":
        optimizer.step(evaluate)
        return
    evaluate()
    if scaler is None:
        optimizer.step()
        return
    if said.get("optimizer") != "fused":
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    scaler.step(optimizer)
    scaler.update()


def _infer(name, model, said, count, path, options):
    model.eval()
    bits = Bits()
    with getattr(torch, said["inference"])(), _traced(model, path, said, options):
        for step in range(count):
            logits, loss = forward(name, model, *batch(name, step))
            bits.add(f"output {step}", logits)
            bits.add(f"loss {step}", loss)
    bits.add_run(model)
    return bits


@functools.cache
def plain_run(name, setting, count):
    """The run without a trace."""
    return run(name, setting, count=count)


def fill_disk(monkeypatch, after):
    """Let the disk take so many writes, and no more."""
    left = iter(range(after))
    write = files._write_all

    def writing(file, data):
        if next(left, None) is None:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(file, data)

    monkeypatch.setattr("firstdrift.store.files._write_all", writing)
