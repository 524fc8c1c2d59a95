"""Right candidates: everything can be replayed, and nothing stands out."""

import copy

import pytest
import torch
from tests.judge.networks import NETWORKS, introduced, made, record, standing_out

DTYPES = {"f64": torch.float64, "bf16": torch.bfloat16}


def in_dtype(model, x, dtype):
    return copy.deepcopy(model).to(dtype), x.to(dtype) if x.is_floating_point() else x


CASES = [
    *((network, False, "SGD", dtype) for network in NETWORKS for dtype in DTYPES),
    *((network, True, "SGD", "bf16") for network in ("mlp", "conv")),
    *((network, True, "SGD", "f64") for network in ("decoder", "lstm")),
    *(("mlp", True, optimizer, "f64") for optimizer in ("Adam", "AdamW")),
]


@pytest.mark.parametrize(("network", "train", "optimizer", "dtype"), CASES)
def test_nothing_stands_out_in_a_right_candidate_of_another_precision(network, train, optimizer, dtype, tmp_path):
    model, x, y = made(network)
    record(copy.deepcopy(model), x, y, tmp_path / "ref", optimizer, train=train)
    other, fed = in_dtype(model, x, DTYPES[dtype])
    record(other, fed, y, tmp_path / "cand", optimizer, train=train)
    found, left = introduced(tmp_path / "ref", tmp_path / "cand")
    assert not standing_out(found)
    assert not [site for site in left if not site.port.startswith("out.1")]  # of states that nothing reads


@pytest.mark.parametrize("network", ["mlp", "conv"])
def test_a_bfloat16_reference_is_understood_too(network, tmp_path):
    model, x, y = made(network)
    other, fed = in_dtype(model, x, torch.bfloat16)
    record(copy.deepcopy(other), fed, y, tmp_path / "ref", "AdamW")
    record(other, fed, y, tmp_path / "cand", "AdamW")
    found, _ = introduced(tmp_path / "ref", tmp_path / "cand")
    assert not standing_out(found)
    assert {site.phase for site in found} >= {"fwd", "agrad", "grad"}


def test_accumulated_and_repeated_calls_add_up(tmp_path):
    import firstdrift as fd

    model, x, y = made("mlp")
    for path in ("ref", "cand"):
        again = copy.deepcopy(model)
        optimizer = torch.optim.SGD(again.parameters(), 0.1)
        with fd.trace(again, tmp_path / path, optimizer=optimizer):
            for half in (slice(0, 8), slice(8, 16)):
                torch.nn.functional.cross_entropy(again(x[half]), y[half]).backward()
            optimizer.step()
    found, _ = introduced(tmp_path / "ref", tmp_path / "cand")
    assert not standing_out(found)
    assert sum(site.phase == "grad" for site in found) == 10
