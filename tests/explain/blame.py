"""Drifts made on purpose: evidence of one tensor, and runs around it."""

import numpy as np
import torch

from firstdrift.core.sites import Site
from firstdrift.explain.evidence import Evidence
from firstdrift.explain.relations.hypotheses import explain
from firstdrift.explain.relations.known import TABLE

FLOAT32 = 1e-7
BF16 = 3e-3
SITE = Site(0, "fwd", "layers.1.part", "out")


def numbers(*shape, seed=0):
    """Float32 normal numbers, as float64."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double().numpy()


def blurred(array, noise, seed=9):
    """The tensor as another implementation would give it: each element off by relative noise."""
    if not np.issubdtype(array.dtype, np.floating):
        return array
    return array * (1 + noise * np.random.default_rng(seed).standard_normal(array.shape))


def drift(expected, found, noise=FLOAT32, site=SITE, **known):
    """Evidence of a drift.

    `found` is a tensor, which gets noise on every element, or a function of expected, which is given noisy numbers.
    Inputs are shared by both sides unless given otherwise.
    """
    known.setdefault("candidate_inputs", known.get("inputs", {}))
    made = found(blurred(expected, noise)) if callable(found) else blurred(found, noise)
    return Evidence(site, expected, made, noise, **known)


def cause(expected, found, noise=FLOAT32, site=SITE, table=TABLE, **known):
    """The cause that all hypotheses together give."""
    return explain(drift(expected, found, noise, site, **known), table)


class Run:
    """Surroundings made of two dictionaries by site, in causal order."""

    def __init__(self, reference, candidate=None, ops=None, facts=None, producers=None):
        self._reference, self._candidate = reference, {**reference, **(candidate or {})}
        self._ops, self.facts, self._producers = ops or {}, facts or {}, producers or {}

    def sites(self, phase):
        return [site for site in self._reference if site.phase == phase]

    def reference(self, site):
        return self._reference.get(site)

    def candidate(self, site):
        return self._candidate.get(site)

    def recorded(self, site):
        return (self._reference[site], self._candidate[site]) if site in self._reference else None

    def op(self, site):
        return self._ops.get(site.name, "")

    def producers(self, site):
        return self._producers.get(site, ())
