"""`fd.estimate` says what a trace will hold, without taking it, computing it or touching the model."""

import io
import subprocess
import sys
from collections import Counter

import pytest
import torch
from torch import nn

import firstdrift as fd


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.attend = nn.Embedding(9, 8), nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm, self.drop, self.head = nn.LayerNorm(8), nn.Dropout(0.5), nn.Linear(8, 9, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids, mask=None):
        h = self.embed(ids)
        h = h + self.drop(self.attend(h, h, h)[0])
        return self.head(fd.tap("normed", self.norm(h)))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(4, 5, batch_first=True), nn.Linear(5, 2)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


class Selecting(nn.Module):
    """The values of its input decide the shapes inside it."""

    def __init__(self):
        super().__init__()
        self.fc, self.drop = nn.Linear(4, 3), nn.Dropout(0.5)

    def forward(self, x):
        return self.fc(self.drop(x[x[:, 0] > 0])).mean(0, keepdim=True)


def convolution():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4, 3)
    )


def frozen():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    model[0].requires_grad_(False)
    return model


NETWORKS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 3)), lambda: torch.randn(5, 4)),
    "mlp in float64": (lambda: nn.Sequential(nn.Linear(4, 3).double()), lambda: torch.randn(5, 4).double()),
    "mlp in bfloat16": (lambda: nn.Sequential(nn.Linear(4, 3).bfloat16()), lambda: torch.randn(5, 4).bfloat16()),
    "convolution": (convolution, lambda: torch.randn(2, 1, 5, 5)),
    "attention": (Attending, lambda: torch.randint(9, (2, 3))),
    "recurrent": (Recurrent, lambda: torch.randn(2, 3, 4)),
    "encoder in evaluation": (  # which takes another path without gradients
        lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(),
        lambda: torch.randn(2, 3, 8),
    ),
    "frozen": (frozen, lambda: torch.randn(5, 4)),
    "shapes by values": (Selecting, lambda: torch.randn(7, 4)),
}
ADAMW, SGD = torch.optim.AdamW, torch.optim.SGD
CASES = [
    *((network, ADAMW, {}) for network in NETWORKS),
    ("mlp", None, {}),
    ("mlp", lambda p: SGD(p, lr=0.1), {}),
    ("mlp", lambda p: SGD(p, lr=0.1, momentum=0.9), {}),
    ("mlp", lambda p: ADAMW(p, amsgrad=True, foreach=False), {}),
    ("convolution", ADAMW, {"keep": "stats"}),
    ("convolution", ADAMW, {"keep": {"*": "stats", "0": "full"}}),
    ("convolution", ADAMW, {"only": ["0", "5"]}),
    ("convolution", ADAMW, {"classes": "Linear", "phases": ["weight", "grad*"]}),
    ("attention", ADAMW, {"depth": 1, "phases": "fwd"}),
    ("mlp", ADAMW, {"granularity": "op"}),
    ("convolution", ADAMW, {"granularity": "op", "only": ["1", "2"]}),
    ("attention", ADAMW, {"granularity": "op"}),
]


def counted(path):
    """Tensors by phase, and bytes by the phase that first names them, as the trace on disk has them."""
    trace = fd.open_trace(path)
    tensors, stored, seen = Counter(), Counter(), set()
    for one in trace.lines:
        tensors[one.site.phase] += one.absent is None
        if one.at is not None and one.at not in seen:
            seen.add(one.at)
            stored[one.site.phase] += one.at[2]
    return +tensors, +stored, max((at[2] for at in seen), default=0)


def snapshot(model, optimizer):
    """Everything that an estimate might have touched, as bytes."""
    file = io.BytesIO()
    modules = [(one.training, len(one._forward_hooks), len(one._forward_pre_hooks)) for one in model.modules()]
    gradients = [one.grad for one in model.parameters()]
    state = None if optimizer is None else optimizer.state_dict()
    torch.save((model.state_dict(), gradients, state, torch.get_rng_state(), modules, nn.Module.__call__), file)
    return file.getvalue()


