"""The bars of verified loading: `python bench/weights_loading.py`, or as part of `make bench`.

A checkpoint of 1 GiB in float16, loaded into a model that is there already, against what everybody uses: reading the
file and copying it, with no check of a value and no look at what arrived. The file is smaller where memory is short.
"""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from ratios import Row, median_ratio
from safetensors.torch import load_file, save_file
from torch import nn

import firstdrift as fd

LAYERS, WIDTH = 128, 2048
MIB = 1 << 20


def rows() -> Iterator[Row]:
    layers = LAYERS if _available() > 8 << 30 else LAYERS // 8
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as directory:
        plain, container = Path(directory, "model.safetensors"), Path(directory, "model.apr")
        write(plain, container, layers)
        model = network(layers)
        size = f"{sum(p.nbytes for p in model.parameters()) // MIB} MiB fp16"
        yield Row(f"verified load of {size} safetensors vs load_file", ratio(model, plain, plain), 2, False)
        yield Row(f"verified load of {size} APR v2 vs load_file", ratio(model, container, plain), 2.5, False)
        yield from memory(Path(directory), plain, layers)


def network(layers: int) -> nn.Module:
    """A stack of square matrices with norms between them."""
    with torch.device("meta"):
        made = [
            nn.ModuleDict({"fc": nn.Linear(WIDTH, WIDTH, bias=False), "norm": nn.LayerNorm(WIDTH)})
            for _ in range(layers)
        ]
    return nn.Sequential(*made).half().to_empty(device="cpu")


def write(plain: Path, container: Path, layers: int) -> None:
    from firstdrift.weights.writing import write_checkpoint

    torch.manual_seed(0)
    state = {name: torch.randn(value.shape).mul_(0.02).half() for name, value in network(layers).state_dict().items()}
    save_file(state, plain)
    write_checkpoint(container, [(name, value.numpy()) for name, value in state.items()], format="apr")


def ratio(model: nn.Module, path: Path, plain: Path) -> float:
    """Against loading the plain file in the usual way; both read from the page cache."""
    return median_ratio(lambda: fd.load_weights(model, path), lambda: model.load_state_dict(load_file(plain)), 9)


def memory(directory: Path, checkpoint: Path, layers: int) -> Iterator[Row]:
    """Anonymous memory of `weights verify`, beyond what importing torch takes."""
    (directory / "bench_network.py").write_text(
        f"from torch import nn\n\ndef build():\n    one = lambda: {{'fc': nn.Linear({WIDTH}, {WIDTH}, bias=False), "
        f"'norm': nn.LayerNorm({WIDTH})}}\n"
        f"    return nn.Sequential(*(nn.ModuleDict(one()) for _ in range({layers}))).half()\n"
    )
    code = (
        "import re, sys, threading, time, torch, firstdrift.weights.loading.load\n"
        "from click.testing import CliRunner\nfrom firstdrift.cli.main import cli\n"
        "def anonymous(): return int(re.search(r'RssAnon:\\s+(\\d+) kB', open('/proc/self/status').read())[1]) / 1024\n"
        "base = peak = anonymous()\ndone = False\n"
        "def watch():\n    global peak\n    while not done: peak = max(peak, anonymous()); time.sleep(0.002)\n"
        "watcher = threading.Thread(target=watch); watcher.start()\n"
        "found = CliRunner().invoke(cli, ['weights', 'verify', *sys.argv[1:]])\n"
        "done = True; watcher.join()\nassert found.exit_code == 0, found.output\nprint(peak - base)\n"
    )
    command = [sys.executable, "-c", code, f"{directory / 'bench_network.py'}:build", str(checkpoint)]
    used = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    largest = WIDTH * WIDTH * 2 / MIB
    yield Row("anonymous memory of weights verify", used, largest * 4 + 256, False, "MiB")


def _available() -> int:
    found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text()) if os.name == "posix" else None
    return int(found[1]) << 10 if found else 0


if __name__ == "__main__":
    for row in rows():
        print(row, flush=True)
