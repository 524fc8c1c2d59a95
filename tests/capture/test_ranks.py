"""Every rank of a distributed run writes a trace of its own."""

import os
import socket
import subprocess
import sys

import numpy as np
import torch

import firstdrift as fd

STEP = """
import sys, torch, firstdrift as fd
from torch import nn
from torch.nn.parallel import DistributedDataParallel

torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 3)))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
x = torch.arange(8.0).reshape(2, 4) + rank
with fd.trace(model, sys.argv[1], optimizer=optimizer):
    model(x).sum().backward()
    optimizer.step()
torch.distributed.destroy_process_group()
"""


def test_each_rank_has_its_own_data_and_the_reduced_gradients(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    running = [
        subprocess.Popen(
            [sys.executable, "-c", STEP, tmp_path / "t"], stderr=subprocess.PIPE, text=True,
            env=os.environ | {
                "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                "OMP_NUM_THREADS": "1",
            },
        )
        for rank in range(2)
    ]  # fmt: skip
    for process in running:
        _, said = process.communicate(timeout=120)
        assert process.returncode == 0, said
    traces = [fd.open_trace(tmp_path / "t"), fd.open_trace(tmp_path / "t" / "rank-0001")]
    inputs = [torch.arange(8.0).reshape(2, 4) + rank for rank in range(2)]
    for rank, trace in enumerate(traces):
        assert trace.complete
        assert (trace.header["rank"], trace.header["ranks"]) == (rank, 2)
        # The wrapper passes its arguments on: they have the names that the model gives them.
        assert np.array_equal(trace.array(fd.Site(0, "input", "input", "input")), inputs[rank])
        gradient = trace.array(fd.Site(0, "grad", "module.0", "weight"))
        expected = sum(one.sum(0) for one in inputs) / 2
        np.testing.assert_allclose(gradient, expected.expand(3, 4), rtol=1e-6)
