"""Names, layouts and gaps of other engines: what flax, ONNX Runtime, llama.cpp and MLX would have recorded."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from firstdrift.core.records import Record

from .rewriting import Engine, Name, rewrite

if TYPE_CHECKING:
    from .making import Made, Question

TOKENS = (1, 9)
HEADS = 4


def llama(**changes: object) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return _settled(LlamaForCausalLM(LlamaConfig(**{**_SIZES, "num_key_value_heads": 2, **changes})))


def qwen2() -> nn.Module:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    return _settled(Qwen2ForCausalLM(Qwen2Config(**{**_SIZES, "num_key_value_heads": 2})))


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return _settled(GPT2LMHeadModel(GPT2Config(
        n_embd=48, n_layer=3, n_head=HEADS, vocab_size=97, n_positions=32, bos_token_id=0, eos_token_id=0,
    )))  # fmt: skip


def bert() -> nn.Module:
    from transformers import BertConfig, BertModel

    sizes = {key: value for key, value in _SIZES.items() if key != "num_key_value_heads"}
    return _settled(BertModel(BertConfig(**sizes)))


_SIZES = {
    "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": HEADS, "vocab_size": 97,
    "max_position_embeddings": 32, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip


def _settled(model: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


class Residual(nn.Module):
    """Two convolutions around which the input goes."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels)
        self.conv2, self.bn2 = nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels)
        self.act1, self.act2 = nn.ReLU(), nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act2(x + self.bn2(self.conv2(self.act1(self.bn1(self.conv1(x))))))


