"""Cases: a network with its truth, and candidates right and wrong, each repeated by its id alone."""

from __future__ import annotations

import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

import firstdrift as fd

from .changes import Drawn, LostBranch, draw_edit, draw_wrong_op, draw_wrong_update
from .forms import FORMS, Form, Recording, needs_target, sources
from .kinds import KINDS, OFTEN, draw_network
from .network import Network, Values, at, record
from .operations.sequences import Experts
from .running import run
from .truth import CLEAN_UNDER, FOUND_FROM, GREEN_FROM, Truth

CASES = 40  # of one network
CLEAN = 6  # of these, the first are right
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "f8": torch.float8_e4m3fn}
MIXED = "f32/bf16"  # the reference in float32, the candidate in bfloat16
DRAWN_DTYPES = ("f32",) * 5 + ("bf16",) * 3 + ("f16",) + ("f8",) + (MIXED,)
MARGIN = {"f32": 1e-3, "bf16": 0.2, "f16": 0.05, "f8": 1.0, MIXED: 0.2}  # of a choice among experts


@dataclass(frozen=True)
class Outcome:
    """One case, what is true of it, and what the judge said."""

    id: str
    network: str
    dtype: str
    train: bool
    form: str
    kind: str  # of the wrong change; "clean" for none
    change: str
    size: float  # at the first tensor that shows it
    free: float  # the same against free-running noise
    sites: tuple[str, ...]  # where the change shows first
    exit_code: int
    verdict: str
    found: str | None  # the first drift
    sentence: str
    failure: str | None

    def to_dict(self) -> dict:
        return asdict(self)


@dataclass(frozen=True)
class Batch:
    """One network in one dtype: its recorded reference and its truth, shared by many cases."""

    seed: int
    number: int
    dtype: str
    network: Network  # as the candidate stores it
    recording: Recording
    reference: Values
    truth: Truth
    scratch: Path

    @property
    def store(self) -> torch.dtype:
        return self.truth.store


def open_batch(seed: int, number: int, scratch: Path, only: str | None = None) -> Batch:
    """Draw a network, record it, and measure its noise."""
    rng = np.random.default_rng([seed, number])
    names = [kind for kind in KINDS for _ in range(OFTEN[kind])]
    kind = only if only in KINDS else names[rng.integers(len(names))]
    dtype = DRAWN_DTYPES[rng.integers(len(DRAWN_DTYPES))]
    train = dtype != "f8" and bool(rng.random() < 0.45)
    drawn = _with_clear_choices(rng, kind, train, dtype)
    ours = torch.float32 if dtype in (MIXED, "f8") else DTYPES[dtype]
    store = torch.bfloat16 if dtype == MIXED else DTYPES[dtype]
    path = scratch / "recorded"
    shutil.rmtree(path, ignore_errors=True)
    record(drawn.stored(ours), str(path))
    network = drawn.stored(store)
    recording = Recording(drawn, path)
    reference = run(network, store, None) if dtype == "f8" else recording.values()
    truth = Truth.of(network, store, number, drawn if dtype == MIXED else None)
    return Batch(seed, number, dtype, network, recording, reference, truth, scratch)


def _with_clear_choices(rng: np.random.Generator, kind: str, train: bool, dtype: str) -> Network:
    """A network none of whose discrete choices is so close that legal rewrites may differ in it."""
    while True:
        network = draw_network(rng, kind, train, adamw=dtype not in ("f16", "f8"))
        values = run(network, torch.float64, None)
        routed = [node for node in network.nodes if isinstance(node.op, Experts)]
        if all(_margin(network, node, values) > MARGIN[dtype] for node in routed):
            return network


def _margin(network: Network, node, values: Values) -> float:
    weights = {port: values[at(0, "weight", node.name, port)] for port in node.op.shapes()}
    return node.op.margin(values[at(0, "fwd", node.inputs[0])], weights)


def forms_for(batch: Batch) -> list[Form]:
    allowed = [form for form in FORMS if form.fits(batch.network)]
    return [form for form in allowed if not form.program or batch.dtype != "f8"]


def draw_change(batch: Batch, rng: np.random.Generator) -> Drawn | None:
    """Any wrong change that this network allows."""
    network, chance = batch.network, rng.random()
    if chance < 0.35:
        return draw_wrong_op(network, batch.store, rng)
    if network.optimizer is not None and chance < 0.5:
        return draw_wrong_update(network, rng)
    if network.loss is not None and chance < 0.55:
        forked = [n.name for n in network.nodes if sum(n.name in other.inputs for other in network.nodes) > 1]
        if forked:
            site = at(0, "agrad", forked[rng.integers(len(forked))])
            return Drawn("missing", f"one branch of {site}", LostBranch(site, int(rng.integers(2))))
    sites = [site for site in batch.truth.local if site.phase != "input" or rng.random() < 0.3]
    if chance > 0.85:
        sites = [site for site in sites if site.phase == "weight" and site.step == 0] or sites
    else:
        sites = [site for site in sites if site.phase != "weight"]
    site = sites[rng.integers(len(sites))]
    return draw_edit(site, batch.truth.exact[site], batch.truth.local[site], rng)


