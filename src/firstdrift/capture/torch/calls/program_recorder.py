"""The program of a run, written down while it runs: every call, at both levels, of the steps that are recorded.

The text of a step is kept until the step ends, because most steps repeat an earlier one; tensors are not. Nothing here
may fail in the model's own code: what goes wrong ends the program, with a note, and never the run.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from math import isfinite
from operator import is_
from typing import Any

import numpy as np
import torch
from torch import nn
from torch._ops import OpOverload as _OpOverload
from torch.autograd.function import BackwardCFunction

from ....core.sites import Site
from ....core.strict_json import Json, encode
from ....errors import StorageError
from ....program.op_facts import Facts, facts_of, flat, results_of, written_by
from ....program.process_settings import flushes_denormals
from ....program.written.line_templates import VERSION, ref_text, site_text
from ....program.written.repeats import Whole
from ..hooks import is_compiled
from ..names import is_scripted
from ..run import EYES, Run
from ..tensor_values import leaves, version_of
from .arguments import dtype_text, encoded, encoded_by_name, lost
from .composites import call, is_plain, opens
from .definitions import Definitions
from .functions import READS, SHARES, WRITES, Functions
from .memory import Geometry, Memory, geometry_of
from .modes import Modes
from .program_leaves import Leaves, Owner

MOST_READ = 16  # numbers read out of a tensor that are written down; of more, only how many
MOST_NOTES = 32
SMALL = 1024  # bytes of a step that repeats another one
MOST_BYTES = 64 << 20  # of a step's text; a longer one is not compared with others
_LATER = frozenset({"optim", "weight_after"})  # what the next step begins with
_NEVER_GIVEN = frozenset({"loss", "lossgrad"})  # a loss that we have unscaled ourselves is no leaf

_NUMBERS = (int, float, bool)
_TENSORS = (torch.Tensor, nn.Parameter)

_sequence_number: Callable[[], int] = torch.autograd._get_sequence_nr  # type: ignore[attr-defined]
_autograd_node: Callable[[], Any] = torch._C._current_autograd_node
_STRIDED = torch.strided
_without_functions = torch._C.DisableTorchFunction

_Given = tuple[tuple[Any, ...], Mapping[str, Any], str]  # to a call, and as text
# What is known of an operation; what runs it, where that computes the same in whatever state; and itself, kept so that
# no other gets its address.
_Operation = tuple[Facts | None, Any, Any]
_UNKNOWN: _Operation = (None, None, None)


class ProgramRecorder:
    """Writes down what one run calls. `owner` is the module that runs, with its path; None outside the model."""

    def __init__(self, run: Run, owner: Owner, *, source: bool) -> None:
        self.part = "forward"
        self.differentiable = False  # whether the backward pass that runs is itself to be differentiated
        self.modes = Modes(self)
        self._run = run
        self._owner = owner
        self._functions = Functions()
        self._operations: dict[int, _Operation] = {}  # by address: an operation's own hash is slow
        self._define = Definitions(source=source)
        self._memory = Memory(self._leaf, self._implied, lambda tensor: lost(_kind(tensor)))
        self._leaves = Leaves(run, owner)
        self._texts: dict[tuple[Any, ...], str] = {}  # of sites, without their steps
        self._written = 0  # lines in the file
        self._whole: Whole | None = None  # the last step that was written in full
        self._last: list[str] | None = None  # the last step
        self._off = False
        self._active = False  # within a step, and not off
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

    # Steps.

    def begin_step(self, step: int) -> None:
        """Watch a step from here on."""
        if not self._off:
            self._begin(step)
            self.part = "forward"
            self._active = True
            self.modes.put()

    def end_step(self) -> None:
        """Watch no longer, and write the step."""
        self.pause()
        if self._lines or self._notes:
            text = self._safely(self._text)
            if text is not None:
                self._run.recorder.append_program(text)
        self._memory.clear()
        self._leaves.end_step()
        self._begin(self._step + 1)

    def pause(self) -> None:
        """Watch no longer: nothing that is called until the next step begins belongs to this one."""
        self._active = False
        self.modes.take()

    def stop(self) -> None:
        """Watch no longer, whatever comes: there is nowhere to write to."""
        self.pause()
        self._off = True

    def close(self) -> None:
        """Write the end line."""
        self._leaves.clear()
        if self._written:
            self._run.recorder.append_program(f'{{"end":{self._written}}}\n')

    def _text(self) -> str:
        """The step as lines, or as what differs from the last one that was written in full."""
        lines = self._lines + [encode({"note": note}) for note in self._notes]
        short = sum(map(len, lines)) <= MOST_BYTES
        like = self._like(lines) if short else None
        if like is not None and self._whole is not None:
            said = [encode({"step": self._step, "like": self._whole.step, **like})]
        else:
            said = [f'{{"step":{self._step},"lines":{len(lines)}}}', *lines]
            self._whole = Whole(self._step, lines) if short else None
        self._last = lines if short else None
        first = [] if self._written else [encode(_header())]
        said = [*first, *self._define.take(), *said]
        self._written += len(said)
        return "\n".join(said) + "\n"

    def _like(self, lines: list[str]) -> dict[str, Json] | None:
        """What differs from the last step in full; None to write this one in full, because later ones are like it."""
        like = None if self._whole is None else self._whole.differences(lines)
        if like is None or self._last is None or len(encode(like)) <= SMALL:
            return like
        nearer = Whole(self._step, self._last).differences(lines)
        return None if nearer is not None and len(encode(nearer)) <= SMALL else like

    # What the modes see.

    # These two are called for everything that runs, so that they spell out what `_safely` and `_quietly` do.

    def function(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The user calls a function of torch."""
        if self._within or not self._active or EYES.open or (name := self._functions.name(func)) is None:
            return func(*args, **kwargs)
        try:
            given = self._given(args, kwargs)
        except Exception as error:
            self._fail(error)
            return func(*args, **kwargs)
        first, calls = self._nodes, self._calls
        self._given_above, self._within = (args, kwargs, given), True
        try:
            returned = func(*args, **kwargs)
        finally:
            self._within = False
        try:
            self._end_function(name, given, args, first, calls, returned)
        except Exception as error:
            self._fail(error)
        return returned

    def operation(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Torch calls an ATen operation."""
        if not self._active or EYES.open:
            return call(func, types, args, kwargs)
        facts, plain, _ = self._operations.get(id(func)) or self._safely(self._learn, func) or _UNKNOWN
        if facts is None or facts.is_silent:
            return call(func, types, args, kwargs)
        if plain is None and opens(func, types):
            return self.modes.open(func, args, kwargs)
        above, self._given_above = self._given_above, None
        if above is not None and _are_same(args, above[0]) and _are_same_by_name(kwargs, above[1]):
            given = above[2]  # of the function, which is this one operation
        else:
            given = (self._safely if self._within else self._quietly)(self._given, args, kwargs)
        returned = call(func, types, args, kwargs) if plain is None else plain(*args, **kwargs)
        if not self._active:
            return returned
        try:
            if self._within:
                self._end_operation(facts, given, args, kwargs, returned)
            else:
                with _without_functions():
                    self._end_operation(facts, given, args, kwargs, returned)
        except Exception as error:
            self._fail(error)
        return returned

    def _learn(self, func: Any) -> _Operation:
        run = func._op if type(func) is _OpOverload else func  # what calling it calls
        plain = run if is_plain(func) else None
        found = self._operations[id(func)] = (facts_of(func), plain, func)
        return found

    def _end_function(
        self, name: str, given: str, given_to: tuple[Any, ...], first: int, calls: int, returned: Any
    ) -> None:
        made = self._calls - calls
        if name in WRITES:
            self.note(f"{name} wrote to a tensor by calling Python; what it wrote is given, not computed")
            self.forget(flat(given_to[:1]))
        reads = name in READS
        if not made and not reads:
            return
        number = self._define.function(name)
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

    # Leaves and sites.

    def site(self, site: Site, tensor: torch.Tensor) -> None:
        """A tensor is recorded at a site."""
        if self._off or not self.modes.watching:
            return
        try:
            self._site(site, tensor)
        except Exception as error:
            self._fail(error)

    def value_of(self, tensor: torch.Tensor) -> str | None:
        """What a tensor is now, for `site_is` later."""
        found: str | None = self._safely(self._memory.peek, tensor) if self.modes.watching else None
        return found

    def site_is(self, site: Site, value: str | None) -> None:
        """A site holds what a tensor was."""
        if value is not None and not self._off:
            self._lines.append(f'{{"is":{value},"site":{self._text_of(site)}}}')

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

    # What is not seen.

    def enter(self, module: nn.Module, given: Any) -> Callable[[], None] | None:
        """A module begins; what is to be called when it ends, if it runs code in which we see nothing."""
        if not self._active:
            return None
        if not self.modes.watching:
            name = self._run.names.get(module, "") or "the model"
            self.note(f"{name}: called in another thread than the step began in; its calls are not in the program")
            return None
        if is_compiled(module) or is_scripted(module):
            how = "compiled" if is_compiled(module) else "TorchScript"
            self.note(f"{self._run.names.get(module, '') or 'the model'}: {how}; its calls are not in the program")
            inside = (given, list(module.parameters()))
            return self._unseen(inside, list(module.buffers()), self.modes.aside())
        return None

    def unseen(self, given: Any, back: Callable[[], None]) -> Callable[[], None]:
        """A compiled or scripted function begins; what is to be called when it ends."""
        self.note("functions that are compiled or scripted: their calls are not in the program")
        return self._unseen(given, [], back)

    def _unseen(self, given: Any, buffers: list[torch.Tensor], back: Callable[[], None]) -> Callable[[], None]:
        """Buffers may change without being counted; of everything else, torch counts how often it was written to."""
        counted = [(weakref.ref(tensor), version_of(tensor)) for _, tensor in leaves(given, "")]

        def end() -> None:
            back()
            alive = [(ref(), version) for ref, version in counted]
            self.forget(one for one, version in alive if one is not None and version_of(one) != version)
            self.forget(buffers)

        return end

    def note(self, text: str) -> None:
        """Say what the program does not hold."""
        if len(self._notes) < MOST_NOTES:
            self._notes[text] = None

    def forget(self, tensors: Iterable[torch.Tensor]) -> None:
        """Code that we do not see may have written to these."""
        for tensor in tensors:
            self._safely(self._memory.forget, tensor)

    def optimizer(self, said: Mapping[str, Json]) -> None:
        """An optimizer steps, with these settings."""
        if not self._off and self.modes.watching:
            self._say_part()
            self._lines.append(encode({"optimizer": said}))

    def _share(self, name: str, given: tuple[Any, ...]) -> None:
        """A tensor's memory goes to numpy or the like."""
        self.note(f"{name} handed a tensor's memory to code outside torch; what that does is not in the program")
        with self._run.looking():
            for tensor in flat(given):
                self._memory.share(tensor)

    def _quietly(self, work: Callable[..., Any], *args: Any) -> Any:
        """The same where the mode of functions may be there, which would be told of every tensor that we look at."""
        with _without_functions():
            return self._safely(work, *args)

    def _safely(self, work: Callable[..., Any], *args: Any) -> Any:
        """Do our own work; if it fails, it is the program that ends."""
        try:
            return work(*args)
        except Exception as error:
            self._fail(error)
            return None

    def _fail(self, error: Exception) -> None:
        was_off, self._off, self._active = self._off, True, False
        if isinstance(error, StorageError):
            raise error
        if not was_off:
            self.note(f"the program ends here: {type(error).__name__} while recording it ({error})"[:400])

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


def _are_same(args: tuple[Any, ...], others: tuple[Any, ...]) -> bool:
    """Whether an operation is given the very tensors and numbers that its function was given."""
    if len(args) != len(others):
        return False
    if all(map(is_, args, others)):
        return True
    for one, other in zip(args, others, strict=True):
        if one is not other and (type(one) is not type(other) or type(one) not in _NUMBERS or one != other):
            return False
    return True


def _are_same_by_name(kwargs: Mapping[str, Any], others: Mapping[str, Any]) -> bool:
    if not kwargs or not others:
        return len(kwargs) == len(others)
    return list(kwargs) == list(others) and _are_same(tuple(kwargs.values()), tuple(others.values()))


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
