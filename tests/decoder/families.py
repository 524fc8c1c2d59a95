"""Small random members of every family, twice: the library's model and ours, with the same weights."""

import random

import torch
import transformers

from firstdrift.decoder.config_json import FAMILIES, from_config
from firstdrift.decoder.model import Decoder

RATIOS = {"1:1": (4, 4), "4:1": (4, 1), "7:1": (7, 1), "8:1": (8, 1), "3:1": (6, 2)}


def config_json(family, seed=0, **changes):
    """A config.json of a family, with choices drawn by a seed."""
    draw = random.Random(f"{family}{seed}")
    heads, groups = RATIOS[draw.choice(list(RATIOS))]
    layers = draw.choice([2, 3])
    hidden = heads * draw.choice([8, 12])  # a head need not be the hidden size divided by the heads
    said = {
        "architectures": [FAMILIES[family].architecture], "model_type": family, "vocab_size": 97,
        "hidden_size": hidden, "intermediate_size": draw.choice([40, 56]), "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": groups, "head_dim": draw.choice([8, 16]),
        "max_position_embeddings": 64, "rms_norm_eps": draw.choice([1e-5, 1e-6]),
        "tie_word_embeddings": draw.random() < 0.5, "rope_parameters": rope(draw),
        "hidden_act": "gelu_pytorch_tanh" if "gemma" in family else "silu",
    }  # fmt: skip
    if family == "llama":
        said |= {"attention_bias": draw.random() < 0.5, "mlp_bias": draw.random() < 0.5}
    if family == "mistral":
        said["sliding_window"] = draw.choice([3, 5, None])
    if family in ("qwen2", "qwen3", "qwen3_moe"):
        said |= {"use_sliding_window": draw.random() < 0.5, "sliding_window": 4, "max_window_layers": 1}
    if family == "gemma2":
        said |= {
            "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 4, "query_pre_attn_scalar": 24,
            "attn_logit_softcapping": 0.5, "final_logit_softcapping": 2.0,
        }  # fmt: skip
    if family == "qwen3_moe":
        said |= {
            "num_experts": 6, "num_experts_per_tok": draw.choice([2, 3]), "moe_intermediate_size": 24,
            "norm_topk_prob": draw.random() < 0.5, "mlp_only_layers": [1], "decoder_sparse_step": 1,
        }  # fmt: skip
    return said | changes


def rope(draw):
    kind = draw.choice(["default", "linear", "llama3"])
    said = {"rope_type": kind, "rope_theta": draw.choice([10_000.0, 500_000.0])}
    if kind != "default":
        said["factor"] = draw.choice([2.0, 8.0])
    if kind == "llama3":
        said |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
    return said


def theirs(said, attention="eager"):
    """The library's model of a config.json, with random weights in every tensor, norms and biases too."""
    kind = getattr(transformers, said["architectures"][0])
    config = kind.config_class(**{key: value for key, value in said.items() if key != "architectures"})
    model = kind._from_config(config, attn_implementation=attention, experts_implementation="eager")
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.15, generator=generator)
            if parameter.dim() == 1:
                parameter.add_(1.0)
    return model.eval()


def ours(said, model):
    """Our model of the same config.json, with the weights of theirs."""
    decoder = Decoder(from_config(said, "config.json"))
    state = checkpoint_names(model.state_dict())
    decoder.load_state_dict(state)
    return decoder.eval()


def checkpoint_names(state):
    """The names that checkpoints have: the library joins all experts of a layer when it loads them."""
    found = {}
    for name, value in state.items():
        if name.endswith("experts.gate_up_proj"):
            for number, one in enumerate(value):
                gate, up = one.chunk(2)
                stem = name.replace("gate_up_proj", str(number))
                found |= {f"{stem}.gate_proj.weight": gate, f"{stem}.up_proj.weight": up}
        elif name.endswith("experts.down_proj"):
            for number, one in enumerate(value):
                found[name.replace("down_proj", f"{number}.down_proj.weight")] = one
        else:
            found[name] = value
    return found


def pair(family, seed=0, **changes):
    said = config_json(family, seed, **changes)
    model = theirs(said)
    return model, ours(said, model)


def tokens(batch=2, length=11, seed=3):
    return torch.randint(0, 97, (batch, length), generator=torch.Generator().manual_seed(seed))
