"""The same input gives the same answer in every process, whatever strings hash to, with any number of threads."""

import copy
import json
import os
import subprocess
import sys

import pytest

import firstdrift as fd

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

ASK = """
import json, sys
import firstdrift as fd
found = [fd.diff(f"{sys.argv[1]}/ours", f"{sys.argv[1]}/{name}").to_json() for name in sys.argv[2:]]
print(json.dumps(found, sort_keys=True))
"""


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(24), nn.Linear(24, 48), nn.Linear(48, 24)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


CHANGES = {
    "scaled": lambda model: model[1].register_forward_hook(lambda module, given, made: made * 1.03),
    "swapped": lambda model: setattr(model[0], "up", copy.deepcopy(model[1].up)),
}


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    folder = tmp_path_factory.mktemp("same")
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block(), nn.Linear(24, 5))
    x, y = torch.randn(32, 24), torch.randint(0, 5, (32,))
    for name, change in {"ours": lambda model: None, **CHANGES}.items():
        one = copy.deepcopy(model)
        change(one)
        with fd.trace(one, folder / name, program=name != "swapped"):
            nn.functional.cross_entropy(one(x), y).backward()
    return folder


def _answer(folder, **environment):
    told = subprocess.run(
        [sys.executable, "-c", ASK, str(folder), *CHANGES], capture_output=True, text=True, check=True,
        env={**os.environ, **environment},
    )  # fmt: skip
    assert told.stderr == ""
    return json.loads(told.stdout)


def test_no_hash_and_no_number_of_threads_changes_an_answer(traces):
    first = _answer(traces, PYTHONHASHSEED="0", OMP_NUM_THREADS="1")
    assert {one["exit_code"] for one in first} == {1}
    assert not any("error of nan" in json.dumps(one) for one in first)
    assert _answer(traces, PYTHONHASHSEED="424242", OMP_NUM_THREADS="2") == first
