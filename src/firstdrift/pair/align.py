"""Two traces into pairs: by map, by name, under a stripped prefix, by sample; and every leftover with its reason."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from ..core.records import Record
from ..core.sites import PARAMETER_PHASES, Site, fits_glob
from ..core.traces import Trace
from ..errors import SelectionError
from .absorbed import explained
from .arrangements import Steps
from .batches import SCALED_PHASES, Units, is_unscaled, recorded_calls, said_call, sample_steps
from .folded import folds
from .other_layouts import with_layouts
from .pairs import Alignment, Pair, Unmatched
from .prefixes import rename_by_prefix
from .structure.outline import is_input

if TYPE_CHECKING:  # reading a map is not for free, and most comparisons need none
    from .mapping import Mapping, Rule

BETWEEN = "between a layer and a norm that are one on the other side; what is made of it was compared"
FOLDED = "the same numbers, computed and compared"
_TIED = PARAMETER_PHASES | {"optim"}
Sites = dict[Site, Record]


@dataclass(frozen=True, slots=True)
class Selection:
    """Which sites are looked at, by globs on the reference's names and phases."""

    only: tuple[str, ...] = ()
    phases: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()

    def takes(self, phase: str, name: str) -> bool:
        """Whether a site is looked at at all."""
        wanted = not self.only or any(fnmatchcase(name, glob) for glob in self.only)
        return wanted and (not self.phases or any(fnmatchcase(phase, glob) for glob in self.phases))

    def ignoring(self, site: Site) -> str | None:
        """The pattern that leaves this site out, if one does."""
        return next((glob for glob in self.ignore if fits_glob(site, glob)), None)

    def check(self, sites: Iterable[Site], place: str) -> None:
        """Refuse a pattern that matches nothing: it would silently select, or ignore, nothing."""
        sites = list(sites)
        names, phases = {site.name for site in sites}, {site.phase for site in sites}

        def matches(option: str, glob: str) -> bool:
            if option == "ignore":
                return any(fits_glob(site, glob) for site in sites)
            return any(fnmatchcase(text, glob) for text in (names if option == "only" else phases))

        asked = (("only", self.only), ("phase", self.phases), ("ignore", self.ignore))
        for option, globs in asked:
            for glob in globs:
                if not matches(option, glob):
                    raise SelectionError(f"--{option} {glob}: matches nothing in {place}; `firstdrift show` lists it")


def align(
    reference: Trace, candidate: Trace, *, mapping: Mapping | None = None, selection: Selection | None = None,
    units: Units | None = None, prefixes: bool = True, refuted: frozenset[str] = frozenset(),
) -> Alignment:  # fmt: skip
    """Pair every reference site that has a counterpart; list what is left over on either side, with reasons.

    Without `prefixes`, names are taken to be matched already: what is called differently is something else. `refuted`
    are modules that are computed inside nothing else, because the candidate may have them, with other numbers.
    """
    aligner = _Aligner(reference, candidate, mapping, selection or Selection(), refuted)
    aligner.selection.check({*aligner.reference, *aligner.candidate}, f"{reference.path} or {candidate.path}")
    if mapping is not None:
        mapping.check(aligner.reference, aligner.candidate)
    aligner.by_rule()
    aligner.by_call()
    aligner.by_name()
    if prefixes:
        aligner.by_prefix()
    aligner.by_port()
    aligner.by_sample()
    aligner.by_folding()
    if prefixes:
        aligner.by_evidence()
    aligner.by_unscaled()
    aligner.pairs.update(with_layouts(aligner.pairs, reference, candidate))
    return aligner.alignment(units or Units.of(reference, candidate))


def _expanded(trace: Trace) -> Sites:
    """Every site of a trace, each further name of a tied tensor included."""
    sites: Sites = {}
    for record in trace.records:
        sites[record.site] = record
        if record.site.phase in _TIED:
            for alias in record.aliases:
                name, _, port = alias.rpartition(".")
                sites.setdefault(record.site._replace(name=name, port=port), record)
    return sites


