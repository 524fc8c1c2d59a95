"""The lines of a step's program: leaves, calls and the sites their results are, with what they define."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, NamedTuple

import numpy as np

from ...core.dtypes import dtype_name
from ...core.sites import Site
from ...core.strict_json import Json, encode
from ...core.traces import Array
from ...program.calls import Place, Ref, Type
from ...program.written.program_writer import MOST_INLINE, VERSION, ProgramWriter, site_text
from ..recorder import Recorder


class Number(NamedTuple):
    """A constant of one element that is written where it is read."""

    value: bool | int | float
    dtype: str


Value = Ref | Number


def type_of(aval: Any) -> Type:
    """The type of a jaxpr's variable; of a dtype that no trace can store, JAX's own name for it."""
    name = dtype_name(aval.dtype) if isinstance(aval.dtype, np.dtype) else None
    return Type(name or str(aval.dtype), tuple(map(int, aval.shape)))


def number_of(array: Array) -> bool | int | float:
    """One element as Python has it: a float by the shortest text that means it in its own dtype, 1e-06."""
    item = array.reshape(())[()]
    if array.dtype == np.float32 and isfinite(item):
        return float(str(item))
    plain = item.item()
    return plain if isinstance(plain, bool | int | float) else float(plain)


class ProgramLines:
    """One step's program in the making. `module` and `place` are those of the equation that is being written."""

    def __init__(self, recorder: Recorder, engine: str) -> None:
        self.module: str | None = None
        self.place: Place | None = None
        self._recorder = recorder
        self._text: list[str] = []
        self._writer = ProgramWriter(self._text.append, lambda: {"program": VERSION, "engine": engine})
        self._lines: list[str] = []
        self._nodes = 0
        self._results: list[tuple[Type, ...]] = []
        self._part = "forward"

    def type(self, ref: Ref) -> Type:
        """The type of a value."""
        return self._results[ref.node][ref.at]

    def part(self, name: str) -> None:
        """What follows belongs to this part of the step."""
        if name != self._part:
            self._part = name
            self._lines.append(encode({"part": name}))

    def leaf(self, type: Type, source: str) -> Ref:
        """A tensor that is given: at a site, stored, or missing."""
        self._lines.append(f'{{"n":{self._nodes},"type":{self._writer.type(type)},{source}}}')
        return self._node([type])

    def at_site(self, site: Site, type: Type) -> Ref:
        """A leaf that is a site."""
        return self.leaf(type, f'"site":{site_text(site)}')

    def constant(self, array: Array, what: str) -> Ref:
        """A leaf of numbers that no site holds: in its line if they are few, else stored."""
        name = dtype_name(array.dtype)
        if name is None:
            return self.missing(Type(str(array.dtype), array.shape), f"a {array.dtype} cannot be stored")
        type = Type(name, array.shape)
        if array.size <= MOST_INLINE and array.dtype.kind in "fiub":
            return self.leaf(type, f'"value":{encode([_element(item) for item in array.reshape(-1)])}')
        if not array.view(np.uint8).any() if array.flags.c_contiguous and array.ndim else False:
            return self.call("aten.full.default", [list(array.shape), 0], [type], dtype={"dtype": name})
        stored = self._recorder.store_for_program(array, what)
        if stored is None or stored.at is None:
            return self.missing(type, "the trace ended before")
        return self.leaf(type, f'"at":{encode(list(stored.at))},"name":{encode(what)}')

    def missing(self, type: Type, why: str) -> Ref:
        """A leaf that the trace does not hold."""
        return self.leaf(type, f'"missing":{encode(why)}')

    def call(self, op: str, args: Sequence[Any], results: Sequence[Type], **kwargs: Any) -> Ref:
        """A call; gives its first result."""
        said = f'{{"n":{self._nodes},"op":"{op}","args":{encode(_plain(list(args)))}'
        if kwargs:
            said += f',"kwargs":{encode({key: _plain(value) for key, value in kwargs.items()})}'
        said += f',"out":{encode([self._writer.type(type) for type in results])}'
        if self.module is not None:
            said += f',"module":{self._writer.module(self.module)}'
        if self.place is not None:
            said += f',"line":{self._writer.line(self.place)}'
        self._lines.append(said + "}")
        return self._node(results)

    def is_site(self, ref: Ref, site: Site) -> None:
        """A site holds a value."""
        self._lines.append(encode({"is": _plain(ref)})[:-1] + f',"site":{site_text(site)}}}')

    def optimizer(self, settings: Mapping[str, Json]) -> None:
        """An optimizer is about to step."""
        self._lines.append(encode({"optimizer": dict(settings)}))

    def note(self, text: str) -> None:
        """A sentence about what the program does not hold."""
        self._lines.append(encode({"note": text}))

    def text(self) -> str:
        """The whole file."""
        self._writer.write(0, self._lines)
        self._writer.close()
        return "".join(self._text)

    def _node(self, results: Sequence[Type]) -> Ref:
        ref = Ref(self._nodes)
        self._nodes += 1
        self._results.append(tuple(results))
        return ref


def _element(item: Any) -> Json:
    value = item.item() if hasattr(item, "item") else item
    if isinstance(value, float) and not isfinite(value):
        return "nan" if value != value else "inf" if value > 0 else "-inf"
    return value if isinstance(value, bool | int | float) else float(value)


def _plain(item: Any) -> Json:
    """An argument as JSON."""
    if isinstance(item, Ref):
        return {"%": [item.node, item.at]} if item.at else {"%": item.node}
    if isinstance(item, Number):
        return _plain(item.value)
    if isinstance(item, float) and not isfinite(item):
        return {"float": _element(item)}
    if isinstance(item, list | tuple):
        return [_plain(one) for one in item]
    return item
