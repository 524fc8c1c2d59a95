"""What a change of an optimizer's step is called: by what a number works on, and by the settings that it comes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import sqrt
from typing import Any

from ..program.calls import Call, Earlier, Leaf, Ref, reads
from ..program.reruns import Rerun
from .naming import CHANGED, ROOTS
from .one_program.around import MOVES, Around, Change, base
from .one_program.values import PART

PARAMETER, GRADIENT, STATE = "parameter", "gradient", "state"
PHASES: Mapping[str, str] = {"weight": PARAMETER, "grad": GRADIENT, "grad_scaled": GRADIENT, "optim": STATE}
NEW = frozenset({"zeros_like", "zeros", "new_zeros", "full_like", "ones_like"})  # how a state begins
OTHERS: Mapping[str, str] = {"norm-eps": "optimizer-eps", "norm-eps-placement": "optimizer-eps"}
LEFT_OUT = frozenset({"missing-residual", "missing-term"})
VAGUE = frozenset({
    "scale", "offset", "attention-scale", "softcap", "residual-source", "gate-formula", "batchnorm-momentum", CHANGED,
    "alibi-slope", "skipped-op", "norm-eps", "norm-eps-placement", "router-renorm", "index-shift", "wrong-weight",
}) | LEFT_OUT  # fmt: skip
IN_LOSS = frozenset({"missing-term", "scale", "skipped-op", "offset", CHANGED})
LOSSES = frozenset({"cross_entropy", "kl_div", "binary_cross_entropy", "binary_cross_entropy_with_logits"})
DIVIDING = frozenset({"div", "addcdiv", "reciprocal"})
RATES = ("beta", "betas", "momentum", "dampening", "rho", "alpha", "gamma")  # settings by which an average moves
SETTINGS = ("lr", "weight_decay", "eps", *RATES)
NEAR = 1e-6  # relative: a number is one that was computed from settings
MOST_STEPS = 3  # by which a count of steps may be off


def named(change: Change, rerun: Rerun) -> Change:
    """A change with the name that it has in an optimizer's step; any other as it is."""
    numbers = change.edit if change.at is None else (change.at,)
    calls = [Around(rerun, number) for number in numbers if number in rerun.calls]
    if change.label not in VAGUE or not calls:
        return change
    if all(call.call.part == PART for call in calls):
        by_term = _left_out if change.label in LEFT_OUT else _label
        label = "optimizer-eps" if _is_divisor(change, calls[-1]) else OTHERS.get(change.label)
        label = label or _decay(change, calls[-1]) or by_term(change, calls[-1])
    else:
        label = _of_loss(calls) if change.label in IN_LOSS else None
        label = label or _of_average(change, calls[-1])
    return change if label is None else replace(change, label=label)


def _is_divisor(change: Change, around: Around) -> bool:
    """Whether a number is added to what a step divides by, or it is what is called so."""
    if change.label != "offset":
        return False
    before = _number(change.parameters)
    is_eps = before is not None and _is_one_of(before, settings_of(around.rerun, ("eps",)))
    return is_eps or bool(DIVIDING & {plain_op(one) for one in around.next()})


def _decay(change: Change, around: Around) -> str | None:
    """What it is called if a parameter that the reference only moves is also multiplied by a number."""
    has_number = _number(change.parameters) is not None or "factor" in dict(change.parameters or {})
    is_of_parameter = any(role(around.rerun, ref) == PARAMETER for ref in around.tensors)
    if change.label != "scale" or has_number or not is_of_parameter:
        return None
    return "weight-decay-norms" if len(around.shape) < 2 else "weight-decay-coupling"


def _of_loss(calls: Sequence[Around]) -> str | None:
    """What it is called if what a loss function of a library is made of is made otherwise."""
    rerun = calls[0].rerun
    written = {getattr(rerun.written(call.number), "op", "").split(".")[-1] for call in calls}
    if rerun.shape(rerun.target) or not all(name.endswith("_loss") or name in LOSSES for name in written):
        return None
    return "reduction-scale" if {call.op for call in calls} == {"div"} else "loss-formula"