class _Aligner:
    """Alignment in progress: `waiting` reference sites find counterparts among candidate sites not yet `used`."""

    def __init__(
        self, reference: Trace, candidate: Trace, mapping: Mapping | None, selection: Selection, refuted: frozenset[str]
    ) -> None:
        self.traces = reference, candidate
        self.reference, self.candidate = _expanded(reference), _expanded(candidate)
        self.mapping, self.selection = mapping, selection
        self.waiting: Sites = {}
        self.pairs: dict[Site, Pair] = {}
        self.ignored: list[Unmatched] = []
        self.used: set[Site] = set()
        self.partial: set[tuple[int, int]] = set()  # samples compared, of how many
        self.renamed: dict[str, str] = {}  # reference names to candidate names, where they differ
        self.notes: list[str] = []
        self.refuted = refuted
        self.folded: dict[Site, str] = {}  # parameters that the candidate holds as one with others

    def by_rule(self) -> None:
        """What the map says."""
        for site, record in self.reference.items():
            if not self.selection.takes(site.phase, site.name):
                continue
            pattern, rule = self.selection.ignoring(site), self._rule(site)
            if pattern is not None:
                self.ignored.append(Unmatched(site, f"--ignore {pattern}"))
            elif rule is not None and rule.line.ignore is not None:
                self.ignored.append(Unmatched(site, rule.line.ignore))
            else:
                self.waiting[site] = record
                targets = [site._replace(name=target.name, port=target.port) for target in rule.targets] if rule else []
                if rule is not None and rule.named and all(target in self.candidate for target in targets):
                    self._pair(site, targets, "map", concatenate=rule.line.concatenate)

    def by_call(self) -> None:
        """A module that the reference used several times and the candidate recorded fewer times: which of them."""
        for site, other in recorded_calls(self.waiting, self.candidate, *self.traces):
            self.notes.append(f"{said_call(other)} equals {said_call(site)} of the reference")
            self._pair(site, [other], "call")

    def by_name(self) -> None:
        """Equal sites; only now, as what the map gave to others is no longer to be had by name."""
        for site in list(self.waiting):
            other = self._counterpart(site)
            if self._is_free(other) and not self._is_mapped(site):
                tied = self.waiting[site].site != site or self.candidate[other].site != other
                self._pair(site, [other], "alias" if tied else "name")

    def by_prefix(self) -> None:
        """The same names under a stripped common prefix."""
        left = {site.name for site in self.candidate if site not in self.used}
        self.renamed = rename_by_prefix({site.name for site in self.waiting if not self._is_mapped(site)}, left)
        for site in list(self.waiting):
            other = self._counterpart(site)
            if self._is_free(other):
                self._pair(site, [other], "prefix")

    def by_port(self) -> None:
        """One output on each side, called differently (`out` and `out.0`)."""
        candidate = _by_group(site for site in self.candidate if site not in self.used)
        for group, reference in _by_group(self.waiting).items():
            others = candidate.get(self._counterpart(group), [])
            if len(reference) == len(others) == 1:
                self._pair(reference[0], others, "port")

    def by_sample(self) -> None:
        """A batched tensor on one side, its samples one by one on the other."""
        single: dict[Site, list[tuple[Site, int]]] = {}
        for site in self.candidate:
            if site.sample is not None and site not in self.used:
                single.setdefault(site._replace(sample=None), []).append((site, site.sample))
        for site, record in list(self.waiting.items()):
            other = self._counterpart(site)._replace(sample=None)
            if site.sample is not None:
                if other in self.candidate and _holds(self.candidate[other], site.sample):
                    self._pair(site, [other], "sample", candidate_steps=sample_steps(site.sample))
                continue
            samples = single.get(other, ())
            if samples and record.shape and len(samples) < record.shape[0]:
                self.partial.add((len(samples), record.shape[0]))
            for sample, number in samples:
                if _holds(record, number):
                    part = site._replace(sample=number)
                    self.waiting.pop(site, None)
                    self.waiting[part] = record
                    self._pair(part, [sample], "sample", reference_steps=sample_steps(number))

    def by_folding(self) -> None:
        """Parameters that one side holds as one: what has their name is no counterpart, nor is what the layer gives."""
        reference, candidate = self.traces
        for fold in folds(reference, candidate, self.waiting.keys()):
            between = self._of_module(fold.norm, fed=True)
            self._release({*fold.sites, *self._of_module(fold.layer, fed=False), *between})
            self.folded |= dict.fromkeys(between, BETWEEN)
            self.used |= {record.site for record in fold.held}
            self._pair_outputs(fold.norm, fold.layer)
            self.folded |= dict.fromkeys(fold.sites, f"folded into the candidate's {fold.name!r}: {FOLDED}")
        for fold in folds(candidate, reference, self.candidate.keys() - self.used):
            whole = {record.site for record in fold.held}
            between = self._of_module(fold.norm, fed=True)
            outputs = self._of_module(fold.layer, fed=False) | self._of_module(fold.norm, fed=False)
            self._release(whole | outputs | between)
            self.folded |= dict.fromkeys(between, BETWEEN)
            self.used |= set(fold.sites)
            self._pair_outputs(fold.layer, fold.norm)
            self.folded |= dict.fromkeys(whole, f"the candidate holds it as {fold.parts}: {FOLDED}")

    def _pair_outputs(self, name: str | None, other: str | None) -> None:
        """What a module gives with what stands for it, by another module's name."""
        for site in [site for site in self.waiting if site.phase == "fwd" and site.name == name and not is_input(site)]:
            if other is not None and self._is_free(site._replace(name=other)):
                self._pair(site, [site._replace(name=other)], "weights")

    def _of_module(self, name: str | None, *, fed: bool) -> set[Site]:
        """What a module is fed, or gives, of the pairs so far."""
        return {site for site in self.pairs if site.phase == "fwd" and site.name == name and is_input(site) is fed}

    def _release(self, sites: set[Site]) -> None:
        """Let pairs go: their sites wait again, and what stood for them is free."""
        for site in sites & self.pairs.keys():
            pair = self.pairs.pop(site)
            self.waiting[site] = pair.reference
            self.used -= {record.site for record in pair.candidate}

    def by_evidence(self) -> None:
        """What nothing has named: by what was computed, and with what."""
        from .structure.finding import found_by_evidence  # here, because most comparisons need none of it

        waiting = [site for site in self.waiting if site not in self.folded]
        found = found_by_evidence(*self.traces, self.pairs, waiting, self.candidate, self.used)
        if found is None:
            return
        self._release(set(found.released))
        self.notes += found.notes
        self.refuted = found.translation.found.refuted
        for site, record in list(self.waiting.items()):
            target = None if self._is_mapped(site) or site in self.folded else found.translation.target(site)
            if target is None:
                continue
            others = [
                site._replace(name=name, port=port, call=0 if site.phase in _TIED else call)
                for name, port, call in target.places
            ]
            may_share = target.how == "parts" or record.site != site
            if all(other in self.candidate and (may_share or other not in self.used) for other in others):
                self.renamed.setdefault(site.name, others[0].name)
                steps, axis = target.steps, target.concatenate
                if record.shape == ():  # a count beside a parameter has no part of it to take
                    others, steps, axis = others[:1], (), None
                self._pair(site, others, target.how, candidate_steps=steps, concatenate=axis, sure=target.bits)

    def by_unscaled(self) -> None:
        """What the optimizer sees is the gradient itself where nothing was scaled, and the candidate has but one."""
        if any(site.phase == "grad_scaled" for site in self.candidate):
            return
        for site in [one for one in self.waiting if one.phase == "grad_scaled"]:
            raw = self.pairs.get(site._replace(phase="grad"))
            if raw is not None and raw.candidate and is_unscaled(self.traces[0], self.waiting[site], raw.reference):
                self.pairs[site] = replace(raw, site=site, reference=self.waiting.pop(site), matched="unscaled")

    def alignment(self, units: Units) -> Alignment:
        """The pairs in the reference's causal order, and what is left."""
        place = {site: number for number, site in enumerate(self.reference)}

        def order(site: Site) -> tuple[int, int]:
            whole = site if site in place else site._replace(sample=None)
            return place[whole], -1 if site.sample is None else site.sample

        pairs = tuple(_in_units(self.pairs[site], units) for site in sorted(self.pairs, key=order))
        of_reference, of_candidate = _Directory(self.reference, "reference"), _Directory(self.candidate, "candidate")
        back = {other: name for name, other in self.renamed.items()}
        candidate_only = [
            Unmatched(site, of_reference.why_not(site))
            for site, record in self.candidate.items()
            if site not in self.used
            and record.site == site
            and self.selection.takes(site.phase, back.get(site.name, site.name))
            and not self._ignores_candidate(site)
        ]
        unread = self._inputs_of_modules()
        reference_only = [
            Unmatched(site, of_candidate.why_not(self._meant(site)))
            for site, record in self.waiting.items()
            # Optimizer state is extra evidence, never a gap; and what the reference has not, nobody can lack.
            if site.phase != "optim" and site not in unread and record.absent is None
        ]
        left, absorbed = explained(
            reference_only, self.traces[0], self.pairs, self.traces[1], self.refuted, self.folded
        )
        if self.mapping is not None:
            self.notes += self.mapping.dropped(item.site for item in left)
        notes = list(dict.fromkeys(self.notes))
        if units.note is not None and any(pair.site.phase in SCALED_PHASES for pair in pairs):
            notes.append(units.note)
        if unread:
            notes.append(
                f"the candidate recorded no inputs of modules; {len(unread)} of the reference were not compared"
            )
        notes += [
            f"only {some} of the {whole} samples of a batch were compared" for some, whole in sorted(self.partial)
        ]
        return Alignment(pairs, tuple(left), tuple(candidate_only), tuple(self.ignored), tuple(notes), tuple(absorbed))

    def _inputs_of_modules(self) -> set[Site]:
        """Inputs of modules that wait for a counterpart, if the candidate records outputs only, as an engine does:
        what goes into a module came out of others, or shows in what comes out of this one."""
        if any(is_input(site) for site in self.candidate):
            return set()
        return {site for site in self.waiting if is_input(site)}

    def _rule(self, site: Site) -> Rule | None:
        """What a map says of a site."""
        return None if self.mapping is None else self.mapping.find(site)

    def _is_mapped(self, site: Site) -> bool:
        """Whether a map names the counterpart; where the candidate lacks it, no other will do."""
        rule = self._rule(site)
        return rule is not None and rule.named

    def _is_free(self, other: Site) -> bool:
        return other in self.candidate and other not in self.used

    def _ignores_candidate(self, site: Site) -> bool:
        return self.selection.ignoring(site) is not None or (
            self.mapping is not None and self.mapping.ignores_candidate(site) is not None
        )

    def _counterpart(self, site: Site) -> Site:
        """The candidate's site of the same meaning: another prefix, and the port that a map gives it."""
        rule = self._rule(site)
        port = rule.targets[0].port if rule is not None and rule.targets else site.port
        return site._replace(name=self.renamed.get(site.name, site.name), port=port)

    def _meant(self, site: Site) -> Site:
        """The candidate's site that a map asks for, where it names one, be it there or not."""
        rule, other = self._rule(site), self._counterpart(site)
        return other._replace(name=rule.targets[0].name) if rule is not None and rule.named else other

    def _pair(
        self, site: Site, others: Sequence[Site], matched: str, candidate_steps: Steps = (), **more: Any
    ) -> None:  # fmt: skip
        """Pair a waiting site with sites of the candidate; a map that names none of them may say the rest."""
        rule = self._rule(site)
        if rule is not None:
            more["tolerance"], candidate_steps = rule.line.tolerance, (*candidate_steps, *rule.line.transforms)
        records = tuple(self.candidate[other] for other in others)
        self.pairs[site] = Pair(
            site, self.waiting.pop(site), records, matched, candidate_steps=candidate_steps, **more
        )  # fmt: skip
        self.used.update(others)


