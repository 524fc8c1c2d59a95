"""Sums in one defined order, so that the native twin can give the same bits.

A run of 64 elements in a row is summed in four interleaved lanes, lane l taking elements l, l+4, l+8 ..., and
is (lane0 + lane1) + (lane2 + lane3). Runs are added in order into the row, rows into the panel of 64 rows,
panels into the band (see layout), bands into the tensor. A block adds its runs from top to bottom; a column
adds its elements from top to bottom within a panel, then panels and bands in order.
"""

from __future__ import annotations

import numpy as np

from .layout import RUN, Array


def run_shape(columns: int) -> tuple[int, int]:
    """How long the runs of a row are, padded to whole steps of four, and how many there are."""
    height = min(RUN, -(-columns // 4) * 4)
    return height, -(-columns // height)


def spread(piece: Array, scale: float) -> Array:
    """Rows and columns as float64 in (place in the run, row, run), zeros after the last column.

    With the place in the run as the first axis, sums over it are few operations on long vectors.
    """
    rows, columns = piece.shape
    height, runs = run_shape(columns)
    whole, rest = divmod(columns, height)
    lanes = np.empty((height, rows, runs))
    by_run = lanes.transpose(1, 2, 0)
    by_run[:, :whole] = piece[:, : whole * height].reshape(rows, whole, height)
    if rest:
        by_run[:, whole, :rest] = piece[:, whole * height :]
        by_run[:, whole, rest:] = 0.0
    if scale != 1.0:
        lanes *= scale
    return lanes


def run_sums(lanes: Array) -> Array:
    """The sum of each run: (row, run)."""
    steps = lanes.reshape(len(lanes) // 4, -1)
    # Along the first axis of a matrix numpy adds row after row; it is the last axis that it sums by halves.
    four = np.add.reduce(steps, axis=0).reshape(4, *lanes.shape[1:])
    total: Array = (four[0] + four[1]) + (four[2] + four[3])
    return total


def in_order(start: Array, terms: Array) -> Array:
    """Add the terms along their last axis to `start`, strictly one after the other."""
    return np.add.accumulate(np.concatenate([start[..., None], terms], axis=-1), axis=-1)[..., -1]
