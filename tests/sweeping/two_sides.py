"""Small traces of two sides, made as a test wants them, and commands that hand them out."""

import sys

import numpy as np

import firstdrift as fd

PYTHON = sys.executable


def record(path, *, start=0, side="reference", scale=1.0, spoil=False, without=(), steps=1, rate=1.0):
    """A step of a tiny network: y = x w, loss, gradients, update. `scale` is a mistake in the gradient."""
    rng = np.random.default_rng(start)
    x = rng.standard_normal((8, 16)).astype(np.float32)
    weight = np.random.default_rng(99).standard_normal((16, 16)).astype(np.float32)
    with fd.Writer(path, producer="test", overwrite=False) as writer:
        for step in range(steps):
            y = x @ weight if side == "reference" else (x[:, ::-1] @ np.ascontiguousarray(weight[::-1]))
            grad = (x.T @ y if side == "reference" else x[::-1].T @ np.ascontiguousarray(y[::-1])) * np.float32(scale)
            if spoil:
                y = y.copy()
                y[0, 0] = np.nan
            after = weight - np.float32(1e-3 * rate) * grad
            tensors = {
                ("input", "input", "x"): x, ("fc", "weight", "weight"): weight, ("fc", "fwd", "out"): y,
                ("loss", "loss", "out"): np.float32((y.astype(np.float64) ** 2).mean()),
                ("fc", "grad", "weight"): grad, ("fc", "grad_scaled", "weight"): grad / np.float32(8),
                ("fc", "weight_after", "weight"): after,
            }  # fmt: skip
            for (name, phase, port), value in tensors.items():
                if phase not in without:
                    writer.put(name, phase, np.asarray(value), port=port, step=step)
            weight = after


def reference(start, out):
    record(out, start=start)


def candidate(start, out):
    record(out, start=start, side="candidate")


def wrong(start, out):
    record(out, start=start, side="candidate", scale=1.5)


def prerecord(root, starts, **mistakes):
    """Traces ROOT/START/reference and ROOT/START/candidate; `mistakes` are by start."""
    for start in starts:
        record(root / str(start) / "reference", start=start)
        record(root / str(start) / "candidate", start=start, side="candidate", **mistakes.get(f"at{start}", {}))
    return root


def handing_out(root):
    """Two commands that copy prerecorded traces."""
    return tuple(f"cp -r {root}/{{start}}/{side}/. {{out}}" for side in ("reference", "candidate"))


def script(path, text):
    """A command that runs a Python program of a few lines."""
    path.write_text(text)
    return f"{PYTHON} -S {path}"
