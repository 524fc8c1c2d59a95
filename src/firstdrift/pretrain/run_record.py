"""What a run writes down: run.json, which says what was asked for and what it was started from, and a log of events."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from .._version import __version__
from ..core.atomic import replacing
from ..core.regular import read_regular
from ..core.strict_json import Json, decode_object, encode, plain, with_floats
from ..decoder.config_json import FAMILIES, from_config, to_config
from ..decoder.decoder_settings import DecoderConfig
from ..errors import FormatError, NotFoundError, TraceExistsError, TraceInUseError, VersionError, storage
from ..store import lock
from ..weights.json_file import read_json_object
from .run_settings import Settings

# What may stand under a key, in the words of an error.
FIELD_KINDS: Mapping[str, Callable[[Json], bool]] = {
    "a text": lambda value: type(value) is str,
    "a count": lambda value: type(value) is int and value >= 0,
    "a number": lambda value: type(value) in (int, float),
    "a finite number": lambda value: type(value) in (int, float) and math.isfinite(value),
    "true or false": lambda value: type(value) is bool,
    "a table": lambda value: type(value) is dict,
}
VERSION = 1  # of run.json, and of a checkpoint's state


def check_fields(said: Json, kinds: Mapping[str, str], place: object) -> dict[str, Json]:
    """The table, whose keys are of the kinds they should be; raises FormatError with the first that is not."""
    if type(said) is not dict:
        raise FormatError(f"{place}: is no table; it was changed")
    for key, kind in kinds.items():
        needed = kind.removesuffix(" or null")
        null = key in said and said[key] is None and needed != kind
        if key not in said or not (null or FIELD_KINDS[needed](said[key])):
            found = f"is {said[key]!r}"[:60] if key in said else "is missing"
            raise FormatError(f"{place}: {key} {found}, and has to be {kind}; it was changed")
    return said


def read_table(path: Path, format: str, kinds: Mapping[str, str], what: str) -> dict[str, Json]:
    """The JSON of a file that says this format, our version, and fields of these kinds."""
    said = with_floats(read_json_object(path))
    if said.get("format") != format:
        raise FormatError(f"{path}: says format {said.get('format')!r}, not {format!r}; name {what}")
    if type(said.get("version")) is not int or said["version"] != VERSION:
        raise VersionError(f"{path}: has version {said.get('version')!r}, and this is for {VERSION}; update firstdrift")
    return check_fields(said, kinds, path)


def write_json(path: Path, said: Json) -> None:
    """Write a file of JSON that people can read, whole or not at all."""
    with replacing(path) as file:
        file.write((json.dumps(plain(said), indent=1, allow_nan=False) + "\n").encode())


LOG = "log.jsonl"
EVENTS = {  # what an event has to say beside its name and step, for it to be shown
    "eval": {"val_loss": "a number"}, "end": {"reason": "a text"}, "not finite": {"message": "a text"},
    "not saved": {"message": "a text"},
}  # fmt: skip
ENDINGS = ("end", "not finite", "not saved")
_WRITE = "free some space, or choose a place that you may write"
Event = dict[str, Json]  # at least `event`, its name, and `step`
Watch = Callable[[Event], None]


class Log:
    """Appends events; each is in the file when `append` returns, and `watch` was told of it."""

    def __init__(self, path: Path, watch: Watch = lambda event: None) -> None:
        self._path = path
        self._watch = watch
        with storage(path, "write the log", _WRITE):
            self._file: TextIO = open(path, "a", encoding="ascii", buffering=1)  # noqa: SIM115

    def append(self, event: str, **said: Json) -> None:
        """Write one event."""
        with storage(self._path, "write the log", _WRITE):
            self._file.write(encode({"event": event, **said}) + "\n")
        self._watch({"event": event, **said})

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()


def read_log(path: Path) -> list[Event]:
    """The events of a log. A torn last line, as a killed run leaves it, is no event; any other is an error."""
    with storage(path, "read the log", "check that it is there"):
        lines = read_regular(path).decode("utf-8", "replace").split("\n")
    events = []
    for number, line in enumerate(lines[:-1], 1):  # what has no end of line was never whole
        place = f"{path}, line {number}"
        try:
            event = with_floats(decode_object(line))
        except FormatError as error:
            raise FormatError(f"{place}: {error}; the log was changed") from None
        check_fields(event, {"event": "a text", "step": "a count"}, place)
        events.append(check_fields(event, EVENTS.get(event["event"], {}), place))
    return events


def rewind(path: Path, step: int) -> None:
    """Forget what came after a step, which is about to happen again, and that the run has ended."""
    if not path.is_file():
        return
    events = (event for event in read_log(path) if event["event"] not in ENDINGS)
    kept = [event for event in events if event["step"] < step or (event["step"] == step and event["event"] != "step")]
    with storage(path, "write the log", _WRITE), replacing(path) as file:
        file.write("".join(encode(event) + "\n" for event in kept).encode())


RECORD, LOCK = "run.json", ".lock"
FORMAT = "firstdrift-run"
KINDS = {
    "settings": "a table", "config": "a table", "stamp": "a table", "data": "a table", "tokenizer": "a text or null",
    "device": "a text", "init": "a table or null", "gap": "a table or null", "budget": "a table or null",
    "target_given": "true or false",
}  # fmt: skip
INSIDE = {
    "stamp": {"name": "a text", "architecture": "a text"},
    "data": {"path": "a text", "tokens": "a count", "training_windows": "a count", "held_out_windows": "a count"},
    "init": {"path": "a text", "tensors": "a count"},
    "gap": {"given": "a number", "random": "a number", "nats": "a number"},
}
_CHOOSE = "choose a place that you may write, with --out"


@dataclass(frozen=True, slots=True)
class Record:
    """Everything that a run is, but for its weights. Tables are as they stand in run.json; `data` and the number of
    `init`'s tensors are there once they were read."""

    settings: Settings
    config: DecoderConfig
    stamp: dict[str, Json]
    device: str
    data: Json = None
    tokenizer: str | None = None
    init: Json = None
    gap: Json = None
    budget: Json = None
    target_given: bool = False

    def to_json(self) -> dict[str, Json]:
        """The record as it stands in run.json, without format and version."""
        return {
            "producer": f"firstdrift {__version__}", "settings": self.settings.to_json(),
            "config": to_config(self.config), "stamp": self.stamp, "data": self.data, "tokenizer": self.tokenizer,
            "device": self.device, "init": self.init, "gap": self.gap, "budget": self.budget,
            "target_given": self.target_given,
        }  # fmt: skip


