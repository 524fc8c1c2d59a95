"""What tests of recorded values share: a trace by short names, bits compared, and the same run taken by hand."""

from __future__ import annotations

import torch

import firstdrift as fd


def key(site):
    """`fwd fc:out`, with `@1` for the second call and `#1` for the second step."""
    numbers = f"@{site.call}" * (site.call > 0) + f"#{site.step}" * (site.step > 0)
    return f"{site.phase} {site.name}:{site.port}{numbers}"


def keys(path, *phases, only=""):
    """The sites of a trace in causal order."""
    found = (key(record.site) for record in fd.open_trace(path) if not phases or record.site.phase in phases)
    return [one for one in found if only in one]


def record(path, name):
    return next(one for one in fd.open_trace(path) if key(one.site) == name)


def producers(path, name):
    found = record(path, name).producers
    return None if found is None else {key(site) for site in found}


def values(path, *phases):
    """Every recorded tensor, and the reason for every one that is absent."""
    trace = fd.open_trace(path)
    assert trace.complete, trace.problems
    return {
        key(one.site): one.absent if one.absent is not None else trace.array(one)
        for one in trace
        if not phases or one.site.phase in phases
    }


def same_bits(found, tensor):
    """Whether an array holds the very bits of a tensor, in its type and shape."""
    bits = tensor.detach().clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8).numpy()
    kind = str(tensor.dtype).removeprefix("torch.")
    return (found.shape, found.dtype.name, found.tobytes()) == (tuple(tensor.shape), kind, bits.tobytes())


def assert_holds(found, expected):
    """The very sites that were expected, with the very bits or reasons."""
    assert sorted(found) == sorted(expected)
    for name, item in expected.items():
        if isinstance(item, str) or isinstance(found[name], str):
            assert found[name] == item, name
        else:
            assert same_bits(found[name], item), name


class ByHand:
    """The run taken with plain torch: hooks on each module, clones of everything at the moments a loop names."""

    def __init__(self, model, *optimizers):
        self.model, self.optimizers = model, optimizers
        self.found, self.waiting, self.calls = {}, {}, {}
        self.step = 0
        self.parameters = {}
        for name, parameter in model.named_parameters():
            self.parameters[name] = parameter
        for name, module in model.named_modules():
            module.register_forward_pre_hook(self._entering(name), with_kwargs=True)
            module.register_forward_hook(self._leaving(name))

    def put(self, phase, name, port, tensor, call=0):
        item = tensor if isinstance(tensor, str) else tensor.detach().clone()
        self.found[key(fd.Site(self.step, phase, name, port, call))] = item

    def look(self, moment, *tensors):
        """Called by the loop: begin, loss, raw, seen, end; what a loop has no moment for, it does not record."""
        getattr(self, f"_{moment}")(*tensors)

    def _entering(self, name):
        def hook(module, args, kwargs):
            call = self.calls[name] = self.calls.get(name, -1) + 1
            given = [*args, *kwargs.values()]
            for number, tensor in enumerate(given):
                for port, leaf in _leaves(tensor, f"in.{number}"):
                    self.put("fwd", name, port, leaf, call)
                    if not name:
                        self.put("input", "input", "x" + port.removeprefix("in.0"), leaf, call)

        return hook

    def _leaving(self, name):
        def hook(module, args, output):
            call = self.calls[name]
            found = _leaves(output, "out")
            for port, tensor in [("out", found[0][1])] if len(found) == 1 else found:
                self.put("fwd", name, port, tensor, call)
                if tensor.is_floating_point():
                    self.waiting["agrad", name, port, call] = tensor
                    if tensor.requires_grad:
                        tensor.retain_grad()
                if not name:
                    self.waiting["lossgrad", "loss", port, call] = tensor

        return hook

    def _begin(self):
        self._weights("weight")

    def _loss(self, loss):
        self.put("loss", "loss", "out", loss, sum(one.startswith("loss ") and self._now(one) for one in self.found))

    def _raw(self):
        for name, parameter in self.parameters.items():
            self.put("grad", *_split(name), _gradient(parameter))

    def _seen(self, divisor=1):
        for name, parameter in self.parameters.items():
            gradient = _gradient(parameter)
            self.put("grad_scaled", *_split(name), gradient if isinstance(gradient, str) else gradient / divisor)

    def _skipped(self):
        for name in self.parameters:
            self.put("grad_scaled", *_split(name), "the optimizer did not step")
        self._flowed()

    def _end(self):
        names = {id(parameter): name for name, parameter in self.parameters.items()}
        for optimizer in self.optimizers:
            for parameter, state in optimizer.state.items():
                module, port = _split(names[id(parameter)])
                for field, item in state.items():
                    self.put("optim", module, f"{port}.{field}", item)
        self._weights("weight_after")
        self._flowed()

    def _flowed(self):
        for (phase, name, port, call), tensor in self.waiting.items():
            if tensor.grad is not None:
                self.put(phase, name, port, tensor.grad, call)
            elif phase == "agrad":
                self.put(phase, name, port, "no gradient" if tensor.requires_grad else "does not require grad", call)
        self.waiting, self.calls = {}, {}
        self.step += 1

    def _weights(self, phase):
        for name, tensor in (*self.parameters.items(), *self.model.named_buffers()):
            self.put(phase, *_split(name), tensor)

    def _now(self, name):
        return name.endswith(f"#{self.step}") if self.step else "#" not in name


def _leaves(value, port):
    if isinstance(value, torch.Tensor):
        return [(port, value)]
    if isinstance(value, tuple):
        return [leaf for number, item in enumerate(value) for leaf in _leaves(item, f"{port}.{number}")]
    return []


def _split(name):
    return name.rpartition(".")[::2]


def _gradient(parameter):
    if parameter.grad is None:
        return "no gradient" if parameter.requires_grad else "does not require grad"
    return parameter.grad
