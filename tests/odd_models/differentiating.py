"""Models whose gradients are odd: functions of their own, several passes, parts that have none."""

import torch
from tests.odd_models.odd import WIDTH, Calls, Odd, finish, inputs, linear, loss_of, mlp
from torch import nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint, checkpoint_sequential


class Rounds(torch.autograd.Function):
    """A straight-through estimator."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.round()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * (x.abs() < 2)


class Doubles(torch.autograd.Function):
    """Writes to what it is given."""

    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        return gradient * 2


class Several(torch.autograd.Function):
    """Two results, one of which has no gradient."""

    @staticmethod
    def forward(ctx, x, scale):
        ctx.scale = scale
        index = x.argmax(-1)
        ctx.mark_non_differentiable(index)
        return x * scale, index

    @staticmethod
    def backward(ctx, gradient, _):
        return gradient * ctx.scale, None


class Reverses(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return -gradient


def penalty(model, optimizer, number):
    """A gradient of a gradient."""
    x = inputs(number).requires_grad_()
    output = model(x)
    (slope,) = torch.autograd.grad(output.sum(), x, create_graph=True)
    found = finish(output, loss_of(output) + (slope.norm(dim=-1) - 1).square().mean(), optimizer)
    return found, slope, x.grad


def curvature(model, optimizer, number):
    """A Hessian times a vector."""
    parameters = [*model.parameters()]
    slopes = torch.autograd.grad(loss_of(model(inputs(number))), parameters, create_graph=True)
    product = sum((slope * one.detach()).sum() for slope, one in zip(slopes, parameters, strict=True))
    return torch.autograd.grad(product, parameters)


def twice(model, optimizer, number):
    output = model(inputs(number))
    output[0].sum().backward(retain_graph=True)
    return finish(output, output[1:].square().sum(), optimizer)


def by_hand(model, optimizer, number):
    output = model(inputs(number))
    for parameter, slope in zip(
        model.parameters(), torch.autograd.grad(loss_of(output), [*model.parameters()]), strict=True
    ):
        parameter.grad = slope.sign()
    optimizer.step()
    return output


def only_some(model, optimizer, number):
    output = model(inputs(number))
    return finish(output, loss_of(output), optimizer, inputs=[model[0].weight])


def with_a_vector(model, optimizer, number):
    output = model(inputs(number))
    torch.autograd.backward([output, output.exp()], [torch.ones_like(output), torch.rand(output.shape)])
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    return output


def accumulating(model, optimizer, number):
    outputs = []
    for part in range(3):
        outputs.append(model(inputs(10 * number + part)))
        (loss_of(outputs[-1]) / 3).backward()
    optimizer.step()
    optimizer.zero_grad()
    return outputs


def outside(model, optimizer, number):
    """The loss of one step uses what an earlier one made."""
    x = inputs(number)
    with torch.no_grad():
        wanted = model(x)
    output = model(x + 0.1)
    return finish(output, (output - wanted).square().mean(), optimizer)


def frozen():
    model = mlp()
    model[0].requires_grad_(False)
    return model


def unused():
    model = mlp()
    model.never = linear()
    return model


def without(self, x):
    with torch.no_grad():
        features = self.body(x)
    return self.head(features)


def inferred(self, x):
    with torch.inference_mode():
        features = self.body(x)
    return self.head(features.clone())


def switched(self, x):
    with torch.set_grad_enabled(bool(x.sum() > 0)):
        hidden = self.body(x)
    return self.head(hidden) + self.head(x)


def cut(self, x):
    hidden = self.body(x)
    leaf = hidden.detach().requires_grad_()
    self.leaves.append((hidden, leaf))
    return self.head(leaf)


def in_two_parts(model, optimizer, number):
    """As pipelines do: the backward pass of each part by itself."""
    output = model(inputs(number))
    loss_of(output).backward()
    hidden, leaf = model.leaves.pop()
    hidden.backward(leaf.grad)
    optimizer.step()
    optimizer.zero_grad()
    return output, leaf.grad


def with_leaves():
    model = Calls(cut, body=linear(), head=linear())
    model.leaves = []
    return model


def nested(self, x):
    def inner(x):
        return self.second(checkpoint(self.first, x, use_reentrant=False))

    return self.head(checkpoint(inner, x, use_reentrant=False))


def own(function):
    return lambda: Calls(lambda self, x: self.head(function(self.body(x))), body=linear(), head=linear())


DIFFERENTIATING = {
    "a straight-through estimator": Odd(own(lambda x: Rounds.apply(x * 3))),
    "a function that writes to its argument": Odd(own(lambda x: Doubles.apply(x + 0))),
    "a function with two results": Odd(own(lambda x: Several.apply(x, 0.7)[0])),
    "a gradient that is reversed": Odd(own(Reverses.apply)),
    "a gradient of a gradient": Odd(lambda: nn.Sequential(linear(), nn.Tanh(), linear(1)), penalty),
    "a Hessian times a vector": Odd(lambda: nn.Sequential(linear(), nn.Tanh(), linear(1)), curvature),
    "a graph that is used twice": Odd(mlp, twice, warns="a second backward pass"),
    "gradients that are set by hand": Odd(mlp, by_hand),
    "gradients of some parameters": Odd(mlp, only_some),
    "several roots with vectors": Odd(mlp, with_a_vector),
    "gradients that are added up": Odd(mlp, accumulating),
    "a target that it made itself": Odd(mlp, outside),
    "a frozen part of a model": Odd(frozen),
    "a part that is never called": Odd(unused),
    "a part without gradients": Odd(lambda: Calls(without, body=mlp(), head=linear())),
    "a part in inference mode": Odd(lambda: Calls(inferred, body=mlp(), head=linear())),
    "gradients that depend on the numbers": Odd(lambda: Calls(switched, body=linear(), head=linear())),
    "a backward pass in two parts": Odd(with_leaves, in_two_parts),
    "a reentrant checkpoint": Odd(
        lambda: Calls(
            lambda self, x: self.head(checkpoint(self.body, self.stem(x), use_reentrant=True)),
            stem=linear(),
            body=mlp(),
            head=linear(),
        )
    ),
    "a checkpoint in a checkpoint": Odd(lambda: Calls(nested, first=mlp(), second=mlp(), head=linear())),
    "a sequence of checkpoints": Odd(
        lambda: Calls(
            lambda self, x: checkpoint_sequential(self.body, 2, x, use_reentrant=False),
            body=nn.Sequential(*[mlp() for _ in range(3)]),
        )
    ),
    "an embedding with a gradient in few rows": Odd(
        lambda: Calls(lambda self, x: self.table(x.abs().long()), table=nn.Embedding(9, WIDTH, sparse=True)),
        optimizer=lambda model: torch.optim.SparseAdam(model.parameters(), 0.1),
    ),
}
