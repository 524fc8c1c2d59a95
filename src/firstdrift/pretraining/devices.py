"""Where a run computes. What was asked for by name is had, or it is an error; only `auto` may choose."""

from __future__ import annotations

from ..errors import SelectionError
from .identifiers import CUDA

DEVICES = ("cpu", "cuda", "auto")


def resolve_device(asked: str) -> tuple[str, str | None]:
    """`cpu` or `cuda`, and a sentence that says what `auto` chose."""
    if asked not in DEVICES:
        raise SelectionError(f"--device {asked!r} is not one of {', '.join(DEVICES)}; choose one of these")
    if asked == "cpu":
        return "cpu", None
    import torch

    there = torch.cuda.is_available()
    if asked == "cuda" and not there:
        raise SelectionError(
            f"{CUDA}: --device cuda: this PyTorch ({torch.__version__}) has no CUDA device; give --device cpu, or auto "
            "to take what there is"
        )
    chosen = "cuda" if there else "cpu"
    return chosen, f"--device auto chose {chosen}" if asked == "auto" else None
