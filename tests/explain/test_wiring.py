"""The right numbers in the wrong place: inputs passed through, old buffers, exchanged tensors, calls off by one."""

import numpy as np
import pytest
import torch
from tests.explain.blame import BF16, FLOAT32, SITE, Run, blurred, cause, numbers

import firstdrift
from firstdrift.core.sites import Site

A, B, C, D = (numbers(2, 9, 32, seed=seed) for seed in range(4))


def at(name="layers.1.part", call=0, step=0, port="out"):
    return Site(step, "fwd", name, port, call)


@pytest.mark.parametrize("noise", [FLOAT32, BF16])
def test_an_operation_that_passes_its_input_through_was_skipped(noise):
    said = cause(A, B, noise, inputs={"in.0": B}, op="RotaryEmbedding")
    assert said.label == "skipped-op"
    assert "RotaryEmbedding" in said.sentence


@pytest.mark.parametrize("noise", [FLOAT32, BF16])
@pytest.mark.parametrize("earlier", [at(call=0), at(step=0, call=3)])
def test_the_output_of_an_earlier_call_or_step_is_a_stale_buffer(earlier, noise):
    now = at(call=4, step=earlier.step)
    around = Run({earlier: B, at("other", call=9): C, now: A})
    said = cause(A, B, noise, now, around=around)
    assert said.label == "stale-buffer", said
    assert said.parameters["site"] == list(earlier)


def test_the_tensor_of_another_site_before_is_a_stale_buffer():
    around = Run({at("layers.0.part"): B, at("layers.0.other"): C, SITE: A})
    said = cause(A, B, around=around)
    assert (said.label, said.parameters["site"][2]) == ("stale-buffer", "layers.0.part")


def test_a_tensor_from_a_place_of_another_kind_is_told_without_a_cause():
    around = Run({at("layers.0.norm"): B, SITE: A})
    said = cause(A, B, around=around)
    assert (said.label, said.confidence) == ("unknown", 0.0)
    assert "layers.0.norm" in said.sentence


def test_two_tensors_that_changed_places_are_swapped():
    around = Run({at("gate"): A, at("up"): B}, {at("gate"): B, at("up"): A})
    assert cause(A, B, site=at("gate"), around=around).label == "swapped-operands"


def test_one_tensor_in_the_place_of_a_later_one_is_not_swapped():
    around = Run({at("gate"): A, at("up"): B}, {at("gate"): B, at("up"): C})
    assert cause(A, B, site=at("gate"), around=around).label == "unknown"


def test_a_call_that_gives_what_the_next_should_means_that_one_is_missing():
    around = Run({at(call=0): C, at(call=1): A, at(call=2): B}, {at(call=1): B, at(call=2): D})
    said = cause(A, B, site=at(call=1), around=around)
    assert (said.label, said.parameters["reference_call"]) == ("call-count", 2)


def test_a_call_whose_result_comes_in_the_next_means_that_there_is_one_more():
    around = Run({at(call=0): C, at(call=1): A, at(call=2): B}, {at(call=1): D, at(call=2): A})
    assert cause(A, D, site=at(call=1), around=around).label == "call-count"


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_tensors_without_numbers_of_their_own_are_not_recognised(value):
    plain = np.full_like(A, value)
    around = Run({at("before"): plain, SITE: A})
    assert cause(A, plain, around=around, inputs={"in.0": plain}).label not in ("stale-buffer", "skipped-op")


def test_what_is_near_another_tensor_by_more_than_noise_is_not_that_tensor():
    around = Run({at("before"): B, SITE: A})
    assert cause(A, blurred(B, 1e-4), around=around, inputs={"in.0": B}).label not in ("stale-buffer", "skipped-op")


def calls(count):
    """A block run several times over one stream, and a norm after it: the run's tensors by site."""
    stream = [numbers(2, 6, 16, seed=seed) for seed in range(count + 1)]
    found = {}
    for call in range(count):
        found[Site(0, "fwd", "block", "in.0", call)] = stream[call]
        found[Site(0, "fwd", "block", "out", call)] = stream[call + 1] - stream[call]
    return found, stream


def after(count, reference_calls):
    """The drift after a block that was run so many times, where the reference runs it another number of times."""
    tensors, stream = calls(max(count, reference_calls))
    last = Site(0, "fwd", "norm", "in.0")
    fewer = min(count, reference_calls)
    alone = tuple(site for site in tensors if site.call >= fewer)
    shared = {site: value for site, value in tensors.items() if site.call < fewer}
    which = "reference_only" if reference_calls > count else "candidate_only"
    around = Run({**shared, last: stream[reference_calls]}, facts={which: alone})
    extra = {site: tensors[site] for site in alone}
    around.reference = lambda site, own=around.reference: (
        extra.get(site, own(site)) if count < reference_calls else own(site)
    )
    around.candidate = lambda site, own=around.candidate: (
        extra.get(site, own(site)) if count > reference_calls else own(site)
    )
    return cause(stream[reference_calls], stream[count], FLOAT32, last, inputs={"block": stream[fewer]}, around=around)


@pytest.mark.parametrize(("count", "reference_calls"), [(3, 4), (5, 4), (1, 3), (2, 1)])
def test_a_block_run_more_or_fewer_times_over_a_stream_is_a_count_of_calls(count, reference_calls):
    said = after(count, reference_calls)
    assert said.label == "call-count", said


def test_a_module_that_the_candidate_never_runs_is_a_skipped_operation():
    x, y = numbers(2, 6, 16, seed=1), numbers(2, 6, 16, seed=2)
    site, missing = Site(0, "fwd", "head", "in.0"), Site(0, "fwd", "adapter", "in.0")
    around = Run({Site(0, "fwd", "norm", "out"): x, missing: x, site: y}, facts={"reference_only": (missing,)})
    said = cause(y, x, FLOAT32, site, inputs={"norm": x}, around=around)
    assert (said.label, said.parameters) == ("skipped-op", {"module": "adapter"})


@pytest.mark.parametrize("other", [at("up", call=1), at("up", step=1), at("up", call=2)])
def test_tensors_of_other_calls_are_not_swapped(other):
    around = Run({at("gate"): A, other: B}, {at("gate"): B, other: A})
    assert cause(A, B, site=at("gate"), around=around).label != "swapped-operands"


class Looped(torch.nn.Module):
    """A stream into which its start is mixed again in every round; `overwritten`, it mixes in itself."""

    class Mix(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.p = torch.nn.Linear(6, 6)

        def forward(self, h, start):
            return 0.5 * h + self.p(start)

    def __init__(self, overwritten):
        super().__init__()
        self.norm, self.mix, self.body = torch.nn.LayerNorm(6), self.Mix(), torch.nn.Linear(6, 6)
        self.overwritten = overwritten

    def forward(self, x):
        start = h = self.norm(x)
        for _ in range(2):
            h = self.mix(h, start)
            h = h + torch.tanh(self.body(h))
            start = h if self.overwritten else start
        return h


def test_of_two_inputs_that_are_one_tensor_the_wrong_one_is_explained():
    torch.manual_seed(0)
    reference, candidate = Looped(False), Looped(True)
    candidate.load_state_dict(reference.state_dict())
    first = firstdrift.check(reference=reference, candidate=candidate, inputs=(torch.randn(3, 5, 6),)).first_drift
    assert (first.name.split(".")[0], first.call) == ("mix", 1)
    assert first.cause.label in ("changed-call", "residual-source")
    assert first.cause.sentence.startswith(("mix.p reads ", "mix (in.0) of call 1 is read")), first.cause
