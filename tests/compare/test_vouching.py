"""An update that is lost in the rounding of its weight stays in doubt, whatever others show."""

import ml_dtypes
import numpy as np
import pytest
from tests.compare.making import normal, record

import firstdrift as fd


def run(path, attrs, nudge):
    """Two parameters in bfloat16: a step that shows, and one that moves a single element by one rounding."""
    sites = {}
    for seed, (name, settings) in enumerate(attrs.items()):
        weight = normal(32, 16, seed=seed).astype(ml_dtypes.bfloat16)
        after = weight + normal(32, 16, seed=9 + seed).astype(ml_dtypes.bfloat16) if name == "fc" else weight.copy()
        if name == "embed":
            after[nudge, 0] += ml_dtypes.bfloat16(0.008) * np.abs(after[nudge, 0])
        sites[f"weight {name}:weight"] = weight
        sites[f"weight_after {name}:weight"] = (after, {"attrs": settings})
    return record(path, sites)


def both(settings):
    return {"fc": settings, "embed": settings}


@pytest.mark.parametrize("settings", [{"lr": 0.1}, {"foreach": True}])
def test_nothing_vouches_for_an_update_that_shows_nothing(settings, tmp_path):
    result = fd.diff(run(tmp_path / "a", both(settings), 3), run(tmp_path / "b", both(settings), 4))
    assert {r.site.name: str(r.verdict) for r in result.pairs}["embed"] == "inconclusive"
    assert result.exit_code == 2, result.sentence
