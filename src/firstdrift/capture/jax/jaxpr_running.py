"""A jaxpr run equation by equation, as JAX itself runs what is not jitted; its program is written on the way.

What lies inside `jit`, `checkpoint` or a custom derivative is run as a whole, as XLA compiles it, unless there are
marks inside; so are `scan`, `cond` and `while`. With marks inside, a loop is run turn by turn.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import numpy as np
from jax.extend.core import Literal
from jax.tree_util import tree_flatten, tree_unflatten

from ...core.sites import Site
from ...program.calls import Ref
from .aten_calls import write
from .marks import SCOPE, Mark, mark_p
from .program_lines import Number, ProgramLines, Value, number_of, type_of
from .source_lines import SourceLines

# Equations that hold a jaxpr which runs once, by the name of the parameter that has it.
INLINE = {
    "jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr", "remat": "jaxpr",
    "remat2": "jaxpr", "checkpoint": "jaxpr", "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr", "custom_lin": "call_jaxpr",
}  # fmt: skip
LOOPS = {"scan": ("jaxpr",), "while": ("cond_jaxpr", "body_jaxpr"), "cond": ("branches",)}
DRAWS = frozenset({"random_bits", "threefry2x32", "rng_bit_generator", "rng_uniform", "random_gamma"})
_SCOPES = re.compile(rf"\b{SCOPE}(\d+)\b")


@dataclass(frozen=True, slots=True)
class Cell:
    """A variable: its value, its place in the program, the recorded tensors it was computed from."""

    value: Any
    ref: Value | None
    sites: tuple[Site, ...]


class Listener(Protocol):
    """Who is told of what was computed."""

    def marked(self, mark: Mark, cell: Cell, *, again: bool) -> Cell: ...
    def computed(self, module: str | None, primitive: str, cell: Cell) -> Cell: ...


class Running:
    """Runs jaxprs; `lines` is None where no program is wanted. `paths` are modules by the number in their scopes."""

    def __init__(
        self, listener: Listener, lines: ProgramLines | None, paths: Sequence[str], source: SourceLines
    ) -> None:
        self._listener, self._lines, self._paths, self._source = listener, lines, paths, source
        self._found: dict[int, tuple[Any, frozenset[str]]] = {}
        self._module: str | None = None
        self._again = False  # inside a checkpoint that is computed again

    def run(self, closed: Any, cells: Sequence[Cell]) -> list[Cell]:
        """The results of a closed jaxpr."""
        return self._walk(closed.jaxpr, self._constants(closed), cells)

    def described(self, closed: Any, cells: Sequence[Cell], results: Any) -> Any:
        """Results that were computed without us, a pytree of arrays, with the program that a jaxpr says they have."""
        leaves, tree = tree_flatten(results)
        if self._lines is None:
            refs: list[Value | None] = [None] * len(leaves)
        else:
            refs = self._inside(closed.jaxpr, self._constants(closed), [cell.ref for cell in cells])
        return tree_unflatten(tree, [Cell(leaf, ref, ()) for leaf, ref in zip(leaves, refs, strict=True)])

    def constant(self, value: Any) -> Cell:
        """A value that no equation computes."""
        array = _as_numpy(value)
        if array is None:
            return Cell(value, None, ())
        ref: Value | None = None
        if array.ndim == 0 and array.dtype.kind in "fiubV" and self._lines is not None:
            ref = Number(number_of(array), type_of(array).dtype)
        elif self._lines is not None:
            ref = self._lines.constant(array, "a constant")
        return Cell(value, ref, ())

    def _constants(self, closed: Any) -> list[Cell]:
        return [self.constant(value) for value in getattr(closed, "consts", ())]

    def _walk(self, jaxpr: Any, consts: Sequence[Cell], cells: Sequence[Cell]) -> list[Cell]:
        env: dict[Any, Cell] = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *cells], strict=True))
        last = {atom: at for at, eqn in enumerate(jaxpr.eqns) for atom in eqn.invars if not isinstance(atom, Literal)}
        kept = {atom for atom in jaxpr.outvars if not isinstance(atom, Literal)}
        outer = self._module
        for at, eqn in enumerate(jaxpr.eqns):
            self._module = self._module_of(eqn, outer)
            given = [self.constant(atom.val) if isinstance(atom, Literal) else env[atom] for atom in eqn.invars]
            env.update(zip(eqn.outvars, self._equation(eqn, given), strict=True))
            for atom in eqn.invars:
                if not isinstance(atom, Literal) and last[atom] == at and atom not in kept:
                    env.pop(atom, None)
        self._module = outer
        return [self.constant(atom.val) if isinstance(atom, Literal) else env[atom] for atom in jaxpr.outvars]

    def _equation(self, eqn: Any, given: list[Cell]) -> list[Cell]:
        name = eqn.primitive.name
        if eqn.primitive is mark_p:
            return [self._listener.marked(eqn.params["mark"], given[0], again=self._again)]
        is_marked = any(mark_p.name in self._names(inner) for inner in _inner(eqn))
        if name in INLINE and is_marked:
            return self._inlined(eqn, given)
        if name in LOOPS and is_marked:
            return list({"scan": self._scan, "while": self._while, "cond": self._cond}[name](eqn, given))
        sites = _union(given)
        values = _bind(eqn, [cell.value for cell in given])
        refs = self._written(eqn, [cell.ref for cell in given], values)
        cells = [Cell(value, ref, sites) for value, ref in zip(values, refs, strict=True)]
        return [self._listener.computed(self._module, name, cell) for cell in cells]

    def _inlined(self, eqn: Any, given: list[Cell]) -> list[Cell]:
        inner = eqn.params[INLINE[eqn.primitive.name]]
        before = self._again
        self._again = before or bool(eqn.params.get("differentiated"))
        made = self._walk(getattr(inner, "jaxpr", inner), self._constants(inner), given)
        self._again = before
        return made

    # ---- loops with marks inside

    def _scan(self, eqn: Any, given: list[Cell]) -> Iterator[Cell]:
        said = eqn.params
        inner, fixed = said["jaxpr"], said["num_consts"]
        consts, carry, rows = (
            given[:fixed],
            given[fixed : fixed + said["num_carry"]],
            given[fixed + said["num_carry"] :],
        )
        made: list[list[Cell]] = []
        turns = range(said["length"])
        for turn in reversed(turns) if said["reverse"] else turns:
            out = self._walk(
                inner.jaxpr, self._constants(inner), [*consts, *carry, *(self._row(one, turn) for one in rows)]
            )
            carry = out[: len(carry)]
            made.append(out[len(carry) :])
        made = made[::-1] if said["reverse"] else made
        yield from carry
        for cells in zip(*made, strict=True):
            yield self._stacked(cells)

    def _while(self, eqn: Any, given: list[Cell]) -> list[Cell]:
        said = eqn.params
        first, second = said["cond_nconsts"], said["cond_nconsts"] + said["body_nconsts"]
        asked, fixed, carry = given[:first], given[first:second], given[second:]
        question, body = said["cond_jaxpr"], said["body_jaxpr"]
        while bool(self._walk(question.jaxpr, self._constants(question), [*asked, *carry])[0].value):
            carry = self._walk(body.jaxpr, self._constants(body), [*fixed, *carry])
        return carry

    def _cond(self, eqn: Any, given: list[Cell]) -> list[Cell]:
        branches = eqn.params["branches"]
        chosen = branches[min(max(int(given[0].value), 0), len(branches) - 1)]
        return self._walk(chosen.jaxpr, self._constants(chosen), given[1:])

    def _row(self, cell: Cell, turn: int) -> Cell:
        ref = cell.ref
        if isinstance(ref, Ref) and self._lines is not None:
            type = self._lines.type(ref)
            ref = self._lines.call("aten.select.int", [ref, 0, turn], [type._replace(shape=type.shape[1:])])
        return Cell(jax.lax.index_in_dim(cell.value, turn, 0, keepdims=False), ref, cell.sites)

    def _stacked(self, cells: Sequence[Cell]) -> Cell:
        value = jax.numpy.stack([cell.value for cell in cells])
        ref = None
        if self._lines is not None and all(isinstance(cell.ref, Ref) for cell in cells):
            ref = self._lines.call("aten.stack.default", [[cell.ref for cell in cells]], [type_of(value)])
        return Cell(value, ref, _union(cells))

    # ---- the program

    def _written(self, eqn: Any, refs: Sequence[Value | None], values: Sequence[Any] | None) -> list[Value | None]:
        """The calls of an equation; of one inside a compiled function, `values` are not known."""
        lines = self._lines
        outs = [atom.aval for atom in eqn.outvars]
        if lines is None:
            return [None] * len(outs)
        lines.module, lines.place = self._module, self._source.of(eqn.source_info)
        inner = next(iter(_inner(eqn)), None) if eqn.primitive.name in INLINE else None
        names = frozenset((eqn.primitive.name,)) if inner is None else self._names(inner)
        if names & DRAWS:
            return [self._drawn(out, None if values is None else values[at]) for at, out in enumerate(outs)]
        if inner is None:
            given = [lines.missing(type_of(atom.aval), "not a tensor") if ref is None else ref
                     for ref, atom in zip(refs, eqn.invars, strict=True)]  # fmt: skip
            return list(
                write(lines, eqn.primitive.name, eqn.params, given, [type_of(a.aval) for a in eqn.invars], outs)
            )
        return self._inside(getattr(inner, "jaxpr", inner), self._constants(inner), refs)

    def _inside(self, jaxpr: Any, consts: Sequence[Cell], refs: Sequence[Value | None]) -> list[Value | None]:
        """The calls of a jaxpr that was run as a whole."""
        env: dict[Any, Value | None] = {
            **dict(zip(jaxpr.constvars, [cell.ref for cell in consts], strict=True)),
            **dict(zip(jaxpr.invars, refs, strict=True)),
        }
        for eqn in jaxpr.eqns:
            given = [self.constant(one.val).ref if isinstance(one, Literal) else env[one] for one in eqn.invars]
            env.update(zip(eqn.outvars, self._written(eqn, given, None), strict=True))
        return [self.constant(one.val).ref if isinstance(one, Literal) else env[one] for one in jaxpr.outvars]

    def _drawn(self, out: Any, value: Any) -> Value:
        """Random numbers are given, not computed."""
        assert self._lines is not None
        array = None if value is None else _as_numpy(value)
        if array is None:
            return self._lines.missing(type_of(out), "drawn inside a compiled function")
        return self._lines.constant(array, "drawn")

    # ---- what an equation is

    def _module_of(self, eqn: Any, outer: str | None) -> str | None:
        said = str(eqn.source_info.name_stack)
        if self._lines is not None and "transpose(" in said:
            self._lines.part("backward")
        found = _SCOPES.findall(said)
        return self._paths[int(found[-1])] if found else outer

    def _names(self, jaxpr: Any) -> frozenset[str]:
        """The primitives in a jaxpr, however deep."""
        plain = getattr(jaxpr, "jaxpr", jaxpr)
        if id(plain) not in self._found:
            names = {eqn.primitive.name for eqn in plain.eqns}
            for eqn in plain.eqns:
                for inner in _inner(eqn):
                    names |= self._names(inner)
            self._found[id(plain)] = (plain, frozenset(names))
        return self._found[id(plain)][1]


def _inner(eqn: Any) -> Iterator[Any]:
    """The jaxprs that an equation runs."""
    name = eqn.primitive.name
    for key in (INLINE[name],) if name in INLINE else LOOPS.get(name, ()):
        found = eqn.params.get(key)
        yield from found if isinstance(found, tuple | list) else () if found is None else (found,)


def _bind(eqn: Any, values: Sequence[Any]) -> list[Any]:
    """Run one equation."""
    made: Any = eqn.primitive.get_bind_params(eqn.params)
    functions, params = made if isinstance(made, tuple) else ([], made)
    with eqn.ctx.manager:
        found = eqn.primitive.bind(*functions, *values, **params)
    return list(found) if eqn.primitive.multiple_results else [found]


def _union(cells: Sequence[Cell]) -> tuple[Site, ...]:
    return tuple(dict.fromkeys(site for cell in cells for site in cell.sites))


def _as_numpy(value: Any) -> np.ndarray[Any, Any] | None:
    """A value as numpy has it; None for a random key."""
    if hasattr(value, "dtype") and jax.dtypes.issubdtype(value.dtype, jax.dtypes.extended):
        return None
    return np.asarray(value)
