"""Hypothesis strategies: names, sites, arrays of every dtype, small traces, and damaged files."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from hypothesis import strategies as st

from ..core.dtypes import ITEMSIZE, numpy_dtype
from ..core.sites import PHASES, Site, check_name, default_port
from ..core.traces import Array, Trace
from ..errors import SiteError
from .samples import memory_trace

_WORDS = ("conv1", "ln1", "attn", "layers.0", "layers.10.mlp", "q_proj", "input", "loss", "fwd", "grad", "weight", "c1")
_PORTS = ("in.0", "in.x", "out", "out.1", "weight", "bias", "weight.exp_avg", "s001", "c2")


def names() -> st.SearchStrategy[str]:
    """Every name a site may have: dotted module paths, the root, and any text that is not dangerous."""
    words = st.lists(st.sampled_from(_WORDS), max_size=3).map(".".join)
    return words | st.text(max_size=12).filter(_is_valid)


def plain_names() -> st.SearchStrategy[str]:
    """Names that can be a part of a file name: no dots, slashes or line breaks."""
    return st.from_regex(r"[a-z][a-z0-9_]{0,10}", fullmatch=True)


def sites(
    named: st.SearchStrategy[str] | None = None,
    *,
    phases: Sequence[str] = PHASES,
    ports: bool = True,
    steps: bool = True,
    calls: bool = True,
    samples: bool = True,
) -> st.SearchStrategy[Site]:
    """Sites; each keyword that is false keeps that part at its default."""

    def build(phase: str, name: str, port: str | None, step: int, call: int, sample: int | None) -> Site:
        return Site(step, phase, name, usual_port(phase) if port is None else port, call, sample)

    numbers = st.sampled_from((0, 0, 0, 1, 2, 999, 1000, 2**40))
    return st.builds(
        build,
        st.sampled_from(list(phases)),
        names() if named is None else named,
        st.none() | st.sampled_from(_PORTS) if ports else st.none(),
        numbers if steps else st.just(0),
        numbers if calls else st.just(0),
        st.none() | numbers if samples else st.none(),
    )


def usual_port(phase: str) -> str:
    """A port a site of this phase would have: the default, or one of an optimizer's, which have none."""
    return "weight.exp_avg" if phase == "optim" else default_port(phase)


@st.composite
def arrays(draw: st.DrawFn, dtypes: Collection[str] = tuple(ITEMSIZE), *, dims: tuple[int, int] = (0, 3)) -> Array:
    """Arrays of any of the dtypes and any bits, with sides that may be 0 and `dims` (least, most) dimensions."""
    name = draw(st.sampled_from(sorted(dtypes)))
    shape = tuple(draw(st.lists(st.integers(0, 3), min_size=dims[0], max_size=dims[1])))
    nbytes = int(np.prod(shape, dtype=int)) * ITEMSIZE[name]
    raw = np.frombuffer(draw(st.binary(min_size=nbytes, max_size=nbytes)), np.uint8)
    if name == "bool":
        raw = raw & np.uint8(1)
    return raw.view(numpy_dtype(name)).reshape(shape)


@st.composite
def traces(
    draw: st.DrawFn,
    at: st.SearchStrategy[Site] | None = None,
    holding: st.SearchStrategy[Array] | None = None,
    *,
    min_size: int = 0,
) -> Trace:
    """Small traces in memory: a handful of sites, each with an array."""
    keys, items = sites() if at is None else at, arrays() if holding is None else holding
    return memory_trace(draw(st.dictionaries(keys, items, min_size=min_size, max_size=6)))


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """The bytes of a file after one to three accidents: a flip, a cut, an insertion, a piece copied elsewhere."""
    for _ in range(draw(st.integers(1, 3))):
        at, to = sorted((draw(st.integers(0, len(data))), draw(st.integers(0, len(data)))))
        match draw(st.sampled_from(("flip", "overwrite", "cut", "drop", "insert", "splice"))):
            case "flip" if at < len(data):
                data = data[:at] + bytes([data[at] ^ 1 << draw(st.integers(0, 7))]) + data[at + 1 :]
            case "overwrite":
                new = draw(st.sampled_from((b"\0" * 4, b"\xff" * 4, b"\xff" * 8, b"9" * 8, b"-1", b'"', b"[", b"{")))
                data = data[:at] + new + data[at + len(new) :]
            case "cut":
                data = data[:at]
            case "drop":
                data = data[:at] + data[to:]
            case "insert":
                data = data[:at] + draw(st.binary(max_size=16)) + data[at:]
            case "splice":
                data = data[:at] + data[at:to] + data[at:]
            case _:
                pass
    return data


def _is_valid(text: str) -> bool:
    try:
        check_name(text)
    except SiteError:
        return False
    return True
