"""Training loops that are odd: closures, several optimizers, scalers, averages, groups that change."""

import torch
from tests.odd_models.odd import Calls, Odd, finish, inputs, linear, loss_of, mlp
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


def closure(model, optimizer, number):
    outputs = []

    def evaluate():
        optimizer.zero_grad()
        outputs.append(model(inputs(number)))
        loss = loss_of(outputs[-1])
        loss.backward()
        return loss

    return optimizer.step(evaluate), outputs


class Signs(torch.optim.Optimizer):
    """An optimizer of the user's own."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.01})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    state = self.state[parameter].setdefault("trail", torch.zeros_like(parameter))
                    state.lerp_(parameter.grad, 0.1)
                    parameter.sub_(state.sign(), alpha=group["lr"])


def adversaries(model, optimizer, number):
    """A generator and its critic, each with an optimizer of its own."""
    critic = model.others.setdefault("critic", torch.optim.Adam(model.critic.parameters(), 1e-2))
    made = model.generator(inputs(number))
    critic.zero_grad()
    wrong = model.critic(made.detach()).mean() - model.critic(inputs(number + 5)).mean()
    wrong.backward()
    critic.step()
    return finish(made, -model.critic(made).mean(), optimizer), wrong


def with_adversary():
    model = Calls(lambda self, x: self.critic(self.generator(x)), generator=mlp(), critic=linear(1))
    model.others = {}
    return model


def more_groups(model, optimizer, number):
    if number == 1:
        optimizer.add_param_group({"params": [model[3].weight, model[3].bias], "lr": 0.5})
    optimizer.param_groups[0]["lr"] *= 0.9
    output = model(inputs(number))
    return finish(output, loss_of(output), optimizer)


def scheduled(model, optimizer, number):
    schedule = model.schedules.setdefault("one", torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=9))
    output = model(inputs(number))
    found = finish(output, loss_of(output), optimizer)
    schedule.step()
    return found, schedule.get_last_lr()


def with_schedule():
    model = mlp()
    model.schedules = {}
    return model


def scaled(model, optimizer, number):
    scaler = model.schedules.setdefault("scaler", torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=1))
    output = model(inputs(number))
    loss = loss_of(output) * (float("inf") if number == 1 else 1)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    return output, loss, norm, scaler.get_scale()


def averaged(model, optimizer, number):
    mean = model.schedules.setdefault("mean", AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9)))
    output = model(inputs(number))
    found = finish(output, loss_of(output), optimizer)
    mean.update_parameters(model)
    with torch.no_grad():
        return found, mean(inputs(number))


def clipped(model, optimizer, number):
    output = model(inputs(number))
    loss_of(output).backward()
    nn.utils.clip_grad_value_(model.parameters(), 1e-3)
    for parameter in model.parameters():
        parameter.grad.add_(torch.randn(parameter.shape), alpha=1e-3)
    optimizer.step()
    optimizer.zero_grad()
    return output


def by(kind, **options):
    return lambda model: kind(model.parameters(), **options)


OPTIMIZING = {
    "LBFGS": Odd(mlp, closure, by(torch.optim.LBFGS, lr=0.1, max_iter=3)),
    "LBFGS that searches lines": Odd(mlp, closure, by(torch.optim.LBFGS, max_iter=3, line_search_fn="strong_wolfe")),
    "a closure of Adam": Odd(mlp, closure, by(torch.optim.Adam)),
    "fused": Odd(mlp, optimizer=by(torch.optim.AdamW, fused=True)),
    "for each": Odd(mlp, optimizer=by(torch.optim.Adam, foreach=True, amsgrad=True, maximize=True)),
    "one by one": Odd(mlp, optimizer=by(torch.optim.RMSprop, foreach=False, centered=True, momentum=0.5)),
    "a rate that is a tensor": Odd(mlp, optimizer=by(torch.optim.Adam, lr=torch.tensor(0.01), foreach=False)),
    "Rprop": Odd(mlp, optimizer=by(torch.optim.Rprop)),
    "ASGD": Odd(mlp, optimizer=by(torch.optim.ASGD)),
    "Adafactor": Odd(mlp, optimizer=by(torch.optim.Adafactor)),
    "an optimizer of the user's own": Odd(mlp, optimizer=by(Signs)),
    "a generator and its critic": Odd(
        with_adversary, adversaries, lambda model: torch.optim.SGD(model.generator.parameters(), 0.1)
    ),
    "groups that change": Odd(mlp, more_groups, lambda model: torch.optim.AdamW(model[0].parameters(), 1e-2)),
    "a schedule": Odd(with_schedule, scheduled),
    "a scaler that skips a step": Odd(with_schedule, scaled),
    "an average of the weights": Odd(with_schedule, averaged),
    "gradients clipped and made noisy": Odd(mlp, clipped),
}
