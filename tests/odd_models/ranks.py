"""Models that are spread over two processes on gloo: DDP and FSDP2. Run as a program, it is one rank."""

import json
import os
import socket
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

STEPS, RANKS = 3, 2


def _mlp():
    from torch import nn

    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 6))


def _ddp(**options):
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(_mlp(), **options)


def _unused():
    """A part that is never called."""
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    class Forgets(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.never = _mlp(), nn.Linear(2, 2)

        def forward(self, x):
            return self.body(x)

    return DistributedDataParallel(Forgets(), find_unused_parameters=True)


def _compressed():
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    model = _ddp()
    model.register_comm_hook(None, fp16_compress_hook)
    return model


def _sharded(**options):
    from torch.distributed.fsdp import fully_shard

    model = _mlp()
    for part in (model[0], model[3], model):
        fully_shard(part, **options)
    return model


def _mixed():
    import torch
    from torch.distributed.fsdp import MixedPrecisionPolicy

    return _sharded(mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))


PLANS = {
    "DDP": _ddp,
    "DDP with a part that is never called": _unused,
    "DDP with a static graph": lambda: _ddp(static_graph=True),
    "DDP with buckets that are views": lambda: _ddp(gradient_as_bucket_view=True),
    "DDP with compressed gradients": _compressed,
    "DDP that adds up": _ddp,
    "FSDP2": _sharded,
    "FSDP2 that keeps its weights": lambda: _sharded(reshard_after_forward=False),
    "FSDP2 in mixed precision": _mixed,
}


def run_ranks(plan: str, path: Path | None) -> dict:
    """Every bit of a run, of both ranks."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    here = Path(__file__).parent
    environment = os.environ | {
        "WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1",
        "PYTHONPATH": f"{here}{os.pathsep}{here.parent}",
    }  # fmt: skip
    running = [
        subprocess.Popen(
            [sys.executable, __file__, plan, str(path or "")], env=environment | {"RANK": str(rank)}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for rank in range(RANKS)
    ]  # fmt: skip
    found = {}
    for rank, process in enumerate(running):
        out, said = process.communicate(timeout=240)
        assert process.returncode == 0, said
        found |= {f"rank {rank} {name}": digest for name, digest in json.loads(out.splitlines()[-1]).items()}
    return found


def main(plan: str, path: str) -> None:
    import torch
    from tests.run_bits import Bits, seed

    import firstdrift as fd

    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    seed()
    model = PLANS[plan]()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    bits = Bits()
    with fd.trace(model, path, optimizer=optimizer) if path else nullcontext():
        for number in range(STEPS):
            for part in range(2 if plan == "DDP that adds up" else 1):
                x = torch.randn(3, 6, generator=torch.Generator().manual_seed(10 * number + part + 100 * rank))
                with model.no_sync() if plan == "DDP that adds up" and part == 0 else nullcontext():
                    output = model(x)
                    output.square().mean().backward()
                bits.add(f"output {number}.{part}", output)
            bits.add(f"gradient {number}", _local({name: one.grad for name, one in model.named_parameters()}))
            optimizer.step()
            optimizer.zero_grad()
    bits.add("parameter", _local(dict(model.named_parameters())))
    bits.add("optimizer", [_local(state) for state in optimizer.state.values()])
    bits.add_randomness()
    sys.stdout.write(json.dumps(bits) + "\n")
    sys.stdout.flush()
    torch.distributed.barrier()
    os._exit(0)  # gloo's threads may abort a process that ends while the other one is still ending


def _local(tensors: dict) -> dict:
    """This rank's part of each."""
    return {name: one.to_local() if hasattr(one, "to_local") else one for name, one in tensors.items()}


if __name__ == "__main__":
    main(*sys.argv[1:])