def _of_average(change: Change, around: Around) -> str | None:
    """What it is called if a number is another one by which a module moves its own average."""
    left = {ref for site, ref in around.rerun.step.sites.items() if site.phase == "weight_after"}
    moves = around.rerun.target in left and _number(change.parameters) is not None
    is_own = moves and any(role(around.rerun, ref) == PARAMETER for ref in around.tensors)
    return "batchnorm-momentum" if is_own and around.op in ("lerp", "mul", "add") else None


def _label(change: Change, around: Around) -> str | None:
    before = _number(change.parameters)
    if change.label == "residual-source":
        return CHANGED
    if before is None:
        return "optimizer-bias-correction" if _leaves_correction_out(change, around) else _of_factor(change, around)
    roles = [role(around.rerun, ref) for ref in around.tensors[:1]]
    first, rest = roles[0] if roles else None, [_scaled(around.rerun, ref) for ref in around.tensors[1:]]
    if first == PARAMETER and plain_op(around) in ("mul", "div"):
        return "weight-decay-coupling"
    if PARAMETER in rest and first != PARAMETER:
        return "weight-decay-coupling"
    if _is_correction(around, before, dict(change.parameters)):
        return "optimizer-bias-correction"
    return _of_moved(around, before, first)


def _leaves_correction_out(change: Change, around: Around) -> bool:
    """Whether moments are not divided by what corrects them."""
    numbers = [one for one in around.call.args if isinstance(one, float)]
    is_gone = not any(call.op == around.call.op for call in _calls(change, around))
    return is_gone and plain_op(around) == "div" and any(_is_correction(around, one, {}) for one in numbers)


def _of_factor(change: Change, around: Around) -> str | None:
    """What a factor is called that the reference has not: of what a parameter is moved by, or a state is made of."""
    if change.label != "scale" or not around.tensors or change.kind.startswith("without"):
        return None
    if role(around.rerun, around.tensors[0]) == PARAMETER and plain_op(around) in ("add", "sub"):
        return "optimizer-lr"
    return "optimizer-momentum" if _makes_state(around) else None


def _is_correction(around: Around, before: float, parameters: Mapping[str, Any]) -> bool:
    """Whether a number is what moments are divided by, or holds it."""
    some = _corrections(around.rerun, 1 if plain_op(around) == "div" else 2)
    return _is_one_of(before, some) or (not _makes_state(around) and _is_uncorrected(around.rerun, before, parameters))


def _of_moved(around: Around, before: float, first: str | None) -> str | None:
    """What another number is called by what it works on first: the gradient, the parameter, a state."""
    is_shared = len({one.number for one in around.next()}) > 1  # by states of another kind
    if first == GRADIENT and plain_op(around) in ("mul", "div") and (is_shared or not _averages(around)):
        return "gradient-scale"
    if first == PARAMETER and plain_op(around) in ("add", "sub", "addcdiv", "addcmul"):
        return "optimizer-lr"
    if ROOTS & around.following and plain_op(around) in ("add", "sub"):
        return "optimizer-eps"
    if first == STATE and (_is_one_of(before, _rates(around.rerun)) or _makes_state(around)):
        return "optimizer-momentum"
    if first in (STATE, GRADIENT) and (_makes_state(around) or _averages(around)):
        return "optimizer-momentum"
    return "optimizer-lr" if _is_one_of(before, settings_of(around.rerun, ("lr",))) else None


def _is_uncorrected(rerun: Rerun, before: float, parameters: Mapping[str, Any]) -> bool:
    """Whether a rate of learning that is divided by what moments are divided by, is not, or the other way round."""
    now = next((one for name, one in parameters.items() if f"reference_{name}" in parameters), None)
    if not isinstance(now, int | float) or {abs(now), abs(before)} & {0.0, 1.0}:
        return False
    rates = list(settings_of(rerun, ("lr",)))
    return any(
        _is_one_of(one, iter(rates)) and _is_one_of(one / other, _corrections(rerun, 1))
        for one, other in ((now, before), (before, now))
    )


def _left_out(change: Change, around: Around) -> str | None:
    """What a term is called that a step leaves out: the gradient beside its average, or the parameter that decays. Of
    the average itself nothing is told by that: at its beginning it is all that is left."""
    moved = around.tensors[:1] if role(around.rerun, around.tensors[0]) == PARAMETER else []
    read = [ref for call in _calls(change, around) for ref in reads(call) if ref.node >= 0]
    roles = {_scaled(around.rerun, ref) for ref in (*around.tensors, *read) if ref not in moved}
    if PARAMETER in roles:
        return "weight-decay-coupling"
    if _makes_state(around):
        kept = {result for fragment in change.edit.values() for result in fragment.results}
        gone = [_scaled(around.rerun, ref) for ref in around.tensors if ref not in kept]
        return "optimizer-momentum" if gone == [STATE] else None
    return "optimizer-momentum" if STATE in roles else CHANGED


