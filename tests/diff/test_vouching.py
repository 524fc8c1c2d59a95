"""An update that is lost in the rounding of its weight is vouched for only by others with the same settings."""

import ml_dtypes
import numpy as np
import pytest
from making import normal, record

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


def both(settings, other=None):
    return {"fc": settings, "embed": settings if other is None else other}


@pytest.mark.parametrize(
    ("ours", "theirs", "code"),
    [
        (both({"lr": 0.1}), both({"lr": 0.1}), 0),
        (both({"foreach": True}), both({"foreach": False}), 0),
        (both({"lr": 0.1}, {"lr": 0.2}), both({"lr": 0.1}, {"lr": 0.2}), 2),
        (both({"lr": 0.1}), both({"lr": 0.1}, {"lr": 0.5}), 2),
        (both({"eps": 0.1}), both({"eps": 0.2}), 2),
    ],
)
def test_other_settings_do_not_vouch(ours, theirs, code, tmp_path):
    result = fd.diff(run(tmp_path / "a", ours, 3), run(tmp_path / "b", theirs, 4))
    assert {r.site.name: str(r.verdict) for r in result.pairs}["embed"] == "inconclusive"
    assert result.exit_code == code, result.sentence
