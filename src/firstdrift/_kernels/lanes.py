"""Sums in one defined order, so that the native twin can give the same bits.

A run of 64 elements in a row is summed in four interleaved lanes, lane l taking elements l, l+4, l+8 ..., and
is (lane0 + lane1) + (lane2 + lane3). Runs are added in order into the row, rows into the panel of 64 rows,
panels into the band (see layout), bands into the tensor. A block adds its runs from top to bottom; a column
adds its elements from top to bottom within a panel, then panels and bands in order.
"""

from __future__ import annotations

import numpy as np

from .layout import RUN, Array

LANES = 4


def run_shape(columns: int) -> tuple[int, int]:
    """How long the runs of a row are, padded to whole steps of four, and how many there are."""
    height = min(RUN, -(-columns // LANES) * LANES)
    return height, -(-columns // height)


def spread(piece: Array, scale: float, lanes: Array) -> None:
    """Rows and columns as float64 in (step, row * run * lane), zeros after the last column.

    With the steps of a run as the first axis, sums over them are few operations on long vectors. The four
    lanes of a step move together, before they are widened: a sixteenth of the memory a transpose would touch.
    """
    rows, columns = piece.shape
    height, runs = run_shape(columns)
    if columns != runs * height:
        padded = np.zeros((rows, runs * height), piece.dtype)
        padded[:, :columns] = piece
        piece = padded
    steps = np.ascontiguousarray(piece).view(f"V{LANES * piece.itemsize}").reshape(rows * runs, height // LANES)
    lanes[...] = np.ascontiguousarray(steps.T).view(piece.dtype)
    if scale != 1.0:
        lanes *= scale


def lane_sums(lanes: Array, out: Array) -> None:
    """The sums over the steps: (row * run * lane)."""
    # Along the first axis of a matrix numpy adds row after row; it is the last axis that it sums by halves.
    np.add.reduce(lanes, axis=0, out=out)


def run_sums(sums: Array) -> Array:
    """The sums of runs (..., row * run) from those of their lanes."""
    pairs = sums[..., 0::2] + sums[..., 1::2]
    total: Array = pairs[..., 0::2] + pairs[..., 1::2]
    return total


def in_order(start: Array, terms: Array) -> Array:
    """Add the terms along their last axis to `start`, strictly one after the other."""
    return np.add.accumulate(np.concatenate([start[..., None], terms], axis=-1), axis=-1)[..., -1]
