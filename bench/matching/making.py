"""The pairs: two independent implementations each, clean and with a bug in one module, recorded and renamed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

import firstdrift as fd
from firstdrift.core.sites import Site

from .rewriting import Engine, rewrite, scrambled

HERE = Path(__file__).resolve().parent
for folder in (HERE.parent, HERE.parent.parent / "tests" / "decoder"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


@dataclass(frozen=True)
class Made:
    """Two traces, and the candidate's name and port of every site of the reference that it has."""

    reference: Path
    candidate: Path
    truth: dict[Site, tuple[str, str]]
    any_of_one_tensor: bool = False  # of nodes that hold the very same numbers any is right


@dataclass(frozen=True)
class Question:
    """A pair to be made below a directory."""

    name: str
    make: Callable[[Path], Made]


def questions() -> Iterator[Question]:
    """All of them."""
    yield from _driftbench()
    yield from _decoders()
    from .engines import engine_questions

    yield from engine_questions()
    from .recorded import recorded_questions

    yield from recorded_questions()


def record(model: torch.nn.Module, path: Path, *inputs: object, **options: object) -> fd.Trace:
    """Trace one forward pass."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]), fd.trace(model, path, overwrite=True):
        torch.manual_seed(0)
        model(*inputs, **options)
    return fd.open_trace(path)


def bugged(model: torch.nn.Module, number: int) -> str:
    """Make one of the modules without children return something else; gives its name."""
    leaves = [(name, module) for name, module in model.named_modules() if name and not list(module.children())]
    name, module = leaves[number % len(leaves)]

    def changed(module: torch.nn.Module, args: object, output: object) -> object:
        return output * 1.3 + 0.1 if isinstance(output, torch.Tensor) and output.is_floating_point() else output

    module.register_forward_hook(changed)
    return name


def _driftbench() -> Iterator[Question]:
    from driftbench.c_port import is_port
    from driftbench.cases import all_cases
    from driftbench.networks import NAMES

    cases = [case for case in all_cases() if not is_port(case) and case.name_map is None and not case.rename]
    for network in NAMES:
        own = [case for case in cases if case.network == network and case.precision == "fp32"]
        bugs = [case for case in own if not case.benign][::5][:4]
        for case in [*[case for case in own if case.benign][:1], *bugs]:
            yield Question(f"driftbench {case.name}", lambda folder, case=case: _driftbench_pair(case, folder))


def _driftbench_pair(case: object, folder: Path) -> Made:
    from driftbench.asking import run_side
    from driftbench.sides import build

    sides = build(case)
    ours = run_side(sides.reference, folder / "reference", sides, "reference")
    theirs = run_side(sides.candidate, folder / "plain", sides, "candidate")
    told = rewrite(fd.open_trace(theirs), folder / "candidate", Engine(scrambled(case.seed), graph=True, shuffled=1))
    sites = {record.site for record in fd.open_trace(ours)}
    return Made(ours, folder / "candidate", {site: name for site, name in told.items() if site in sites})


def _decoders() -> Iterator[Question]:
    from firstdrift.decoder.config_json import FAMILIES

    for number, family in enumerate(FAMILIES):
        for bug in (None, 5 + 3 * number):
            name = f"decoder {family}" + ("" if bug is None else " bug")
            yield Question(name, lambda folder, family=family, bug=bug: _decoder_pair(family, bug, folder))


def _decoder_pair(family: str, bug: int | None, folder: Path) -> Made:
    from families import pair, tokens

    theirs, ours = pair(family)
    if bug is not None:
        bugged(ours, bug)
    reference = record(theirs, folder / "reference", tokens(), use_cache=False)
    plain = record(ours, folder / "plain", tokens())
    told = rewrite(plain, folder / "candidate", Engine(scrambled(3), graph=True, shuffled=2))
    sites = {one.site for one in reference}
    return Made(
        folder / "reference", folder / "candidate", {site: name for site, name in told.items() if site in sites}
    )
