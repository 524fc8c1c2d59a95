"""The bars of the decoder: `python bench/decoder.py`, or as part of `make bench`.

Its time against the eager model of `transformers`, whose families it computes; what observing every stage adds to
running and to writing the bytes; and the memory that loading a large checkpoint takes.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
import transformers
from ratios import Row, median_ratio
from safetensors.torch import save_file
from weights_loading import MIB, _available

from firstdrift.core.stages import WHOLE_MODEL
from firstdrift.decoder.config_json import to_config
from firstdrift.decoder.decoder_config import PRESETS
from firstdrift.decoder.decoder_layers import OFF, Taps
from firstdrift.decoder.model import Decoder, initialise
from firstdrift.decoder.stage_recording import NativeTrace, Selection, StageFiles

MEDIUM = replace(  # SmolLM2-135M with fewer layers and tokens
    PRESETS["llama-370m"], vocab_size=8192, hidden_size=576, intermediate_size=1536, num_hidden_layers=6,
    num_attention_heads=9, num_key_value_heads=3,
)  # fmt: skip
TOKENS = 256


def rows() -> Iterator[Row]:
    model = Decoder(MEDIUM)
    initialise(model, 0)
    yield Row("decoder forward + backward, taps off, vs transformers eager", against_eager(model), 1.05, False)
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as directory:
        for format in ("aprt", "trace"):
            ratio = all_stages(model, Path(directory) / format, format)
            yield Row(f"forward with all stages as {format} vs forward + writing", ratio, 1.2, False)
        yield from memory(Path(directory))


def against_eager(model: Decoder) -> float:
    config = transformers.LlamaConfig(**to_config(MEDIUM))
    eager = transformers.LlamaForCausalLM._from_config(config, attn_implementation="eager")
    eager.load_state_dict(model.state_dict())
    tokens = torch.randint(0, MEDIUM.vocab_size, (2, TOKENS), generator=torch.Generator().manual_seed(0))

    def ours() -> None:
        model.zero_grad()
        model.loss(tokens, tokens).backward()

    def theirs() -> None:
        eager.zero_grad()
        eager(tokens, labels=tokens).loss.backward()

    return median_ratio(ours, theirs, 15)


def all_stages(model: Decoder, directory: Path, format: str) -> float:
    """Everything that `firstdrift trace --save-tensor all` does once the model is loaded."""
    config = model.config
    selection = Selection({layer: config.stages(layer) for layer in range(config.num_hidden_layers)}, WHOLE_MODEL)
    tokens = torch.randint(0, config.vocab_size, (1, TOKENS), generator=torch.Generator().manual_seed(0))
    seen: list[tuple[str, int, torch.Tensor]] = []

    def forward(taps: Taps) -> None:
        model.taps = taps
        with torch.no_grad():
            model(tokens)
        model.taps = OFF

    forward(Taps(selection.wants, lambda stage, layer, tensor: seen.append((stage, layer, tensor.contiguous()))))
    arrays = [(f"{layer}-{stage}.bin", tensor.numpy()) for stage, layer, tensor in seen]
    plain = directory.with_name(f"{format}-plain")
    plain.mkdir()

    def traced() -> None:
        files = format == "aprt"
        recording = StageFiles(directory) if files else NativeTrace(directory, config, selection, {}, overwrite=True)
        forward(Taps(selection.wants, recording.see))
        recording.close()

    def written() -> None:
        forward(OFF)
        if format == "aprt":  # one file a stage, as the format has it
            for name, array in arrays:
                with open(plain / name, "wb") as file:
                    file.write(array.data)
            return
        with open(plain / "all.bin", "wb") as file:
            for _, array in arrays:
                file.write(array.data)

    return median_ratio(traced, written, 15)


def memory(directory: Path) -> Iterator[Row]:
    """Anonymous memory of `load_decoder`, beyond what importing takes, as a share of the model."""
    layers = 22 if _available() > 8 << 30 else 6
    config = replace(MEDIUM, hidden_size=1536, intermediate_size=4096, num_hidden_layers=layers, num_attention_heads=12)
    config = replace(config, head_dim=128)
    with torch.device("meta"):
        shapes = {name: one.shape for name, one in Decoder(config).named_parameters()}
    state = {name: torch.full(shape, 0.01, dtype=torch.float16) for name, shape in shapes.items()}
    save_file(state, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(to_config(config)))
    size = sum(tensor.nbytes for tensor in state.values()) / MIB
    del state
    code = (
        "import re, sys, threading, time, torch\nfrom firstdrift.decoder.engines import load_decoder\n"
        "def anonymous(): return int(re.search(r'RssAnon:\\s+(\\d+) kB', open('/proc/self/status').read())[1]) / 1024\n"
        "base = peak = anonymous()\ndone = False\n"
        "def watch():\n    global peak\n    while not done: peak = max(peak, anonymous()); time.sleep(0.002)\n"
        "watcher = threading.Thread(target=watch); watcher.start()\n"
        "model = load_decoder(sys.argv[1])\ndone = True; watcher.join()\nprint(peak - base)\n"
    )
    found = subprocess.run([sys.executable, "-c", code, str(directory)], capture_output=True, text=True, check=True)
    yield Row(
        f"anonymous memory of loading {size:.0f} MiB fp16 vs the model's size", float(found.stdout) / size, 1.3, False
    )


if __name__ == "__main__":
    for row in rows():
        print(row, flush=True)
