"""The lines of one step of a program: its calls, the tensors that they read and make, and the sites that these are."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from math import isfinite
from typing import Any

import numpy as np
import torch
from torch.autograd.function import BackwardCFunction

from ....core.sites import Site
from ....core.strict_json import Json, encode
from ....program.op_facts import Facts, flat, results_of, written_by
from ....program.process_settings import flushes_denormals
from ....program.written.program_writer import VERSION, ProgramWriter, ref_text, site_text
from ..run import Run
from .arguments import dtype_text, encoded, encoded_by_name, lost
from .definitions import Definitions
from .functions import READS, SHARES
from .memory import Geometry, Memory, geometry_of
from .program_leaves import Leaves, Owner

MOST_READ = 16  # numbers read out of a tensor that are written down; of more, only how many
MOST_NOTES = 32
_LATER = frozenset({"optim", "weight_after"})  # what the next step begins with
_NEVER_GIVEN = frozenset({"loss", "lossgrad"})  # a loss that we have unscaled ourselves is no leaf

_sequence_number: Callable[[], int] = torch.autograd._get_sequence_nr  # type: ignore[attr-defined]
_autograd_node: Callable[[], Any] = torch._C._current_autograd_node
_STRIDED = torch.strided

_Given = tuple[tuple[Any, ...], Mapping[str, Any], str]  # to a call, and as text


class StepRecorder:
    """Writes down the steps of a run. `owner` is the module that runs, with its path; None outside the model."""

    def __init__(self, run: Run, owner: Owner, *, source: bool) -> None:
        self.part = "forward"
        self.differentiable = False  # whether the backward pass that runs is itself to be differentiated
        self._run = run
        self._owner = owner
        self._writer = ProgramWriter(lambda text: run.recorder.append_program(text), _header)
        self._define = Definitions(self._writer, source=source)
        self._memory = Memory(self._leaf, self._implied, lambda tensor: lost(_kind(tensor)))
        self._leaves = Leaves(run, owner)
        self._texts: dict[tuple[Any, ...], str] = {}  # of sites, without their steps
        self._begin(0)

    def _begin(self, step: int) -> None:
        self._step = step
        self._lines: list[str] = []
        self._nodes = 0
        self._calls = 0
        self._said_part = "forward"
        self._within = False  # a function of the user's
        self._given_above: _Given | None = None  # what it was given, until an operation is called
        self._given_last = ""  # to the last operation
        self._first_node = _sequence_number()  # of autograd's graph that this step creates
        self._forward: dict[int, tuple[int, str]] = {}  # forward calls and their operations, by autograd's number
        self._notes: dict[str, None] = {}

    def note(self, text: str) -> None:
        """Say what the program does not hold."""
        if len(self._notes) < MOST_NOTES:
            self._notes[text] = None

    def _end_function(
        self, name: str, given: str, given_to: tuple[Any, ...], first: int, calls: int, returned: Any
    ) -> None:
        made = self._calls - calls
        reads = name in READS
        if not made and not reads:
            return
        number = self._writer.function(name)
        own = self._define.origin(self._owner(), sys._getframe(3))
        alone = made == 1 and self._nodes == first + 1 and not reads
        if alone and given == self._given_last:  # the one operation that it is
            self._lines[-1] = f'{self._lines[-1][:-1]},"function":{number}{own}}}'
            return
        self._say_part()
        read = ""
        if reads:
            read = f',"read":{_read(returned)}'
            if name in SHARES:
                self._share(name, given_to)
        results = self._peeked(returned) if made else ""
        self._lines.append(
            f'{{"function":{number},{given},"calls":[{first},{self._nodes - 1}],"out":[{results}]{read}{own}}}'
        )

    def _end_operation(
        self, facts: Facts, given: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], returned: Any
    ) -> None:
        written = written_by(facts, args, kwargs) if facts.writes else []
        results = results_of(returned, written)
        extra = self._drawn(facts, results) if facts.draws else ""
        number = self._nodes
        if len(results) == 1:
            types = self._made(results[0], number, 0, facts, written)
        else:
            types = ",".join([self._made(tensor, number, at, facts, written) for at, tensor in enumerate(results)])
        if not results and not written:
            extra += f',"read":{_read(returned)}'
        if facts.dropout is not None and _argument(args, kwargs, facts.dropout, "dropout_p"):
            given = given.replace('"args":[', f'"args":[{lost("dropout inside a fused kernel")},', 1)
        node = _autograd_node()
        if node is not None:
            extra += self._differentiated(node)
        if not self._within and (node is None or isinstance(node, BackwardCFunction)):
            extra += self._define.origin(self._owner(), sys._getframe(3))
        created = _sequence_number() - 1
        if created >= self._first_node:
            self._forward.setdefault(created, (number, facts.base))
        if self.part != self._said_part:
            self._say_part()
        self._lines.append(f'{{"n":{number},"op":"{facts.name}",{given},"out":[{types}]{extra}}}')
        self._given_last = given
        self._nodes += 1
        self._calls += 1

    def _made(self, tensor: torch.Tensor, number: int, at: int, facts: Facts, written: list[torch.Tensor]) -> str:
        """Remember what a tensor is from now on; its type."""
        if tensor.layout is not _STRIDED or tensor.is_nested or tensor.is_quantized:
            return "null"
        ref = ref_text(number, at) if at else f'{{"%":{number}}}'
        if written and not facts.reshapes and (tensor is written[0] or any(tensor is one for one in written)):
            geometry = self._memory.wrote(tensor, ref)
        else:
            geometry = self._memory.made(tensor, ref)
        return str(self._define.type(tensor, geometry))

    def _differentiated(self, node: Any) -> str:
        """Which forward call a call of the backward pass belongs to, and whether it is a recomputation."""
        said = ""
        custom = isinstance(node, BackwardCFunction)
        number, base = self._forward.get(node._sequence_nr(), (None, ""))
        if number is not None and (custom or _is_backward_of(node.name(), base)):
            said = f',"of":{number}'
        if custom:
            said += f',"node":{encode(type(node).__name__)}'
        if self.recomputing():
            said += ',"again":true'
        return said

    def recomputing(self) -> bool:
        """Whether a forward pass runs inside the backward pass, where gradients are off but for second derivatives."""
        return torch.is_grad_enabled() and not self.differentiable

    def _given(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """What a call is given, as it is before the call."""
        if not kwargs:
            return f'"args":[{encoded(args, self._memory.ref)}]'
        ref = self._memory.ref
        return f'"args":[{encoded(args, ref)}],"kwargs":{{{encoded_by_name(kwargs, ref)}}}'

    def _peeked(self, returned: Any) -> str:
        found = []
        for tensor in flat(returned):
            try:
                found.append(self._memory.peek(tensor))
            except (RuntimeError, NotImplementedError):
                continue
        return ",".join(name for name in found if name is not None)

    def _text_of(self, site: Site) -> str:
        """A site as text; most come back in every step."""
        key = site[1:]
        text = self._texts.get(key)
        if text is None:
            text = self._texts[key] = site_text(site)
        return text

    def _site(self, site: Site, tensor: torch.Tensor) -> None:
        try:
            key, geometry = geometry_of(tensor)
        except (RuntimeError, NotImplementedError):  # no storage, and no values at this site
            return
        value = self._memory.peek_at(key, geometry, tensor)
        if value is not None:
            self._lines.append(f'{{"is":{value},"site":{self._text_of(site)}}}')
        elif site.phase not in _NEVER_GIVEN:
            self._memory.given(key, tensor, geometry, self._new_leaf(tensor, geometry, f'"site":{self._text_of(site)}'))
        if site.phase in _LATER:
            self._leaves.leaves(site, key, geometry, tensor)

    def _leaf(self, tensor: torch.Tensor, key: int, geometry: Geometry) -> str:
        """A tensor that no call of this step made and no site of it holds."""
        left = self._leaves.left(key, geometry, tensor)
        if left is not None:
            source = f'"site":{self._text_of(left)},"ago":{self._step - left.step}'
        else:
            with self._run.looking(), _outside_transforms():
                source = self._leaves.source(tensor)
        return self._new_leaf(tensor, geometry, source)

    def _drawn(self, facts: Facts, results: list[torch.Tensor]) -> str:
        """Store the random numbers of a call."""
        chosen = range(len(results)) if facts.drawn is None else [facts.drawn]
        pairs = []
        with self._run.looking():
            for at in chosen:
                source = self._leaves.drawn(results[at], bits=facts.bits)
                self._new_leaf(results[at], geometry_of(results[at])[1], source)
                pairs.append(f"[{at},{self._nodes - 1}]")
        return f',"drawn":[{",".join(pairs)}]'

    def _new_leaf(self, tensor: torch.Tensor, geometry: Geometry, source: str) -> str:
        self._lines.append(f'{{"n":{self._nodes},"type":{self._define.type(tensor, geometry)},{source}}}')
        self._nodes += 1
        return ref_text(self._nodes - 1)

    def _implied(self, op: str, args: str, tensor: torch.Tensor, geometry: Geometry) -> str:
        """A call that says what memory holds after a write; `tensor` is on the device of that memory."""
        said = self._define.type(tensor, geometry)
        self._lines.append(f'{{"n":{self._nodes},"op":"{op}","args":[{args}],"out":[{said}],"implied":true}}')
        self._nodes += 1
        return ref_text(self._nodes - 1)

    def _share(self, name: str, given: tuple[Any, ...]) -> None:
        """A tensor's memory goes to numpy or the like."""
        self.note(f"{name} handed a tensor's memory to code outside torch; what that does is not in the program")
        with self._run.looking():
            for tensor in flat(given):
                self._memory.share(tensor)

    def _say_part(self) -> None:
        if self.part != self._said_part:
            self._said_part = self.part
            self._lines.append(f'{{"part":"{self.part}"}}')