def _by_group(sites: Iterable[Site]) -> dict[Site, list[Site]]:
    """Sites that differ in their port alone, inputs apart from outputs."""
    groups: dict[Site, list[Site]] = {}
    for site in sites:
        if site.phase in ("fwd", "agrad"):
            groups.setdefault(site._replace(port="in" if is_input(site) else "out"), []).append(site)
    return groups


def _holds(record: Record, sample: int) -> bool:
    """Whether a batched tensor has this sample along its first axis."""
    return bool(record.shape) and record.shape is not None and sample < record.shape[0]


def _in_units(pair: Pair, units: Units) -> Pair:
    reference, candidate = units.steps(pair.site)
    return replace(
        pair, reference_steps=(*pair.reference_steps, *reference), candidate_steps=(*pair.candidate_steps, *candidate)
    )


class _Directory:
    """What one side has, arranged to say what it lacks."""

    def __init__(self, sites: Sites, side: str) -> None:
        self._side = side
        self._phases = {site.phase for site in sites}
        self._steps = {site.step for site in sites}
        self._named: dict[str, list[Site]] = {}
        for site in sites:
            self._named.setdefault(site.name, []).append(site)

    def why_not(self, site: Site) -> str:
        """Why there is no counterpart: the coarsest thing that is missing."""
        if site.phase not in self._phases:
            return f"the {self._side} recorded no {site.phase!r} at all"
        if site.step not in self._steps:
            return f"the {self._side} did not record step {site.step}"
        named = self._named.get(site.name)
        if named is None:
            return f"the {self._side} has nothing named {site.name!r}"
        same = [other for other in named if (other.step, other.phase) == (site.step, site.phase)]
        if not same:
            return f"the {self._side} has {site.name!r}, but not its {site.phase}"
        ported = [other for other in same if other.port == site.port]
        if not ported:
            return f"the {self._side} has only the ports {', '.join(sorted({other.port for other in same}))} of it"
        if not any(other.call == site.call for other in ported):
            return f"the {self._side} ran it {len({other.call for other in ported})} times"
        samples = sorted({"the whole batch" if o.sample is None else f"sample {o.sample}" for o in ported})
        return f"the {self._side} recorded {', '.join(samples[:6])}{', ...' if len(samples) > 6 else ''} of it"
