"""Models that watch themselves, and change what they see: hooks of every kind, and modes."""

import contextlib

import torch
from tests.odd_models.odd import Calls, Odd, finish, inputs, linear, loss_of, mlp
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


def hooked(register, *args, on=0, **options):
    """A small network, with a hook on one of its parts."""

    def make():
        model = mlp()
        getattr(model[on], register)(*args, **options)
        return model

    return make


def kwargs_hook():
    model = Calls(
        lambda self, x: self.part(x, scale=2.0),
        part=Calls(lambda self, x, scale: self.inner(x) * scale, inner=linear()),
    )
    model.part.register_forward_pre_hook(
        lambda module, args, kwargs: (args, {"scale": kwargs["scale"] + 1}), with_kwargs=True
    )
    model.part.register_forward_hook(lambda module, args, kwargs, output: output * kwargs["scale"], with_kwargs=True)
    return model


def once():
    """A hook that takes itself away."""
    model = mlp()

    def hook(module, args, output):
        handle.remove()
        return output + 1

    handle = model[0].register_forward_hook(hook)
    return model


def adding():
    """A hook that adds another one while the module runs."""
    model = mlp()
    model[0].register_forward_hook(
        lambda module, args, output: model[1].register_forward_hook(lambda module, args, output: output * 0.9) and None
    )
    return model


def parameter_hook():
    model = mlp()
    model[0].weight.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
    return model


def output_hook(self, x):
    hidden = self.first(x)
    hidden.register_hook(lambda gradient: gradient * 3)
    hidden.retain_grad()
    return self.second(hidden)


def every_module(model, optimizer, number):
    """Hooks on all modules there are."""
    seen = []
    before = nn.modules.module.register_module_forward_pre_hook(lambda module, args: tuple(one * 1.5 for one in args))
    after = nn.modules.module.register_module_forward_hook(lambda module, args, output: output - 0.1)
    back = nn.modules.module.register_module_full_backward_hook(lambda module, given, got: seen.append(type(module)))
    try:
        output = model(inputs(number))
        return finish(output, loss_of(output), optimizer), [one.__name__ for one in seen]
    finally:
        for handle in (before, after, back):
            handle.remove()


def always_called():
    model = Calls(_forgives, first=Calls(_raises, inner=linear()), second=linear())
    model.seen = []
    model.first.register_forward_hook(lambda module, args, output: model.seen.append(output), always_call=True)
    return model


def _raises(self, x):
    self.inner(x)
    raise ValueError("as it does")


def _forgives(self, x):
    with contextlib.suppress(ValueError):
        self.first(x)
    return self.second(x) * len(self.seen)


def accumulated():
    """Each parameter is updated as soon as its gradient is there, as training in little memory does."""
    model = mlp()
    for parameter in model.parameters():
        optimizer = torch.optim.SGD([parameter], 0.1)

        def step(parameter, optimizer=optimizer):
            optimizer.step()
            optimizer.zero_grad()

        parameter.register_post_accumulate_grad_hook(step)
    return model


def packed(model, optimizer, number):
    """Activations are kept in half the bits, which changes the gradients."""
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.to(torch.bfloat16), lambda t: t.to(torch.float32)):
        output = model(inputs(number))
    return finish(output, loss_of(output), optimizer)


def on_cpu(model, optimizer, number):
    with torch.autograd.graph.save_on_cpu():
        output = model(inputs(number))
    return finish(output, loss_of(output), optimizer)


def several_gradients(model, optimizer, number):
    seen = []
    handle = torch.autograd.graph.register_multi_grad_hook(
        [*model.parameters()], lambda gradients: seen.append([one.clone() for one in gradients])
    )
    output = model(inputs(number))
    found = finish(output, loss_of(output), optimizer)
    handle.remove()
    return found, seen


def around_the_step(model):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    optimizer.register_step_pre_hook(
        lambda optimizer, args, kwargs: nn.utils.clip_grad_norm_(model.parameters(), 0.01) and None
    )
    optimizer.register_step_post_hook(
        lambda optimizer, args, kwargs: [p.data.mul_(0.99) for p in model.parameters()] and None
    )
    return optimizer


class Halving(TorchFunctionMode):
    """Replaces a function."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        return result * 0.5 if function is torch.nn.functional.linear else result


class Counting(TorchDispatchMode):
    """Sees operations."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function is torch.ops.aten.tanh.default
        return function(*args, **(kwargs or {}))


def in_mode(mode):
    def step(model, optimizer, number):
        with mode() as entered:
            output = model(inputs(number))
        return finish(output, loss_of(output), optimizer), getattr(entered, "count", None)

    return step


def anomaly(model, optimizer, number):
    with torch.autograd.detect_anomaly(check_nan=False):
        output = model(inputs(number))
        return finish(output, loss_of(output), optimizer)


WATCHING = {
    "a hook that doubles what comes in": Odd(hooked("register_forward_pre_hook", lambda module, args: (args[0] * 2,))),
    "a hook that replaces what goes out": Odd(
        hooked("register_forward_hook", lambda module, args, out: out.relu() + 1)
    ),
    "a hook that writes to what goes out": Odd(hooked("register_forward_hook", lambda module, args, out: out.mul_(2))),
    "hooks with keywords": Odd(kwargs_hook),
    "a hook that takes itself away": Odd(once),
    "a hook that adds hooks": Odd(adding),
    "a backward hook that scales": Odd(
        hooked("register_full_backward_hook", lambda module, given, got: tuple(one * 2 for one in given), on=3)
    ),
    "a backward hook before": Odd(hooked("register_full_backward_pre_hook", lambda module, got: (got[0] * 0.5,), on=1)),
    "a hook on a parameter": Odd(parameter_hook),
    "a hook on a tensor": Odd(lambda: Calls(output_hook, first=linear(), second=linear())),
    "hooks on all modules": Odd(mlp, every_module, warns="Full backward hook is firing"),
    "a hook that is always called": Odd(always_called),
    "a step inside the backward pass": Odd(accumulated),
    "activations kept in half the bits": Odd(mlp, packed),
    "activations kept elsewhere": Odd(mlp, on_cpu),
    "a hook on several gradients": Odd(mlp, several_gradients),
    "hooks around the step": Odd(mlp, optimizer=around_the_step),
    "a mode that replaces a function": Odd(mlp, in_mode(Halving)),
    "a mode that sees operations": Odd(mlp, in_mode(Counting)),
    "anomaly detection": Odd(mlp, anomaly, warns="Anomaly Detection has been enabled"),
}