@pytest.mark.parametrize(("network", "optimizer", "options"), CASES)
@pytest.mark.parametrize("train", [True, False], ids=["train", "forward"])
def test_an_estimate_is_exactly_what_the_trace_then_holds(network, optimizer, options, train, tmp_path):
    torch.manual_seed(0)
    make, feed = NETWORKS[network]
    model, x = make(), feed()
    optimizer = optimizer and optimizer([one for one in model.parameters() if one.requires_grad])
    before = snapshot(model, optimizer)
    estimate = fd.estimate(model, (x,), optimizer=optimizer, train=train, **options)
    assert snapshot(model, optimizer) == before
    taking = {**options, "optimizer": optimizer if train else None}
    with torch.set_grad_enabled(train), fd.trace(model, tmp_path / "t", **taking):
        out = model(x)
        if train:
            out.flatten(1).logsumexp(-1).mean().backward()
            if optimizer is not None:
                optimizer.step()
    tensors, stored, largest = counted(tmp_path / "t")
    assert estimate.tensors_by_phase == tensors
    assert +Counter(estimate.bytes_by_phase) == stored
    assert (estimate.tensors, estimate.bytes) == (tensors.total(), stored.total())
    assert estimate.largest == largest


def test_inputs_are_a_tuple_a_dict_or_one_tensor():
    model, ids = Attending(), torch.randint(9, (2, 3))
    found = [fd.estimate(model, given) for given in ((ids,), [ids], {"ids": ids}, ids)]
    assert len({(one.tensors, one.bytes) for one in found}) == 1


def test_several_optimizers_are_counted_together():
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    optimizers = [ADAMW(model[0].parameters()), SGD(model[1].parameters(), lr=0.1, momentum=0.9)]
    estimate = fd.estimate(model, torch.ones(1, 2), optimizer=optimizers)
    assert (estimate.tensors_by_phase["optim"], estimate.tensors_by_phase["weight_after"]) == (8, 4)


def test_a_second_step_with_state_in_the_optimizer_is_estimated_the_same(tmp_path):
    model = nn.Linear(2, 3)
    optimizer = ADAMW(model.parameters())
    first = fd.estimate(model, torch.ones(1, 2), optimizer=optimizer)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    before = snapshot(model, optimizer)
    assert fd.estimate(model, torch.ones(1, 2), optimizer=optimizer) == first
    assert snapshot(model, optimizer) == before


def test_a_pattern_that_matches_nothing_is_refused():
    with pytest.raises(fd.SelectionError, match="only 'x' matches nothing"):
        fd.estimate(nn.Linear(2, 2), torch.ones(1, 2), only="x")


def test_an_error_of_the_model_is_its_own():
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        fd.estimate(nn.Linear(2, 2), torch.ones(1, 3))


def test_it_reads_as_a_table():
    text = str(fd.estimate(nn.Linear(2, 3), torch.ones(5, 2), phases=["fwd", "weight"], train=False))
    assert text.splitlines() == [
        "4 tensors, 136 B a step; the largest 60 B",
        "  weight             2 tensors                 36 B",
        "  fwd                2 tensors                100 B",
    ]


def test_a_model_on_the_meta_device_is_estimated_from_its_shapes():
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(16384, 16384) for _ in range(2)))  # 2 GiB
        x = torch.empty(1, 16384)
    estimate = fd.estimate(model, x, optimizer=ADAMW(model.parameters()))
    assert estimate.bytes_by_phase["weight"] == estimate.bytes_by_phase["grad"] == 2 * 4 * (16384**2 + 16384)


def test_the_estimate_of_a_large_model_takes_little_memory():
    code = """
import resource, torch, firstdrift as fd
from torch import nn
with torch.device("meta"):
    model = nn.Sequential(nn.Linear(5120, 5120), nn.Linear(5120, 5120))  # 200 MiB
model.to_empty(device="cpu")
optimizer = torch.optim.AdamW(model.parameters())
small = nn.Sequential(nn.Linear(2, 2))
fd.estimate(small, torch.ones(1, 2), optimizer=torch.optim.AdamW(small.parameters()))  # what is loaded on first use
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
estimate = fd.estimate(model, torch.ones(64, 5120), optimizer=optimizer)
assert estimate.tensors_by_phase["optim"] == 12
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert int(done.stdout) < 50


def test_a_model_that_cannot_run_says_why_and_nothing_else(caplog):
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        fd.estimate(nn.Linear(2, 2), torch.ones(1, 3))
    assert not caplog.records
