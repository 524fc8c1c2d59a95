"""A replay is bounded by counts, and runs a few samples at a time where the program treats samples one by one."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.program.replaying import batch, mlp, record
from tests.program.test_cuts import Attention, cuts_of
from torch import nn

import firstdrift as fd
from firstdrift.program.calls import Call, Ref
from firstdrift.program.costs import Limits, cost_of
from firstdrift.program.cuts import Cuts
from firstdrift.program.interpreter import Interpreter, NotReplayableError
from firstdrift.program.running.batching import batch_of

OUT = fd.Site(0, "fwd", "", "out")


class Heads(nn.Module):
    """Rows, heads and samples change places, as in every transformer."""

    def __init__(self):
        super().__init__()
        self.embed, self.norm, self.qkv, self.out = (
            nn.Embedding(11, 8),
            nn.LayerNorm(8),
            nn.Linear(8, 24),
            nn.Linear(8, 8),
        )

    def forward(self, tokens):
        x = self.embed(tokens)
        q, k, v = (one.reshape(*x.shape[:2], 2, 4).transpose(1, 2) for one in self.qkv(self.norm(x)).chunk(3, -1))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        scores = (q @ k.transpose(-2, -1)).softmax(-1) @ v
        return x + self.out((mixed + scores).transpose(1, 2).flatten(2)).mean(1, keepdim=True)


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two, self.head = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3, groups=2), nn.Linear(4, 5)

    def forward(self, x):
        x = nn.functional.max_pool2d(nn.functional.gelu(self.one(x)), 2)
        return self.head(self.two(x).mean((2, 3)))


RUNS = {
    "heads": (Heads, lambda: torch.randint(11, (6, 5))),
    "convolutions": (Convolutions, lambda: torch.randn(6, 3, 9, 9)),
    "channels last": (Convolutions, lambda: torch.randn(6, 3, 9, 9).to(memory_format=torch.channels_last)),
    "rows": (mlp, lambda: torch.randn(6, 4)),
    "attention with dropout": (Attention, lambda: torch.randn(6, 5, 8)),
}


def recorded(path, name):
    torch.manual_seed(0)
    build, data = RUNS[name]
    model, x = build(), data()
    return record(path, model, lambda: model(x))


def whole_cut(found):
    """From the inputs and weights alone to the output."""
    return Cuts(found.step, lambda site: site.phase in ("input", "weight")).at(OUT)


@pytest.mark.parametrize("options", [{}, {"exact": True}], ids=str)
@pytest.mark.parametrize("name", RUNS)
def test_in_parts_it_gives_what_it_gives_whole(tmp_path, name, options):
    found = recorded(tmp_path / "t", name)
    cut = whole_cut(found)
    cost = cost_of(found.step, cut, exact="exact" in options)
    whole = Interpreter(found.step, found.trace, **options).array_of(cut)
    shared = sum(found.trace.array(site).nbytes for site in found.step.sites if site.phase == "weight")
    shared *= 2 if options else 1
    for divisor in (2, 3):
        limits = Limits(bytes=shared + (cost.bytes - shared) // divisor)
        parts = Interpreter(found.step, found.trace, limits=limits, **options).array_of(cut)
        assert parts.shape == whole.shape
        assert np.abs(parts - whole).max() <= (1e-12 if options else 1e-5) * np.abs(whole).max()


def test_the_samples_of_each_value_are_found(tmp_path):
    found = recorded(tmp_path / "t", "heads")
    cut = whole_cut(found)
    axes = batch_of(found.step, cut)
    assert axes.samples == 6
    products = [axes.axes[Ref(number)] for number, call in found.step.calls() if call.op == "aten.bmm.default"]
    assert products == [(0, 2), (0, 2)]  # two heads of each sample, one behind the other


def refused(path, model, run, phase, name, port, starts):
    found = record(path, model, run)
    cut = Cuts(found.step, lambda site: site.phase in starts).at(fd.Site(0, phase, name, port))
    assert any(isinstance(found.step.nodes[number], Call) for number in cut.nodes)
    with pytest.raises(NotReplayableError) as error:
        Interpreter(found.step, found.trace, limits=Limits(bytes=64)).value_of(cut)
    return str(error.value)


def test_what_mixes_samples_is_refused_by_name(tmp_path):
    x, _ = batch()
    norm = nn.BatchNorm1d(4)
    why = refused(tmp_path / "a", norm, lambda: norm(x), "fwd", "", "out", ("input", "weight"))
    assert "bytes, and 64 are allowed; in parts neither: aten.native_batch_norm.default treats samples together" in why
    model = mlp()
    why = refused(
        tmp_path / "b", model, lambda: model(x).sum().backward(), "grad", "0", "weight", ("fwd", "agrad", "weight")
    )
    assert "aten.mm.default treats samples together" in why


MIXING = {
    "mean.dim": lambda self, x: x - x.mean(0),
    "flip.default": lambda self, x: x.flip(0),
    "mm.default": lambda self, x: x @ x.T,
    "add.Tensor": lambda self, x: x + self.table,  # which has a row for each sample
    "cat.default": lambda self, x: torch.cat([x, x]),
    "slice.Tensor": lambda self, x: x[1:] * 2,
    "view.default": lambda self, x: x.view(2, 10),
    "_softmax.default": lambda self, x: x.softmax(0),
}


@pytest.mark.parametrize("op", MIXING)
def test_a_call_that_does_not_treat_samples_one_by_one_is_refused(tmp_path, op):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("table", torch.randn(5, 4))

        def forward(self, x):
            return MIXING[op](self, x)

    model, (x, _) = Model(), batch()
    why = refused(tmp_path / "t", model, lambda: model(x), "fwd", "", "out", ("input", "weight"))
    assert f"in parts neither: aten.{op} treats samples together" in why


def test_a_table_as_long_as_the_batch_is_not_cut_with_it(tmp_path):
    """Five positions and five samples: along which axis they are added decides, not how many they are."""

    class Positions(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("table", torch.randn(5, 4))

        def forward(self, x):
            return (x + self.table).softmax(-1) @ self.table.T

    model, x = Positions(), torch.randn(5, 5, 4)
    found = record(tmp_path / "t", model, lambda: model(x))
    cut = whole_cut(found)
    whole = Interpreter(found.step, found.trace, exact=True).array_of(cut)
    limits = Limits(bytes=cost_of(found.step, cut, exact=True).bytes * 2 // 3)
    parts = Interpreter(found.step, found.trace, exact=True, limits=limits).array_of(cut)
    assert np.abs(parts - whole).max() < 1e-12


@pytest.mark.parametrize("count", ["calls", "elements"])
def test_what_takes_too_much_is_refused_with_its_count(tmp_path, count):
    found = recorded(tmp_path / "t", "rows")
    cut = whole_cut(found)
    cost = cost_of(found.step, cut, exact=False)
    allowed = {count: getattr(cost, count)}
    assert Interpreter(found.step, found.trace, limits=Limits(**allowed)).array_of(cut).shape == (6, 3)
    with pytest.raises(NotReplayableError, match=rf"takes {getattr(cost, count):,} {count}, and 1 are allowed"):
        Interpreter(found.step, found.trace, limits=replace(Limits(), **{count: 1})).value_of(cut)


def test_costs_are_counted_from_the_types_alone(tmp_path):
    found = recorded(tmp_path / "t", "rows")
    cuts = {site: cut for _, site, cut in cuts_of(found)}
    cost = cost_of(found.step, cuts[fd.Site(0, "fwd", "1", "out")], exact=False)
    assert (cost.calls, cost.elements, cost.bytes) == (2, 144, 2 * 48 * 4)  # six rows of eight, a relu, its alias
    assert cost_of(found.step, cuts[fd.Site(0, "fwd", "1", "out")], exact=True).bytes == 2 * 48 * 8


MEMORY = """
import re, sys
import firstdrift as fd
from firstdrift.program.costs import Limits, cost_of
from firstdrift.program.cuts import Cuts
from firstdrift.program.interpreter import Interpreter
from firstdrift.program.written.read_program import read_program
trace = fd.open_trace(sys.argv[1])
step = read_program(trace).steps[0]
cut = Cuts(step, lambda site: site.phase in ("input", "weight")).at(fd.Site(0, "fwd", "", "out"))
def peak():
    return int(re.search("VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1])
Interpreter(step, trace, exact=True, limits=Limits(bytes=12 << 20)).value_of(cut)  # so that libraries are loaded
before = peak()
limits = Limits(bytes=int(sys.argv[2]) << 20)
Interpreter(step, trace, exact=True, limits=limits).value_of(cut)
print(peak() - before, cost_of(step, cut, exact=True).bytes)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of a process is read there")
def test_memory_stays_near_what_is_allowed(tmp_path):
    """In processes of their own: whole, and with a sixth of that allowed."""

    class Wide(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Linear(64, 4096), nn.Linear(4096, 64)

        def forward(self, x):
            return self.down(nn.functional.gelu(self.up(x)))

    model, x = Wide(), torch.randn(4096, 64)
    record(tmp_path / "t", model, lambda: model(x))
    grown = {}
    settings = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(1 << 20)}  # what is freed is given back at once
    for allowed in (1024, 40):
        script = [sys.executable, "-c", MEMORY, str(tmp_path / "t"), str(allowed)]
        done = subprocess.run(script, capture_output=True, text=True, check=True, env=settings)
        grown[allowed], bytes_ = (int(one) for one in done.stdout.split())
    whole = bytes_ >> 10  # kilobytes, as the peaks are
    assert whole > 240 << 10  # two tensors of 128 MiB at once
    assert grown[1024] > whole / 2, grown  # so it is seen (importing may have left a peak that hides a part)
    assert grown[40] < whole / 4, grown
