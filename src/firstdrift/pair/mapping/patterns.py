"""Names with placeholders: `{}` stands for one or more characters but no dot, `*` for anything, even nothing.

A backslash makes `*`, `{` or a backslash after it stand for itself. Where a name could be cut in several ways, the
placeholders further left take less.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ...errors import FormatError

RUN, ANYTHING = "{}", "*"
MAX_PLACEHOLDERS = 16

Captures = dict[str, tuple[str, ...]]  # placeholder to what each of its kind stood for, from left to right

_SIGN = re.compile(r"(\\[\\*{]|\{\}|\*)")
_SPECIAL = re.compile(r"[\\*]|\{(?=\})")


@dataclass(frozen=True, slots=True)
class Pattern:
    """A name with placeholders: `literals[0] placeholders[0] literals[1] ...`, always one literal more."""

    text: str
    literals: tuple[str, ...]
    placeholders: tuple[str, ...]
    _regex: re.Pattern[str] | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Compiling takes longer than all else about a line, and a plain name does not need it.
        regex = re.compile(_regex(self.literals, self.placeholders), re.DOTALL) if self.placeholders else None
        object.__setattr__(self, "_regex", regex)

    @property
    def exact(self) -> bool:
        """Whether it is a plain name."""
        return not self.placeholders

    @property
    def rank(self) -> int:
        """How wide it is: 0 a plain name, 1 with `{}` alone, 2 with `*`."""
        return 2 if ANYTHING in self.placeholders else 1 if self.placeholders else 0

    def match(self, name: str) -> Captures | None:
        """What the placeholders stand for in this name; None when it does not fit."""
        if self._regex is None:
            return {} if name == self.literals[0] else None
        found = self._regex.fullmatch(name)
        if found is None:
            return None
        captures: Captures = {RUN: (), ANYTHING: ()}
        for kind, text in zip(self.placeholders, found.groups(), strict=True):
            captures[kind] += (text,)
        return captures

    def fill(self, captures: Captures) -> str:
        """The name this pattern means once its placeholders stand for these texts."""
        left = {kind: iter(texts) for kind, texts in captures.items()}
        filled = [
            next(left[kind]) + literal for kind, literal in zip(self.placeholders, self.literals[1:], strict=True)
        ]
        return self.literals[0] + "".join(filled)


def parse_pattern(text: str, place: str) -> Pattern:
    """Read a name with placeholders; `place` begins the message of an error."""
    literals = [""]
    placeholders: list[str] = []
    for sign in _SIGN.split(text):
        if sign in (RUN, ANYTHING):
            if placeholders and not literals[-1]:
                raise FormatError(
                    f"{place}: {text!r} has {placeholders[-1]} and {sign} side by side, so nothing says where one ends"
                    "; leave one of them out"
                )
            placeholders.append(sign)
            literals.append("")
        else:
            literals[-1] += sign[1:] if _SIGN.fullmatch(sign) else sign
    if len(placeholders) > MAX_PLACEHOLDERS:
        raise FormatError(
            f"{place}: {text[:60]!r} has {len(placeholders)} placeholders, more than {MAX_PLACEHOLDERS}; "
            "write a simpler one"
        )
    return Pattern(text, tuple(literals), tuple(placeholders))


def escape(name: str) -> str:
    """The pattern that matches this name alone."""
    return _SPECIAL.sub(r"\\\g<0>", name)


def _regex(literals: tuple[str, ...], placeholders: tuple[str, ...]) -> str:
    r"""A regular expression that never tries one cut twice: a plain one takes years on `*a*a*a*a*b`.

    As in a glob, the first place where the text up to the next placeholder fits is as good as any later one, because
    the next placeholder can take up the difference; so all but what is tied to the end goes into atomic groups. A
    `{}` cannot take up a dot, therefore a `*` shares its group with every `{}` up to the next `*`.
    """
    last = len(placeholders) - 1
    last_anything = max((i for i, kind in enumerate(placeholders) if kind == ANYTHING), default=-1)
    parts, open_group = [re.escape(literals[0])], False
    for i, kind in enumerate(placeholders):
        literal = re.escape(literals[i + 1])
        if kind == ANYTHING:
            parts.append(")" if open_group else "")
            open_group = i != last_anything
            parts.append(("(?>" if open_group else "") + "(.*?)" + literal)
        else:
            parts.append(f"([^.]+){literal}" if i == last else f"(?>([^.]+?){literal})")
    return "".join(parts)
