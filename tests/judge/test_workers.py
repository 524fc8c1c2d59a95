"""Worker processes replay too: a forked one must not wait for threads that it does not have."""

import copy
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest
import torch
from tests.judge.networks import bare, made, record

import firstdrift as fd


def first_drift(reference, candidate):
    return fd.diff(reference, candidate).first_drift.name


@pytest.mark.parametrize("dump", [lambda path, target: path, bare], ids=["program", "numbers only"])
def test_a_forked_worker_compares_as_its_parent_does(tmp_path, dump):
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        torch.randn(512, 512) @ torch.randn(512, 512)  # the parent's threads are there
        torch.randn(1 << 20).exp().sum()
        model, x, y = made("mlp")
        record(copy.deepcopy(model), x, y, tmp_path / "ref")
        model[3].eps = 1e-2
        record(model, x, y, tmp_path / "cand")
        paths = dump(tmp_path / "ref", tmp_path / "a"), dump(tmp_path / "cand", tmp_path / "b")
        with ProcessPoolExecutor(1, mp_context=get_context("fork")) as executor:
            assert executor.submit(first_drift, *paths).result(timeout=120) == first_drift(*paths) == "3"
    finally:
        torch.set_num_threads(threads)