def run_case(batch: Batch, index: int) -> Outcome | None:
    """One case, judged; None where the drawn change is too small or not certain enough to count."""
    rng = np.random.default_rng([batch.seed, batch.number, index])
    forms = forms_for(batch)
    form = forms[rng.integers(len(forms))]
    if rng.random() < 0.3 and forms[0].program:
        form = forms[0]
    seed = int(rng.integers(1 << 40))
    if index < CLEAN:
        return _judged(batch, index, form, None, run(batch.network, batch.store, seed), 0.0, ())
    drawn = draw_change(batch, rng)
    if drawn is None:
        return None
    values = run(batch.network, batch.store, seed, drawn.change)
    size, sites = first_shown(batch, form, values, run(batch.network, batch.store, seed))
    if size < GREEN_FROM:
        return None
    return _judged(batch, index, form, drawn, values, size, sites)


def first_shown(batch: Batch, form: Form, wrong: Values, right: Values) -> tuple[float, tuple[fd.Site, ...]]:
    """The size of a change at the first tensor that shows it in this form, and all that show it in that phase."""
    sizes, clean = _sizes(batch, form, wrong), _sizes(batch, form, right)
    shown = [site for site in batch.recording.order if sizes.get(site, 0) >= GREEN_FROM]
    if not shown or any(clean[site] > CLEAN_UNDER for site in shown[:1]):
        return 0.0, ()
    first = shown[0]
    beside = [site for site in shown if (site.step, site.phase) == (first.step, first.phase)]
    if _is_local(batch, form, first):  # what only inherits it is no site of it
        local = batch.truth.local_sizes(wrong)
        beside = [site for site in beside if local[site] >= GREEN_FROM]
    if first.phase == "loss":  # its gradient comes from the same operation
        beside += [site for site in shown if site == at(first.step, "agrad", batch.network.last)]
    return sizes[first], tuple(beside)


def _is_local(batch: Batch, form: Form, site: fd.Site) -> bool:
    """Whether everything that a tensor is computed from is on record."""
    if needs_target(batch.network, site) and not form.program:
        return False
    seen = batch.recording.seen(form)
    return all(one in seen for one in sources(batch.network, site))


def _sizes(batch: Batch, form: Form, values: Values) -> dict[fd.Site, float]:
    """Of every tensor that the form shows: local where what it is computed from is on record, else free-running."""
    local, free = batch.truth.local_sizes(values), batch.truth.free_sizes(values)
    return {
        site: local[site] if _is_local(batch, form, site) else free[site]
        for site in batch.recording.seen(form)
        if site in local
    }


def _judged(
    batch: Batch, index: int, form: Form, drawn: Drawn | None, values: Values, size: float, sites: tuple[fd.Site, ...]
) -> Outcome:
    ours = batch.recording.path
    if not form.program:
        ours = batch.recording.write(form, batch.scratch / "reference", batch.reference)
    theirs = batch.recording.write(form, batch.scratch / "candidate", values, drawn and drawn.attrs)
    result = fd.diff(ours, theirs, explain=False)
    first = result.first_drift
    found = None if first is None else fd.Site(first.step, first.phase, first.name, first.port, first.call, None)
    known = None if found is None else batch.recording.known.get(found) or _tied(batch.network, found)
    return Outcome(
        f"{batch.seed}.{batch.number}.{index}", batch.network.kind, batch.dtype, batch.network.loss is not None,
        form.name, drawn.kind if drawn else "clean", drawn.label if drawn else "", size,
        batch.truth.free_sizes(values)[sites[0]] if sites else 0.0, tuple(map(str, sites)), result.exit_code,
        str(result.verdict.value), None if found is None else str(found), result.sentence,
        _failure(size, known in sites, result.exit_code),
    )  # fmt: skip


def _tied(network: Network, site: fd.Site) -> fd.Site:
    """A tied weight by the name of its owner."""
    owner = next((node.owner for node in network.nodes if node.name == site.name), site.name)
    return at(site.step, site.phase, owner, site.port)


def _failure(size: float, is_right: bool, code: int) -> str | None:
    """Which bar a case breaks."""
    if size == 0:
        return {0: None, 1: "false alarm"}.get(code, "inconclusive")
    if code == 0:
        return "false green"
    if size < FOUND_FROM or (code == 1 and is_right):
        return None
    return "wrong site" if code == 1 else "not found"
