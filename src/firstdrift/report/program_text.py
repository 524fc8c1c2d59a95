"""How one tensor was made, call by call: as text and as JSON."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from ..core.sites import Site, shown
from ..core.strict_json import Json
from ..program.calls import Bytes, Call, Earlier, Function, Inline, Leaf, Missing, Place, Ref, Source, Step, Type

MOST_ELEMENTS = 6  # of a constant that are printed


def program_text(step: Step, site: Site, ref: Ref) -> str:
    """The calls between the recorded tensors before a site and the site itself."""
    making = _Making(step, site, ref)
    rows = [(f"  {left}", right) for left, right in making.rows()]
    width = max((len(left) for left, _ in rows), default=0)
    return "\n".join([f"{site}: {making.summary()}", *(f"{left:<{width}}  {right}".rstrip() for left, right in rows)])


def program_json(step: Step, site: Site, ref: Ref) -> dict[str, Json]:
    """The same as data."""
    making = _Making(step, site, ref)
    return {
        "step": step.number,
        "value": list(ref),
        "also": [list(other) for other in making.also],
        "nodes": [making.node_json(number) for number in making.numbers],
        "notes": list(step.notes),
    }


class _Making:
    """The part of a program that makes one tensor from those that were recorded before it."""

    def __init__(self, step: Step, site: Site, ref: Ref) -> None:
        self.step = step
        self.site = site
        self.ref = ref
        self.named: dict[Ref, list[Site]] = defaultdict(list)
        for other, value in step.sites.items():
            self.named[value].append(other)
        self.also = [other for other in self.named[ref] if other != site]
        recorded = frozenset(value.node for value in self.named if value.node != ref.node)
        self.numbers = step.behind(ref, stop=recorded)
        self.given = frozenset(number for number in self.numbers if number in recorded)

    def summary(self) -> str:
        made = self.step.nodes[self.ref.node]
        said = _type(made.type if isinstance(made, Leaf) else made.results[self.ref.at])
        if isinstance(made, Leaf):
            said += ", given"
        return said + (f", the same tensor as {', '.join(map(str, self.also))}" if self.also else "")

    def rows(self) -> Iterator[tuple[str, str]]:
        """Leaves and recorded tensors, then calls under the functions that they belong to."""
        calls = [number for number in self.numbers if self._is_call(number)]
        for number in self.numbers:
            if number not in calls:
                yield self._given_row(number)
        inside: Function | None = None
        for number in calls:
            call = self.step.nodes[number]
            assert isinstance(call, Call)
            function = self.step.function_of.get(number)
            if function is not None and function is not inside:
                where = _where(function.place, function.module)
                yield f"{function.op}({_arguments(function.args, function.kwargs)})", where
            inside = function
            indent = "  " if function is not None else ""
            yield f"{indent}%{number} = {call.op}({_arguments(call.args, call.kwargs)})", self._about(call)

    def node_json(self, number: int) -> dict[str, Json]:
        node = self.step.nodes[number]
        sites = [list(site) for ref, found in self.named.items() if ref.node == number for site in found]
        if isinstance(node, Leaf):
            return {"n": number, "leaf": _source(node.source), "name": node.name, **_types([node.type]), "sites": sites}
        if number in self.given:
            return {"n": number, "recorded": True, **_types(node.results), "sites": sites}
        function = self.step.function_of.get(number)
        place = node.place or (function.place if function is not None else None)
        return {
            "n": number, "op": node.op, "args": _arguments(node.args, node.kwargs), **_types(node.results),
            "part": node.part, "function": node.function or (function.op if function is not None else None),
            "module": node.module if function is None else function.module,
            "line": None if place is None else place._asdict(), "of": node.of, "read": node.read, "sites": sites,
        }  # fmt: skip

    def _is_call(self, number: int) -> bool:
        return number not in self.given and isinstance(self.step.nodes[number], Call)

    def _given_row(self, number: int) -> tuple[str, str]:
        node = self.step.nodes[number]
        sites = [site for ref, found in self.named.items() if ref.node == number for site in found]
        if isinstance(node, Leaf):
            what = str(sites[0]) if sites else _source(node.source)
            name = "" if node.name is None else f" ({shown(node.name)})"
            return f"%{number} is {what}{name}", _type(node.type)
        return f"%{number} is {sites[0]}", ", ".join(map(_type, node.results[:1]))

    def _about(self, call: Call) -> str:
        said = [", ".join(map(_type, call.results)) or "no tensor"]
        if call.read is not None:
            said.append(f"read {call.read}")
        if call.drawn:
            said.append("drawn, stored")
        if call.again:
            said.append("computed again")
        if call.of is not None:
            said.append(f"derivative of %{call.of}{self._of(call.of)}")
        if call.implied:
            said.append("what memory holds now")
        if call.place is not None or call.module is not None:
            said.append(_where(call.place, call.module))
        return "  ".join(filter(None, said))

    def _of(self, number: int) -> str:
        forward = self.step.nodes[number]
        function = self.step.function_of.get(number)
        if function is not None:
            return f", {function.op}  {_where(function.place, function.module)}"
        return f", {forward.op}  {_where(forward.place, forward.module)}" if isinstance(forward, Call) else ""


def _where(place: Place | None, module: str | None) -> str:
    said = "" if place is None else f"{shown(place.file)}:{place.line}"
    if module is not None:
        said += f" in {shown(module) or 'the model itself'}"
    return f"{said}  {shown(place.text)}" if place is not None and place.text else said


def _type(type: Type | None) -> str:
    if type is None:
        return "no plain tensor"
    strides = "" if type.strides is None else f" strides {list(type.strides)}"
    return f"{type.dtype}{list(type.shape)}{strides}" + ("" if type.device == "cpu" else f" on {shown(type.device)}")


def _types(types: tuple[Type | None, ...] | list[Type]) -> dict[str, Json]:
    return {"results": [None if one is None else one._asdict() for one in types]}


def _source(source: Source) -> str:
    if isinstance(source, Earlier):
        return f"{source.site}, as an earlier step left it"
    if isinstance(source, Bytes):
        return "stored for the program"
    if isinstance(source, Missing):
        return f"not in the trace: {shown(source.why)}"
    if isinstance(source, Inline):
        some = ", ".join(map(str, source.elements[:MOST_ELEMENTS]))
        return f"the constant {some}{', ...' if len(source.elements) > MOST_ELEMENTS else ''}"
    return str(source)


def _arguments(args: tuple[Json, ...], kwargs: Mapping[str, Json]) -> str:
    return ", ".join([*map(_argument, args), *(f"{shown(name)}={_argument(item)}" for name, item in kwargs.items())])


def _argument(item: Json) -> str:
    if isinstance(item, Ref):
        return f"%{item.node}" + (f".{item.at}" if item.at else "")
    if isinstance(item, tuple | list):
        return f"[{', '.join(map(_argument, item))}]"
    if isinstance(item, Mapping):
        ((tag, inner),) = item.items()
        if tag == "slice":
            return ":".join("" if one is None else str(one) for one in inner[:2])
        return "..." if tag == "ellipsis" else f"<{shown(str(inner))}>" if tag == "lost" else shown(str(inner))
    return repr(item) if isinstance(item, str) else str(item)
