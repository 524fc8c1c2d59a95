"""Two traces into pairs: by map, by name, under a stripped prefix, by sample; and every leftover with its reason."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from ..core.records import Record
from ..core.sites import PARAMETER_PHASES, Site, fits_glob
from ..core.traces import Trace
from ..errors import SelectionError
from .absorbed import explained
from .batches import SCALED_PHASES, Units, sample_steps
from .call_counts import is_unscaled, recorded_calls, said_call
from .other_layouts import with_layouts
from .pairs import Alignment, Pair, Unmatched
from .prefixes import rename_by_prefix
from .structure.outline import is_input

if TYPE_CHECKING:  # reading a map is not for free, and most comparisons need none
    from .mapping import Mapping, Rule

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
    aligner = _Aligner(_expanded(reference), _expanded(candidate), mapping, selection or Selection())
    aligner.refuted = refuted
    aligner.selection.check({*aligner.reference, *aligner.candidate}, f"{reference.path} or {candidate.path}")
    if mapping is not None:
        mapping.check(aligner.reference, aligner.candidate)
    aligner.by_rule()
    aligner.by_call(reference, candidate)
    aligner.by_name()
    if prefixes:
        aligner.by_prefix()
    aligner.by_port()
    aligner.by_sample()
    if prefixes:
        aligner.by_evidence(reference, candidate)
    aligner.by_unscaled(reference)
    aligner.pairs.update(with_layouts(aligner.pairs, reference, candidate))
    return aligner.alignment(units or Units.of(reference, candidate), reference, candidate)


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

    def __init__(self, reference: Sites, candidate: Sites, mapping: Mapping | None, selection: Selection) -> None:
        self.reference, self.candidate = reference, candidate
        self.mapping, self.selection = mapping, selection
        self.waiting: Sites = {}
        self.pairs: dict[Site, Pair] = {}
        self.ignored: list[Unmatched] = []
        self.used: set[Site] = set()
        self.partial: set[tuple[int, int]] = set()  # samples compared, of how many
        self.renamed: dict[str, str] = {}  # reference names to candidate names, where they differ
        self.notes: list[str] = []
        self.refuted: frozenset[str] = frozenset()  # modules whose one likely counterpart has other numbers

    def by_rule(self) -> None:
        """What the map says."""
        for site, record in self.reference.items():
            if not self.selection.takes(site.phase, site.name):
                continue
            pattern = self.selection.ignoring(site)
            rule = self.mapping.find(site) if self.mapping is not None else None
            if pattern is not None:
                self.ignored.append(Unmatched(site, f"--ignore {pattern}"))
            elif rule is not None and rule.ignore is not None:
                self.ignored.append(Unmatched(site, rule.ignore))
            elif rule is None or not rule.named or not self._add_by_rule(site, record, rule):
                self.waiting[site] = record

    def by_name(self) -> None:
        """Equal sites; only now, as what the map gave to others is no longer to be had by name."""
        for site in list(self.waiting):
            self._add_by_name(site)

    def by_call(self, reference: Trace, candidate: Trace) -> None:
        """A module that the reference used several times and the candidate recorded fewer times: which of them."""
        for site, other in recorded_calls(self.waiting, self.candidate, reference, candidate):
            self.notes.append(f"{said_call(other)} equals {said_call(site)} of the reference")
            self._add(Pair(site, self.waiting[site], (self.candidate[other],), "call"), other)

    def by_evidence(self, reference: Trace, candidate: Trace) -> None:
        """What nothing has named: by what was computed, and with what."""
        from .structure.finding import found_by_evidence  # here, because most comparisons need none of it

        found = found_by_evidence(reference, candidate, self.pairs, self.waiting, self.candidate, self.used)
        if found is None:
            return
        for site in found.released:
            pair = self.pairs.pop(site)
            self.waiting[site] = pair.reference
            self.used -= {record.site for record in pair.candidate}
        self.notes += found.notes
        self.refuted = found.translation.found.refuted
        for site in list(self.waiting):
            target = None if self._is_mapped(site) else found.translation.target(site)
            if target is None:
                continue
            others = [site._replace(name=name, port=port, call=call) for name, port, call in target.places]
            if site.phase in _TIED:
                others = [other._replace(call=0) for other in others]
            if all(
                other in self.candidate
                and (other not in self.used or target.how == "parts" or self.waiting[site].site != site)
                for other in others
            ):
                self.renamed.setdefault(site.name, others[0].name)
                self._add(
                    Pair(
                        site, self.waiting[site], tuple(self.candidate[other] for other in others), target.how,
                        candidate_steps=target.steps, concatenate=target.concatenate, sure=target.bits,
                    ),
                    *others,
                )  # fmt: skip

    def by_unscaled(self, reference: Trace) -> None:
        """What the optimizer sees is the gradient itself where nothing was scaled, and the candidate has but one."""
        if any(site.phase == "grad_scaled" for site in self.candidate):
            return
        for site in [one for one in self.waiting if one.phase == "grad_scaled"]:
            raw = self.pairs.get(site._replace(phase="grad"))
            if raw is not None and raw.candidate and is_unscaled(reference, self.waiting[site], raw.reference):
                self.pairs[site] = replace(raw, site=site, reference=self.waiting.pop(site), matched="unscaled")

    def _add_by_name(self, site: Site) -> None:
        other = self._counterpart(site)
        if other in self.candidate and other not in self.used and not self._is_mapped(site):
            record = self.waiting[site]
            tied = record.site != site or self.candidate[other].site != other
            self._add(Pair(site, record, (self.candidate[other],), "alias" if tied else "name"), other)

    def _add_by_rule(self, site: Site, record: Record, rule: Rule) -> bool:
        targets = [site._replace(name=target.name, port=target.port) for target in rule.targets]
        if any(target not in self.candidate for target in targets):
            return False
        pair = Pair(
            site, record, tuple(self.candidate[target] for target in targets), "map",
            candidate_steps=rule.transforms, concatenate=rule.concatenate, tolerance=rule.tolerance,
        )  # fmt: skip
        self._add(pair, *targets)
        return True

    def by_prefix(self) -> None:
        """The same names under a stripped common prefix."""
        left = {site.name for site in self.candidate if site not in self.used}
        self.renamed = rename_by_prefix({site.name for site in self.waiting if not self._is_mapped(site)}, left)
        for site in list(self.waiting):
            other = self._counterpart(site)
            if other in self.candidate and other not in self.used:
                self._add(Pair(site, self.waiting[site], (self.candidate[other],), "prefix"), other)

    def by_port(self) -> None:
        """One output on each side, called differently (`out` and `out.0`)."""
        candidate = _by_group(site for site in self.candidate if site not in self.used)
        for group, reference in _by_group(self.waiting).items():
            others = candidate.get(self._counterpart(group), [])
            if len(reference) == len(others) == 1:
                self._add(
                    Pair(reference[0], self.waiting[reference[0]], (self.candidate[others[0]],), "port"), others[0]
                )

    def by_sample(self) -> None:
        """A batched tensor on one side, its samples one by one on the other."""
        single: dict[Site, list[Site]] = {}
        for site in self.candidate:
            if site.sample is not None and site not in self.used:
                single.setdefault(site._replace(sample=None), []).append(site)
        for site in list(self.waiting):
            record = self.waiting[site]
            other = self._counterpart(site)._replace(sample=None)
            if site.sample is not None and other in self.candidate and _holds(self.candidate[other], site.sample):
                steps = sample_steps(site.sample)
                self._add(Pair(site, record, (self.candidate[other],), "sample", candidate_steps=steps), other)
            elif site.sample is None:
                samples = [one for one in single.get(other, ()) if one.sample is not None]
                if samples and record.shape and len(samples) < record.shape[0]:
                    self.partial.add((len(samples), record.shape[0]))
                for sample in samples:
                    if sample.sample is not None and _holds(record, sample.sample):
                        pair = Pair(
                            site._replace(sample=sample.sample), record, (self.candidate[sample],), "sample",
                            reference_steps=sample_steps(sample.sample),
                        )  # fmt: skip
                        self._add(pair, sample)
                        self.waiting.pop(site, None)

    def alignment(self, units: Units, reference: Trace, candidate: Trace) -> Alignment:
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
        left, absorbed = explained(reference_only, reference, self.pairs, candidate, self.refuted)
        dropped = [] if self.mapping is None else self.mapping.dropped(item.site for item in left)
        self.notes += dropped
        scaled = units.note is not None and any(pair.site.phase in SCALED_PHASES for pair in pairs)
        notes = [*dict.fromkeys(self.notes), *([units.note] if scaled and units.note else [])]
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

    def _is_mapped(self, site: Site) -> bool:
        """Whether a map names the counterpart; where the candidate lacks it, no other will do."""
        rule = self.mapping.find(site) if self.mapping is not None else None
        return rule is not None and rule.named

    def _ignores_candidate(self, site: Site) -> bool:
        return self.selection.ignoring(site) is not None or (
            self.mapping is not None and self.mapping.ignores_candidate(site) is not None
        )

    def _counterpart(self, site: Site) -> Site:
        """The candidate's site of the same meaning: another prefix, and the port that a map gives it."""
        rule = self.mapping.find(site) if self.mapping is not None else None
        port = rule.targets[0].port if rule is not None and rule.targets else site.port
        return site._replace(name=self.renamed.get(site.name, site.name), port=port)

    def _meant(self, site: Site) -> Site:
        """The candidate's site that a map asks for, where it names one, be it there or not."""
        rule = self.mapping.find(site) if self.mapping is not None else None
        other = self._counterpart(site)
        return other._replace(name=rule.targets[0].name) if rule is not None and rule.named else other

    def _add(self, pair: Pair, *others: Site) -> None:
        rule = self.mapping.find(pair.site) if self.mapping is not None else None
        if rule is not None and pair.matched != "map":  # the map leaves the name to us, and says the rest
            steps = (*pair.candidate_steps, *rule.transforms)
            pair = replace(pair, candidate_steps=steps, tolerance=rule.tolerance)
        self.pairs[pair.site] = pair
        self.used.update(others)
        self.waiting.pop(pair.site, None)


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
    if not reference and not candidate:
        return pair
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
