"""What the two paths of `diff` are: traces, APRT stage files or checkpoints; two of a kind can be compared."""

from __future__ import annotations

from pathlib import Path

from ..errors import SelectionError, storage

TRACE, STAGE, CHECKPOINT = "a trace", "an APRT stage file", "a checkpoint"


def subject_of(reference: str, candidate: str, *, values: bool) -> str:
    """What both are to be compared as; what is of two kinds, or not what `--values` compares, is refused."""
    for path in (reference, candidate):
        with storage(path, "open it", "check the path"):
            Path(path).stat()
    kinds = _kind(Path(reference)), _kind(Path(candidate))
    if kinds == (CHECKPOINT, CHECKPOINT):
        return CHECKPOINT
    if values:
        return _with_values((reference, candidate), kinds)
    for path, other, kind in zip((reference, candidate), (candidate, reference), kinds, strict=True):
        if kind is CHECKPOINT and not _is_read_as_a_trace(Path(path)):
            raise SelectionError(
                f"{path}: is a checkpoint, and {other} is not; give two checkpoints, or make it one that is read "
                f"beside a trace by firstdrift weights convert {path} FILE.safetensors"
            )
    return TRACE


def _kind(path: Path) -> str:
    """What a path is; whatever is none of the others is for the reader of traces to say."""
    from ..formats.native import recognise as is_trace

    if is_trace(path):  # first, so that nothing is loaded that traces do not need
        return TRACE
    from ..aprt import is_stage_file
    from ..checkpoints.recognising import is_checkpoint

    return STAGE if is_stage_file(path) else CHECKPOINT if is_checkpoint(path) else TRACE


def _with_values(paths: tuple[str, str], kinds: tuple[str, str]) -> str:
    if kinds == (STAGE, STAGE):
        return STAGE
    for path, kind in zip(paths, kinds, strict=True):
        if kind is TRACE:
            raise SelectionError(
                f"{path}: is no APRT stage file and no checkpoint, of which --values compares two; "
                "drop --values for traces"
            )
    said = " and ".join(f"{path} is {kind}" for path, kind in zip(paths, kinds, strict=True))
    raise SelectionError(f"{said}; give two stage files, or two checkpoints")


def _is_read_as_a_trace(path: Path) -> bool:
    from ..formats.safetensors_file import recognise

    return recognise(path)
