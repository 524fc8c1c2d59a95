"""Families of models, as data: what metadata calls them, and how the names of their tensors look."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from .failures import ENCODER, FAMILY

# What metadata calls the members of a family; every spelling is listed, none is guessed from another.
SPELLINGS = {
    "qwen2": (
        "Qwen2ForCausalLM", "Qwen2.5ForCausalLM", "qwen2", "qwen2.5", "qwen", "Qwen2", "Qwen2.5", "Qwen",
    ),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3MoeForCausalLM", "qwen3", "qwen3_5", "qwen3.5", "Qwen3"),
    "llama": (
        "LlamaForCausalLM", "MistralForCausalLM", "PhiForCausalLM", "Phi3ForCausalLM", "llama", "mistral", "phi",
        "phi3", "phi4", "Llama", "Mistral", "Phi", "Phi3", "Phi4",
    ),
    "gpt2": ("GPT2LMHeadModel", "gpt2", "Gpt2", "GPT2"),
    "gpt-neox": ("GPTNeoXForCausalLM", "gpt-neox", "gpt_neox", "gptneox", "pythia"),
    "mamba": ("MambaForCausalLM", "mamba"),
    "rwkv": ("RwkvForCausalLM", "Rwkv6ForCausalLM", "rwkv"),
    "bert": ("BertModel", "BertForMaskedLM", "bert"),
    "opt": ("OPTForCausalLM", "opt"),
}  # fmt: skip

# How tensor names tell a family: the first rule wins, and within `model.layers` the first that any name fits.
NAME_RULES = (
    ("mamba", r"mixer\.(in|out)_proj"),
    ("rwkv", r"^rwkv\.blocks\.|blocks\.0\.att\."),
    ("gpt-neox", r"^gpt_neox\."),
    ("opt", r"^model\.decoder\.layers\."),
    ("bert", r"^bert\."),
)
LAYER_RULES = (("qwen3", r"self_attn\.q_norm\.weight"), ("qwen2", r"self_attn\.q_proj\.bias|qkv_proj\.weight"))
LAYERS = r"model\.layers"
LAYERS_OTHERWISE = "llama"
GPT2 = r"transformer\.h|^h\..*\.attn\."

ENCODERS = ("bert", "roberta")
HYBRIDS = {"qwen35": "Gated DeltaNet", "qwen3next": "Gated DeltaNet"}  # attention of another kind in some layers

_FAMILY_OF = {spelling: family for family, spellings in SPELLINGS.items() for spelling in spellings}


def family_of_metadata(name: str | None) -> str | None:
    """The family of an architecture's name, or None when the table does not have it."""
    return _FAMILY_OF.get(name) if name is not None else None


def family_of_names(names: Iterable[str]) -> str | None:
    """The family that tensor names tell, or None when they tell none."""
    names = list(names)
    for family, rule in NAME_RULES:
        if _any(rule, names):
            return family
    if _any(LAYERS, names):
        return next((family for family, rule in LAYER_RULES if _any(rule, names)), LAYERS_OTHERWISE)
    return "gpt2" if _any(GPT2, names) else None


def contradiction(labels: Mapping[str, str], named: str | None = None, *, biased: bool = False) -> str | None:
    """What is said twice and differently of one model, after the id of that; None where everything agrees.

    `labels` are what metadata calls the model, by key; `named` is the family that tensor names tell. Labels that are in
    no table agree with everything. `biased` says that the model has biases in its attention.
    """
    families = {key: family for key, label in labels.items() if (family := family_of_metadata(label))}
    decoders = [f"{key} says {labels[key]}" for key in families if not is_encoder(labels[key])]
    if named is not None and named not in ENCODERS:
        decoders.append(f"its tensors have the names of family {named}")
    encoder = next((key for key, label in labels.items() if is_encoder(label)), None)
    if encoder is not None and decoders:
        return f"{ENCODER}: {encoder} says {labels[encoder]}, an Encoder, but {' and '.join(decoders)}"
    if len(set(families.values())) > 1:
        said = ", but ".join(f"{key} says {labels[key]} (family {family})" for key, family in families.items())
        return f"{FAMILY}: {said}"
    if families and named not in (None, *families.values()):
        key, family = next(iter(families.items()))
        if not _may_tell(str(named), labels[key], biased):
            said = f"{key} says {labels[key]} (family {family})"
            return f"{FAMILY}: {said}, but its tensors have the names of family {named}"
    return None


def _may_tell(named: str, label: str, biased: bool) -> bool:
    """Whether a model of another family rightly has names of this one: Phi is stored with biases or fused, as Qwen2
    is, and Llama has biases where its configuration asks for them."""
    return named == "qwen2" and (biased or label.lower().startswith("phi"))


def is_encoder(name: str | None) -> bool:
    """Whether an architecture's name, in any case, is that of an encoder."""
    return name is not None and any(word in name.lower() for word in ENCODERS)


def hybrid_of(name: str | None) -> str | None:
    """What a hybrid architecture has in place of attention; None for all others."""
    plain = re.sub(r"[_.-]", "", (name or "").lower())
    return next((what for start, what in HYBRIDS.items() if plain.startswith(start)), None)


def _any(rule: str, names: list[str]) -> bool:
    return any(re.search(rule, name) for name in names)
