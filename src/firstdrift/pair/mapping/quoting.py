"""Text, lists and tables as YAML that reads back as the same, each on one line."""

from __future__ import annotations

import re
from typing import Any

_PLAIN = re.compile(r"[A-Za-z_](?:[\w./*-]|\{\})*", re.ASCII)
_PLAIN_IN_TABLE = re.compile(r"[A-Za-z_][\w./-]*", re.ASCII)
_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})  # YAML takes these for values
_LONGEST_KEY = 1000  # YAML gives up looking for the colon after 1024 characters


def quote(text: str, plain: re.Pattern[str] = _PLAIN) -> str:
    """A text, in quotes where YAML would read it as something else."""
    if plain.fullmatch(text) and text.lower() not in _WORDS:
        return text
    if text.isprintable():
        return "'" + text.replace("'", "''") + "'"
    return '"' + "".join(_escaped(sign) for sign in text) + '"'


def _escaped(sign: str) -> str:
    if sign in '"\\':
        return f"\\{sign}"
    return sign if sign.isprintable() else f"\\U{ord(sign):08x}"


def flow(value: Any) -> str:
    """A value of a map on one line."""
    if isinstance(value, str):
        return quote(value, _PLAIN_IN_TABLE)
    if isinstance(value, dict):
        return "{" + ", ".join(_flow_item(key, item) for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(flow(item) for item in value) + "]"
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    # A quoted number is read as one where a map expects it; plain, YAML would not know 1e-05 for a number.
    return str(value) if isinstance(value, int) else f"'{value!r}'"


def _flow_item(key: str, value: Any) -> str:
    name = flow(key)
    return f"? {name} : {flow(value)}" if len(name) > _LONGEST_KEY else f"{name}: {flow(value)}"


def table_line(key: str, value: Any, margin: str = "  ") -> list[str]:
    """A line of a table, or two when its name is too long for one."""
    name, text = quote(key), quote(value) if isinstance(value, str) else flow(value)
    if len(name) > _LONGEST_KEY:
        return [f"{margin}? {name}", f"{margin}: {text}"]
    return [f"{margin}{name}: {text}"]


def comment(text: str) -> str:
    """A text that cannot leave its comment."""
    return "".join(sign if sign.isprintable() else " " for sign in text)
