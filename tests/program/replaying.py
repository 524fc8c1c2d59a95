"""What tests of programs share: tiny models, their traces, and every recorded tensor computed again from the file."""

import json

import torch
from torch import nn

import firstdrift as fd
from firstdrift.program.calls import Call, Leaf
from firstdrift.program.interpreter import Interpreter, NotReplayableError
from firstdrift.program.process_settings import as_recorded
from firstdrift.program.written.read_program import read_program

WIDTH = 6


class Body(nn.Module):
    """A linear layer, a function of what it gives, and a head; `body(model, lifted)` is the function."""

    def __init__(self, body, **attributes):
        super().__init__()
        self.lift, self.head = nn.Linear(4, WIDTH), nn.Linear(WIDTH, 3)
        self.body = body
        for name, item in attributes.items():
            setattr(self, name, item)

    def forward(self, x):
        return self.head(self.body(self, self.lift(x)))


def mlp():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def batch(number=0, rows=5):
    generator = torch.Generator().manual_seed(number)
    return torch.randn(rows, 4, generator=generator), torch.randint(3, (rows,), generator=generator)


def train(model, optimizer, steps=1, rows=5):
    for number in range(steps):
        x, y = batch(number, rows)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


class Recorded:
    """A trace with its program, read back from the files."""

    def __init__(self, path):
        self.path = path
        self.trace = fd.open_trace(path)
        self.program = read_program(self.trace)
        self.text = (path / "program.jsonl").read_text()
        self.lines = [json.loads(line) for line in self.text.splitlines()]

    @property
    def step(self):
        return self.program.steps[min(self.program.steps)]

    def calls(self, op="", step=None):
        """Calls whose operation begins so."""
        found = self.step if step is None else self.program.steps[step]
        return [call for _, call in found.calls() if call.op.startswith(op)]

    def functions(self, name, step=None):
        found = self.step if step is None else self.program.steps[step]
        return [one for one in found.functions if one.op == name] + [
            one for _, one in found.calls() if one.function == name
        ]

    def leaves(self, source=object, step=None):
        found = self.step if step is None else self.program.steps[step]
        return [one for one in found.nodes if isinstance(one, Leaf) and isinstance(one.source, source)]


def record(path, model, run, **options):
    """Trace what `run` does, and read it back."""
    torch.manual_seed(0)
    with fd.trace(model, path, **options):
        run()
    return Recorded(path)


def record_training(path, model, optimizer=None, steps=1, rows=5, **options):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), 0.1)
    return record(path, model, lambda: train(model, optimizer, steps, rows), optimizer=optimizer, **options)


def bits_of(tensor):
    """The dtype, shape and very bits of a tensor."""
    plain = tensor.detach().resolve_conj().clone(memory_format=torch.contiguous_format)
    kind = str(tensor.dtype).removeprefix("torch.")
    return kind, tuple(tensor.shape), plain.reshape(-1).view(torch.uint8).numpy().tobytes()


def array_bits(array):
    return array.dtype.name, array.shape, array.tobytes()


def replay(recorded, number):
    """The values of a step's sites computed from the file, and why calls could not be made again."""
    step = recorded.program.steps[number]
    keep = frozenset(ref.node for ref in step.sites.values())
    failed, made = {}, {}
    with as_recorded(recorded.program.header):
        for node, found in Interpreter(step, recorded.trace).run():
            if isinstance(found, NotReplayableError):
                failed[node] = str(found)
            elif node in keep:
                made[node] = found
    values = {site: made[ref.node][ref.at] for site, ref in step.sites.items() if ref.node in made}
    return values, failed


def assert_replays(recorded, *, but=lambda site: False, lost=False):
    """Every recorded tensor is in the program, and running it gives the very bits; `but` says which are not there."""
    assert recorded.trace.complete, recorded.trace.problems
    assert recorded.program.problems == ()
    compared = 0
    for number, step in recorded.program.steps.items():
        values, failed = replay(recorded, number)
        if not lost and failed:
            raise AssertionError({node: (step.nodes[node], why) for node, why in list(failed.items())[:4]})
        stored = {one.site for one in recorded.trace if one.site.step == number and one.at is not None}
        left_out = {str(site) for site in stored - step.sites.keys()}
        assert left_out == {str(site) for site in stored if but(site)}, left_out
        for site, value in values.items():
            assert bits_of(value) == array_bits(recorded.trace.array(site)), site
            compared += isinstance(step.nodes[step.sites[site].node], Call)
        if not lost:
            assert values.keys() == step.sites.keys()
    assert compared
    return compared
