"""What a decoder is, as data: every number and choice that two models of one code can differ in, each read with its
type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from ..core.stages import STAGES, WHOLE_MODEL
from ..core.strict_json import Json

DENSE_STAGES = frozenset({"ffn_gate", "ffn_up", "ffn_silu", "ffn_swigl", "ffn_out"})
MOE_STAGES = frozenset({"moe_router", "moe_router_indices", "moe_ffn_out"})


@dataclass(frozen=True, slots=True)
class Rope:
    """How positions turn queries and keys.

    `partial` is the share of a head's dimensions that turns. `scaling` is default, linear or llama3, with the numbers
    of that kind after it. `divisors` are frequencies' own divisors, one each, as GGUF stores them in place of a kind.
    `adjacent` pairs dimensions 0 and 1, 2 and 3, ...; else a dimension goes with the one half a head further on.
    """

    theta: float = 10_000.0
    partial: float = 1.0
    scaling: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_positions: int = 8192
    divisors: tuple[float, ...] = ()
    adjacent: bool = False


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts in place of the dense network, in all layers but `dense_layers`."""

    count: int
    per_token: int
    intermediate_size: int
    normalised: bool = True  # the weights of the chosen ones add up to one
    dense_layers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """Everything that `Decoder` is built from.

    The defaults are Llama's. `norm_offset` is 1 where a norm multiplies by 1 + weight, `embedding_scale` what
    embeddings are multiplied by, `sandwich_norms` whether a norm follows attention and feed-forward too. Layers of
    `sliding_layers` see only the last `sliding_window` positions. `score_scale` multiplies query times key, 1 /
    sqrt(head_dim) when it is None; the softcaps squash attention scores and logits by `cap * tanh(x / cap)`.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float = 1e-5
    rope: Rope = field(default_factory=Rope)
    tie_word_embeddings: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    activation: str = "silu"
    norm_offset: float = 0.0
    sandwich_norms: bool = False
    embedding_scale: float = 1.0
    score_scale: float | None = None
    score_softcap: float | None = None
    logit_softcap: float | None = None
    sliding_window: int | None = None
    sliding_layers: tuple[int, ...] = ()
    experts: Experts | None = None
    family: str = "llama"

    def window(self, layer: int) -> int | None:
        """How many positions a layer's attention looks back, itself included; None for all."""
        return self.sliding_window if layer in self.sliding_layers else None

    def experts_of(self, layer: int) -> Experts | None:
        """The experts of a layer; None where its network is dense."""
        return None if self.experts is None or layer in self.experts.dense_layers else self.experts

    def stages(self, layer: int) -> frozenset[str]:
        """The stages that a layer has, of those that belong to layers; the embedding is the first layer's."""
        absent = DENSE_STAGES if self.experts_of(layer) else MOE_STAGES
        return frozenset(STAGES) - WHOLE_MODEL - absent - ({"embedding"} if layer else set())


REQUIRED: Any = object()


class Reader:
    """The keys of a config.json, each with its type; what is wrong is collected."""

    def __init__(self, said: Mapping[str, Json], problems: list[str] | None = None, inside: str = "") -> None:
        self.said = said
        self.inside = inside
        self.problems: list[str] = [] if problems is None else problems

    def whole(self, key: str, default: Any = REQUIRED, most: int = 2**40) -> Any:
        """A whole number above 0."""
        what = f"a whole number up to {most} and"
        return self._read(key, default, 1, lambda value: type(value) is int and 0 < value <= most, what)

    def unless_null(self, key: str, default: float) -> Any:
        """A number above 0 with a default; a null is a choice of its own, and means none."""
        return None if key in self.said and self.said[key] is None else self.number(key, default)

    def number(self, key: str, default: Any = REQUIRED) -> Any:
        """A finite number above 0."""
        found = self._read(
            key, default, 1.0,
            lambda value: type(value) in (int, float) and isfinite(value) and value > 0, "a number",
        )  # fmt: skip
        return None if found is None else float(found)

    def flag(self, key: str, default: Any = REQUIRED) -> Any:
        """True or false."""
        return self._read(key, default, False, lambda value: type(value) is bool, "true or false", above=False)

    def table(self, key: str) -> Reader | None:
        """Another table inside, or None."""
        found = self.said.get(key)
        if found is not None and not isinstance(found, dict):
            self.problems.append(f"{key} is {found!r}, not a table")
            return None
        return None if found is None else Reader(found, self.problems, f"{key}.")

    def whole_list(self, key: str) -> list[int]:
        """A list of whole numbers; empty where there is none."""
        found = self.said.get(key)
        if found is None:
            return []
        if not isinstance(found, list) or any(type(item) is not int for item in found):
            self.problems.append(f"{key} is {found!r}, not a list of whole numbers")
            return []
        return found

    def refuse_what_would_be_ignored(self) -> None:
        """Keys that change what is computed, and that this decoder does not know how to follow."""
        if self.said.get("use_bidirectional_attention"):
            self.problems.append("use_bidirectional_attention is set, and attention is causal here")
        if self.said.get("quantization_config"):
            self.problems.append("quantization_config is set, and only GGUF and APR are read quantized")

    def _read(self, key: str, default: Any, instead: Any, right: Any, what: str, above: bool = True) -> Any:
        value = self.said.get(key)
        if value is None:
            if default is not REQUIRED:
                return default
            self.problems.append(f"{self.inside}{key} is missing")
            return instead
        if not right(value):
            self.problems.append(f"{self.inside}{key} is {value!r}, not {what}{' above 0' if above else ''}")
            return instead
        return value
