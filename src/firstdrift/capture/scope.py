"""What a trace is to hold: which steps, phases and modules, and each in full or as statistics."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from ..core.sites import PHASES
from ..errors import SelectionError

KEEP = ("full", "stats")  # a linear sketch would be the third, beside `stats` in Recorder.put

Steps = Collection[int] | slice
Globs = str | Sequence[str]


@dataclass(frozen=True, slots=True)
class Scope:
    """The choice of sites, validated; `check` refuses a pattern that matches none of a model's names."""

    steps: Steps | None = None
    only: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    depth: int | None = None
    phases: frozenset[str] = frozenset(PHASES)
    keep: tuple[tuple[str, str], ...] = (("*", "full"),)

    @classmethod
    def of(
        cls, *, steps: Any = None, only: Globs = (), classes: Any = (), depth: int | None = None, phases: Globs = (),
        keep: str | Mapping[str, str] = "full",
    ) -> Scope:  # fmt: skip
        """Validate what the user asked for."""
        if depth is not None and not (type(depth) is int and depth >= 0):
            raise SelectionError(f"depth {depth!r} is not a whole number from 0 (the model itself); give one")
        if not isinstance(keep, str | Mapping):
            raise SelectionError(f"keep {keep!r} is not one of {', '.join(KEEP)}, nor such by pattern; give one")
        kept = {"*": keep} if isinstance(keep, str) else dict(keep)
        for glob, mode in kept.items():
            if mode not in KEEP:
                raise SelectionError(f"keep {mode!r} for {glob!r} is not one of {', '.join(KEEP)}; use one of these")
        named = classes.__name__ if isinstance(classes, type) else classes
        if not isinstance(named, str) and isinstance(named, Iterable):
            named = [one.__name__ if isinstance(one, type) else one for one in named]
        return cls(
            _steps(steps), _globs("only", only), _globs("classes", named), depth,
            _phases(_globs("phases", phases)), tuple(kept.items()),
        )  # fmt: skip

    def takes_step(self, step: int) -> bool:
        """Whether a step is recorded."""
        if self.steps is None:
            return True
        if isinstance(self.steps, slice):
            start, stop, every = self.steps.start or 0, self.steps.stop, self.steps.step or 1
            return step >= start and (stop is None or step < stop) and (step - start) % every == 0
        return step in self.steps

    def takes(self, name: str, classes: Iterable[str] = ()) -> bool:
        """Whether a module is recorded, by its name, its classes and how deep it lies."""
        if self.depth is not None and name and name.count(".") >= self.depth:
            return False
        if self.only and not any(fnmatchcase(name, glob) for glob in self.only):
            return False
        return not self.classes or any(fnmatchcase(one, glob) for one in classes for glob in self.classes)

    def mode(self, name: str) -> str:
        """`full` or `stats`: what the last pattern that matches says."""
        return next((mode for glob, mode in reversed(self.keep) if fnmatchcase(name, glob)), "full")

    def check(self, modules: Mapping[str, Collection[str]]) -> None:
        """Refuse a pattern that matches no module: the trace would silently lack what was asked for."""
        classes = {one for found in modules.values() for one in found}
        kept = [glob for glob, _ in self.keep if glob != "*"]
        for option, globs, there in (
            ("only", self.only, modules),
            ("classes", self.classes, classes),
            ("keep", kept, modules),
        ):
            for glob in globs:
                if not any(fnmatchcase(text, glob) for text in there):
                    raise SelectionError(f"{option} {glob!r} matches nothing in the model; {some_of(there)}")
        if not any(self.takes(name, found) for name, found in modules.items()):
            raise SelectionError("only, classes and depth together leave no module of the model; loosen one of them")


def some_of(names: Iterable[str], most: int = 8) -> str:
    """A few of a model's names, for an error that has to say what there is."""
    there = [name for name in names if name]
    if not there:
        return "it has no module but itself, whose name is empty"
    return f"it has {', '.join(map(repr, there[:most]))}{', ...' if len(there) > most else ''}"


def _globs(option: str, said: Any) -> tuple[str, ...]:
    globs = (said,) if isinstance(said, str) or not isinstance(said, Iterable) else tuple(said)
    for glob in globs:
        if not isinstance(glob, str):
            raise SelectionError(f"{option} {glob!r} is a {type(glob).__name__}, not a pattern; give strings")
    return globs


def _phases(globs: tuple[str, ...]) -> frozenset[str]:
    for glob in globs:
        if not any(fnmatchcase(phase, glob) for phase in PHASES):
            raise SelectionError(f"phases {glob!r} matches none of {', '.join(PHASES)}; use one of these")
    return frozenset(phase for phase in PHASES if not globs or any(fnmatchcase(phase, glob) for glob in globs))


def _steps(said: Any) -> Steps | None:
    if said is None or isinstance(said, range):
        return said
    if isinstance(said, slice):
        numbers = [one for one in (said.start, said.stop, said.step) if one is not None]
        if any(type(number) is not int or number < 0 for number in numbers) or said.step == 0:
            raise SelectionError(f"steps {said} has a negative, zero or fractional part; count forward from 0")
        return said
    chosen = list(said) if isinstance(said, Iterable) else [said]
    if not chosen or any(type(one) is not int or one < 0 for one in chosen):
        raise SelectionError(f"steps {said!r} are not whole numbers from 0; give a list, a range or a slice")
    return frozenset(chosen)
