"""Settings of a process that decide how its operations round, as a program's header says them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import parent_process

import torch

from ..core.strict_json import Json

MOST_THREADS = 4096
_DEFAULTS = {"f64": torch.float64, "f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def flushes_denormals() -> bool:
    """Whether operations give zero where a number is too small to be normal; torch cannot be asked."""
    least = torch.tensor(torch.finfo(torch.float32).tiny, dtype=torch.float32)
    return float(least / 2) == 0.0


@contextmanager
def as_recorded(header: Mapping[str, Json]) -> Iterator[None]:
    """With as many threads as the run had, because sums are split among them, its default dtype and its denormals.

    A worker process has one: threads do not survive a fork, so that waiting for them would never end, and its siblings
    have the other processors. Random numbers go on afterwards as if nothing had run.
    """
    threads, dtype, flushed = torch.get_num_threads(), torch.get_default_dtype(), flushes_denormals()
    wanted = header.get("threads") if parent_process() is None else 1
    if type(wanted) is int and 0 < wanted <= MOST_THREADS:
        torch.set_num_threads(wanted)
    torch.set_default_dtype(_DEFAULTS.get(str(header.get("default_dtype", "f32")), torch.float32))
    torch.set_flush_denormal(header.get("flush_denormal") is True)
    try:
        with torch.random.fork_rng(devices=()):  # programs run on the processor, and draw from torch alone
            yield
    finally:
        torch.set_num_threads(threads)
        torch.set_default_dtype(dtype)
        torch.set_flush_denormal(flushed)
