"""Every writer, what may lie there before it, and what has to be there whenever it is killed."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np

import firstdrift as fd
from firstdrift.aprt import read_stage_file, write_stage_file
from firstdrift.compare.open_trace import load_format
from firstdrift.core.stages import STAGES
from firstdrift.errors import FirstdriftError
from firstdrift.store.annotate import annotate
from firstdrift.sweeping.case_rows import failed_row
from firstdrift.sweeping.cases import Case
from firstdrift.sweeping.ledger import open_ledger
from firstdrift.testing import memory_trace
from firstdrift.weights.open_checkpoint import open_checkpoint
from firstdrift.weights.writing import write_checkpoint

OLD, NEW = 1.0, 2.0  # what a tensor is full of
SIZES = (10, 5_000, 60_000)
PIECES = 6  # tensors of an export
Said = Callable[[], None]


def nothing(path: Path) -> None:
    """Nothing was there."""


@dataclass(frozen=True)
class Writer:
    """`write(path, said)` calls `said` after every piece that is promised from then on; `check(path, said, over)`."""

    write: Callable[[Path, Said], None]
    check: Callable[[Path, int, bool], None]
    before: Callable[[Path], None] = nothing


def values_of(trace: fd.Trace) -> list[float]:
    """What each tensor of a trace is full of."""
    found = []
    for record in trace:
        array = trace.array(record)
        assert array.size in SIZES
        assert np.all(array == array.flat[0])
        found.append(float(array.flat[0]))
    return found


# The native trace.


def put(path: Path, said: Said, value: float = NEW, **options) -> None:
    with fd.Writer(path / "t", **options) as writer:
        for step in range(20):
            for size in SIZES:
                writer.put(f"size{size}", "fwd", np.full(size, value, np.float32), step=step)
                said()


def check_put(path: Path, said: int, over: bool, queue: int = 0) -> None:
    try:
        trace = fd.open_trace(path / "t")
    except fd.FirstdriftError as error:
        assert not said, error
        return
    found = values_of(trace)
    assert set(found) <= {NEW} or (set(found) == {OLD} and not said), "old and new in one trace"
    if OLD in found:
        assert len(found) == 60
        return
    assert said - queue <= len(found) <= said + 1
    assert trace.complete == (len(found) == 60 and not any("no end line" in one for one in trace.problems))
    fd.Writer(path / "t", overwrite=True).close()  # a dead writer's trace is not locked
    assert fd.open_trace(path / "t").complete


def add_notes(path: Path, said: Said) -> None:
    trace = fd.open_trace(path / "t")
    annotate(path / "t", {record.site: {"note": "seen"} for record in trace}, {"more": 1})
    said()


def check_notes(path: Path, said: int, over: bool) -> None:
    trace = fd.open_trace(path / "t")
    assert trace.complete
    assert values_of(trace) == [OLD] * 60
    notes = {record.to_json().get("note") for record in trace}
    assert notes == {"seen"} if said else notes in ({"seen"}, {None})
    assert trace.header.get("more") == 1 or not said


# Exports and stage files.


@cache
def source(format: str, value: float) -> fd.Trace:
    names = [f"layer-{number}.attn_norm" if format == "aprt" else f"conv{number}" for number in range(PIECES)]
    return memory_trace({fd.Site(0, "fwd", name, "out"): np.full(5_000, value, np.float32) for name in names})


def export(format: str, name: str, value: float, path: Path, said: Said = lambda: None) -> None:
    load_format(format).write(source(format, value), path / name, overwrite=True, advance=lambda done: None)
    said()


def check_export(format: str, name: str, path: Path, said: int, over: bool, *, whole: bool) -> None:
    try:
        trace = fd.open_trace(path / name)
    except fd.FirstdriftError as error:
        assert not said, error
        assert not (whole and over), f"what was there is lost: {error}"
        return
    found = values_of(trace)
    assert len(set(found)) <= 1, "old and new in one export"
    if whole or said:
        assert len(found) == PIECES
    assert set(found) <= ({NEW} if said else {OLD, NEW})


def exporting(format: str, name: str, *, whole: bool, over: bool) -> Writer:
    """`whole`: one file, which is there or not; else tensors come one by one, and those of before are gone first."""
    return Writer(
        partial(export, format, name, NEW),
        partial(check_export, format, name, whole=whole),
        partial(export, format, name, OLD) if over else nothing,
    )


def dump(path: Path, said: Said, value: float = NEW) -> None:
    for layer in range(3):
        for stage in STAGES[1:8]:
            write_stage_file(path / "run", layer, stage, np.full(3_000, value, np.float32))
            said()


def check_dump(path: Path, said: int, over: bool) -> None:
    files = sorted((path / "run").rglob("*.bin")) if (path / "run").exists() else []
    found = [read_stage_file(file)[1] for file in files]
    full = [float(one[0]) for one in found if one.size == 3_000 and np.all(one == one[0])]
    assert len(full) == len(files)
    assert full.count(NEW) in (said, said + 1)
    assert len(full) == 21 if over else set(full) <= {NEW}


# Checkpoints.


def tensors(value: float) -> list[tuple[str, np.ndarray]]:
    shapes = {
        "model.embed_tokens.weight": (64, 32),
        "model.layers.0.self_attn.q_proj.weight": (64, 32),
        "model.norm.weight": (32,),
    }
    return [(name, np.full(shape, value, np.float32)) for name, shape in shapes.items()]


def store(format: str, name: str, value: float, path: Path, said: Said = lambda: None) -> None:
    metadata = {"general.architecture": "llama", "llama.attention.head_count": 2} if format == "gguf" else {}
    write_checkpoint(path / name, tensors(value), format=format, metadata=metadata, shard_bytes=9_000)
    said()


def check_stored(name: str, path: Path, said: int, over: bool) -> None:
    sharded = name.endswith(".json")
    try:
        with open_checkpoint(path / name) as checkpoint:
            found = {float(value) for one in checkpoint for value in np.unique(checkpoint[one])}
            assert len(checkpoint) == 3
    except FirstdriftError as error:
        assert not said, error
        assert sharded or not over, f"what was there is lost: {error}"
        return
    assert found == {NEW} if said else found in ({OLD}, {NEW}), f"{found} in one checkpoint"


def storing(format: str, name: str, *, over: bool) -> Writer:
    return Writer(
        partial(store, format, name, NEW),
        partial(check_stored, name),
        partial(store, format, name, OLD) if over else nothing,
    )


# Training runs.


@cache
def trainer(value: float):
    import torch

    from firstdrift.decoder.decoder_config import PRESETS
    from firstdrift.decoder.model import Decoder
    from firstdrift.pretrain.run_settings import Settings
    from firstdrift.pretrain.trainer import Trainer

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Decoder(PRESETS["tiny"])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)
    return Trainer(model, Settings.of(), "cpu")


def save(path: Path, said: Said = lambda: None, value: float = NEW) -> None:
    from firstdrift.pretrain.run_checkpoints import Progress, save_checkpoint

    stamp = {"name": "m", "architecture": "LlamaForCausalLM"}
    save_checkpoint(path, trainer(value), Progress(), stamp, "data", {"vocab.json": b"{}"})
    said()


def check_saved(path: Path, said: int, over: bool) -> None:
    from firstdrift.pretrain.run_checkpoints import CHECKPOINTS, all_checkpoints, read_state, remove_partial

    remove_partial(path / CHECKPOINTS)  # as going on does
    found = all_checkpoints(path)
    assert found or not (said or over), "what was there is lost"
    for checkpoint in found:
        read_state(checkpoint)
        with open_checkpoint(checkpoint / "model.safetensors") as opened:
            values = {float(value) for one in opened for value in np.unique(opened[one])}
        assert values == {NEW} if said else values in ({OLD}, {NEW})
    assert [file.name for file in (path / CHECKPOINTS).glob(".*")] == []


def log(path: Path, said: Said) -> None:
    from firstdrift.pretrain.run_record import Log, rewind

    with Log(path / "log.jsonl") as opened:
        for step in range(30):
            opened.append("step", step=step, loss=1.0)
            said()
    rewind(path / "log.jsonl", 30)


def check_log(path: Path, said: int, over: bool) -> None:
    from firstdrift.pretrain.run_record import read_log

    events = read_log(path / "log.jsonl") if (path / "log.jsonl").exists() else []
    assert [event["step"] for event in events] == list(range(len(events)))
    assert said <= len(events) <= said + 1


# Sweeps.

CASES = 30
IDENTITY = {"options": {"rule": "noise"}, "reference": {"command": "a"}}


def row(number: int):
    case: Case = {"start": number}
    return failed_row(case, "it was said " + "x" * 300, 0)


def sweep(path: Path, said: Said, start: int = 0, identity=IDENTITY) -> None:
    with open_ledger(path / "s", identity) as ledger:
        for number in range(start, start + CASES):
            ledger.add(row(number))
            said()


def old_sweep(path: Path) -> None:
    sweep(path, lambda: None, 100, IDENTITY | {"options": {"rule": "jump"}})


def check_sweep(path: Path, said: int, over: bool) -> None:
    """The same sweep goes on with what was done; the rows of another one are put aside, and never lost."""
    before = _rows(path / "s" / "results.jsonl") + _rows(path / "s" / "results.old.jsonl")
    assert not over or {100 + number for number in range(CASES)} <= set(before)
    with open_ledger(path / "s", IDENTITY) as ledger:
        found = [one.case["start"] for one in ledger.rows.values()]
    assert found == list(range(len(found)))
    assert said <= len(found) <= said + 1
    if over:
        assert {100 + number for number in range(CASES)} <= set(_rows(path / "s" / "results.old.jsonl"))


def _rows(path: Path) -> list[int]:
    lines = path.read_text().split("\n")[1:-1] if path.exists() else []
    return [json.loads(line)["case"]["start"] for line in lines]


# Maps.


def write_map(path: Path, said: Said) -> None:
    from firstdrift.cli.commands.diff import _write_map

    options = dict.fromkeys(("map", "reference_reduction", "candidate_reduction", "batch", "order"))
    _write_map(
        str(path / "t"), str(path / "t"), path / "m.yml", options | dict.fromkeys(("only", "phases", "ignore"), ())
    )
    said()


def check_map(path: Path, said: int, over: bool) -> None:
    from firstdrift.pair.mapping import read_map

    assert (path / "m.yml").exists() or not said
    if (path / "m.yml").exists():
        found = read_map(path / "m.yml")
        assert all(found.find(fd.Site(0, "fwd", f"size{size}", "out")) is not None for size in SIZES)


old_trace = partial(put, said=lambda: None, value=OLD)
WRITERS = {
    "trace": Writer(put, check_put),
    "trace over another": Writer(partial(put, overwrite=True), check_put, old_trace),
    "trace in the background": Writer(partial(put, background=True), partial(check_put, queue=60)),  # all fit into it
    "notes on a trace": Writer(add_notes, check_notes, old_trace),
    "stage files": Writer(dump, check_dump),
    "stage files over others": Writer(dump, check_dump, partial(dump, said=lambda: None, value=OLD)),
    **{
        f"export to {format}{' over another' * over}": exporting(format, name, whole=whole, over=over)
        for format, name, whole in (
            ("npz", "a.npz", True), ("safetensors", "a.safetensors", True), ("npy", "run", False),
            ("aprt", "run", False), ("trace", "run", False),
        )
        for over in (False, True)
    },
    **{
        f"{format} weights{' over others' * over}": storing(format, name, over=over)
        for format, name in (
            ("safetensors", "m.safetensors"), ("apr", "m.apr"), ("gguf", "m.gguf"), ("npz", "m.npz"), ("pt", "m.pt"),
            ("safetensors-sharded", "m.safetensors.index.json"), ("apr-sharded", "m.apr.index.json"),
        )
        for over in (False, True)
    },
    "checkpoint of a run": Writer(save, check_saved),
    "log of a run": Writer(log, check_log),
    "sweep": Writer(sweep, check_sweep),
    "sweep over another": Writer(sweep, check_sweep, old_sweep),
    "map": Writer(write_map, check_map, old_trace),
}  # fmt: skip
