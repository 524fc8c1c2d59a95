"""What a run writes down: run.json, which says what was asked for and what it was started from, and a log of events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from .._version import __version__
from ..core.atomic import replacing
from ..core.regular import read_regular
from ..core.strict_json import Json, decode_object, encode, plain, with_floats
from ..decoder.config_json import from_config, to_config
from ..decoder.decoder_settings import DecoderConfig
from ..errors import FormatError, NotFoundError, TraceExistsError, TraceInUseError, VersionError, storage
from ..store import lock
from ..weights.json_file import read_json_object
from .origins import Stamp, check_fields
from .run_settings import Settings

LOG = "log.jsonl"
EVENTS = {  # what an event has to say beside its name and step, for it to be shown
    "eval": {"val_loss": "a number"}, "end": {"reason": "a text"}, "not finite": {"message": "a text"},
    "not saved": {"message": "a text"},
}  # fmt: skip
ENDINGS = ("end", "not finite", "not saved")
_WRITE = "free some space, or choose a place that you may write"


class Log:
    """Appends events; each is in the file when `append` returns."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with storage(path, "write the log", _WRITE):
            self._file: TextIO = open(path, "a", encoding="ascii", buffering=1)  # noqa: SIM115

    def append(self, event: str, **said: Json) -> None:
        """Write one event."""
        with storage(self._path, "write the log", _WRITE):
            self._file.write(encode({"event": event, **said}) + "\n")

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()


def read_log(path: Path) -> list[dict[str, Json]]:
    """The events of a log. A torn last line, as a killed run leaves it, is no event; any other is an error."""
    with storage(path, "read the log", "check that it is there"):
        lines = read_regular(path).decode("utf-8", "replace").split("\n")
    whole, torn = lines[:-1], lines[-1]
    del torn  # what has no end of line was never whole
    events = []
    for number, line in enumerate(whole, 1):
        try:
            event = with_floats(decode_object(line))
        except FormatError as error:
            raise FormatError(f"{path}, line {number}: {error}; the log was changed") from None
        place = f"{path}, line {number}"
        check_fields(event, {"event": "a text", "step": "a count"}, place)
        events.append(check_fields(event, EVENTS.get(event["event"], {}), place))
    return events


def rewind(path: Path, step: int) -> None:
    """Forget what came after a step, which is about to happen again."""
    if not path.is_file():
        return
    kept = [event for event in read_log(path) if event["step"] <= step and not _is_undone(event, step)]
    with storage(path, "write the log", _WRITE), replacing(path) as file:
        file.write("".join(encode(event) + "\n" for event in kept).encode())


def _is_undone(event: dict[str, Json], step: int) -> bool:
    """Whether an event belongs to the step that is about to be done, or says that the run has ended."""
    return bool(event["event"] in ENDINGS or (event["event"] == "step" and event["step"] >= step))


RECORD, LOCK = "run.json", ".lock"
FORMAT, VERSION = "firstdrift-run", 1
KINDS = {
    "settings": "a table", "config": "a table", "stamp": "a table", "data": "a table", "tokenizer": "a text or null",
    "device": "a text", "init": "a table or null", "gap": "a table or null", "budget": "a table or null",
    "target_given": "true or false",
}  # fmt: skip
DATA = {"path": "a text", "tokens": "a count", "training_windows": "a count", "held_out_windows": "a count"}
INIT = {"path": "a text", "tensors": "a count"}
GAP = {"given": "a number", "random": "a number", "nats": "a number"}
_CHOOSE = "choose a place that you may write, with --out"


@dataclass(frozen=True, slots=True)
class Record:
    """Everything that a run is, but for its weights. `init`, `gap` and `budget` are as they are shown."""

    settings: Settings
    config: DecoderConfig
    stamp: Stamp
    data: Json
    tokenizer: str | None
    device: str
    init: Json = None
    gap: Json = None
    budget: Json = None
    target_given: bool = False

    def to_json(self) -> dict[str, Json]:
        """The record as it stands in run.json."""
        return {
            "format": FORMAT, "version": VERSION, "producer": f"firstdrift {__version__}",
            "settings": self.settings.to_json(), "config": to_config(self.config), "stamp": self.stamp.to_json(),
            "data": self.data, "tokenizer": self.tokenizer, "device": self.device, "init": self.init, "gap": self.gap,
            "budget": self.budget, "target_given": self.target_given,
        }  # fmt: skip


def write_record(run: Path, record: Record) -> None:
    """Write run.json, whole or not at all."""
    path = run / RECORD
    with storage(path, "write the run", _CHOOSE), replacing(path) as file:
        file.write((json.dumps(plain(record.to_json()), indent=1, allow_nan=False) + "\n").encode())


def read_record(run: Path) -> Record:
    """The record of a run."""
    path = run / RECORD
    if not path.is_file():
        raise NotFoundError(f"{run}: is no run (it has no {RECORD}); name the --out directory of one")
    said = with_floats(read_json_object(path))
    if said.get("format") != FORMAT:
        raise FormatError(f"{path}: says format {said.get('format')!r}, not {FORMAT!r}; name a run")
    if type(said.get("version")) is not int or not 1 <= said["version"] <= VERSION:
        raise VersionError(f"{path}: has version {said.get('version')!r}, and this is for {VERSION}; update firstdrift")
    check_fields(said, KINDS, path)
    check_fields(said["data"], DATA, f"{path}, data")
    for key, kinds in (("init", INIT), ("gap", GAP)):
        if said[key] is not None:
            check_fields(said[key], kinds, f"{path}, {key}")
    return Record(
        Settings.from_json(said["settings"], path), from_config(said["config"], str(path)),
        Stamp.from_json(said["stamp"], path), said["data"], said["tokenizer"], said["device"], said["init"],
        said["gap"], said["budget"], said["target_given"],
    )  # fmt: skip


def is_run(path: Path) -> bool:
    """Whether a directory is a run."""
    return (path / RECORD).is_file()


def _is_nothing(run: Path) -> bool:
    """Whether a directory is empty, or a run that ended before it had anything to keep."""
    return run.is_dir() and {path.name for path in run.iterdir()} <= {RECORD, LOCK, LOG}


@contextmanager
def locked(run: Path, *, new: bool, force: bool = False) -> Iterator[None]:
    """Hold a run's directory for one process. A new run is not put over another unless that is asked for."""
    with storage(run, "write the run", _CHOOSE):
        if new and not force and run.exists() and not _is_nothing(run):
            raise TraceExistsError(f"{run}: exists; choose another --out, --resume it, or replace it with --force")
        run.mkdir(parents=True, exist_ok=True)
        file = open(run / LOCK, "a")  # noqa: SIM115
    with file:
        if not lock.acquire(file.fileno()):
            raise TraceInUseError(f"{run}: another process is training there; wait for it, or choose another --out")
        yield
