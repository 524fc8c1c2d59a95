"""Variants of rotary positions inside an attention."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from .claims import Case, Claim, factor, snapped, with_rotary
from .formula import Settings
from .rotary import LOW, STAGES, base_of, first_pairs, geometric, llama3, yarn
from .searching import GRID, free_frequencies

BASES = (1000.0, 10000.0, 50000.0, 100000.0, 500000.0, 1000000.0, 5000000.0, 10000000.0)
FACTORS = (2.0, 4.0, 8.0, 16.0, 32.0, 40.0)
LENGTHS = (2048.0, 4096.0, 8192.0, 32768.0)


def pairing(case: Case) -> Iterator[Claim]:
    """Channels paired in the other way."""
    rotary = case.settings.rotary
    if rotary is None:
        return
    other = "interleaved" if rotary.pairing == "half" else "half"
    yield Claim(
        "rope-interleave", f"rotary pairs are {_pairs(other)} instead of {_pairs(rotary.pairing)}",
        with_rotary(case.settings, pairing=other), {"pairing": other, "reference_pairing": rotary.pairing},
    )  # fmt: skip
    for side, changed in (
        ("queries", {"pairing": other, "key_pairing": rotary.pairing}),
        ("keys", {"key_pairing": other}),
    ):
        yield Claim(
            "rope-interleave", f"rotary pairs of the {side} are {_pairs(other)} instead of {_pairs(rotary.pairing)}",
            with_rotary(case.settings, **changed),
            {"pairing": other, "reference_pairing": rotary.pairing, "side": side},
        )  # fmt: skip


def skipped(case: Case) -> Iterator[Claim]:
    """No rotation, or one of only the queries or the keys."""
    if case.settings.rotary is None:
        return
    yield Claim("skipped-op", "rotary positions are not applied", replace(case.settings, rotary=None))
    if case.settings.heads > 1:
        first = with_rotary(case.settings, heads=1)
        yield Claim("rope-partial", "only the first head is rotated", first, {"heads": 1})
    for side, word in (("q", "keys"), ("k", "queries")):
        yield Claim("skipped-op", f"the {word} are not rotated", with_rotary(case.settings, sides=side))


def base(case: Case) -> Iterator[Claim]:
    """Another theta."""
    rotary = case.settings.rotary
    theta = None if rotary is None else base_of(rotary.frequencies, 1e-3)
    if rotary is None or theta is None:
        return

    def settings(value: float) -> Settings:
        return with_rotary(case.settings, frequencies=geometric(value, rotary.channels))

    found = factor(case, settings, [one for one in (*GRID, *BASES) if abs(one / theta - 1) > 1e-3])
    if found is None:
        return
    value, error = found
    near = snapped(case, settings, value, error, [one for one in BASES if abs(one / theta - 1) > 1e-6])
    value = near or value
    yield Claim(
        "rope-theta", f"theta is {value:.6g} instead of {theta:.6g}", settings(value),
        {"theta": value, "reference_theta": float(f"{theta:.8g}")}, free=0 if near else 1,
    )  # fmt: skip


def part(case: Case) -> Iterator[Claim]:
    """Another number of rotated channels, or the whole head in the exponent."""
    rotary = case.settings.rotary
    if rotary is None:
        return
    pairs = len(rotary.frequencies)
    for count in sorted({pairs // 4, pairs // 2, 3 * pairs // 4} - {0, pairs}):
        facts = {"rotary_dims": 2 * count, "reference_rotary_dims": rotary.channels}
        claim = with_rotary(case.settings, frequencies=first_pairs(rotary.frequencies, count))
        yield Claim("rope-partial", f"only the first {count} of {pairs} pairs are rotated", claim, facts)
    theta = base_of(rotary.frequencies, 1e-3)
    if theta is None:
        return
    head = case.channels
    for channels in sorted({head, head // 2, head // 4, 3 * head // 4} - {rotary.channels}):
        if channels < 2 or channels % 2:
            continue
        facts = {"rotary_dims": channels, "reference_rotary_dims": rotary.channels}
        sentence = f"{channels} channels of each head are rotated instead of {rotary.channels}"
        for over in sorted({channels, head, rotary.channels}):
            claim = with_rotary(case.settings, frequencies=geometric(theta, channels, over))
            yield Claim("rope-partial", sentence, claim, facts)
    if head == rotary.channels or head % 2:
        return
    claim = with_rotary(case.settings, frequencies=geometric(theta, rotary.channels, head))
    yield Claim("rope-partial", f"the frequencies are those of {head} rotated channels", claim)
    if rotary.pairing != "half":
        return
    for over, also in ((rotary.channels, ""), (head, f", with the frequencies of {head} rotated channels")):
        apart = first_pairs(geometric(theta, head, over), pairs)  # of the whole head, of which the first pairs turn
        yield Claim(
            "rope-partial", f"the rotary pairs are {head // 2} channels apart, half the head, instead of {pairs}, half "
            f"of what is rotated{also}",
            with_rotary(case.settings, frequencies=apart), {"apart": head // 2, "reference_apart": pairs},
        )  # fmt: skip


def scaling(case: Case) -> Iterator[Claim]:
    """Frequencies that are not scaled as they should be, or scaled as they should not be."""
    rotary = case.settings.rotary
    if rotary is None:
        return
    given = rotary.frequencies
    theta = base_of(given, 1e-3)
    if theta is None:
        plain = geometric(float((given[0] / given[1]) ** (rotary.channels / 2)), rotary.channels)
        claim = with_rotary(case.settings, frequencies=plain, factor=1.0)
        if given[1] > 0 and not np.allclose(plain, given, rtol=1e-6, atol=0):
            yield Claim("rope-scaling", "the scaling of the rotary frequencies is missing", claim)
            yield Claim(
                "rope-scaling", "the scaling of the rotary frequencies is missing",
                with_rotary(case.settings, frequencies=plain),
            )  # fmt: skip
    if rotary.factor != 1.0:
        claim = with_rotary(case.settings, factor=1.0)
        yield Claim("rope-scaling", f"the factor {rotary.factor:.6g} on rotated channels is missing", claim)

    def settings(value: float) -> Settings:
        return with_rotary(case.settings, frequencies=given / value)

    found = factor(case, settings, (*FACTORS, *(1 / one for one in FACTORS)))
    if found is not None:
        value, error = found
        near = snapped(case, settings, value, error, (*FACTORS, *(1 / one for one in FACTORS)))
        value = near or value
        yield Claim(
            "rope-scaling", f"positions are divided by {value:.6g}, against the reference", settings(value),
            {"factor": value}, free=0 if near else 1,
        )  # fmt: skip
    if theta is None:
        return
    for times in FACTORS:
        named = {"llama3": llama3(given, times)}
        named |= {f"yarn, {length:g} positions": yarn(given, times, length, theta) for length in LENGTHS}
        for name, frequencies in named.items():
            claim = with_rotary(case.settings, frequencies=frequencies)
            facts = {"factor": times, "kind": name.split(",")[0]}
            yield Claim("rope-scaling", f"the frequencies are scaled ({name}, factor {times:g})", claim, facts, free=1)


def shift(case: Case) -> Iterator[Claim]:
    """Queries whose positions are off against the keys'."""
    if case.settings.rotary is None:
        return
    steps = sorted(range(-8, 9), key=abs)[1:]
    best = min(steps, key=lambda step: case.narrow.error(with_rotary(case.settings, shift=float(step))))
    yield Claim(
        "position-shift", f"the positions of the queries are off by {best:+d} against those of the keys",
        with_rotary(case.settings, shift=float(best)), {"shift": best}, free=0 if abs(best) == 1 else 1,
    )  # fmt: skip


