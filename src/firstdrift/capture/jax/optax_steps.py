"""A step of an optax optimizer: its state under our names, and the settings that it tells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from jax.tree_util import tree_flatten_with_path, tree_leaves

from ...core.strict_json import Json
from ...errors import CaptureError
from ..module_calls import Name
from .jax_models import words

STATES = {"mu": "exp_avg", "nu": "exp_avg_sq", "trace": "momentum_buffer", "nu_max": "max_exp_avg_sq", "count": "step"}
SETTINGS = {"learning_rate": "lr"}  # optax's words for settings, and torch's


def begun(optimizer: Any, trained: Any) -> tuple[Any, Any]:
    """A gradient transformation and its state before the step: given as `(tx, state)`, else a new one."""
    given = optimizer if type(optimizer) is tuple and len(optimizer) == 2 else (optimizer, None)
    if not all(callable(getattr(given[0], part, None)) for part in ("init", "update")):
        raise CaptureError(
            f"optimizer is a {type(optimizer).__qualname__}; give an optax transformation, or (tx, state)"
        )
    return given[0], given[0].init(trained) if given[1] is None else given[1]


def updated(tx: Any, trained: Any, gradients: Any, state: Any) -> tuple[Any, Any]:
    """The parameters and the state after a step."""
    import optax

    updates, after = tx.update(gradients, state, trained)
    return optax.apply_updates(trained, updates), after


def named_states(state: Any, trained: Any, skipped: int) -> Iterator[tuple[Name, Any]]:
    """The arrays of a state that belong to parameters, each as `<port>.<state>`; the count belongs to all of them."""
    names = [tuple(words(path)) for path, _ in tree_flatten_with_path(trained)[0]]
    flat = [(tuple(words(path)), leaf) for path, leaf in tree_flatten_with_path(state)[0]]
    counts = [leaf for path, leaf in flat if path[-1] == "count"]
    for path, leaf in flat:
        name = max((one for one in names if len(one) < len(path) and path[len(path) - len(one) :] == one),
                   key=len, default=None)  # fmt: skip
        if name is not None and path[0] != "hyperparams":
            yield _name(name[skipped:], path[-len(name) - 1]), leaf
    for name in names if counts else ():
        yield _name(name[skipped:], "count"), counts[0]


def _name(path: tuple[str, ...], state: str) -> Name:
    *module, port = path or ("weight",)
    return ".".join(module), f"{port}.{STATES.get(state, state)}"


def settings_of(state: Any) -> dict[str, Json] | None:
    """The settings that `optax.inject_hyperparams` keeps in a state; None without it, because nothing else tells."""
    said = getattr(state, "hyperparams", None)
    if not isinstance(said, Mapping):
        return None
    plain: dict[str, Json] = {}
    for key, value in said.items():
        if getattr(value, "ndim", None) == 0:
            plain[SETTINGS.get(str(key), str(key))] = float(str(value))
    if {"b1", "b2"} <= plain.keys():
        plain["betas"] = [plain.pop("b1"), plain.pop("b2")]
    fields = {key for leaf in tree_leaves(state, is_leaf=_is_moments) for key in getattr(leaf, "_fields", ())}
    kind = "SGD" if plain.keys() <= {"lr", "momentum"} else None
    if "betas" in plain and {"mu", "nu"} <= fields:
        kind = "AdamW" if "weight_decay" in plain else "Adam"
    return {**({} if kind is None else {"class": kind}), "groups": [plain]}


def _is_moments(leaf: Any) -> bool:
    return {"mu", "nu"} <= set(getattr(leaf, "_fields", ()))
