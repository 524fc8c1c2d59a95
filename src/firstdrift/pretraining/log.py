"""The log of a run: one line of JSON an event, in the order in which they happened."""

from __future__ import annotations

from pathlib import Path
from typing import TextIO

from ..atomic import replacing
from ..errors import FormatError, storage
from ..regular import read_regular
from ..strict_json import Json, decode_object, encode, with_floats
from .fields import check_fields

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