def precision(case: Case) -> Iterator[Claim]:
    """Tables that were computed or held in a coarse dtype."""
    if case.settings.rotary is None:
        return
    for dtype in LOW:
        for stage in STAGES:
            claim = with_rotary(case.settings, rounding=(dtype, stage))
            facts = {"dtype": dtype, "stage": stage}
            yield Claim("rope-precision", f"the {stage} of the rotation are held in {dtype}", claim, facts)


def anything(case: Case) -> Iterator[Claim]:
    """Frequencies that follow no known rule, where the candidate allows to fit each of them."""
    rotary = case.settings.rotary
    pairs = 0 if rotary is None else len(rotary.frequencies)
    if rotary is None or case.narrow.observed.size < 20 * pairs or pairs > 64 or case.limit > 1e-3:
        return
    found = free_frequencies(case.settings, case.narrow)
    assert found.rotary is not None
    if abs(found.scale / case.settings.scale - 1) > 1e-3:
        return
    ratio = found.rotary.frequencies / rotary.frequencies
    changed = int((np.abs(ratio - 1) > 1e-2).sum())
    if not 0 < changed < pairs:
        return
    yield Claim(
        "rope-scaling", f"{changed} of {pairs} rotary frequencies are other than the reference's, by up to "
        f"{ratio[np.argmax(np.abs(np.log(np.abs(ratio) + 1e-300)))]:.3g} times", found,
        {"ratios": [float(one) for one in ratio]}, free=changed,
    )  # fmt: skip


def _pairs(name: str) -> str:
    return "neighbouring channels" if name == "interleaved" else "channels half a head apart"


VARIANTS = (pairing, skipped, part, precision)
FITTED = (base, scaling, shift)
LAST = (anything,)
