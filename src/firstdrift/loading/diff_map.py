"""The map that two checkpoints imply: it loads the reference into a model that has the candidate's names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..pair.mapping.quoting import comment
from .diff_result import CheckpointDifference, TensorDifference
from .map_lines import MapLine, map_line, map_text

HEAD = """# {reference} for a model whose tensors are called as in {candidate}, found by their numbers.
# fd.load_weights(model, {reference!r}, map=...), or firstdrift weights verify MODEL {reference} --map ...
"""


def map_of_difference(found: CheckpointDifference) -> str:
    """The map as YAML, what it could not say as comments at its end. The reference's names stand on the left."""
    lines = {one.name: one.line for one in found.tensors if one.line is not None}
    tied = _tied(lines, found.candidate_tied)
    names = [one.name for one in found.tensors]
    head = HEAD.format(reference=comment(found.reference), candidate=comment(found.candidate))
    body = map_text(tied, names, [*_doubts(found.tensors), *_unused(found.candidate_only)])
    return head + body.lstrip("\n")


def _tied(lines: Mapping[str, MapLine], twins: Mapping[str, str]) -> list[MapLine]:
    """The lines, with further names for tensors that the candidate holds twice."""
    found = list(lines.values())
    for name, twin in twins.items():
        own, further = map_line(twin).source, map_line(name).source
        whole = [one for one in found if own in one.targets and not {"split", "join"} & dict(one.options).keys()]
        if whole:
            options = {**dict(whole[0].options), "tie": True}
            one = replace(whole[0], targets=(*whole[0].targets, further), options=tuple(options.items()))
            found[found.index(whole[0])] = one
        elif not any(own in one.targets for one in found):
            found.append(map_line(twin, (twin, name), (("tie", True),)))
    return found


def _doubts(tensors: tuple[TensorDifference, ...]) -> list[str]:
    said = []
    for one in tensors:
        if one.verdict == "missing":
            said.append(f"{one.name}: {one.sentence}; write a line for it, or null to drop it")
        elif one.label == "weight-swap":
            said.append(f"{one.name}: {one.sentence}; keep its line only if the names are meant so")
        elif one.verdict == "drift" and one.line is None:
            said.append(f"{one.name}: differs, and no other layout explains it: {one.sentence}")
    return said


def _unused(names: tuple[str, ...]) -> list[str]:
    return [f"nothing fills {name}, which only the candidate has" for name in names]
