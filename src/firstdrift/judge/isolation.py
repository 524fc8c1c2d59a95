"""One module, replayed on the candidate's own inputs: is it right by itself, or did the error come in?"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.arrays import wide
from ..core.dtypes import roundoff
from ..core.sites import Site, is_inside
from ..core.traces import Array, Trace, unchanged
from ..errors import SelectionError
from ..kernels import measure
from ..pair.pairs import Alignment
from ..program.calls import Call
from ..program.interpreter import NotReplayableError
from .measure.result import Verdict
from .noise import Excess, excess_of
from .replay.introducing import DRIFT, is_other_mask
from .replay.programs import replays_for

if TYPE_CHECKING:
    from .replay.replays import Replays

SCHEMA = "firstdrift-isolate-v1"
INSTEAD = (
    "write the reference's inputs of it by `firstdrift export REF OUT --inputs-of NAME` and run the candidate's module "
    "on them alone, or compare both in one process by fd.check"
)


@dataclass(frozen=True, slots=True)
class Figures:
    """The errors of one site, all relative L2.

    `introduced` is how far the candidate is from what the reference's calls and weights make of the candidate's own
    inputs, `own` the same with the candidate's weights where those differ; `inherited` is how far that in turn is from
    what they make of the reference's inputs. Weights that an earlier step has made are inputs like others. `reference`
    is how far the reference is from its own float64 result. `noise` is how large an error may be in a right candidate,
    in the part of the tensor where it is furthest beyond that: by so many `times`, and `own_times` with own weights.
    `given` is the largest error of the inputs.
    """

    site: Site
    operation: str
    total: float
    inherited: float
    introduced: float
    own: float | None
    reference: float
    noise: float
    given: float
    times: float
    own_times: float | None

    @property
    def is_right(self) -> bool:
        """Whether noise explains what was introduced."""
        return self.times <= 1

    @property
    def is_wrong(self) -> bool:
        """Whether it is beyond noise without a doubt."""
        return not self.times <= DRIFT

    @property
    def is_right_with_own_weights(self) -> bool:
        """Whether noise explains it once the candidate's own weights are taken."""
        return self.is_right or (self.own_times is not None and self.own_times <= DRIFT)


@dataclass(frozen=True, slots=True)
class Isolated:
    """What is known of one module by itself. `figures` are of its outputs, then of the gradients that it makes."""

    module: str
    op: str
    figures: tuple[Figures, ...]
    verdict: Verdict  # noise, drift, inconclusive
    fault: str  # none, weights, operation, unknown
    sentence: str
    exit_code: int

    def to_json(self) -> dict[str, Any]:
        """The result in the schema `firstdrift-isolate-v1`."""
        return {
            "schema": SCHEMA, "module": self.module, "op": self.op, "verdict": str(self.verdict), "fault": self.fault,
            "sentence": self.sentence, "exit_code": self.exit_code, "sites": [_site(figure) for figure in self.figures],
        }  # fmt: skip


@np.errstate(all="ignore")  # any bits may be on record: what is not finite is counted
def isolate(
    reference: Trace, candidate: Trace, alignment: Alignment, module: str,
    advance: Callable[[int], None] = lambda nbytes: None,
) -> Isolated:  # fmt: skip
    """Replay one module, forward and backward, and conclude; refused if a file changed meanwhile."""
    own = [record for record in reference if record.site.name == module]
    if not own:
        near = sorted({record.site.name for record in reference if module.lower() in record.site.name.lower()})[:3]
        hint = f"near it: {', '.join(near)}" if near else "`firstdrift show` lists the names there are"
        raise SelectionError(f"{reference.path}: nothing is named {module!r}; {hint}")
    asked = [pair.site for pair in alignment.pairs if pair.site.phase in ("fwd", "grad")]
    found: list[Figures] = []
    with unchanged(reference, candidate):
        replays = replays_for(reference, candidate, alignment.pairs, asked, lambda site: not _is_inside(module, site))
        with nullcontext() if replays is None else replays.running():
            for site in dict.fromkeys(pair.reference.site for pair in alignment.pairs):
                made = replays is not None and site in replays.counterparts and _is_made_by(module, site, replays)
                if replays is not None and made and (one := _figures(site, replays)) is not None:
                    found.append(one)
                advance(reference[site].nbytes)
    figures = tuple(sorted(found, key=lambda one: one.site.phase != "fwd"))
    op = next((record.op for record in own if record.op), "")
    return _concluded(module, op, figures, _why(module, alignment))


def _is_inside(module: str, site: Site) -> bool:
    """Whether a tensor is made by a module or in it: no replay starts from there."""
    if site.phase not in ("fwd", "agrad"):
        return False
    own = site.name == module and site.phase == "fwd" and not site.port.startswith("in.")
    return own or _is_below(site.name, module)


def _is_below(name: str, module: str) -> bool:
    return name != module and is_inside(name, module)


def _is_made_by(module: str, site: Site, replays: Replays) -> bool:
    """Whether a tensor is made by a module: its output, or a gradient that comes straight out of its backward."""
    match site.phase:
        case "fwd":
            return site.name == module and not site.port.startswith("in.")
        case "grad":
            return site.name == module or _is_below(site.name, module)
        case "agrad" if not _is_inside(module, site) and site.name != module:
            return any(other.phase == "agrad" and other.name == module for other in replays.given(site))
    return False


