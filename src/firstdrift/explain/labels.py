"""The vocabulary of causes, as data: what each label means, how it is recognised and confirmed, and real cases.

The texts are in labels.toml. They are read when a label is first looked up.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("labels.toml")


@dataclass(frozen=True, slots=True)
class Label:
    """One cause. Of labels that explain a drift equally well, the one of greater `specificity` is given.

    `cases` are bugs of public projects, as `owner/repository#number: what was wrong`.
    """

    meaning: str
    recognised: str = ""
    confirm: str = ""
    cases: tuple[str, ...] = ()
    specificity: int = 1


class Vocabulary(Mapping[str, Label]):
    """Every label by its name, in the order in which they are documented."""

    @cached_property
    def _labels(self) -> dict[str, Label]:
        said: dict[str, dict[str, Any]] = tomllib.loads(FILE.read_text("utf-8"))
        return {name: Label(**item | {"cases": tuple(item.get("cases", ()))}) for name, item in said.items()}

    def __getitem__(self, name: str) -> Label:
        return self._labels[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._labels)

    def __len__(self) -> int:
        return len(self._labels)


LABELS = Vocabulary()


def link(case: str) -> str:
    """Where a case can be read about."""
    place, _, _ = case.partition(":")
    repository, _, number = place.partition("#")
    return f"https://github.com/{repository}/issues/{number}"


def nearest(name: str) -> list[str]:
    """The labels that a misspelt or incomplete name may mean, likeliest first."""
    plain = name.strip().lower().replace("_", "-").replace(" ", "-")
    parts = {part for part in plain.split("-") if len(part) > 2}
    like = get_close_matches(plain, LABELS, 3, 0.6)
    return list(dict.fromkeys([*like, *(one for one in LABELS if parts & set(one.split("-")))]))[:4]


_ACTIVATIONS = ("relu", "elu", "gelu", "silu", "softplus", "experts", "rnn", "lstm", "gru")
_STEPPING = ("adam", "sgd", "optimizer")
_NORMS, _ROTARY, _SCORES = ("norm", "heads"), ("rope", "rotary"), ("attention", "sdpa", "softmax")

# Ends of a setting's name, what stands in the name of its operation (or before that end of a config's key), the label.
_LABELS: tuple[tuple[tuple[str, ...], tuple[str, ...], str], ...] = (
    (("eps", "epsilon"), _STEPPING, "optimizer-eps"),
    (("eps", "epsilon"), _NORMS, "norm-eps"),
    (("offset",), _NORMS, "norm-plus-one"),
    (("axes", "num_groups"), _NORMS, "norm-axis"),
    (("training", "training_mode"), ("batchnorm",), "batchnorm-mode"),
    (("training", "p"), ("dropout",), "dropout-active"),
    (("momentum",), ("batchnorm", "runningstatistics"), "batchnorm-momentum"),
    (("theta", "rope_base"), (), "rope-theta"),
    (("base",), _ROTARY, "rope-theta"),
    (("adjacent", "interleaved"), _ROTARY, "rope-interleave"),
    (("partial", "partial_rotary_factor"), (), "rope-partial"),
    (("position",), _ROTARY, "position-shift"),
    (("scaling", "factor", "original_positions", "divisors"), _ROTARY, "rope-scaling"),
    (("softcap", "softcapping"), (), "softcap"),
    (("is_causal",), (), "mask-missing"),
    (("window",), (), "window-off-by-one"),
    (("scale",), _SCORES, "attention-scale"),
    (("scale",), ("embedding",), "scale"),
    (("alpha", "beta"), ("gemm",), "scale"),
    (("transA", "transB"), ("gemm",), "transpose"),
    (("approximate", "nonlinearity", "hidden_act", "activation_function", "hidden_activation"), (),
     "activation-variant"),
    (("activation", "negative_slope", "alpha", "beta", "threshold"), _ACTIVATIONS, "activation-variant"),
    (("min_val", "max_val", "min", "max"), ("hardtanh", "clip"), "clamp"),
    (("count_include_pad",), (), "pool-count-pad"),
    (("ceil_mode",), (), "pool-mode"),
    (("padding", "pads", "padding_mode", "auto_pad", "output_padding"), (), "padding"),
    (("perm", "dims"), ("transpose", "permute"), "axis-order"),
    (("normalised", "norm_topk_prob"), (), "router-renorm"),
    (("reduction",), (), "reduction-scale"),
    (("label_smoothing", "ignore_index"), (), "loss-formula"),
    (("lr", "learning_rate"), (), "optimizer-lr"),
    (("betas", "momentum", "dampening", "nesterov"), (), "optimizer-momentum"),
    (("weight_decay",), (), "weight-decay-coupling"),
)  # fmt: skip
NONE_FITS = "other-setting"


def label_of(key: str, op: Any) -> str:
    """The label of a setting; that of none in particular where no other says what it does."""
    name = key.rpartition(".")[2]
    return next((label for ends, parts, label in _LABELS if _is_one(name, ends) and _is_of(name, op, parts)), NONE_FITS)


def _is_one(name: str, ends: tuple[str, ...]) -> bool:
    return any(name == end or name.endswith(f"_{end}") for end in ends)


def _is_of(name: str, op: Any, parts: tuple[str, ...]) -> bool:
    said = f"{op or ''} {name}".lower()
    return not parts or any(part in said for part in parts)