def stamp_of(config: DecoderConfig, name: str) -> dict[str, Json]:
    """What checkpoints call the model that was trained, after a preset or a model type: `llama-370m-pretrain`."""
    return {"name": f"{name}-pretrain", "architecture": FAMILIES[config.family].architecture}


def write_record(run: Path, record: Record) -> None:
    """Write run.json, whole or not at all."""
    with storage(run / RECORD, "write the run", _CHOOSE):
        write_json(run / RECORD, {"format": FORMAT, "version": VERSION, **record.to_json()})


def read_record(run: Path) -> Record:
    """The record of a run."""
    path = run / RECORD
    if not path.is_file():
        raise NotFoundError(f"{run}: is no run (it has no {RECORD}); name the --out directory of one")
    said = read_table(path, FORMAT, KINDS, "a run")
    for key, kinds in INSIDE.items():
        if said[key] is not None:
            check_fields(said[key], kinds, f"{path}, {key}")
    known = {key: said[key] for key in KINDS}
    known |= {"settings": Settings.from_json(said["settings"], path), "config": from_config(said["config"], str(path))}
    return Record(**known)


@contextmanager
def locked(run: Path, *, new: bool, force: bool = False) -> Iterator[None]:
    """Hold a run's directory for one process. A new run is put over another only if that is asked for, or if
    the other ended before it had anything to keep."""
    with storage(run, "write the run", _CHOOSE):
        kept = {path.name for path in run.iterdir()} - {RECORD, LOCK, LOG} if run.is_dir() else run.exists()
        if new and not force and kept:
            raise TraceExistsError(f"{run}: exists; choose another --out, --resume it, or replace it with --force")
        run.mkdir(parents=True, exist_ok=True)
        file = open(run / LOCK, "a")  # noqa: SIM115
    with file:
        if not lock.acquire(file.fileno()):
            raise TraceInUseError(f"{run}: another process is training there; wait for it, or choose another --out")
        yield
