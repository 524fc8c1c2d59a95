"""Shorthands for lists of cases."""

from __future__ import annotations

from typing import Any

from ..case import Case, Change, Place, Planted, Truth, truth


class Maker:
    """Makes the cases of one network: `at` plants a bug in one layer, `everywhere` in all, `loaded` in the weights."""

    def __init__(self, network: str) -> None:
        self.network = network

    def at(self, layer: int, name: str, family: str, said: Truth, bugs: dict[str, Any], *ids: str, **more: Any) -> Case:
        """Wrong in one layer."""
        return self._case(name, family, said, Planted(bugs, {layer}), ids, more)

    def everywhere(self, name: str, family: str, said: Truth, bugs: dict[str, Any], *ids: str, **more: Any) -> Case:
        """Wrong wherever it can be."""
        return self._case(name, family, said, Planted(bugs), ids, more)

    def loaded(
        self, name: str, family: str, place: Place, label: str | tuple[str, ...], *changes: Change,
        ids: tuple[str, ...] = (), **more: Any,
    ) -> Case:  # fmt: skip
        """Wrong weights, right code."""
        parameters = more.pop("parameters", {})
        said = truth(place, label, **parameters)
        return self._case(f"weights-{name}", family, said, Planted(), ids, {**more, "weights": changes})

    def same(self, name: str, family: str, *ids: str, **more: Any) -> Case:
        """No bug at all."""
        return self._case(name, family, None, Planted(more.pop("bugs", {}), more.pop("layers", None)), ids, more)

    def _case(
        self, name: str, family: str, said: Truth | None, planted: Planted, ids: tuple[str, ...], more: dict[str, Any]
    ) -> Case:
        return Case(f"{self.network}/{name}", self.network, family, said, planted, catalogue=ids, **more)
