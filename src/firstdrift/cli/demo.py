"""`firstdrift demo`: two implementations of a small network, recorded and compared.

Both sides are made here, in numpy; the candidate has one planted bug.
"""

from __future__ import annotations

from pathlib import Path

import click

from .options import debug_option, json_option, print_json

EPS = 1e-5
BUG_EPS = 1e-3
SCHEMA = "firstdrift-demo-v1"


@click.command("demo")
@click.option("--out", default="demo-traces", show_default=True, help="Where the two traces go.")
@json_option
@debug_option
def command(out: str, as_json: bool) -> None:
    """Record two implementations of a small network and name the first tensor where they part."""
    from ..opening import open_trace
    from .show import listing

    reference, candidate = Path(out, "reference"), Path(out, "candidate")
    _record(reference, eps=EPS)
    _record(candidate, eps=BUG_EPS)
    first = _first_difference(open_trace(reference), open_trace(candidate))
    sentence = (
        f"drift: the first tensor that differs is {first}; everything before it is bit-equal"
        if first
        else f"same: all {len(open_trace(reference))} tensors are bit-equal"
    )
    if as_json:
        print_json({"schema": SCHEMA, "reference": str(reference), "candidate": str(candidate), "first": first})
    else:
        click.echo(f"planted bug: ln2 computes with eps {BUG_EPS:g} instead of {EPS:g}\n")
        trace = open_trace(candidate)
        click.echo(listing(trace, trace.records))
        click.echo(f"\n{sentence}")


def _record(path: Path, *, eps: float) -> None:
    """Run the network forward and backward once, writing every tensor."""
    import numpy as np

    from ..store.writer import Writer

    random = np.random.default_rng(0)
    x = random.standard_normal((8, 32), dtype=np.float32)
    weights = [random.standard_normal((32, 32), dtype=np.float32) / np.float32(6) for _ in range(3)]
    with Writer(path, overwrite=True, model="three-layer demo", batch=8) as writer:
        writer.put("input", "input", x, port="x")
        for number, weight in enumerate(weights, 1):
            writer.put(f"fc{number}", "weight", weight)
            x = x @ weight
            writer.put(f"fc{number}", "fwd", x, op="Linear")
            centred = x - x.mean(1, keepdims=True)
            x = centred / np.sqrt((centred**2).mean(1, keepdims=True) + np.float32(eps if number == 2 else EPS))
            writer.put(f"ln{number}", "fwd", x, op="LayerNorm")
            x = np.maximum(x, 0)
            writer.put(f"relu{number}", "fwd", x, op="ReLU")


def _first_difference(reference: object, candidate: object) -> str | None:
    from .._kernels import measure
    from ..traces import Trace

    assert isinstance(reference, Trace)
    assert isinstance(candidate, Trace)
    for record in reference:
        if not measure(reference.array(record), candidate.array(record.site), full=False).bit_equal:
            return str(record.site)
    return None
