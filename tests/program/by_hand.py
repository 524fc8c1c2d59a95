"""A tiny trace with a program written by hand, as another engine would write it."""

import json

import numpy as np

import firstdrift as fd
from firstdrift.program.written.read_program import read_program

X = np.arange(6, dtype=np.float32).reshape(2, 3)
W = np.arange(9, dtype=np.float32).reshape(3, 3) / 4
LEAF = np.array([2.0, -1.0, 0.5], np.float32)  # stored for the program alone

HEADER = ['{"program":1,"engine":"by hand","threads":1}']
DEFINITIONS = [
    '{"type":[0,"f32",[2,3]]}', '{"type":[1,"f32",[3,3]]}', '{"type":[2,"f32",[3]]}', '{"module":[0,"fc"]}',
    '{"line":[0,"engine.c",12,"forward"]}', '{"function":[0,"torch.mul"]}', '{"function":[1,"torch.Tensor.tolist"]}',
]  # fmt: skip
LEAVES = ['{"n":0,"type":0,"site":["input","input","x"]}', '{"n":1,"type":1,"site":["weight","fc","weight"]}']
PRODUCT = '{"n":2,"op":"aten.mm.default","args":[{"%":0},{"%":1}],"out":[0],"module":0,"line":0}'
STEP = [*LEAVES, PRODUCT, '{"is":{"%":2},"site":["fwd","fc","out"]}']


def written(path, *, steps=1):
    """The tensors that the program is of; where the leaf lies."""
    with fd.Writer(path) as writer:
        for step in range(steps):
            writer.put("input", "input", X, port="x", step=step)
            writer.put("fc", "weight", W, step=step)
            writer.put("fc", "fwd", X @ W, step=step)
        return writer.store(LEAF, "a leaf").at


def step(lines, number=0):
    return [f'{{"step":{number},"lines":{len(lines)}}}', *lines]


def whole(body, header=HEADER, definitions=DEFINITIONS):
    """A file around the lines of its steps."""
    lines = [*header, *definitions, *body]
    return "\n".join([*lines, json.dumps({"end": len(lines)})]) + "\n"


def program_of(path, text):
    """Put a program beside a trace's tensors and read it."""
    (path / "program.jsonl").write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_program(fd.open_trace(path))
