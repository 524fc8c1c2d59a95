"""Sites: where and when a tensor was computed, and the phases in causal order."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable
from fnmatch import fnmatchcase
from operator import index
from typing import Any, NamedTuple

from ..errors import SiteError

PHASES = (
    "input", "weight", "fwd", "loss", "lossgrad", "agrad", "grad", "grad_scaled", "optim", "weight_after",
)  # fmt: skip
PHASE_RANK = {phase: rank for rank, phase in enumerate(PHASES)}
BACKWARD_PHASES = frozenset({"agrad", "grad", "grad_scaled"})
PARAMETER_PHASES = frozenset({"weight", "grad", "grad_scaled", "weight_after"})

MAX_NAME = 4096
MAX_INDEX = 2**63 - 1  # of a step, call, sample, order, dimension or offset
_LEAVES_DIRECTORY = re.compile(r"(?:^|[/\\])\.\.(?:[/\\]|$)")


class Site(NamedTuple):
    """Where and when a tensor was computed; the key of a trace."""

    step: int
    phase: str
    name: str
    port: str
    call: int = 0
    sample: int | None = None

    def __str__(self) -> str:
        text = f"{self.phase} {shown(self.name) or '(root)'}:{shown(self.port)} step {self.step}"
        if self.call:
            text += f" call {self.call}"
        return text if self.sample is None else f"{text} sample {self.sample}"


def shown(text: str) -> str:
    """A name for people: what a terminal would act on is escaped."""
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


def default_port(phase: str) -> str:
    """The port meant when none is given: a module's one output, or a parameter's `weight`."""
    if phase == "optim":
        raise SiteError("optimizer state needs a port, for example 'weight.exp_avg'; give one")
    return "weight" if phase in PARAMETER_PHASES else "out"


def check_name(name: object, what: str = "name") -> str:
    """Refuse a name that is no text, too long, or would leave a directory where it is used as a path."""
    if type(name) is not str:
        raise SiteError(f"{what} {name!r} is a {type(name).__name__}; give a string")
    if len(name) > MAX_NAME:
        raise SiteError(f"{what} {name[:40]!r}... has {len(name)} characters, more than {MAX_NAME}; shorten it")
    if ".." in name and _LEAVES_DIRECTORY.search(name):
        raise SiteError(f"{what} {name!r} has a '..' component, which would leave the directory; rename it")
    if not name.isascii():
        try:
            name.encode()
        except UnicodeEncodeError:
            raise SiteError(f"{what} {name!r} has a lone surrogate, which is not Unicode text; rename it") from None
    return name


def whole(value: Any) -> Any:
    """A whole number of any type as Python's own; anything else as it is, to be refused by name."""
    if type(value) is int or value is None or isinstance(value, bool):
        return value
    try:
        return index(value)
    except TypeError:
        return value


def plain_text(value: Any) -> Any:
    """Text of any string type as Python's own."""
    return str(value) if isinstance(value, str) and type(value) is not str else value


def check_index(value: object, what: str) -> int:
    """A step, call, sample or order: a whole number from 0 that fits 63 bits."""
    if type(value) is int and 0 <= value <= MAX_INDEX:
        return value
    raise SiteError(f"{what} {value!r} is not a whole number from 0 to {MAX_INDEX}; give one")


def check_site(site: Site) -> Site:
    """Validate every field of a site, and return it."""
    step, phase, name, port, call, sample = site
    if type(phase) is not str or phase not in PHASE_RANK:
        raise SiteError(f"phase {phase!r} is not one of {', '.join(PHASES)}; use one of these")
    check_name(name)
    check_name(port, "port")
    check_index(step, "step")
    check_index(call, "call")
    if sample is not None:
        check_index(sample, "sample")
    return site


def in_words(site: Site) -> str:
    """A site for people."""
    place = site.name or "the model"
    port = "" if site.port in ("out", "weight") else f":{site.port}"
    numbers = (("step", site.step), ("call", site.call), ("sample", site.sample))
    where = ", ".join(f"{word} {number}" for word, number in numbers if number or (word == "sample" and number == 0))
    return f"{site.phase} {place}{port}" + (f" ({where})" if where else "")


def first_repeated(values: Iterable[Hashable]) -> tuple[int, int] | None:
    """Where the first two of some values stand that are equal, counted from 0; None where all differ."""
    seen: dict[Hashable, int] = {}
    for number, value in enumerate(values):
        first = seen.setdefault(value, number)
        if first != number:
            return first, number
    return None


def is_inside(name: str, part: str) -> bool:
    """Whether a module lies in a part of the model, or is it."""
    return name == part or not part or name.startswith(f"{part}.")


def fits_glob(site: Site, glob: str) -> bool:
    """Whether a glob means a site: its name, its name and port, or its phase before either."""
    said = (site.name, f"{site.name}.{site.port}", f"{site.phase} {site.name}", f"{site.phase} {site.name}.{site.port}")
    return site.phase == glob or any(fnmatchcase(text, glob) for text in said)
