"""From a JAX model and its inputs to a trace: one forward pass, and with a loss its gradients and an optimizer's step.

The model is traced to a jaxpr and that is run equation by equation. A model is left as it is: flax's counts of random
numbers and running statistics do not move.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from typing import Any

import jax
import numpy as np
from jax.tree_util import tree_leaves, tree_unflatten

from ..._version import __version__
from ...core.dtypes import dtype_name
from ...core.sites import Site
from ...core.strict_json import Json, decode_object
from ...errors import CaptureError, CaptureWarning
from ...program.calls import Ref
from ...store.writer import Writer
from ..module_calls import Name
from ..recorder import Recorder
from ..scope import Scope
from .equations import permute
from .jax_models import Model, model_of, names_in
from .jax_steps import Step
from .jaxpr_running import Cell, Running
from .marks import Mark, is_array, is_key
from .optax_steps import begun, named_states, settings_of, updated
from .program_lines import ProgramLines, type_of
from .source_lines import SourceLines

EVALUATION = "equation by equation; what is jitted and loops as a whole, unless something inside is recorded"


def record(
    model: Any,
    path: str | os.PathLike[str],
    inputs: Any,
    *,
    params: Any,
    loss_fn: Callable[..., Any] | None,
    target: Any,
    optimizer: Any,
    granularity: str,
    program: bool,
    source: bool,
    scope: Mapping[str, Any],
    overwrite: bool,
    checksum: bool,
    header: Mapping[str, Json],
) -> None:
    """Run a model once and write its trace. Nothing is written before the model has run without being recorded."""
    if optimizer is not None and loss_fn is None:
        raise CaptureError("an optimizer steps by gradients of a loss; give loss_fn too")
    chosen = Scope.of(**scope)
    described, inputs = model_of(model, params, inputs)
    if described.classes is not None:
        chosen.check(described.classes)
    step = Step(described, inputs, loss_fn, target)
    tx, state = (None, None) if optimizer is None else begun(optimizer, described.trained)
    plain = step.plainly()
    jaxpr, shape, marking = step.traced()
    said: dict[str, Json] = {
        "producer": f"firstdrift {__version__}, jax {jax.__version__}", "model": described.title,
        "options": {"evaluation": EVALUATION}, "environment": _environment(),
    }  # fmt: skip
    if state is not None and (settings := settings_of(state)) is not None:
        said["optimizer"] = settings
    with Writer(path, overwrite=overwrite, checksum=checksum, **{**said, **header}) as writer:
        run = _Run(Recorder(writer, chosen), described, marking.paths, granularity, program=program, source=source)
        cells = run.put_given(step)
        made = tree_unflatten(shape, run.running.run(jaxpr, cells))
        run.put_named("grad", made[3], described.skipped[0], turned=True)
        if tx is not None:
            _put_update(run, described, tx, state, made[3], cells)
        run.put_named("weight_after", made[1], described.skipped[1])
        notes = [*run.finish(), *_changes(described.title, plain, made, step.plainly)]
        if notes:
            writer.describe(notes=notes)


def _put_update(run: _Run, model: Model, tx: Any, state: Any, gradients: Any, cells: Sequence[Cell]) -> None:
    """Run an optimizer's step as equations, too."""
    trained, skipped = model.trained, model.skipped[0]
    given = (trained, jax.tree.map(lambda cell: cell.value, gradients), state)
    after = updated(tx, *given)
    run.begin_update(settings_of(state))
    known = [
        *cells[: len(tree_leaves(trained))],
        *tree_leaves(gradients),
        *map(run.running.constant, tree_leaves(state)),
    ]
    after, state_after = run.running.described(jax.make_jaxpr(partial(updated, tx))(*given), known, after)
    run.put_state(named_states(state_after, trained, skipped))
    run.put_named("weight_after", after, skipped)