class Picture(nn.Module):
    """A small network of convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm, self.act = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()
        self.blocks = nn.Sequential(Residual(8), Residual(8))
        self.pool, self.head = nn.AvgPool2d(4), nn.Linear(8 * 4, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.pool(self.blocks(self.act(self.norm(self.stem(x))))).flatten(1))


def picture() -> nn.Module:
    model = _settled(Picture())
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.3)
            module.running_var.uniform_(0.5, 1.5)
    return model


MODELS: dict[str, Callable[[], nn.Module]] = {
    "llama": llama, "qwen2": qwen2, "gpt2": gpt2, "bert": bert, "picture": picture,
}  # fmt: skip


def engine_questions() -> Iterator[Question]:
    """Every model as every engine that runs it would record it, clean and with a bug."""
    from .making import Question

    for name, engines in (
        ("llama", (flax, onnx, gguf, mlx, rewritten)), ("qwen2", (flax, onnx, gguf, mlx, rewritten)),
        ("gpt2", (flax, onnx, rewritten)), ("bert", (flax, onnx, rewritten)), ("picture", (flax, onnx, rewritten)),
    ):  # fmt: skip
        for engine in engines:
            for bug in (None, 7):
                said = f"{engine.__name__} {name}" + ("" if bug is None else " bug")
                yield Question(said, lambda folder, one=(name, engine, bug): engine_pair(*one, folder))


def engine_pair(name: str, engine: Callable[[str], Engine], bug: int | None, folder: Path) -> Made:
    """A model under torch, and as an engine records it."""
    from .making import Made, bugged, record

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        ours = MODELS[name]()
        torch.manual_seed(0)
        theirs = MODELS[name]()
        inputs = torch.randn(2, 3, 8, 8) if name == "picture" else torch.randint(1, 97, TOKENS)
    if bug is not None:
        bugged(theirs, bug)
    options = {} if name == "picture" else {"use_cache": False}
    reference = record(ours, folder / "reference", inputs, **options)
    with _other_kernels():
        plain = record(theirs, folder / "plain", inputs, **options)
    told = rewrite(plain, folder / "candidate", engine(name))
    sites = {one.site for one in reference}
    return Made(reference.path, folder / "candidate", {site: to for site, to in told.items() if site in sites})


@contextmanager
def _other_kernels() -> Iterator[None]:
    """Convolutions that sum in another order."""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


def _leaf(record: Record) -> bool:
    """Whether an engine without modules has such a tensor."""
    return record.op in LEAVES


LEAVES = frozenset({
    "Linear", "Conv1D", "Conv2d", "BatchNorm2d", "LayerNorm", "LlamaRMSNorm", "Qwen2RMSNorm", "ReLU", "GELUActivation",
    "NewGELUActivation", "SiLUActivation", "SiLU", "Embedding", "AvgPool2d", "Tanh",
})  # fmt: skip
PARAMETERS = ("weight", "bias", "running_mean", "running_var")


def flax(model: str) -> Engine:
    """Kernels [in, out] and HWIO, pictures NHWC, other words, outputs only."""
    ports = {"weight": "kernel", "bias": "bias", "running_mean": "mean", "running_var": "var"}

    def name(record: Record) -> Name | None:
        site = record.site
        if site.phase == "input":
            return site.name, "x"
        other = _flax_name(site.name)
        if site.phase == "weight":
            if site.port not in ports:
                return None
            if any(word in other.lower() for word in ("norm", "bn", "ln")):
                return other, {"weight": "scale"}.get(site.port, ports[site.port])
            return other, "embedding" if "_embeddings" in other or other in ("embed_tokens", "wte", "wpe") else ports[
                site.port
            ]
        return (other, "out") if site.port == "out" and (_leaf(record) or not site.name) else None

    def array(record: Record, array: np.ndarray) -> np.ndarray:
        if record.site.phase == "weight" and array.ndim == 4:
            return array.transpose(2, 3, 1, 0)
        if record.site.phase == "weight" and array.ndim == 2 and model != "gpt2" and "embed" not in record.site.name:
            return array.T
        if record.site.phase != "weight" and array.ndim == 4:
            return array.transpose(0, 2, 3, 1)
        return array

    return Engine(name, array, ops=lambda op: {"Conv1D": "Dense", "Linear": "Dense"}.get(op, op))


def _flax_name(name: str) -> str:
    words = {"self_attn": "attention", "q_proj": "query", "k_proj": "key", "v_proj": "value", "o_proj": "out",
             "input_layernorm": "ln_pre", "post_attention_layernorm": "ln_mlp", "gate_proj": "wi_gate",
             "up_proj": "wi_up", "down_proj": "wo", "lm_head": "logits", "stem": "conv_init", "head": "dense_out",
             "c_attn": "qkv", "c_proj": "proj", "c_fc": "fc_in", "blocks": "stages"}  # fmt: skip
    return ".".join(words.get(part, part) for part in name.split(".") if part not in ("model", "transformer"))


def onnx(model: str) -> Engine:
    """Nodes and initializers, each with a name of its own; MatMul weights [in, out]; no ports, no containers."""
    numbers: dict[str, int] = {}

    def name(record: Record) -> Name | None:
        site = record.site
        if site.phase == "input":
            return site.name, site.port
        if site.phase == "weight":
            if site.port not in PARAMETERS:
                return None
            if site.port == "weight" and len(record.shape or ()) == 2 and "embed" not in site.name:
                return f"onnx::MatMul_{numbers.setdefault(site.name, 400 + 3 * len(numbers))}", "weight"
            return site.name, site.port
        kind = {"Linear": "MatMul", "Conv1D": "Gemm", "Conv2d": "Conv", "Embedding": "Gather"}.get(
            record.op or "", "Add"
        )
        usual = {"BatchNorm2d": "BatchNormalization", "LayerNorm": "LayerNormalization", "ReLU": "Relu", "Tanh": "Tanh"}
        kind = usual.get(record.op or "", "Mul" if "RMSNorm" in (record.op or "") else kind)
        return (
            (f"/{site.name.replace('.', '/')}/{kind}_output_0", "out") if site.port == "out" and _leaf(record) else None
        )

    def array(record: Record, array: np.ndarray) -> np.ndarray:
        turned = record.site.phase == "weight" and array.ndim == 2 and "embed" not in record.site.name
        return array.T if turned and model != "gpt2" else array

    ops = {"Linear": "MatMul", "Conv1D": "Gemm", "Conv2d": "Conv", "Embedding": "Gather", "ReLU": "Relu",
           "BatchNorm2d": "BatchNormalization", "LayerNorm": "LayerNormalization", "Tanh": "Tanh"}  # fmt: skip
    return Engine(name, array, ops=ops.get)


_GGUF = {
    "self_attn.q_proj": ("Qcur", "attn_q"), "self_attn.k_proj": ("Kcur", "attn_k"),
    "self_attn.v_proj": ("Vcur", "attn_v"), "self_attn.o_proj": ("attn_out", "attn_output"),
    "input_layernorm": ("attn_norm", "attn_norm"), "post_attention_layernorm": ("ffn_norm", "ffn_norm"),
    "mlp.gate_proj": ("ffn_gate", "ffn_gate"), "mlp.up_proj": ("ffn_up", "ffn_up"),
    "mlp.down_proj": ("ffn_out", "ffn_down"), "mlp.act_fn": ("ffn_silu", ""), "": ("l_out", ""),
}  # fmt: skip


def gguf(model: str) -> Engine:
    """Names of llama.cpp; the batch flattened away; rows of q and k interleaved for its rotation."""
    top = {"model.embed_tokens": ("inp_embd", "token_embd"), "model.norm": ("result_norm", "output_norm"),
           "lm_head": ("result_output", "output")}  # fmt: skip

    def name(record: Record) -> Name | None:
        site = record.site
        if site.phase == "input":
            return site.name, "tokens"
        layer = re.fullmatch(r"model\.layers\.(\d+)\.?(.*)", site.name)
        run, weight = top.get(site.name, ("", "")) if layer is None else _GGUF.get(layer[2], ("", ""))
        if site.phase == "weight":
            return (f"blk.{layer[1]}.{weight}" if layer else weight, site.port) if weight else None
        return (f"{run}-{layer[1]}" if layer else run, "out") if run and site.port.startswith("out") else None

    def array(record: Record, array: np.ndarray) -> np.ndarray:
        site = record.site
        turned = model == "llama" and site.name.endswith(("q_proj", "k_proj"))
        if site.phase == "weight":
            return _interleaved(array, 0) if turned else array
        if site.phase == "input":
            return array
        flat = array.reshape(array.shape[-2:]) if array.ndim > 2 else array
        return _interleaved(flat, 1) if turned else flat

    return Engine(name, array, ops=lambda op: None)


def _interleaved(array: np.ndarray, axis: int, head: int = 12) -> np.ndarray:
    """The halves of every head side by side."""
    moved = np.moveaxis(array, axis, 0)
    heads = moved.reshape(-1, 2, head // 2, *moved.shape[1:]).swapaxes(1, 2).reshape(moved.shape)
    return np.ascontiguousarray(np.moveaxis(heads, 0, axis))


def mlx(model: str) -> Engine:
    """The checkpoint's names without the model's own, outputs of leaves and blocks, in half the words."""

    def name(record: Record) -> Name | None:
        site = record.site
        if site.phase == "input":
            return site.name, "inputs"
        if site.port not in (*PARAMETERS, "out"):
            return None
        return site.name.removeprefix("model.").replace("layers.", "h."), site.port

    return Engine(name, ops=lambda op: {"LlamaRMSNorm": "RMSNorm", "Qwen2RMSNorm": "RMSNorm"}.get(op, op))


def rewritten(model: str) -> Engine:
    """Another torch code base: other words everywhere, ports by keyword, a graph."""
    words = {"layers": "blocks", "h": "blocks", "self_attn": "att", "attn": "att", "mlp": "ff", "model": "net",
             "q_proj": "wq", "k_proj": "wk", "v_proj": "wv", "o_proj": "wo", "gate_proj": "w1", "up_proj": "w3",
             "down_proj": "w2", "input_layernorm": "n1", "post_attention_layernorm": "n2", "norm": "n", "stem": "c",
             "conv1": "c1", "conv2": "c2", "bn1": "b1", "bn2": "b2", "embed_tokens": "e", "lm_head": "u"}  # fmt: skip

    def name(record: Record) -> Name | None:
        site = record.site
        if site.phase == "input":
            return site.name, site.port
        port = site.port.replace("in.0", "in.hidden")
        return ".".join(words.get(part, part) for part in site.name.split(".")), port

    return Engine(name, graph=True)
