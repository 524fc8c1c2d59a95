"""Traces of every format, whole and ready to be damaged, and the programs beside them."""

import io
import zipfile
from pathlib import Path

import numpy as np
from tests.fuzzing.feeding import Subject

import firstdrift as fd
from firstdrift.compare.open_trace import load_format
from firstdrift.program.interpreter import Interpreter
from firstdrift.program.written.read_program import read_program
from firstdrift.store.reader import verify
from firstdrift.testing import awkward_array, memory_trace
from firstdrift.testing.damage import files_of, read_all
from firstdrift.weights.writing import write_checkpoint

FLAT = {
    fd.Site(0, "fwd", "conv1", "out"): awkward_array("f32"),
    fd.Site(0, "grad", "conv1", "bias"): awkward_array("f16").reshape(2, -1),
    fd.Site(1, "fwd", "conv1", "out", 0, 3): np.float64(1.5),
}
STAGES = {
    fd.Site(0, "fwd", "layer-0.attn_norm", "out"): awkward_array("f32"),
    fd.Site(0, "fwd", "lm_head", "out"): np.float32([]),
}


def parts_of(directory: Path) -> dict[str, bytes]:
    """Every file below a directory, by its name."""
    return {file.relative_to(directory).as_posix(): file.read_bytes() for file in files_of(directory)}


def written(format: str, name: str, tensors, scratch: Path) -> Subject:
    """A trace in a format."""
    load_format(format).write(memory_trace(tensors), scratch / name, overwrite=False, advance=lambda n: None)

    def read(directory: Path) -> None:
        found = load_format(format)
        found.recognise(directory / name)
        read_all(found, directory / name)

    return Subject(parts_of(scratch), read)


def native(scratch: Path) -> Subject:
    """Everything that a line of an index may hold, checksums included."""
    with fd.Writer(scratch / "t", header={"model": "m", "gradient_of": {"reduction": "mean", "batch": 4}}) as writer:
        writer.put("fc", "weight", np.ones((2, 3), np.float32), port="weight", aliases=["head"])
        writer.put("fc", "fwd", awkward_array("bf16"), op="linear", attrs={"bias": True, "eps": 1e-5}, layer=0)
        writer.put("fc", "fwd", np.arange(6.0), step=1, producers=[fd.Site(1, "fwd", "fc", "in.0")], order=3)
        writer.put_absent("fc", "grad", "no gradient", port="weight")
        writer.put("loss", "loss", np.float32(0.5), note="said")

    def read(directory: Path) -> None:
        found = read_all(load_format("trace"), directory / "t").trace
        if found is not None:
            verify(found)

    return Subject(parts_of(scratch), read)


def shard_index(scratch: Path) -> Subject:
    """Tensors in several safetensors files, and the index that says which is where."""
    tensors = {"conv1.fwd": np.ones(3, np.float32), "fc.weight": np.ones((2, 3), np.float16)}
    name = "m.safetensors.index.json"
    write_checkpoint(scratch / name, tensors.items(), format="safetensors-sharded", metadata={}, shard_bytes=12)
    return Subject(parts_of(scratch), lambda directory: read_all(load_format("safetensors"), directory / name))


def inside_npz(scratch: Path) -> Subject:
    """The members of an archive damaged, and the archive whole around them: no checksum stands in the way."""
    load_format("npz").write(memory_trace(FLAT), scratch / "a.npz", overwrite=False, advance=lambda n: None)
    with zipfile.ZipFile(scratch / "a.npz") as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}

    def put(directory, members):
        made = io.BytesIO()
        with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED if len(members) % 2 else zipfile.ZIP_STORED) as archive:
            for name, data in members.items():
                archive.writestr(name, data)
        (directory / "a.npz").write_bytes(made.getvalue())

    return Subject(parts, lambda directory: read_all(load_format("npz"), directory / "a.npz"), put)


def recorded(scratch: Path) -> None:
    """One step of a small network, with its program."""
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Dropout(0.5), torch.nn.Linear(6, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    with fd.trace(model, scratch / "t", optimizer=optimizer):
        for _ in range(2):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(torch.randn(5, 4)), torch.tensor([0, 1, 2, 0, 1])).backward()
            optimizer.step()


def program(scratch: Path) -> Subject:
    """A program, read and shown; the trace beside it stays whole."""
    recorded(scratch)
    whole = {name: data for name, data in parts_of(scratch).items() if name != "t/program.jsonl"}

    def put(directory, parts):
        if not (directory / "t" / "index.jsonl").exists():
            for name, data in whole.items():
                (directory / name).write_bytes(data)
        (directory / "t" / "program.jsonl").write_bytes(parts["t/program.jsonl"])

    return Subject({"t/program.jsonl": parts_of(scratch)["t/program.jsonl"]}, _read_steps, put)


def _read_steps(directory: Path) -> list:
    found = read_program(fd.open_trace(directory / "t"))
    return [] if found is None else [found.steps[number] for number in found.steps]


def replayed(scratch: Path) -> Subject:
    """A program that is run, as far as it can be: a call that torch refuses is a reason of ours."""
    subject = program(scratch)

    def read(directory: Path) -> None:
        trace = fd.open_trace(directory / "t")
        for step in _read_steps(directory):
            for _ in Interpreter(step, trace, exact=True).run():
                pass

    return Subject(subject.parts, read, subject.put)


def compared(scratch: Path) -> Subject:
    """A damaged trace against a whole one, through the whole comparison."""
    for side in ("a", "b"):
        with fd.Writer(scratch / side) as writer:
            x = np.arange(12, dtype=np.float32).reshape(3, 4) / 7
            w = np.arange(8, dtype=np.float32).reshape(2, 4) / 3
            writer.put("", "input", x, port="x")
            writer.put("fc", "weight", w, port="weight")
            writer.put("fc", "fwd", x @ w.T * (1 if side == "a" else 2), op="linear", attrs={"bias": False})
    return Subject(parts_of(scratch), lambda directory: fd.diff(directory / "a", directory / "b").to_json())


TRACES = {
    "trace": (native, 80_000),
    "aprt": (lambda scratch: written("aprt", "run", STAGES, scratch), 30_000),
    "npy steps": (lambda scratch: written("npy", "run", FLAT, scratch), 30_000),
    "npz": (lambda scratch: written("npz", "a.npz", FLAT, scratch), 25_000),
    "npz members": (inside_npz, 15_000),
    "safetensors": (lambda scratch: written("safetensors", "a.safetensors", FLAT, scratch), 30_000),
    "safetensors index": (shard_index, 15_000),
    "program": (program, 30_000),
    "program run": (replayed, 5_000),
    "diff": (compared, 3_000),
}
