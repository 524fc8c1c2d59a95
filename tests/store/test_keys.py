"""Flat keys: what a key of others means, and that keys of ours mean their sites."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstdrift import Site, SiteError
from firstdrift.core.sites import PHASES
from firstdrift.store.formats.site_keys import key_of, keys_of, site_of
from firstdrift.testing.strategies import sites


@pytest.mark.parametrize(
    ("key", "otherwise", "site"),
    [
        ("conv1.fwd", "fwd", Site(0, "fwd", "conv1", "out")),
        ("layers.0.attn.fwd.in.0", "fwd", Site(0, "fwd", "layers.0.attn", "in.0")),
        ("layers.0.attn", "fwd", Site(0, "fwd", "layers.0.attn", "out")),
        ("layers.0.attn.weight", "fwd", Site(0, "weight", "layers.0.attn", "weight")),
        ("layers.0.attn.q", "weight", Site(0, "weight", "layers.0.attn", "q")),
        ("scale", "weight", Site(0, "weight", "", "scale")),
        ("step003/fc.grad.bias", "fwd", Site(3, "grad", "fc", "bias")),
        ("fc.grad_raw.bias", "fwd", Site(0, "grad", "fc", "bias")),
        ("fc.w_before", "fwd", Site(0, "weight", "fc", "weight")),
        ("fc.w_after.bias", "fwd", Site(0, "weight_after", "fc", "bias")),
        ("fc.fwd.s012", "fwd", Site(0, "fwd", "fc", "out", 0, 12)),
        ("fc.fwd.in.0.c2.s1000", "fwd", Site(0, "fwd", "fc", "in.0", 2, 1000)),
        ("loss.lossgrad.s000", "fwd", Site(0, "lossgrad", "loss", "out", 0, 0)),
        ("loss", "fwd", Site(0, "loss", "loss", "out")),
        ("loss.weight", "weight", Site(0, "weight", "loss", "weight")),
        ("rnn.grad.bias", "weight", Site(0, "weight", "rnn.grad", "bias")),
        ("input", "fwd", Site(0, "input", "input", "out")),
        ("input.x.s001", "fwd", Site(0, "input", "input", "x", 0, 1)),
        (".fwd", "fwd", Site(0, "fwd", "", "out")),
        ("fc.optim.weight.exp_avg", "fwd", Site(0, "optim", "fc", "weight.exp_avg")),
    ],
)
def test_a_key_of_unknown_origin_means_a_site(key, otherwise, site):
    assert site_of(key, otherwise=otherwise) == site


@pytest.mark.parametrize("key", ["../x", "a/../b", "\ud800", "x" * 5000])
def test_a_dangerous_key_is_refused(key):
    with pytest.raises(SiteError, match=r"rename it|shorten it"):
        site_of(key, otherwise="fwd")


modules = st.lists(st.sampled_from(("layers", "0", "11", "attn", "q_proj", "mlp")), min_size=1, max_size=4).map(
    ".".join
)


@given(modules, st.sampled_from([phase for phase in PHASES if phase != "weight"]), st.integers(0, 2), st.data())
def test_the_key_of_an_ordinary_site_means_that_site(name, phase, step, data):
    if phase in ("input", "loss"):
        name = phase
    port = data.draw(st.sampled_from(("out", "weight", "bias", "in.0", "out.1")))
    site = Site(step, phase, name, port, data.draw(st.integers(0, 2)), data.draw(st.none() | st.integers(0, 2000)))
    assert site_of(key_of(site), otherwise="fwd") == site


@given(st.lists(sites(), unique=True, max_size=12))
def test_no_two_sites_share_a_key(chosen):
    keys = keys_of(chosen)
    assert len(set(keys.values())) == len(chosen)
    assert not {"", "__metadata__"} & set(keys.values())
    assert not any("\0" in key for key in keys.values())
