"""Tokens of patches: a class token put before them, and a table of positions, resized to their grid, added."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from ...traces import Array
from ..evidence import Evidence
from ..formulas.resize import Floats, interpolate
from ..hypotheses import EXACT, LEAST_NOISE, Finding, Hypothesis
from ..variants import floats, misfit

Resize = tuple[str, bool, bool, float]  # mode, corners aligned, half a pixel, the a of a cubic
RESIZES: dict[str, Resize] = {
    "bilinear": ("linear", False, True, 0.0), "bicubic": ("cubic", False, True, -0.75),
    "bicubic with a = -0.5": ("cubic", False, True, -0.5), "bilinear with aligned corners": ("linear", True, True, 0.0),
    "bicubic with aligned corners": ("cubic", True, True, -0.75), "nearest": ("nearest", False, True, 0.0),
    "nearest-exact": ("nearest-exact", False, True, 0.0), "bilinear from edges": ("linear", False, False, 0.0),
    "area": ("area", False, True, 0.0),
}  # fmt: skip
SHIFTS = (1, -1, 2, -2)


@dataclass(frozen=True, slots=True)
class Form:
    """How positions are added: resized how, or as they are; class tokens last or first; rows moved; none of them."""

    resize: str = ""
    last: bool = False
    moved: int = 0
    turned: bool = False
    added: str = "all"  # all, patches, nothing


@dataclass(frozen=True, eq=False, slots=True)
class Tokens:
    """Tokens (batch, tokens, width), class tokens (few, width), the table (rows, width), and the patches' grid."""

    patches: Floats
    first: Floats
    table: Floats
    grid: tuple[int, int] | None = None

    def made(self, form: Form) -> Floats | None:
        """The sum, or None where the table does not fit."""
        places = self._places(form)
        if places is None:
            return None
        lead = np.broadcast_to(self.first, (len(self.patches), *self.first.shape))
        whole = np.concatenate((self.patches, lead) if form.last else (lead, self.patches), axis=1)
        return whole + places if len(places) == whole.shape[1] else None

    def _places(self, form: Form) -> Floats | None:
        lead, count = len(self.first), self.patches.shape[1]
        rows = self.table
        if form.resize:
            side, grid = int(np.sqrt(len(rows) - lead)), self.grid or _square(count)
            if side * side != len(rows) - lead or grid is None or grid == (side, side):
                return None
            mode, corners, half, cubic = RESIZES[form.resize]
            shaped = np.moveaxis(rows[lead:].reshape(side, side, -1), -1, 0)
            made = interpolate(shaped, grid, mode, corners, None, half, cubic)
            made = made.swapaxes(1, 2) if form.turned else made
            rows = np.concatenate((rows[:lead], np.moveaxis(made, 0, -1).reshape(-1, rows.shape[1])))
        elif form.turned:
            grid = self.grid or _square(count)
            if grid is None or len(rows) != lead + count:
                return None
            shaped = rows[lead:].reshape(*grid, -1).swapaxes(0, 1)
            rows = np.concatenate((rows[:lead], shaped.reshape(count, -1)))
        rows = np.roll(rows, -form.moved, axis=0)[: lead + count]
        if form.added == "nothing":
            return np.zeros_like(rows)
        if form.added == "patches" and len(rows) == lead + count:
            return np.concatenate((np.zeros_like(rows[:lead]), rows[lead:]))
        return rows


def patch_positions(evidence: Evidence) -> Iterator[Finding]:
    """Class tokens and positions added to patches, with one thing changed."""
    if evidence.site.phase != "fwd" or not floats(evidence) or evidence.expected.ndim != 3:
        return
    limit = EXACT * max(evidence.noise, LEAST_NOISE)
    for mine, own in _tokens(evidence):
        form = _form(mine, np.asarray(evidence.expected, np.float64), limit)
        if form is None:
            continue
        for label, sentence, other, facts in _changes(form, len(mine.first)):
            made = own.made(other)
            if made is not None and made.shape == evidence.found.shape:
                yield Finding(label, sentence, made, 0, facts)
        return


