"""Trace a step of every network, run its program again in a fresh process, print what came of it as JSON."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import torch

import firstdrift as fd
from firstdrift.core.dtypes import UNIT_ROUNDOFF
from firstdrift.errors import CaptureError
from firstdrift.program.calls import Call, Program, Step
from firstdrift.program.cuts import Cut, Cuts
from firstdrift.program.interpreter import Interpreter, NotReplayableError
from firstdrift.program.process_settings import as_recorded
from firstdrift.program.written.read_program import read_program

HERE = Path(__file__).parent
COUNTS = ("calls", "made", "sites", "same")
PARTS = {
    "forward": ("fwd", "loss"),
    "backward": ("lossgrad", "agrad", "grad", "grad_scaled"),
    "optimizer": ("optim", "weight_after", "weight", "input"),
}


def replayed(path: Path) -> dict[str, object]:
    """How many calls of a trace's program could be made again, and how many of its tensors came out bit for bit."""
    trace = fd.open_trace(path)
    program = read_program(trace)
    calls = made = sites = same = 0
    failed: Counter[str] = Counter()
    assert program is not None
    with as_recorded(program.header):
        for step in program.steps.values():
            named = defaultdict(list)
            for site, ref in step.sites.items():
                named[ref.node].append((site, ref.at))
            for number, values in Interpreter(step, trace).run():
                node = step.nodes[number]
                calls += isinstance(node, Call)
                if isinstance(values, NotReplayableError):
                    failed[str(values).split(": ")[-1]] += isinstance(node, Call)
                    continue
                made += isinstance(node, Call)
                for site, at in named[number]:
                    if trace[site].at is not None:
                        sites += 1
                        same += _bytes(values[at]) == trace.array(site).tobytes()
    found = {"calls": calls, "made": made, "sites": sites, "same": same, "failed": failed}
    return {**found, "alone": from_producers(trace, program)}


def from_producers(trace: fd.Trace, program: Program) -> dict[str, dict[str, object]]:
    """Of each part of a step: its sites that something was computed for, from what was recorded before them alone.

    How many come out bit for bit, how many are within one rounding of the float64 number, how many float64 can run, and
    why the others are neither: what was lost of their arguments, or how far they are off.
    """
    found = {part: {"sites": 0, "equal": 0, "rounded": 0, "lifted": 0, "others": [], "lost": []} for part in PARTS}
    with as_recorded(program.header), np.errstate(all="ignore"):
        for step in program.steps.values():
            cuts = Cuts(step, lambda site: trace[site].at is not None)
            for site in step.sites:
                cut = cuts.at(site)
                if trace[site].at is None or cut is None or not any(_is_call(step, number) for number in cut.nodes):
                    continue
                part = found[next(part for part, phases in PARTS.items() if site.phase in phases)]
                part["sites"] += 1
                outcome, why = _outcome(trace, step, site, cut)
                part[outcome] += 1 if not why else [f"{site}: {why}"]
                part["lifted"] += _is_lifted(trace, step, cut)
    return found


def _outcome(trace: fd.Trace, step: Step, site: fd.Site, cut: Cut) -> tuple[str, str]:
    recorded = trace.array(site)
    try:
        value = Interpreter(step, trace).value_of(cut)
        if _bytes(value) == recorded.tobytes():
            return "equal", ""
        exact = Interpreter(step, trace, exact=True).array_of(cut)
        apart = np.abs(Interpreter(step, trace).array_of(cut) - recorded.astype(exact.dtype))
    except NotReplayableError as error:
        return "lost", str(error)
    roundings = np.nanmax(apart / (UNIT_ROUNDOFF.get(trace[site].dtype, 0.0) * np.abs(exact)), initial=0)
    return ("rounded", "") if roundings <= 1 else ("others", f"{roundings:.1f} roundings apart")


def _is_lifted(trace: fd.Trace, step: Step, cut: Cut) -> bool:
    try:
        Interpreter(step, trace, exact=True).value_of(cut)
    except NotReplayableError:
        return False
    return True


def _is_call(step: Step, number: int) -> bool:
    return isinstance(step.nodes[number], Call)


def traced(folder: Path) -> None:
    """A trace of each network, or why there is none."""
    sys.path.insert(0, str(HERE.parent))
    from programs.networks import NETWORKS

    for network in NETWORKS:
        torch.manual_seed(0)
        model = network.build()
        optimizer = network.optimizer(model) if network.optimizer else None
        try:
            with fd.trace(model, folder / network.name, optimizer=optimizer):
                network.step(model, optimizer)
        except CaptureError as error:
            (folder / network.name / "why").write_text(str(error))


def _bytes(tensor: torch.Tensor) -> bytes:
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""


def main() -> None:
    """Record here, replay there."""
    if len(sys.argv) > 1:
        print(json.dumps(replayed(Path(sys.argv[1]))))
        return
    found = {}
    with tempfile.TemporaryDirectory(prefix=".bench-") as folder:
        traced(Path(folder))
        for path in sorted(Path(folder).iterdir()):
            if (why := path / "why").exists():
                found[path.name] = dict.fromkeys(COUNTS, 0) | {"failed": {why.read_text(): 1}, "alone": {}}
                continue
            child = [sys.executable, __file__, str(path)]
            found[path.name] = json.loads(subprocess.run(child, capture_output=True, text=True, check=True).stdout)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
