"""Every hypothesis there is. To add one: a function in the module of its family, listed in that module's tuple."""

from __future__ import annotations

from .hypotheses import Hypothesis

TABLE: tuple[Hypothesis, ...] = ()
