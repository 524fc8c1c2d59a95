"""The keys of a configuration, each read with its type; everything that is wrong is collected, to be said at once."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

from ..strict_json import Json

REQUIRED: Any = object()


class Reader:
    """The keys of a config.json, each with its type; what is wrong is collected."""

    def __init__(self, said: Mapping[str, Json], problems: list[str] | None = None, inside: str = "") -> None:
        self.said = said
        self.inside = inside
        self.problems: list[str] = [] if problems is None else problems

    def whole(self, key: str, default: Any = REQUIRED, most: int = 2**40) -> Any:
        """A whole number above 0."""
        what = f"a whole number up to {most} and"
        return self._read(key, default, 1, lambda value: type(value) is int and 0 < value <= most, what)

    def unless_null(self, key: str, default: float) -> Any:
        """A number above 0 with a default; a null is a choice of its own, and means none."""
        return None if key in self.said and self.said[key] is None else self.number(key, default)

    def number(self, key: str, default: Any = REQUIRED) -> Any:
        """A finite number above 0."""
        found = self._read(
            key, default, 1.0,
            lambda value: type(value) in (int, float) and isfinite(value) and value > 0, "a number",
        )  # fmt: skip
        return None if found is None else float(found)

    def flag(self, key: str, default: Any = REQUIRED) -> Any:
        """True or false."""
        return self._read(key, default, False, lambda value: type(value) is bool, "true or false", above=False)

    def table(self, key: str) -> Reader | None:
        """Another table inside, or None."""
        found = self.said.get(key)
        if found is not None and not isinstance(found, dict):
            self.problems.append(f"{key} is {found!r}, not a table")
            return None
        return None if found is None else Reader(found, self.problems, f"{key}.")

    def whole_list(self, key: str) -> list[int]:
        """A list of whole numbers; empty where there is none."""
        found = self.said.get(key)
        if found is None:
            return []
        if not isinstance(found, list) or any(type(one) is not int for one in found):
            self.problems.append(f"{key} is {found!r}, not a list of whole numbers")
            return []
        return found

    def refuse_what_would_be_ignored(self) -> None:
        """Keys that change what is computed, and that this decoder does not know how to follow."""
        if self.said.get("use_bidirectional_attention"):
            self.problems.append("use_bidirectional_attention is set, and attention is causal here")
        if self.said.get("quantization_config"):
            self.problems.append("quantization_config is set, and only GGUF and APR are read quantized")

    def _read(self, key: str, default: Any, instead: Any, right: Any, what: str, above: bool = True) -> Any:
        value = self.said.get(key)
        if value is None:
            if default is not REQUIRED:
                return default
            self.problems.append(f"{self.inside}{key} is missing")
            return instead
        if not right(value):
            self.problems.append(f"{self.inside}{key} is {value!r}, not {what}{' above 0' if above else ''}")
            return instead
        return value