def _changes(title: str, plain: Any, made: Any, again: Callable[[], Any]) -> list[str]:
    """Where the recorded run differs from one that is not recorded: a note, and a warning."""
    changed = []
    for what, one, other in zip(("outputs", "buffers", "loss", "gradients"), plain, made, strict=True):
        pairs = zip(tree_leaves(one), tree_leaves(other), strict=True)
        if any(not _same_bits(value, cell.value) for value, cell in pairs):
            changed.append(what)
    if not changed:
        return []
    why = "XLA compiles a jitted function or a loop as a whole, and it was recorded in parts"
    if not all(map(_same_bits, tree_leaves(plain), tree_leaves(again()))):
        why = "two runs of it differ, too, because it draws numbers from outside JAX or changes with each call"
    note = f"a run that is not recorded gives other bits of the {' and '.join(changed)}: {why}"
    warnings.warn(f"{title}: {note}", CaptureWarning, stacklevel=4)
    return [note]


def _same_bits(value: Any, other: Any) -> bool:
    if is_key(value):
        return True
    one, two = np.asarray(value), np.asarray(other)
    return one.dtype == two.dtype and one.tobytes() == two.tobytes()


def _environment() -> dict[str, Json]:
    packages = ("jaxlib", "flax", "equinox", "optax")
    return {
        "jax": jax.__version__, **{name: version(name) for name in packages if name in sys.modules},
        "platform": jax.default_backend(), "devices": [str(device.device_kind) for device in jax.devices()],
        "jax_default_matmul_precision": jax.config.jax_default_matmul_precision,
        "jax_enable_x64": jax.config.jax_enable_x64,
    }  # fmt: skip


