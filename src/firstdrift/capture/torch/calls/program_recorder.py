"""The program of a run, written down while it runs: every call, at both levels, of the steps that are recorded.

The text of a step is kept until the step ends, because most steps repeat an earlier one; tensors are not. Nothing here
may fail in the model's own code: what goes wrong ends the program, with a note, and never the run.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from operator import is_
from typing import Any

import torch
from torch import nn
from torch._ops import OpOverload as _OpOverload

from ....core.sites import Site
from ....core.strict_json import Json, encode
from ....errors import StorageError
from ....program.op_facts import Facts, facts_of, flat
from ..hooks import is_compiled
from ..names import is_scripted
from ..run import EYES, Run
from ..tensor_values import leaves, version_of
from .composites import call, is_plain, opens
from .functions import WRITES, Functions
from .modes import Modes
from .program_leaves import Owner
from .step_recorder import StepRecorder

_NUMBERS = (int, float, bool)

_without_functions = torch._C.DisableTorchFunction

# What is known of an operation; what runs it, where that computes the same in whatever state; and itself, kept so that
# no other gets its address.
_Operation = tuple[Facts | None, Any, Any]
_UNKNOWN: _Operation = (None, None, None)


class ProgramRecorder(StepRecorder):
    """Watches what one run calls, so that it is written down."""

    def __init__(self, run: Run, owner: Owner, *, source: bool) -> None:
        super().__init__(run, owner, source=source)
        self.modes = Modes(self)
        self._functions = Functions()
        self._operations: dict[int, _Operation] = {}  # by address: an operation's own hash is slow
        self._off = False
        self._active = False  # within a step, and not off

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
            lines = self._lines + [encode({"note": note}) for note in self._notes]
            self._safely(self._writer.write, self._step, lines)
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
        self._writer.close()

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
            if name in WRITES:
                self.note(f"{name} wrote to a tensor by calling Python; what it wrote is given, not computed")
                self.forget(flat(args[:1]))
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

    def forget(self, tensors: Iterable[torch.Tensor]) -> None:
        """Code that we do not see may have written to these."""
        for tensor in tensors:
            self._safely(self._memory.forget, tensor)

    def optimizer(self, said: Mapping[str, Json]) -> None:
        """An optimizer steps, with these settings."""
        if not self._off and self.modes.watching:
            self._say_part()
            self._lines.append(encode({"optimizer": said}))

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
