"""What each compared site was computed from: recorded producers, the stage table, or the order read as a chain."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from ..core.sites import Site
from ..core.traces import Trace
from ..pair.pairs import Pair

RECORDED, STAGE_TABLE, CHAIN = "recorded", "stage table", "assumed chain"


class Graph:
    """Producers among the compared sites. What was not compared is seen through to what was."""

    def __init__(self, reference: Trace, pairs: Sequence[Pair]) -> None:
        self._pairs = {pair.site: pair for pair in pairs}
        self._records = {record.site: record for record in reference.records}
        recorded = any("from" in record.details for record in reference.records)
        table = reference.header.get("graph") == STAGE_TABLE
        self.kind = STAGE_TABLE if table else RECORDED if recorded else CHAIN
        self.batch = _batch(reference)
        self._has_optimizer = reference.header.get("optimizer") is not None
        self._outputs = _ordered(pair.site for pair in pairs if pair.site.phase == "fwd")
        self._flow = _ordered(pair.site for pair in pairs if pair.site.phase == "agrad")
        self._by_name: dict[tuple[int, str, str], list[Site]] = defaultdict(list)
        self._phases: dict[tuple[int, str], list[Site]] = defaultdict(list)
        for site in self._pairs:
            self._by_name[site.step, site.phase, site.name].append(site)
            self._phases[site.step, site.phase].append(site)
        chains = (*self._outputs.values(), *self._flow.values())
        self._place = {site: place for chain in chains for place, site in enumerate(chain)}
        self._consumers = self._find_consumers()
        self._ran = {(site.step, site.name) for site in self._records if site.phase == "fwd"}
        # Where no module around another was recorded, nothing tells those that ran from mere lists of modules.
        self._knows_containers = any(
            (step, around) in self._ran for step, name in self._ran for around in _around(name)
        )

    def producers(self, site: Site) -> list[Site]:
        """The compared sites that this one was computed from."""
        found = dict.fromkeys(self._producers(site))
        found.pop(site, None)
        return list(found)

    def saw_pass(self, step: int) -> bool:
        """Whether anything of a step was compared between what the model was fed and the gradients of parameters."""
        return any(self._of_phase(step, phase) for phase in ("fwd", "lossgrad", "agrad"))

    def consumer(self, site: Site) -> str | None:
        """The module whose backward makes the gradient of this output."""
        if consumers := self.consumers(site):
            return consumers[0].name
        chain = self._outputs.get((site.step, site.sample), [])
        calls = [(other.name, other.call) for other in chain if not other.port.startswith("in.")]
        after = calls[len(calls) - calls[::-1].index(own) :] if (own := (site.name, site.call)) in calls else []
        if not after:
            return None
        name, call = after[0]
        return f"{name} (call {call})" if call or name == site.name else name

    def consumers(self, site: Site) -> list[Site]:
        """The modules that read an output, as far as the run recorded it."""
        return self._consumers.get(site._replace(phase="fwd", sample=None), [])

    def introducer(self, site: Site) -> str:
        """The operation that made this tensor."""
        if site.phase == "agrad":
            consumer = self.consumer(site)
            return f"{consumer}'s backward" if consumer else "the backward of what reads it"
        if site.phase == "fwd" and site.port.startswith("in."):
            # Made on the way, by the innermost module around that ran, and was not handed the tensor as it is.
            around = (one for one in _around(site.name) if not self._knows_containers or (site.step, one) in self._ran)
            return next((one for one in around if not self._was_handed(one, site)), "") or "the model itself"
        return {
            "loss": "the loss", "lossgrad": "the loss's backward", "grad": f"{site.name or 'the model'}'s backward",
            "grad_scaled": "the scaling or clipping of gradients", "optim": "the optimizer",
            "weight_after": "the optimizer" if self._is_trained(site) else f"{site.name or 'the model'}'s forward pass",
        }.get(site.phase, site.name or "the model itself")  # fmt: skip

    def _was_handed(self, name: str, site: Site) -> bool:
        """Whether a module's own input is the very tensor, on both sides."""
        pair = self._pairs.get(site)
        if pair is None or pair.reference.at is None or pair.candidate[0].at is None:
            return False
        stored = (pair.reference.at, pair.candidate[0].at)
        entering = (one for one in self._by_name.get((site.step, "fwd", name), ()) if one.port.startswith("in."))
        own = (self._pairs[one] for one in entering)
        return any((one.reference.at, one.candidate[0].at) == stored for one in own)

    def _is_trained(self, site: Site) -> bool:
        """Whether a gradient was recorded of what changed; running statistics have none. Where there is none at all, a
        run that recorded a pass and no optimizer trained nothing."""
        if not any(phase in ("grad", "grad_scaled") for _, phase in self._phases):
            return self._has_optimizer or not self.saw_pass(site.step)
        return any(site._replace(phase=phase) in self._records for phase in ("grad", "grad_scaled"))

    def _producers(self, site: Site) -> Iterator[Site]:
        match site.phase:
            case "fwd":
                yield from self._forward(site)
                yield from self._parameters(site, "weight")
            case "loss" | "lossgrad":
                chain = self._outputs.get((site.step, site.sample)) or self._outputs.get((site.step, None), [])
                yield from chain[-1:]
            case "agrad":
                yield from self._activation_gradient(site)
            case "grad":
                yield from self._parameter_gradient(site)
            case "grad_scaled":
                yield from self._parameters(site, "grad", port=site.port)
            case "optim":
                yield from self._optimizer_state(site)
            case "weight_after":
                for phase in ("grad_scaled", "grad", "optim"):
                    yield from self._parameters(site, phase, port=site.port)
            case "weight":
                yield from self._by_name.get((site.step - 1, "weight_after", site.name), ())

    def _forward(self, site: Site) -> Iterator[Site]:
        record = self._records.get(site) or self._records.get(site._replace(sample=None))
        if record is not None and record.producers is not None:
            yield from self._seen_through(record.producers, site.sample)
            return
        if self.kind == STAGE_TABLE or site not in self._place:  # which is nowhere in the order of what was compared
            return
        chain = self._outputs[site.step, site.sample]
        place = self._place[site]
        named = self._by_name[site.step, "fwd", site.name]
        own = [o for o in named if o.port.startswith("in.") and (o.call, o.sample) == (site.call, site.sample)]
        if own and not site.port.startswith("in."):
            yield from own
        elif place:
            yield chain[place - 1]
        else:
            yield from self._of_phase(site.step, "input")

    def _activation_gradient(self, site: Site) -> Iterator[Site]:
        forward = site._replace(phase="fwd")
        if forward in self._pairs:
            yield forward  # masks and statistics come from the forward pass
        named = [(other, self._by_name.get((other.step, "agrad", other.name), ())) for other in self.consumers(site)]
        found = [
            one for other, gradients in named for one in gradients
            if one.sample in (site.sample, None) and one.call == other.call
        ]  # fmt: skip
        if found:
            yield from found
            return
        chain = self._flow[site.step, site.sample]
        place = self._place[site]
        if self.kind == CHAIN and place:
            yield chain[place - 1]
        else:
            yield from self._of_phase(site.step, "lossgrad")

    def _parameter_gradient(self, site: Site) -> Iterator[Site]:
        own = self._by_name.get((site.step, "agrad", site.name), [])
        yield from own or self._nearest_gradient(site)
        for output in self._by_name.get((site.step, "fwd", site.name), ()):
            yield from (other for other in self._forward(output) if other.phase in ("fwd", "input"))

    def _optimizer_state(self, site: Site) -> Iterator[Site]:
        """A parameter's gradient, and the state after the step before."""
        for phase in ("grad_scaled", "grad"):
            for other in self._parameters(site, phase):
                if site.port.startswith(f"{other.port}."):
                    yield other
        before = site._replace(step=site.step - 1)
        if before in self._pairs:
            yield before

    def _nearest_gradient(self, site: Site) -> Iterator[Site]:
        """Without its own activation gradient: those that have flowed back furthest."""
        furthest = [chain[-1] for (step, _), chain in self._flow.items() if step == site.step]
        yield from furthest or self._of_phase(site.step, "lossgrad")

    def _parameters(self, site: Site, phase: str, port: str | None = None) -> Iterator[Site]:
        for other in self._by_name.get((site.step, phase, site.name), ()):
            if port is None or other.port == port or (phase == "optim" and other.port.startswith(f"{port}.")):
                yield other

    def _seen_through(self, sites: Iterable[Site], sample: int | None) -> Iterator[Site]:
        """The nearest compared sites at or above these."""
        waiting, done = list(sites), set()
        while waiting:
            site = waiting.pop()
            if site in done:
                continue
            done.add(site)
            same = (site, site._replace(sample=sample), site._replace(sample=None))
            here = next((one for one in same if one in self._pairs), None)
            if here is not None:
                yield here
            elif (record := self._records.get(site)) is not None and record.producers:
                waiting.extend(record.producers)

    def _of_phase(self, step: int, phase: str) -> list[Site]:
        return self._phases.get((step, phase), [])

    def _find_consumers(self) -> dict[Site, list[Site]]:
        """For every output, the modules that read it, from recorded producers."""
        consumers: dict[Site, list[Site]] = {}
        forward = (record for record in self._records.values() if record.site.phase == "fwd")
        for record in forward:
            for producer in record.producers or ():
                if producer.name != record.site.name:
                    consumers.setdefault(producer._replace(sample=None), []).append(record.site)
        return consumers


def _around(name: str) -> Iterator[str]:
    """The modules around one, the innermost first and the model last."""
    while name:
        name = name.rpartition(".")[0]
        yield name


def _batch(trace: Trace) -> int:
    """How many samples a parameter's gradient sums over, where the run says so."""
    said = trace.header.get("gradient_of")
    batch = (said.get("batch") if isinstance(said, dict) else None) or trace.header.get("batch")
    return batch if type(batch) is int and batch > 0 else 1


def _ordered(sites: Iterable[Site]) -> dict[tuple[int, int | None], list[Site]]:
    """Sites by step and sample, each list in causal order."""
    chains: dict[tuple[int, int | None], list[Site]] = {}
    for site in sites:
        chains.setdefault((site.step, site.sample), []).append(site)
    return chains
