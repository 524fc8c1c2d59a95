"""YAML into plain tables, lists and scalars that know their lines; whatever could surprise is refused."""

from __future__ import annotations

from collections.abc import Iterable
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

from ...core.regular import read_regular
from ...errors import FormatError, storage

if TYPE_CHECKING:
    from yaml import Event, Node, YAMLError

MAX_BYTES = 8 << 20
MAX_DEPTH = 16
QUOTE = "put names that begin with * or {, or that hold {} within brackets, in quotes"

_TAG = "tag:yaml.org,2002:"
_SCALARS = frozenset({"int", "float", "bool", "null"})


class Table(dict[str, Any]):
    """A YAML table; `lines` says on which line each of its keys stands."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: dict[str, int] = {}


def read_text(path: str | PathLike[str]) -> str:
    """The text of a mapping file."""
    place = fspath(path)
    with storage(path, "read the map", "check that it exists and that you may read it"):
        content = read_regular(path, MAX_BYTES + 1)
    check_size(len(content), place)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FormatError(f"{place}: byte {error.start} is not UTF-8; save the map as UTF-8") from None


def load_table(text: str, place: str, lines: str) -> Table:
    """The one table of a YAML text; `lines` says what should be written in it."""
    found = load_yaml(text, place)
    if not isinstance(found, Table):
        what = "is empty" if found is None else f"is a {type(found).__name__}, not a table"
        raise FormatError(f"{place}: it {what}; write lines of {lines!r}")
    return found


def load_yaml(text: str, place: str) -> Any:
    """The one document of a YAML text, its tables as `Table`; None when there is nothing in it."""
    import yaml  # here, because a comparison without a map does not need it

    check_size(len(text), place)
    if not text.isascii():
        _refuse_surrogates(text, place)
    kind: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        _check_events(yaml.parse(text, Loader=kind), place)
        loader = kind(text)
        try:
            node = loader.get_single_node()
            return None if node is None else _value(node, loader, place)
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        raise FormatError(f"{_at_mark(error, place)}: it is not YAML ({_problem(error)}); {QUOTE}") from None


def check_size(size: int, place: str) -> None:
    """Refuse a map that would take minutes to read."""
    if size > MAX_BYTES:
        raise FormatError(f"{place}: it has more than {MAX_BYTES >> 20} MiB; write families of names with placeholders")


def _refuse_surrogates(text: str, place: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise FormatError(f"{place}: it is not Unicode text ({error.reason}); save it as UTF-8") from None


def _check_events(events: Iterable[Event], place: str) -> None:
    """Refuse aliases and deep nesting before anything is built, for building follows both blindly."""
    from yaml import AliasEvent, CollectionEndEvent, CollectionStartEvent

    depth = 0
    for event in events:
        if isinstance(event, AliasEvent):
            raise FormatError(
                f"{_at(event, place)}: *{event.anchor} without quotes is a YAML alias, which a map may not have; "
                "put the name in quotes, or write the value out"
            )
        if isinstance(event, CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                raise FormatError(f"{_at(event, place)}: tables and lists are nested deeper than {MAX_DEPTH}; {QUOTE}")
        elif isinstance(event, CollectionEndEvent):
            depth -= 1


def _value(node: Node, loader: Any, place: str) -> Any:
    from yaml import MappingNode, SequenceNode

    tag = node.tag.removeprefix(_TAG)
    if isinstance(node, MappingNode) and tag == "map":
        return _table(node.value, loader, place)
    if isinstance(node, SequenceNode) and tag == "seq":
        return [_value(item, loader, place) for item in node.value]
    if tag == "str" and isinstance(node.value, str):
        return node.value
    if tag in _SCALARS and isinstance(node.value, str):
        try:
            return loader.construct_object(node)
        except (ValueError, LookupError, ArithmeticError):  # `!!int x`, a number of thousands of digits
            pass
    raise FormatError(
        f"{_at(node, place)}: YAML reads {_shown(node)} as {_kind(node)}, which a map has no use for; "
        "put text in quotes"
    )


def _table(items: Iterable[tuple[Node, Node]], loader: Any, place: str) -> Table:
    table = Table()
    for key_node, value_node in items:
        key = key_node.value
        if key_node.tag != f"{_TAG}str" or not isinstance(key, str):
            raise FormatError(
                f"{_at(key_node, place)}: YAML reads the name {_shown(key_node)} as {_kind(key_node)}, not as text; "
                "put it in quotes"
            )
        if key in table:
            raise FormatError(
                f"{_at(key_node, place)}: {key!r} is already on line {table.lines[key]}; "
                "keep one of the two, or give one name a list"
            )
        table[key] = _value(value_node, loader, place)
        table.lines[key] = key_node.start_mark.line + 1
    return table


def _at(part: Node | Event, place: str) -> str:
    mark: Any = part.start_mark  # the two parsers have different classes for it
    return f"{place}, line {mark.line + 1}"


def _kind(node: Node) -> str:
    return str(node.tag).removeprefix(_TAG)


def _shown(node: Node) -> str:
    if isinstance(node.value, str):
        return repr(node.value if len(node.value) <= 60 else f"{node.value[:60]}...")
    return {"map": "{...}" if node.value else "{}", "seq": "[...]"}.get(_kind(node), "here")


def _problem(error: YAMLError) -> str:
    said = getattr(error, "problem", None) or getattr(error, "reason", None) or type(error).__name__
    return " ".join(str(said).split())


def _at_mark(error: YAMLError, place: str) -> str:
    mark = getattr(error, "problem_mark", None)
    return place if mark is None else f"{place}, line {mark.line + 1}"