class _Run:
    """One recorded run: puts what is computed at its sites, in the trace and in the program."""

    def __init__(
        self, recorder: Recorder, model: Model, paths: Sequence[str], granularity: str, *, program: bool, source: bool
    ) -> None:
        self._recorder = recorder
        self._lines = ProgramLines(recorder, f"jax {jax.__version__}") if program else None
        self.running = Running(self, self._lines, paths, SourceLines(source=source))
        self._by_op = granularity == "op"
        self._classes = dict(model.classes or {})
        self._calls: dict[tuple[str, str, int], list[Site]] = defaultdict(list)  # sites of a mark that were not left
        self._taken: set[Site] = set()
        self._logits: tuple[Site, ...] = ()
        self._notes: dict[str, None] = {}

    # ---- what is given

    def put_given(self, step: Step) -> list[Cell]:
        """Record inputs and parameters; gives all arrays that the step is a function of, in its order."""
        trained, held, inputs, target = step.given
        known = {id(array): self._given(Site(0, "input", "input", port), array) for port, array in step.inputs.items()}
        named = [one for tree, skipped in zip((trained, held), step.model.skipped, strict=True)
                 for one in names_in(tree, skipped)]  # fmt: skip
        cells = [self._given(Site(0, "weight", *name), leaf) for name, leaf in named]
        return [*cells, *(known.get(id(leaf)) or self._constant(leaf) for leaf in (*inputs, *target))]

    def _given(self, site: Site, leaf: Any) -> Cell:
        if not is_array(leaf):
            return self._constant(leaf)
        value = jax.numpy.asarray(leaf)
        if not self._put(site, value, None) or self._recorder.scope.mode(site.name) != "full":
            return self.running.constant(value)
        return Cell(value, None if self._lines is None else self._lines.at_site(site, type_of(value)), (site,))

    def _constant(self, leaf: Any) -> Cell:
        return self.running.constant(leaf if is_key(leaf) else jax.numpy.asarray(leaf))

    # ---- what is computed

    def marked(self, mark: Mark, cell: Cell, *, again: bool) -> Cell:
        """A mark was reached; what is behind it was computed from its site."""
        if mark.phase == "tangent" or (again and mark.phase == "fwd"):
            return cell
        if mark.phase == "logits":
            self._logits = cell.sites
            self._part("loss")
            return cell
        site = self._site_of(mark)
        said: dict[str, Json] = {} if mark.op is None else {"op": mark.op, "attrs": decode_object(mark.attrs)}
        if mark.op is not None:
            self._classes.setdefault(mark.name, [mark.op])
        from_ = self._logits if mark.phase == "lossgrad" else cell.sites if mark.phase in ("fwd", "loss") else None
        is_put = self._put(site, *self._batch_first(mark, cell), from_, **said)
        if mark.phase == "loss":
            self._part("backward")
        return replace(cell, sites=(site,)) if is_put and mark.phase == "fwd" else cell

    def computed(self, module: str | None, primitive: str, cell: Cell) -> Cell:
        """An equation has been run; with granularity "op" its result is a site."""
        if not self._by_op or module is None or not is_array(cell.value) or not self._is_forward:
            return cell
        site = self._next(Site(0, "fwd", f"{module}/{primitive}", "out"))
        is_put = self._put(site, cell.value, cell.ref, cell.sites, op=f"jax.{primitive}")
        return replace(cell, sites=(site,)) if is_put else cell

    def put_named(self, phase: str, tree: Any, skipped: int, *, turned: bool = False) -> None:
        """Record a pytree of cells, under the names of its arrays."""
        named = names_in(tree, skipped)
        for name, cell in reversed(named) if turned else named:
            if is_array(cell.value):
                self._put(Site(0, phase, *name), cell.value, cell.ref)

    def put_state(self, named: Iterable[tuple[Name, Cell]]) -> None:
        """Record an optimizer's state."""
        for name, cell in named:
            self._put(Site(0, "optim", *name), cell.value, cell.ref)

    def begin_update(self, settings: Mapping[str, Json] | None) -> None:
        """What follows is the optimizer's."""
        self._part("optimizer")
        if self._lines is not None and settings is not None:
            self._lines.optimizer(settings)

    def finish(self) -> list[str]:
        """Write the program; gives what could not be recorded."""
        if self._lines is not None:
            self._recorder.append_program(self._lines.text())
        return list(self._notes)

    def _part(self, name: str) -> None:
        self._is_forward = name == "forward"
        if self._lines is not None:
            self._lines.part(name)

    _is_forward = True

    def _site_of(self, mark: Mark) -> Site:
        """The site of a mark: of a loop's body one for each turn, and gradients arrive at the last turn first."""
        key = (mark.name, mark.port, mark.call)
        if mark.phase == "agrad" and self._calls[key]:
            return self._next(self._calls[key].pop()._replace(phase="agrad"))
        site = self._next(Site(0, mark.phase, mark.name, mark.port, mark.call))
        if mark.phase == "fwd":
            self._calls[key].append(site)
        return site

    def _next(self, site: Site) -> Site:
        while site in self._taken:
            site = site._replace(call=site.call + 1)
        self._taken.add(site)
        return site

    def _batch_first(self, mark: Mark, cell: Cell) -> tuple[Any, Any]:
        """A marked value with the axes that `vmap` added in front."""
        rest = [axis for axis in range(cell.value.ndim) if axis not in mark.axes]
        axes = [*mark.axes, *rest]
        if axes == sorted(axes):
            return cell.value, cell.ref
        ref = cell.ref
        if self._lines is not None and isinstance(ref, Ref):
            ref = permute(self._lines, ref, axes)
        return jax.numpy.transpose(cell.value, axes), ref

    def _put(
        self, site: Site, value: Any, ref: Any, producers: tuple[Site, ...] | None = None, **details: Json
    ) -> bool:
        """Record a tensor, in the program too; False if the trace is not to hold it."""
        scope, module = self._recorder.scope, site.name.partition("/")[0]
        is_module = site.phase not in ("input", "loss", "lossgrad")
        if site.phase not in scope.phases or (is_module and not scope.takes(module, self._classes.get(module, ()))):
            return False
        array = np.asarray(value)
        if dtype_name(array.dtype) is None:
            self._notes[f"{site}: a {array.dtype} cannot be stored"] = None
            return False
        said = {} if producers is None else {"producers": list(producers)}
        self._recorder.put(site, array, **said, **details)
        if self._lines is not None and ref is not None:
            self._lines.is_site(ref if isinstance(ref, Ref) else self._lines.constant(array, "a constant"), site)
        return True
