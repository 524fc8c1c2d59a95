"""One module run again by the reference's own program, on the candidate's tensors."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np

from ..program.calls import Call, Program, Ref, Step
from ..program.cuts import Cut, Cuts, type_of
from ..program.interpreter import Interpreter, NotReplayableError
from ..program.process_settings import as_recorded
from ..sites import Site
from ..traces import Array
from ..verdict.introduced import is_other_mask
from ..verdict.ladder import LONG_LIMIT, SHORT_LIMIT, is_short
from ..verdict.noise import GAIN_MARGIN
from .distance import relative
from .shadow import Introduced
from .sources import Sources

MOST_ELEMENTS = 1 << 26  # of all tensors between a module's inputs and what it makes: each is held in float64

Tensors = Callable[[Site], Array | None]


class ByProgram:
    """What one module makes, containers included: everything inside it is run, nothing inside it is taken as given."""

    def __init__(self, program: Program, sources: Sources, module: str) -> None:
        self._program = program
        self._sources = sources
        self._module = module
        self._usable = frozenset(site for site, pair in sources.pairs.items() if not pair.reference_steps)
        self._first = min((site.step for site in sources.pairs), default=0)
        self._steps = {number: Cuts(step, self._starts) for number, step in program.steps.items()}

    def figures(self) -> dict[Site, Introduced]:
        """The figures of the module's outputs, then of the gradients that its backward makes."""
        found: dict[Site, Introduced] = {}
        with as_recorded(self._program.header), np.errstate(all="ignore"):
            for site in self._sources.pairs:
                cut = self._cut(site)
                try:
                    one = None if cut is None else self._measured(site, cut)
                except NotReplayableError:
                    continue
                if one is not None:
                    found[site] = one
        return dict(sorted(found.items(), key=lambda item: item[0].phase != "fwd"))

    def _starts(self, site: Site) -> bool:
        """Whether a replay may start from what the candidate recorded at a site: not inside the module."""
        return site in self._usable and not (site.phase in ("fwd", "agrad") and self._is_inside(site))

    def _is_inside(self, site: Site) -> bool:
        own = site.name == self._module and site.phase == "fwd" and not site.port.startswith("in.")
        return own or _is_below(site.name, self._module)

    def _cut(self, site: Site) -> Cut | None:
        """How the module made a site; None if it did not, or if that is too much to run."""
        cuts = self._steps.get(site.step)
        if cuts is None or site not in self._usable:
            return None
        made = site.phase == "fwd" and site.name == self._module and not site.port.startswith("in.")
        gradient = site.phase == "grad" and (site.name == self._module or _is_below(site.name, self._module))
        if not made and not gradient and (site.phase != "agrad" or self._is_inside(site) or site.name == self._module):
            return None
        cut = cuts.at(site)
        if cut is None or (site.phase == "agrad" and not self._is_made_here(cut)):
            return None
        calls = [node for number in cut.nodes if isinstance(node := cuts.step.nodes[number], Call)]
        types = [type_of(cuts.step, ref) for ref in cut.given] + [one for call in calls for one in call.results]
        elements = sum(prod(one.shape) for one in types if one is not None)
        return cut if calls and elements <= MOST_ELEMENTS else None

    def _is_made_here(self, cut: Cut) -> bool:
        """Whether a gradient comes straight out of the module's backward."""
        return any(site.phase == "agrad" and site.name == self._module for site in cut.given.values())

    def _measured(self, site: Site, cut: Cut) -> Introduced | None:
        step = self._program.steps[site.step]
        both = self._sources.load(site)
        if both is None:
            return None
        ours, theirs = both
        granted = self._run(step, cut, self._with_reference_weights)
        if granted.shape != theirs.shape:
            return None
        if _draws(step, cut) and is_other_mask(granted, theirs):
            return None  # the candidate drew other numbers, and which is not on record
        reference = self._run(step, cut, lambda other: None)
        rounding = relative(granted, self._run(step, cut, self._with_reference_weights, exact=False))
        own = self._run(step, cut, self._theirs) if self._weights_differ(step, cut) else None
        unit = max(self._sources.units(site))
        noise = unit * (SHORT_LIMIT if is_short(unit) else LONG_LIMIT) + GAIN_MARGIN * rounding
        fed = [pair for one in cut.given.values() if (pair := self._sources.load(one)) is not None]
        return Introduced(
            site, _operation(step, cut), {}, relative(ours, theirs), relative(reference, granted),
            relative(granted, theirs), None if own is None else relative(own, theirs), relative(reference, ours), noise,
            max((relative(*pair) for pair in fed), default=0.0),
        )  # fmt: skip

    def _run(self, step: Step, cut: Cut, tensors: Tensors, *, exact: bool = True) -> Array:
        return Interpreter(step, self._sources.reference, tensors=tensors, exact=exact).array_of(cut)

    def _theirs(self, site: Site) -> Array | None:
        both = self._sources.load(site) if site in self._usable else None
        return None if both is None else both[1]

    def _with_reference_weights(self, site: Site) -> Array | None:
        """The candidate's tensors; but its weights only where it has made them itself, in an earlier step."""
        return None if site.phase == "weight" and site.step == self._first else self._theirs(site)

    def _weights_differ(self, step: Step, cut: Cut) -> bool:
        weights = [site for ref in _leaves(step, cut) if (site := _weight_at(step, ref)) is not None]
        pairs = [both for site in weights if site in self._usable and (both := self._sources.load(site)) is not None]
        return any(not np.array_equal(ours, theirs, equal_nan=True) for ours, theirs in pairs)


def _is_below(name: str, module: str) -> bool:
    return name != module and name.startswith(f"{module}." if module else "")


def _leaves(step: Step, cut: Cut) -> list[Ref]:
    return [Ref(number) for number in cut.nodes if not isinstance(step.nodes[number], Call)] + list(cut.given)


def _weight_at(step: Step, ref: Ref) -> Site | None:
    return next((site for site, value in step.sites.items() if value == ref and site.phase == "weight"), None)


def _draws(step: Step, cut: Cut) -> bool:
    nodes = (step.nodes[number] for number in cut.nodes)
    return any(isinstance(node, Call) and bool(node.drawn) for node in nodes)


def _operation(step: Step, cut: Cut) -> str:
    """What a cut computes: its one function, or how many calls."""
    calls = {number: node for number in cut.nodes if isinstance(node := step.nodes[number], Call)}
    names = {step.function_of[n].op if n in step.function_of else node.function or node.op for n, node in calls.items()}
    if len(names) == 1:
        return names.pop()
    return f"{len(calls)} calls of the reference's program"
