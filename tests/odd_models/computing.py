"""Models that compute in odd ways: scripts, threads, weights made of weights, transforms of functions."""

import asyncio
import io
import threading
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn.functional as F  # noqa: N812
from tests.odd_models.odd import BATCH, WIDTH, Calls, Odd, finish, infer, inputs, linear, loss_of, mlp
from torch import nn
from torch.func import functional_call, grad, hessian, jacrev, jvp, stack_module_state, vmap
from torch.nn.utils import parametrizations, parametrize, prune


class Scripted(nn.Module):
    """What TorchScript understands, with a buffer that counts and a choice that depends on the numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        hidden = self.linear(x)
        if hidden.sum() > 0:
            hidden = torch.tanh(hidden)
        return F.dropout(hidden, 0.2, self.training)


class Forking(nn.Module):
    """Parts of it run in threads of TorchScript's own."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def half(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * 0.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        other = torch.jit.fork(self.half, x)
        return self.half(x + 1) + torch.jit.wait(other)


def repeated(x: torch.Tensor, times: int) -> torch.Tensor:
    for _ in range(times):
        x = torch.sin(x) + 0.1 * x
    return x


def with_a_scripted_function():
    scripted = torch.jit.script(repeated)
    return Calls(lambda self, x: scripted(self.part(x), 3), part=linear())


def between(make):
    """A scripted part between two that are not."""
    return lambda: nn.Sequential(linear(), make(), linear())


def loaded():
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(Scripted()), file)
    file.seek(0)
    return torch.jit.load(file)


def in_a_thread(self, x):
    found = []
    thread = threading.Thread(target=lambda: found.append(self.part(x)))
    thread.start()
    thread.join()
    return self.head(found[0])


def in_a_pool(self, x):
    """Rows at once, each in whichever thread is free; no order of threads changes what comes out."""
    with ThreadPoolExecutor(3) as pool:
        return torch.cat(list(pool.map(self.part, x.split(1))))


def pooled(model, optimizer, number):
    output = model(inputs(number)).detach()
    return output, [optimizer.zero_grad()]