def _calls(change: Change, around: Around) -> Sequence[Call]:
    """What is called in the place of a call."""
    fragment = change.edit.get(around.number)
    return () if fragment is None else fragment.calls


def plain_op(around: Around) -> str:
    """An operation, whether it is called for one tensor or for a list."""
    return around.op.removeprefix("_foreach_").rstrip("_")


def _number(parameters: Any) -> float | None:
    """The reference's number that a change is about."""
    known = dict(parameters or {})
    found = [value for name, value in known.items() if name.startswith("reference_")]
    ok = len(found) == 1 or (found and all(one == found[0] for one in found))
    return float(found[0]) if ok and isinstance(found[0], int | float) and not isinstance(found[0], bool) else None


def role(rerun: Rerun, ref: Ref) -> str | None:
    """What a value is to a step: the parameter, its gradient or a state, also where it was written to meanwhile."""
    while True:
        site = rerun.given.get(ref)
        if site is not None:
            return PHASES.get(site.phase)
        node = rerun.step.nodes[ref.node]
        if isinstance(node, Leaf):
            source = node.source.site if isinstance(node.source, Earlier) else node.source
            return PHASES.get(getattr(source, "phase", ""))
        read = reads(node)
        if base(node) in NEW and node.part == PART:
            return STATE
        if not read or not (base(node) in MOVES or _is_written(node)):
            return None
        ref = read[ref.at] if ref.at < len(read) else read[0]


def _is_written(call: Call) -> bool:
    return call.op.split(".")[1].endswith("_")


def _makes_state(around: Around) -> bool:
    """Whether a call is on the way to what a step leaves as a state."""
    sites = around.rerun.step.sites
    own = {ref for site, ref in sites.items() if site.phase == "optim"}
    return around.rerun.target in own or any(ref.node == around.number for ref in own)


def _averages(around: Around) -> bool:
    """Whether what a call makes is one part of a sum of a state and a gradient."""
    sums = [one for one in around.next() if plain_op(one) in ("add", "sub")]
    return any({_scaled(around.rerun, ref) for ref in one.tensors} == {STATE, GRADIENT} for one in sums)


def _scaled(rerun: Rerun, ref: Ref) -> str | None:
    """What a value is to a step, also where it is multiplied by a number."""
    call = rerun.calls.get(ref.node)
    if call is not None and ref not in rerun.given and base(call) == "mul" and len(reads(call)) == 1:
        ref = reads(call)[0]
    return role(rerun, ref)


def _groups(rerun: Rerun) -> Sequence[Mapping[str, Any]]:
    return [group for optimizer in rerun.step.optimizers for group in optimizer.get("groups", ())]


def settings_of(rerun: Rerun, names: Sequence[str]) -> Iterator[float]:
    """What an optimizer is told, of settings by name."""
    for group in _groups(rerun):
        for name, value in group.items():
            if any(name.rstrip("0123456789") == one for one in names):
                for item in value if isinstance(value, list | tuple) else (value,):
                    if isinstance(item, int | float) and not isinstance(item, bool):
                        yield float(item)


def _rates(rerun: Rerun) -> Iterator[float]:
    for rate in settings_of(rerun, RATES):
        yield from (rate, 1 - rate)


def _corrections(rerun: Rerun, first: int) -> Iterator[float]:
    """What moments are divided by, at about this step; what stands for the first one may be a rate as well."""
    count = rerun.step.number + 1
    for rate in settings_of(rerun, RATES):
        for step in range(max(count - MOST_STEPS, first), count + MOST_STEPS + 1):
            whole = 1 - rate**step
            if 0 < whole < 1:
                yield from (whole, sqrt(whole), 1 / whole, 1 / sqrt(whole))


def _is_one_of(value: float, values: Iterator[float]) -> bool:
    return any(abs(abs(value) - one) <= NEAR * abs(one) for one in values if one)