def _changes(form: Form, lead: int) -> Iterator[tuple[str, str, Form, dict[str, object]]]:
    for name in RESIZES if form.resize else ():
        if name != form.resize:
            said = f"the table of positions is resized {name} instead of {form.resize}"
            facts: dict[str, object] = {"resize": name, "reference_resize": form.resize}
            yield "interpolation", said, replace(form, resize=name), facts
    if lead:
        where = "before" if form.last else "behind"
        yield "concat-order", f"the class token is put {where} the patches", replace(form, last=not form.last), {}
        none = replace(form, added="patches")
        yield "missing-term", "the position of the class token is not added", none, {}
    for shift in SHIFTS:
        said = f"the positions are {abs(shift)} too {'high' if shift > 0 else 'low'}"
        yield "position-shift", said, replace(form, moved=shift), {"shift": shift}
    said = "rows and columns of the grid of positions are exchanged"
    yield "axis-order", said, replace(form, turned=not form.turned), {}
    yield "missing-term", "the positions are not added", replace(form, added="nothing"), {}


def _form(given: Tokens, expected: Floats, limit: float) -> Form | None:
    """The form that reproduces the reference: one sample tells which, and all of them whether."""
    one = replace(given, patches=given.patches[:1])
    for resize, last, added in product(("", *RESIZES), (False, True), ("all", "patches")):
        form = Form(resize, last, added=added)
        made = one.made(form)
        if made is None or made.shape != expected[:1].shape or misfit(made, expected[:1]) > limit:
            continue
        whole = given.made(form)
        if whole is not None and misfit(whole, expected) <= limit:
            return form
    return None


def _tokens(evidence: Evidence) -> Iterator[tuple[Tokens, Tokens]]:
    """Both sides' patches, with every choice of class tokens and table that their shapes allow."""
    width, count = evidence.expected.shape[-1], evidence.expected.shape[1]
    ours, theirs = _parameters(evidence, width)
    for key, value in evidence.inputs.items():
        mine, grid = _patches(value, width)
        own, _ = _patches(evidence.candidate_inputs.get(key, value), width)
        if mine is None or own is None or len(mine) != len(evidence.expected) or mine.shape != own.shape:
            continue
        for name, table in ours.items():
            if len(table) < 2:
                continue
            lead = [other for other in ours if other != name and len(ours[other]) + mine.shape[1] == count]
            for first in lead if count > mine.shape[1] else [""]:
                none = np.zeros((0, width))
                yield (
                    Tokens(mine, ours.get(first, none), table, grid),
                    Tokens(own, theirs.get(first, none), theirs[name], grid),
                )


def _parameters(evidence: Evidence, width: int) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """Parameters of that width on both sides, as rows: the module's own, else those called positions or class."""
    ours, theirs = dict(evidence.parameters), dict(evidence.candidate_parameters)
    if not ours:
        for site in evidence.around.sites("weight"):
            name = f"{site.name}.{site.port}".lower()
            if any(word in name for word in ("pos", "cls", "class_")):
                mine, own = evidence.around.reference(site), evidence.around.candidate(site)
                if mine is not None and own is not None:
                    ours[name], theirs[name] = mine, own
    return _rows(ours, width), _rows({name: theirs[name] for name in ours if name in theirs}, width)


def _rows(given: Mapping[str, Array], width: int) -> dict[str, Floats]:
    usable = {name: x for name, x in given.items() if x.ndim and x.size and x.shape[-1] == width}
    single = {name: x for name, x in usable.items() if x.ndim < 3 or len(x) == 1}
    return {name: np.asarray(x, np.float64).reshape(-1, width) for name, x in single.items()}


def _patches(value: Array, width: int) -> tuple[Floats | None, tuple[int, int] | None]:
    """Tokens (batch, tokens, width), of a sequence or of a picture of features, and the grid where it shows."""
    if value.dtype.kind != "f":
        return None, None
    x = np.asarray(value, np.float64)
    if x.ndim == 4 and x.shape[1] == width:
        return x.reshape(*x.shape[:2], -1).swapaxes(1, 2), (x.shape[2], x.shape[3])
    return (x, None) if x.ndim == 3 and x.shape[-1] == width else (None, None)


def _square(count: int) -> tuple[int, int] | None:
    side = int(np.sqrt(count))
    return (side, side) if side * side == count else None


HYPOTHESES: tuple[Hypothesis, ...] = (patch_positions,)