def _outside_transforms() -> AbstractContextManager[None]:
    """Away from `torch.func`, under which every look at a tensor is transformed."""
    transforms: Any = sys.modules.get("torch._functorch.pyfunctorch")
    if transforms is None or torch._C._functorch.peek_interpreter_stack() is None:
        return nullcontext()
    found: AbstractContextManager[None] = transforms.temporarily_clear_interpreter_stack()
    return found


def _header() -> dict[str, Json]:
    header: dict[str, Json] = {"program": VERSION, "engine": f"torch {torch.__version__}"}
    header["threads"] = torch.get_num_threads()
    if torch.get_default_dtype() != torch.float32:
        header["default_dtype"] = dtype_text(torch.get_default_dtype())
    if flushes_denormals():
        header["flush_denormal"] = True
    return header


def _kind(tensor: torch.Tensor) -> str:
    if tensor.layout != torch.strided:
        return f"sparse tensor ({str(tensor.layout).removeprefix('torch.')})"
    return "nested tensor" if tensor.is_nested else type(tensor).__name__


def _argument(args: tuple[Any, ...], kwargs: Mapping[str, Any], at: int, name: str) -> Any:
    return args[at] if at < len(args) else kwargs.get(name)


def _read(value: Any) -> str:
    """Numbers read out of a tensor; how many, where they are many."""
    if type(value) is float and isfinite(value):  # what most steps read
        return repr(value)
    if isinstance(value, bool | int | float | complex):
        return encode(value if not isinstance(value, complex) else [value.real, value.imag])
    if isinstance(value, list):
        count = np.asarray(value, dtype=object).size
        return encode(value) if count <= MOST_READ else encode({"elements": count})
    return encode({"as": type(value).__name__})


def _is_backward_of(node: str, base: str) -> bool:
    """Whether a node of autograd's graph is that of an operation, by their names."""
    if node == "CopySlices":  # a write through a view, whatever wrote
        return True
    reference, candidate = base.replace("_", "").lower(), node.split("Backward")[0].replace("_", "").lower()
    return reference.startswith(candidate) or candidate.startswith(reference)
