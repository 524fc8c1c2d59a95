"""One module, replayed on the candidate's own inputs: is it right by itself, or did the error come in?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from ..compare.pairs import Alignment
from ..compare.result import Verdict
from ..errors import SelectionError
from ..sites import Site
from ..traces import Trace
from .shadow import Introduced, Shadow

SCHEMA = "firstdrift-isolate-v1"
INSTEAD = (
    "write the reference's inputs of it by `firstdrift export REF OUT --inputs-of NAME` and run the candidate's module "
    "on them alone, or compare both in one process by fd.check"
)


@dataclass(frozen=True, slots=True)
class Isolated:
    """What is known of one module by itself. `figures` are of its outputs, then of the gradients that it makes."""

    module: str
    op: str
    figures: tuple[Introduced, ...]
    verdict: Verdict  # noise, drift, inconclusive
    fault: str  # none, weights, operation, unknown
    sentence: str
    exit_code: int

    def to_json(self) -> dict[str, Any]:
        """The result in the schema `firstdrift-isolate-v1`."""
        return {
            "schema": SCHEMA, "module": self.module, "op": self.op, "verdict": str(self.verdict), "fault": self.fault,
            "sentence": self.sentence, "exit_code": self.exit_code, "sites": [_site(one) for one in self.figures],
        }  # fmt: skip


def isolate(
    reference: Trace, candidate: Trace, alignment: Alignment, module: str,
    advance: Callable[[int], None] = lambda nbytes: None,
) -> Isolated:  # fmt: skip
    """Replay one module, forward and backward, and conclude."""
    shadow = Shadow(reference, candidate, alignment.pairs)
    own = [site for site in shadow.sources.pairs if site.name == module and not site.port.startswith("in.")]
    op = next((record.op for record in reference if record.site.name == module and record.op), None) or ""
    if not any(record.site.name == module for record in reference):
        near = sorted({record.site.name for record in reference if module.lower() in record.site.name.lower()})[:3]
        hint = f"near it: {', '.join(near)}" if near else "`firstdrift show` lists the names there are"
        raise SelectionError(f"{reference.path}: nothing is named {module!r}; {hint}")
    if (figures := _by_program(shadow, module)) is not None:
        return _concluded(module, op, tuple(figures.values()), "")
    for site in shadow.sources.pairs:  # everything that ran, to know what gradients came through this module
        if site.phase == "fwd":
            shadow.fitted(site)
        advance(shadow.sources.record(site).nbytes)
    figures = shadow.replay([site for site in own if site.phase == "fwd"])
    figures |= shadow.replay([site for site in shadow.sources.pairs if _made_by(shadow, site, module)])
    return _concluded(module, op, tuple(figures.values()), _why(shadow, module, own))


def _by_program(shadow: Shadow, module: str) -> dict[Site, Introduced] | None:
    """The figures that the reference's own program gives; None where it has none, or says nothing of an output."""
    if find_spec("torch") is None:
        return None
    from ..program.read_program import read_program
    from .by_program import ByProgram

    program = read_program(shadow.sources.reference)
    figures = {} if program is None else ByProgram(program, shadow.sources, module).figures()
    return figures if any(site.phase == "fwd" for site in figures) else None


def _made_by(shadow: Shadow, site: Site, module: str) -> bool:
    """Whether a gradient is made by a module's backward."""
    if site.phase == "grad":
        return site.name == module
    recipe = shadow.recipe(site) if site.phase == "agrad" else None
    return recipe is not None and any(read.phase == "agrad" and read.name == module for read in recipe.inputs.values())


def _concluded(module: str, op: str, figures: tuple[Introduced, ...], why: str) -> Isolated:
    shown = module or "the model"
    outputs = [one for one in figures if one.site.phase == "fwd"]
    judged = [one for one in figures if one.noise < 1]
    if not outputs or not judged:
        sentence = f"{shown} cannot be replayed from these files: {why}; {INSTEAD}"
        return Isolated(module, op, figures, Verdict.INCONCLUSIVE, "unknown", sentence, 2)
    wrong = [one for one in judged if not one.is_right]
    made_by = op or outputs[0].operation
    if not wrong:
        came = any(max(one.inherited, one.fed) > one.noise for one in judged)
        tail = "the error came in" if came else "and nothing wrong came in"
        sentence = f"{shown} itself is right: {tail}" if came else f"{shown} itself is right, {tail}"
        return Isolated(module, op, figures, Verdict.NOISE, "none", sentence, 0)
    if all(one.is_right_with_own_weights for one in wrong):
        sentence = f"the weights of {shown} differ; with the candidate's own weights it is right"
        return Isolated(module, op, figures, Verdict.DRIFT, "weights", sentence, 1)
    worst = max((one for one in wrong if not one.is_right_with_own_weights), key=lambda one: one.introduced / one.noise)
    what = f"{shown} computes something else than the reference's {made_by}"
    if worst.site.phase != "fwd" and not any(one.site.phase == "fwd" for one in wrong):
        what = f"the backward of {shown} computes something else than that of the reference's {made_by}"
    error = worst.introduced if worst.own is None else min(worst.introduced, worst.own)
    sentence = f"{what}: error {error:.1e} at {worst.site}, where noise explains {worst.noise:.1e}"
    return Isolated(module, op, figures, Verdict.DRIFT, "operation", sentence, 1)


def _why(shadow: Shadow, module: str, own: list[Site]) -> str:
    """Why the outputs of a module could not be replayed."""
    outputs = [site for site in own if site.phase == "fwd"]
    if not outputs:
        return "both sides need to have recorded its output, with values"
    if not any(True for site in outputs for _ in shadow.sources.reads(site)):
        return "what it reads was not recorded on both sides"
    if not shadow.sources.parameters(module, outputs[0].step):
        return "no operation that we know, and no weights of it were recorded, make its output from what it reads"
    return "no operation that we know makes its output from what it reads and its weights"


def _site(one: Introduced) -> dict[str, Any]:
    return {
        **one.site._asdict(), "operation": one.operation, "settings": dict(one.settings), "total": one.total,
        "inherited": one.inherited, "introduced": one.introduced, "introduced_with_own_weights": one.own,
        "reference": one.reference, "noise": one.noise, "right": one.is_right,
    }  # fmt: skip
