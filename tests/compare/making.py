"""Small traces for tests of the diff."""

import numpy as np

import firstdrift as fd


def record(path, sites, *, wrap=None, **header):
    """Write a trace from {"phase name[:port][@sample][#call]": array or None for absent or dict of details}."""
    with fd.Writer(path, **header) as writer:
        for key, value in sites.items():
            put(writer, key, value)
    return path


def put(writer, key, value):
    phase, _, rest = key.partition(" ")
    rest, _, call = rest.partition("#")
    rest, _, sample = rest.partition("@")
    name, _, port = rest.partition(":")
    step = 0
    if phase[0].isdigit():
        step, _, phase = phase.partition("/")
    where = {"step": int(step), "call": int(call or 0), "sample": int(sample) if sample else None}
    if port:
        where["port"] = port
    if value is None:
        writer.put_absent(name, phase, "no gradient", **where)
    elif isinstance(value, tuple):
        writer.put(name, phase, value[0], **where, **value[1])
    else:
        writer.put(name, phase, value, **where)


def normal(*shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def noisy(array, size=1e-7, seed=1):
    """The array with relative noise of the size of a rounding."""
    return (array * (1 + size * np.random.default_rng(seed).standard_normal(array.shape))).astype(array.dtype)