def _figures(site: Site, replays: Replays) -> Figures | None:
    """The figures of one site; None where the program does not say, or where the candidate drew other numbers, and
    which is not on record."""
    try:
        expected, own = (replays.run(site, one) for one in (replays.with_reference_weights, replays.counterparts.array))
        candidate, exact = replays.counterparts.array(site), replays.run(site, lambda wanted: None)
        if candidate is None or expected is None or exact is None or own is None or expected.shape != candidate.shape:
            return None
        if replays.draws(site) and is_other_mask(expected, candidate):
            return None
        excess = _excess(site, replays, expected, candidate)
        same = np.array_equal(own, expected, equal_nan=True)
        with_own = None if same else _excess(site, replays, own, candidate)
    except NotReplayableError:
        return None
    if excess is None:
        return None
    reference, given = replays.reference.array(site), replays.given(site)
    both = ((replays.reference.array(one), replays.counterparts.array(one)) for one in given)
    came_in = [relative(ours, theirs) for ours, theirs in both if theirs is not None]
    return Figures(
        replays.counterparts.first(site).site._replace(sample=None), _operation(site, replays),
        relative(reference, candidate), relative(exact, expected), relative(expected, candidate),
        None if with_own is None else relative(own, candidate), relative(exact, reference),
        excess.limit, max(came_in, default=0.0), excess.times, None if with_own is None else with_own.times,
    )  # fmt: skip


def _excess(site: Site, replays: Replays, expected: Array, found: Array) -> Excess | None:
    """How far a tensor is beyond the noise of its calls: around what the calls make of either side's weights."""
    if not measure(expected, found, full=False).nonfinite_agree:
        return Excess("the whole", inf, 0.0, inf, 0)
    own = replays.run(site, replays.counterparts.array)
    unit = roundoff(*(record.dtype for record in replays.counterparts.first(site).candidate))

    def draw(seed: int) -> Array | None:
        drawn = replays.drawn(site, seed)
        return None if drawn is None or own is None else wide(expected) + (wide(drawn) - wide(own))

    return excess_of(expected, found, unit, draw)


def relative(expected: Array, found: Array) -> float:
    """The relative L2 distance of what was found from what was expected."""
    numbers = measure(expected, found, full=False)
    if not numbers.nonfinite_agree or numbers.rel_l2 is None:
        return inf if not numbers.nonfinite_agree or numbers.differing else 0.0
    return numbers.rel_l2


def _operation(site: Site, replays: Replays) -> str:
    """What is computed: by one function as the model's code calls it, or by how many calls."""
    made = replays.made(site)
    calls = [] if made is None else [n for n in made[1].nodes if isinstance(made[0].nodes[n], Call)]
    written = [] if made is None else [made[0].as_written(number) for number in calls]
    names = {getattr(one, "function", None) or one.op for one in written}
    return names.pop() if len(names) == 1 else f"{len(calls)} calls of the reference's program"


def _concluded(module: str, op: str, figures: tuple[Figures, ...], why: str) -> Isolated:
    shown, exit_codes = module or "the model", {Verdict.NOISE: 0, Verdict.DRIFT: 1, Verdict.INCONCLUSIVE: 2}

    def told(verdict: Verdict, fault: str, sentence: str) -> Isolated:
        return Isolated(module, op, figures, verdict, fault, sentence, exit_codes[verdict])

    outputs = [figure for figure in figures if figure.site.phase == "fwd"]
    if not outputs:
        sentence = f"{shown} cannot be replayed from these files: {why}; {INSTEAD}"
        return told(Verdict.INCONCLUSIVE, "unknown", sentence)
    wrong = [one for one in figures if one.is_wrong]
    if not wrong and (doubted := [one for one in figures if not one.is_right]):
        first = doubted[0]
        sentence = f"{shown} is next to noise at {first.site}: error {first.introduced:.1e}, noise {first.noise:.1e}"
        return told(Verdict.INCONCLUSIVE, "unknown", sentence)
    if not wrong:
        came = any(max(one.inherited, one.given) > max(one.noise, one.reference) for one in figures)
        tail = ": the error came in" if came else ", and nothing wrong came in"
        return told(Verdict.NOISE, "none", f"{shown} itself is right{tail}")
    if all(one.is_right_with_own_weights for one in wrong):
        sentence = f"the weights of {shown} differ; with the candidate's own weights it is right"
        return told(Verdict.DRIFT, "weights", sentence)
    worst = max((one for one in wrong if not one.is_right_with_own_weights), key=lambda one: one.times)
    made_by = op or outputs[0].operation
    what = f"{shown} computes something else than the reference's {made_by}"
    if not any(one.site.phase == "fwd" for one in wrong):
        what = f"the backward of {shown} computes something else than that of the reference's {made_by}"
    error = worst.introduced if worst.own is None else min(worst.introduced, worst.own)
    sentence = f"{what}: error {error:.1e} at {worst.site}, where noise explains {worst.noise:.1e}"
    return told(Verdict.DRIFT, "operation", sentence)


def _why(module: str, alignment: Alignment) -> str:
    """Why the outputs of a module could not be replayed."""
    outputs = [
        p for p in alignment.pairs if (p.site.phase, p.site.name) == ("fwd", module) and p.reference.at is not None
    ]
    if not any(not pair.site.port.startswith("in.") for pair in outputs):
        return "both sides need to have recorded its output, with values"
    return "the reference's trace does not say how it was made, or what it was made from was not recorded on both sides"


def _site(figures: Figures) -> dict[str, Any]:
    return {
        **figures.site._asdict(), "operation": figures.operation, "total": figures.total,
        "inherited": figures.inherited,
        "introduced": figures.introduced, "introduced_with_own_weights": figures.own, "reference": figures.reference,
        "noise": figures.noise, "right": figures.is_right,
    }  # fmt: skip