def in_parallel(self, x):
    """Two parts, each in a thread of its own."""
    found = {}
    parts = {"one": self.one, "other": self.other}
    threads = [threading.Thread(target=lambda n=n: found.update({n: parts[n](x)})) for n in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found["one"] + found["other"]


def awaited(self, x):
    async def run():
        return await asyncio.to_thread(self.part, x)

    return asyncio.run(run())


def beside_another(model, optimizer, number):
    """Another model runs all the while, as in a thread that loads data."""
    stop, other = threading.Event(), nn.Linear(WIDTH, WIDTH)

    def run():
        while not stop.is_set():
            with torch.no_grad():
                other(torch.ones(1, WIDTH))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        output = model(inputs(number))
        return finish(output, loss_of(output), optimizer)
    finally:
        stop.set()
        thread.join()


class Symmetric(nn.Module):
    def forward(self, weight):
        return weight.triu() + weight.triu(1).mT


class Slow(nn.Module):
    """Has a state of its own."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH, WIDTH))

    def forward(self, weight):
        with torch.no_grad():
            self.mean.lerp_(weight, 0.1)
        return weight - self.mean


def parametrized(*made, name="weight"):
    def make():
        part = linear()
        for one in made:
            parametrize.register_parametrization(part, name, one())
        return nn.Sequential(part, nn.Tanh(), linear())

    return make


def pruned():
    model = mlp()
    prune.l1_unstructured(model[0], "weight", amount=0.4)
    prune.random_structured(model[3], "weight", amount=0.3, dim=0)
    return model


def cached(self, x):
    with parametrize.cached():
        return self.part(self.part(x))


def per_sample(model, optimizer, number):
    """A gradient of every sample."""
    x, parameters = inputs(number), {name: one.detach() for name, one in model.named_parameters()}
    found = vmap(grad(lambda p, one: loss_of(functional_call(model, p, (one[None],)))), (None, 0))(parameters, x)
    for name, parameter in model.named_parameters():
        parameter.grad = found[name].mean(0)
    optimizer.step()
    return found


def mapped(model, optimizer, number):
    output = vmap(model, randomness="different")(inputs(number, 4, BATCH, WIDTH))
    return finish(output, loss_of(output), optimizer)


def tangents(model, optimizer, number):
    """Forward-mode derivatives, next to the usual ones."""
    x = inputs(number)
    output, slope = jvp(model, (x,), (torch.ones_like(x),))
    return finish((output, slope), loss_of(output) + loss_of(slope), optimizer)


def dual(model, optimizer, number):
    with torch.autograd.forward_ad.dual_level():
        output = model(torch.autograd.forward_ad.make_dual(inputs(number), torch.ones(BATCH, WIDTH)))
        value, slope = torch.autograd.forward_ad.unpack_dual(output)
        return finish((value, slope), loss_of(value) + loss_of(slope), optimizer)


def jacobians(model, optimizer, number):
    x = inputs(number)[0]
    return jacrev(model)(x), hessian(lambda one: loss_of(model(one)))(x)


def other_weights(model, optimizer, number):
    shifted = {name: one + 0.1 for name, one in model.named_parameters()}
    output = functional_call(model, shifted, inputs(number))
    return finish(output, loss_of(output), optimizer)


class Ensemble(nn.Module):
    """Several networks at once, their weights stacked."""

    def __init__(self):
        super().__init__()
        several = [nn.Sequential(linear(4), nn.Tanh(), linear(2, 4)) for _ in range(3)]
        state, _ = stack_module_state(several)
        self.one = [several[0].to("meta")]
        self.weights = nn.ParameterDict({name.replace(".", "_"): nn.Parameter(one) for name, one in state.items()})

    def forward(self, x):
        state = {name.replace("_", "."): one for name, one in self.weights.items()}
        return vmap(lambda weights, x: functional_call(self.one[0], weights, (x,)), (0, None))(state, x)


def smooth():
    return nn.Sequential(linear(), nn.Tanh(), linear())


def compiled(make):
    return lambda: nn.Sequential(linear(), torch.compile(make(), backend="aot_eager"), linear())


JIT = "`torch.jit"  # which is being given up, and says so
COMPUTING = {
    "a scripted part": Odd(between(lambda: torch.jit.script(Scripted())), warns=JIT),
    "a part traced by jit": Odd(
        between(lambda: torch.jit.trace(nn.Sequential(linear(), nn.Tanh()), torch.ones(BATCH, WIDTH))), warns=JIT
    ),
    "a scripted model": Odd(lambda: torch.jit.script(Scripted()), warns=JIT),
    "a loaded part": Odd(between(loaded), warns=JIT),
    "a frozen part": Odd(between(lambda: torch.jit.freeze(torch.jit.script(Scripted().eval()))), warns=JIT),
    "threads of TorchScript": Odd(between(lambda: torch.jit.script(Forking())), warns=JIT),
    "a scripted function": Odd(with_a_scripted_function, warns=JIT),
    "a compiled part": Odd(compiled(mlp), warns="The .grad attribute of a Tensor that is not a leaf"),
    "a part in a thread": Odd(lambda: Calls(in_a_thread, part=mlp(), head=linear())),
    "a pool of threads": Odd(lambda: Calls(in_a_pool, part=linear()), pooled),
    "parts in parallel": Odd(lambda: Calls(in_parallel, one=linear(), other=linear())),
    "a part that is awaited": Odd(lambda: Calls(awaited, part=linear())),
    "beside another model": Odd(lambda: nn.Sequential(linear(), nn.Tanh(), linear()), beside_another),
    "weight norm": Odd(lambda: nn.Sequential(parametrizations.weight_norm(linear()), nn.Tanh(), linear())),
    "spectral norm": Odd(lambda: nn.Sequential(parametrizations.spectral_norm(linear()), linear())),
    "orthogonal": Odd(lambda: nn.Sequential(parametrizations.orthogonal(linear()), linear())),
    "symmetric": Odd(parametrized(Symmetric)),
    "parametrized twice": Odd(parametrized(Symmetric, Slow)),
    "a parametrization of the bias": Odd(parametrized(nn.Tanh, name="bias")),
    "a parametrization that is cached": Odd(lambda: Calls(cached, part=parametrizations.spectral_norm(linear()))),
    "pruned": Odd(pruned),
    "older weight norm": Odd(
        lambda: nn.Sequential(nn.utils.weight_norm(linear()), linear()), warns="`torch.nn.utils.weight_norm"
    ),
    "older spectral norm": Odd(lambda: nn.Sequential(nn.utils.spectral_norm(linear()), linear())),
    "a gradient of every sample": Odd(lambda: nn.Sequential(linear(), nn.Tanh(), linear()), per_sample),
    "mapped over a dimension": Odd(mlp, mapped),
    "tangents": Odd(smooth, warns=JIT, step=tangents),
    "dual numbers": Odd(smooth, warns=JIT, step=dual),
    "Jacobians and Hessians": Odd(smooth, warns=JIT, step=jacobians),
    "other weights than its own": Odd(mlp, other_weights),
    "an ensemble with stacked weights": Odd(Ensemble),
    "a frozen model that only infers": Odd(
        lambda: torch.jit.freeze(torch.jit.script(Scripted().eval())),
        infer,
        optimizer=None,
        warns=JIT,
    ),
}
