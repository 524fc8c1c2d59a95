"""The lines of one step as calls, leaves and sites.

References point backwards only, types fit the tensors that the index and the data files hold, numbers and texts are
bounded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Protocol, TypeVar

from ...core.dtypes import ITEMSIZE
from ...core.records import Record, tensor_bytes
from ...core.sites import MAX_INDEX, MAX_NAME, Site, check_index, check_site
from ...core.strict_json import NON_FINITE, Json
from ...core.traces import Trace
from ...errors import FormatError, SelectionError, SiteError
from ...store.layout import data_file
from ..calls import (  # fmt: skip
    PARTS,
    Bytes,
    Call,
    Earlier,
    Function,
    Inline,
    Leaf,
    Missing,
    Node,
    Place,
    Ref,
    Source,
    Step,
    Type,
)
from .line_templates import MOST_INLINE

T = TypeVar("T")

MOST_NODES = 10_000_000  # of a step
MOST_DEPTH = 16  # of lists in arguments
TAGS = frozenset(
    {"dtype", "device", "layout", "memory_format", "float", "complex", "slice", "ellipsis", "map", "lost", "%"}
)
_NAME = re.compile(r"[A-Za-z_]\w*(\.\w+){1,7}", re.ASCII)


class Defined(Protocol):
    """What a file has defined, by number."""

    types: list[Type]
    modules: list[str]
    functions: list[str]
    places: list[Place]


class Building:
    """The lines of one step as nodes, functions and sites."""

    def __init__(self, trace: Trace, file: Path, defined: Defined, step: int, first: int) -> None:
        self.file = file
        self.trace = trace
        self.defined = defined
        self.step = step
        self.first = first
        self.part = PARTS[0]
        self.nodes: list[Node] = []
        self.functions: list[Function] = []
        self.sites: dict[Site, Ref] = {}
        self.optimizers: list[Mapping[str, Json]] = []
        self.notes: list[str] = []

    def build(self, lines: Sequence[dict[str, Json]]) -> Step:
        for at, line in enumerate(lines):
            try:
                self._take(line)
            except (FormatError, SiteError, SelectionError) as error:
                raise FormatError(f"{self.file}, line {self.first + at}: {error}") from None
        return Step(
            self.step, tuple(self.nodes), tuple(self.functions), self.sites, tuple(self.optimizers), tuple(self.notes)
        )

    def _take(self, line: dict[str, Json]) -> None:
        if "n" in line:
            self._node(line)
        elif "is" in line:
            ref = self._ref(line["is"])
            site = self._site(line.get("site"))
            self._check(site, self._type_of(ref))
            self._name(site, ref)
        elif "function" in line:
            self.functions.append(self._function(line))
        elif "part" in line:
            if line["part"] not in PARTS:
                raise FormatError(f"part {line['part']!r} is not one of {', '.join(PARTS)}; write one of these")
            self.part = line["part"]
        elif "optimizer" in line:
            self.optimizers.append(_typed(line["optimizer"], dict, "optimizer"))
        elif "note" in line:
            self.notes.append(_text(line["note"], "note"))
        else:
            raise FormatError(f"{sorted(line)[:4]} is no line of a step; see docs/trace-format.md")

    def _node(self, line: dict[str, Json]) -> None:
        if line["n"] != len(self.nodes) or type(line["n"]) is not int:
            raise FormatError(f"n is {line['n']!r} where {len(self.nodes)} should come; a line was lost or added")
        if len(self.nodes) >= MOST_NODES:
            raise FormatError(f"a step of more than {MOST_NODES} nodes is refused; record fewer steps or modules")
        self.nodes.append(self._call(line) if "op" in line else self._leaf(line))
        if "site" in line and "op" not in line and "ago" not in line:
            self._name(self._site(line["site"]), Ref(len(self.nodes) - 1))

    def _name(self, site: Site, ref: Ref) -> None:
        if self.sites.setdefault(site, ref) != ref:
            raise FormatError(f"{site} is two values; a site is one version of one tensor")

    def _leaf(self, line: Mapping[str, Json]) -> Leaf:
        type_ = _pick(self.defined.types, line.get("type"), "type")
        said = [key for key in ("site", "at", "value", "missing") if key in line]
        if len(said) != 1:
            raise FormatError(f"a leaf has one of site, at, value and missing, and this one has {said or 'none'}")
        name = None if "name" not in line else _text(line["name"], "name")
        return Leaf(type_, self._source(said[0], line, type_), name)

    def _source(self, kind: str, line: Mapping[str, Json], type_: Type) -> Source:
        if kind == "missing":
            return Missing(_text(line["missing"], "missing"))
        if kind == "value":
            elements = _typed(line["value"], list, "value")
            if len(elements) != prod(type_.shape) or len(elements) > MOST_INLINE:
                raise FormatError(f"{len(elements)} elements cannot be a constant of shape {list(type_.shape)}")
            if not all(type(element) in (int, float, bool) or _is_non_finite(element) for element in elements):
                raise FormatError("the elements of a constant are numbers; write them so")
            return Inline(tuple(elements))
        if kind == "at":
            return self._bytes(line, type_)
        site = self._site(line["site"])
        if "ago" not in line:
            self._check(site, type_)
            return site
        ago = check_index(line["ago"], "ago")
        if not 0 < ago <= self.step:
            raise FormatError(f"{site} of {ago} steps ago is before the first step; correct 'ago'")
        return Earlier(site._replace(step=self.step - ago), ago)

    def _bytes(self, line: Mapping[str, Json], type_: Type) -> Bytes:
        at, bits = line["at"], line.get("bits", False)
        if not (type(at) is list and len(at) == 3 and all(type(one) is int and 0 <= one <= MAX_INDEX for one in at)):
            raise FormatError(f"'at' {at!r} is not [file number, offset, bytes]; write three whole numbers")
        needs = -(-prod(type_.shape) // 8) if bits is True else _nbytes(type_)
        if at[2] != needs:
            raise FormatError(
                f"a tensor of {type_.dtype} {list(type_.shape)} takes {needs} bytes but 'at' says {at[2]}"
            )
        file = self.trace.path / data_file(at[0])
        if needs and not (file.is_file() and file.stat().st_size >= at[1] + at[2]):
            raise FormatError(f"its bytes end at {at[1] + at[2]} of {file.name}, which is shorter or missing")
        return Bytes((at[0], at[1], at[2]), bits is True)

    def _check(self, site: Site, type_: Type | None) -> None:
        """A program of other tensors than those in the index is of another run."""
        record: Record = self.trace[site]
        if type_ is None or record.dtype is None or record.shape is None:
            return
        if (record.dtype, record.shape) != (type_.dtype, type_.shape):
            raise FormatError(
                f"{site} is {type_.dtype} {list(type_.shape)} here and {record.dtype} {list(record.shape)} in the "
                "index; this program is of another run"
            )

    def _call(self, line: Mapping[str, Json]) -> Call:
        return Call(
            dotted_name(line["op"], "operation"), self._args(line), self._kwargs(line),
            self._results(line.get("out", [])), self.part, self._module(line), self._place(line),
            self._before(line.get("of")),
            None if "node" not in line else _text(line["node"], "node"),
            self._drawn(line.get("drawn"), len(line.get("out", []))), line.get("read"),
            line.get("again") is True, line.get("implied") is True,
            None if "function" not in line else self._function_name(line),
        )  # fmt: skip

    def _function(self, line: Mapping[str, Json]) -> Function:
        calls = line.get("calls", [len(self.nodes), len(self.nodes) - 1])
        whole = type(calls) is list and len(calls) == 2 and all(type(call) is int for call in calls)
        if not whole or not 0 <= calls[0] <= calls[1] + 1 <= len(self.nodes):
            raise FormatError(f"'calls' {calls!r} are not the first and the last of the calls before; correct them")
        results = tuple(self._ref(one) for one in _typed(line.get("out", []), list, "out"))
        return Function(
            self._function_name(line), self._args(line), self._kwargs(line), results, self.part, self._module(line),
            self._place(line), calls[0], calls[1], line.get("read"),
        )  # fmt: skip

    def _args(self, line: Mapping[str, Json]) -> tuple[Json, ...]:
        return tuple(self._value(one, 0) for one in _typed(line.get("args", []), list, "args"))

    def _kwargs(self, line: Mapping[str, Json]) -> dict[str, Json]:
        return {key: self._value(one, 0) for key, one in _typed(line.get("kwargs", {}), dict, "kwargs").items()}

    def _value(self, item: Json, depth: int) -> Json:
        if item is None or type(item) in (bool, int, float):
            return item
        if type(item) is str:
            return _text(item, "argument")
        if depth >= MOST_DEPTH:
            raise FormatError(f"arguments lie deeper than {MOST_DEPTH} lists; this is no call")
        if type(item) is list:
            return tuple(self._value(one, depth + 1) for one in item)
        if len(item) != 1 or not item.keys() <= TAGS:
            raise FormatError(f"argument {str(item)[:80]} is not an object with one of the keys {', '.join(TAGS)}")
        if "%" in item:
            return self._ref(item)
        ((key, inner),) = item.items()
        if key == "float" and not _is_non_finite(inner):
            raise FormatError(f"float {str(inner)[:40]!r} is not one of {', '.join(NON_FINITE)}; write a number")
        if key == "map":
            return {"map": {name: self._value(one, depth + 1) for name, one in _typed(inner, dict, "map").items()}}
        return {key: self._value(inner, depth + 1)}

    def _ref(self, item: Json) -> Ref:
        said = item.get("%") if type(item) is dict and len(item) == 1 else None
        node, at = said if type(said) is list and len(said) == 2 else (said, 0)
        if type(node) is not int or type(at) is not int:
            raise FormatError(f'{str(item)[:80]} is no reference; write {{"%": node}} or {{"%": [node, result]}}')
        if not 0 <= node < len(self.nodes):
            raise FormatError(
                f"it refers to node {node}, of which {len(self.nodes)} came before; refer to earlier ones"
            )
        made = self.nodes[node]
        if not 0 <= at < (1 if isinstance(made, Leaf) else len(made.results)):
            raise FormatError(f"it refers to result {at} of node {node}, which has fewer; correct it")
        return Ref(node, at)

    def _type_of(self, ref: Ref) -> Type | None:
        made = self.nodes[ref.node]
        return made.type if isinstance(made, Leaf) else made.results[ref.at]

    def _results(self, said: Json) -> tuple[Type | None, ...]:
        return tuple(
            None if one is None else _pick(self.defined.types, one, "type") for one in _typed(said, list, "out")
        )

    def _drawn(self, said: Json, results: int) -> dict[int, int] | None:
        if said is None:
            return None
        drawn = {}
        for pair in _typed(said, list, "drawn"):
            if not (type(pair) is list and len(pair) == 2 and all(type(one) is int for one in pair)):
                raise FormatError(f"'drawn' {pair!r} is not [result, leaf]; write two whole numbers")
            if not 0 <= pair[0] < results:
                raise FormatError(f"result {pair[0]} is drawn and the call has {results}; correct it")
            if not (0 <= pair[1] < len(self.nodes) and isinstance(self.nodes[pair[1]], Leaf)):
                raise FormatError(f"node {pair[1]} is no leaf before this call; random numbers are stored as one")
            drawn[pair[0]] = pair[1]
        return drawn

    def _before(self, number: Json) -> int | None:
        there = type(number) is int and 0 <= number < len(self.nodes) and isinstance(self.nodes[number], Call)
        if number is not None and not there:
            raise FormatError(f"'of' {number!r} is no call before this one; correct it")
        return None if number is None else int(number)

    def _function_name(self, line: Mapping[str, Json]) -> str:
        return _pick(self.defined.functions, line["function"], "function")

    def _module(self, line: Mapping[str, Json]) -> str | None:
        return None if "module" not in line else _pick(self.defined.modules, line["module"], "module")

    def _place(self, line: Mapping[str, Json]) -> Place | None:
        return None if "line" not in line else _pick(self.defined.places, line["line"], "line")

    def _site(self, said: Json) -> Site:
        if type(said) is not list or len(said) not in (3, 4):
            raise FormatError(f"site {said!r} is not [phase, name, port] or [phase, name, port, call]; write it so")
        return check_site(Site(self.step, said[0], said[1], said[2], said[3] if len(said) == 4 else 0))


def type_of(said: list[Json]) -> Type:
    """The definition of a type."""
    if not 2 <= len(said) <= 4 or type(said[0]) is not str or type(said[1]) is not list:
        raise FormatError(f"type {said!r} is not [number, dtype, shape] with strides and device; write it so")
    dtype, shape, strides, device = (*said, None, None)[:4]
    _text(dtype, "dtype")
    tensor_bytes("a tensor", dtype if dtype in ITEMSIZE else "u8", shape)
    if strides is not None:
        whole = type(strides) is list and len(strides) == len(shape)
        if not whole or not all(type(stride) is int and 0 <= stride <= MAX_INDEX for stride in strides):
            raise FormatError(f"strides {strides!r} are not whole numbers from 0, one a dimension; correct them")
    return Type(
        dtype, tuple(shape), None if strides is None else tuple(strides),
        "cpu" if device is None else _text(device, "device"),
    )  # fmt: skip


def place_of(said: list[Json]) -> Place:
    """The definition of a line of code."""
    if len(said) not in (3, 4) or type(said[1]) is not int:
        raise FormatError(f"line {said!r} is not [number, file, line, function]; write it so")
    text = _text(said[3], "source") if len(said) == 4 else None
    return Place(_text(said[0], "file"), said[1], _text(said[2], "function"), text)


def _nbytes(type_: Type) -> int:
    if type_.dtype not in ITEMSIZE:
        raise FormatError(f"a tensor of dtype {type_.dtype!r} cannot be stored; leave it out")
    return prod(type_.shape) * ITEMSIZE[type_.dtype]


def _pick(there: Sequence[T], number: Json, what: str) -> T:
    if type(number) is not int or not 0 <= number < len(there):
        raise FormatError(f"{what} {number!r} is not one of the {len(there)} defined before; define it first")
    return there[number]


def dotted_name(said: Json, what: str) -> str:
    """The name of an operation or a function."""
    if type(said) is not str or len(said) > 256 or not _NAME.fullmatch(said):
        raise FormatError(f"{what} {str(said)[:80]!r} is no dotted name such as 'aten.add.Tensor'; write one")
    return said


def _is_non_finite(said: Json) -> bool:
    return type(said) is str and said in NON_FINITE


def _text(said: Json, what: str) -> str:
    if type(said) is not str or len(said) > MAX_NAME:
        raise FormatError(f"{what} {str(said)[:40]!r} is no text of at most {MAX_NAME} characters; write one")
    return said


def _typed(item: Json, kind: type, what: str) -> Json:
    if type(item) is not kind:
        raise FormatError(f"{what!r} is {str(item)[:80]}; it must be {'a list' if kind is list else 'an object'}")
    return item
