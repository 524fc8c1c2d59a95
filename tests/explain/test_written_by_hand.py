"""A hand-written side against a library's: both differ in many harmless ways, and in the one that is told."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import firstdrift as fd

WIDTH, SEEN = 16, torch.Generator().manual_seed(4)
X = torch.randn(3, 6, WIDTH, generator=SEEN)
LABELS = torch.randint(0, 5, (3, 6), generator=SEEN)
TEACHER = torch.randn(3, 6, 5, generator=SEEN)


class Side(nn.Module):
    """Some modules, and what is made of them."""

    def __init__(self, made, **modules):
        super().__init__()
        torch.manual_seed(7)
        self.made, self.parts = made, nn.ModuleDict({name: make() for name, make in modules.items()})

    def forward(self, x):
        return self.made(self.parts, x)


class Criticised(nn.Module):
    """A side and its loss."""

    def __init__(self, side, loss):
        super().__init__()
        self.side, self.loss = side, loss

    def forward(self, x):
        return self.loss(self.side(x))


def first_drift(tmp_path, ours, theirs, modules, loss=None, steps=None):
    """The first drift of two sides that have the same weights."""
    reference, candidate = Side(ours, **modules), Side(theirs, **modules)
    candidate.load_state_dict(reference.state_dict())
    for name, side, own_loss, own_step in zip(
        ("reference", "candidate"), (reference, candidate), loss or (None, None), steps or (None, None), strict=True
    ):
        optimizer = own_step and own_step(side.parameters())
        whole = side if own_loss is None else Criticised(side, own_loss)
        with fd.trace(whole, tmp_path / name, optimizer=optimizer):
            for _ in range(2 if optimizer else 1):
                out = whole(X)
                (out if out.ndim == 0 else out.square().mean()).backward()
                if optimizer:
                    optimizer.step()
                    optimizer.zero_grad()
    return fd.diff(tmp_path / "reference", tmp_path / "candidate").first_drift


def recurrent(parts, x):
    return parts["out"](parts["rnn"](x)[0])


def recurrent_without_a_bias(parts, x):
    rnn, h, c, made = parts["rnn"], torch.zeros(3, 8), torch.zeros(3, 8), []
    for t in range(x.shape[1]):
        z = x[:, t] @ rnn.weight_ih_l0.T + h @ rnn.weight_hh_l0.T + rnn.bias_ih_l0
        i, f, g, o = z.chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        made.append(h)
    return parts["out"](torch.stack(made, 1))


def routed(parts, x):
    weights, chosen = parts["gate"](x).softmax(-1).topk(2, -1)
    return torch.zeros(3, 6, 4).scatter(-1, chosen, weights / weights.sum(-1, keepdim=True))


def routed_by_sigmoids(parts, x):
    scores, chosen = torch.topk(parts["gate"](x), 2)
    return torch.zeros(3, 6, 4).scatter(-1, chosen, scores.sigmoid())


def masked(parts, x):
    i = torch.arange(6)
    q, k, v = parts["qkv"](x).chunk(3, -1)
    seen = (i[:, None] >= i[None]) & (i[:, None] - i[None] < 3)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)


def masked_one_further(parts, x):
    q, k, v = parts["qkv"](x).split(WIDTH, -1)
    hidden = torch.ones(6, 6).triu(1).bool() | torch.ones(6, 6).tril(-4).bool()
    scores = (torch.einsum("bid,bjd->bij", q, k) / 4).masked_fill(hidden, -1e30)
    shares = (scores - scores.amax(-1, keepdim=True)).exp()
    return (shares / shares.sum(-1, keepdim=True)) @ v


def table(parts, x, last=0):
    bands = torch.exp(-math.log(10000) * torch.arange(8) / (8 - last))
    angles = torch.arange(6)[:, None] * bands
    return parts["lin"](x) + torch.cat([angles.sin(), angles.cos()], -1)


def table_to_the_end(parts, x):
    angles = torch.outer(torch.arange(6.0), 10000.0 ** (-torch.arange(8) / 7))
    return torch.add(torch.cat((angles.sin(), angles.cos()), 1), parts["lin"](x))


def turned(count):
    def made(parts, x):
        angles = torch.arange(6.0)[:, None] * 100.0 ** (-torch.arange(0, count, 2) / count)
        cos, sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)
        y = parts["lin"](x)
        own, rest = y[..., :count], y[..., count:]
        half = torch.cat((-own[..., count // 2 :], own[..., : count // 2]), -1)
        return torch.cat((own * cos + half * sin, rest), -1)

    return made


def all_turned(parts, x):
    angles = torch.outer(torch.arange(6.0), torch.exp(-math.log(100.0) * torch.arange(0, 16, 2) / 16))
    a, b = parts["lin"](x).split(8, -1)
    return torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), -1)


def pairs_of(count, neighbours):
    def made(parts, x):
        angles = torch.outer(torch.arange(6.0), 100.0 ** (-torch.arange(0, count, 2) / count))
        y, cos, sin = parts["lin"](x), angles.cos(), angles.sin()
        if not neighbours:
            own, half = y[..., :count], count // 2
            turned = torch.cat((-own[..., half:], own[..., :half]), -1)
            return torch.cat((own * cos.repeat(1, 2) + turned * sin.repeat(1, 2), y[..., count:]), -1)
        a, b = y[..., 0:count:2], y[..., 1:count:2]
        turned = torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)
        return torch.cat((turned, y[..., count:]), -1)

    return made


def linear(size):
    return lambda: nn.Linear(WIDTH, size)


LSTM = {"rnn": lambda: nn.LSTM(WIDTH, 8, batch_first=True), "out": lambda: nn.Linear(8, 3)}
FORWARD = {
    "a bias that one side has not": (recurrent, recurrent_without_a_bias, LSTM, "missing-bias", "bias_hh_l0"),
    "another function": (routed, routed_by_sigmoids, {"gate": linear(4)}, "activation-variant", "instead of softmax"),
    "an edge": (masked, masked_one_further, {"qkv": linear(3 * WIDTH)}, "window-off-by-one", ""),
    "a divisor": (table, table_to_the_end, {"lin": linear(WIDTH)}, "frequency-table", "divided by 7 instead of 8"),
    "pairs of a part": (pairs_of(8, False), pairs_of(8, True), {"lin": linear(WIDTH)}, "rope-interleave", "neighbours"),
    "a width": (turned(8), all_turned, {"lin": linear(WIDTH)}, "rope-partial", "8 frequencies instead of 4"),
}


@pytest.mark.parametrize("name", FORWARD)
def test_of_many_differences_the_one_that_matters_is_told(tmp_path, name):
    ours, theirs, modules, label, said = FORWARD[name]
    cause = first_drift(tmp_path, ours, theirs, modules).cause
    assert cause.label == label, cause
    assert said in cause.sentence


def mean_of_tokens(labels):
    return lambda out: F.cross_entropy(out.flatten(0, 1), labels.flatten())


def mean_of_all(labels):
    def loss(out):
        kept = labels >= 0
        logs = (out - out.logsumexp(-1, keepdim=True)).gather(-1, labels.clamp(min=0)[..., None])
        return -(logs[..., 0] * kept).mean()

    return loss


def of_the_next(out):
    return F.cross_entropy(out[:, :-1].reshape(-1, 5), LABELS[:, 1:].reshape(-1))


def distilled(out):
    return F.kl_div(F.log_softmax(out, -1), F.softmax(TEACHER, -1), reduction="batchmean")


def distilled_the_other_way(out):
    ours, theirs = out.log_softmax(-1), TEACHER.log_softmax(-1)
    return (ours.exp() * (ours - theirs)).sum() / 3


PADDED = LABELS.clone()
PADDED[:, -2:] = -100
LOSSES = {
    "what is counted": (mean_of_tokens(PADDED), mean_of_all(PADDED), "reduction-scale", "hold everywhere"),
    "labels": (mean_of_tokens(LABELS), of_the_next, "label-shift", "moved by 1"),
    "two arguments": (distilled, distilled_the_other_way, "swapped-operands", "in each other's place"),
}


@pytest.mark.parametrize("name", LOSSES)
def test_of_a_loss_written_by_hand_the_difference_is_told(tmp_path, name):
    ours, theirs, label, said = LOSSES[name]
    plain = lambda parts, x: parts["lin"](x)  # noqa: E731
    cause = first_drift(tmp_path, plain, plain, {"lin": linear(5)}, loss=(ours, theirs)).cause
    assert cause.label == label, cause
    assert said in cause.sentence


class ByHand(torch.optim.Optimizer):
    """AdamW, written out; `way` is what is otherwise."""

    def __init__(self, params, way):
        super().__init__(params, {"lr": 1e-2, "betas": (0.9, 0.99), "eps": 1e-4, "weight_decay": 0.1})
        self.way = way

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                self._one(p, self.state[p], group)

    def _one(self, p, state, group):
        g, one, two = p.grad, *group["betas"]
        if self.way == "clipped":
            g = g * 0.25
        if self.way == "coupled":
            g = g + group["weight_decay"] * p
        else:
            p.mul_(1 - group["lr"] * group["weight_decay"])
        state["count"] = state.get("count", torch.tensor(0.0)) + 1
        count = state["count"].item() + (self.way == "miscounted")
        m = state.setdefault("exp_avg", torch.zeros_like(p)).mul_(one).add_(g, alpha=1 - one)
        v = state.setdefault("exp_avg_sq", torch.zeros_like(p)).mul_(two).addcmul_(g, g, value=1 - two)
        v = v / (1 - two**count)
        root = (v + group["eps"]).sqrt() if self.way == "under" else v.sqrt() + group["eps"]
        p.sub_(group["lr"] * (m if self.way == "uncorrected" else m / (1 - one**count)) / root)


STEPS = {
    "coupled": ("weight-decay-coupling", "the candidate adds mul(lin.weight, 0.1)"),
    "clipped": ("gradient-scale", "0.25"),
    "under": ("optimizer-eps", "add comes before sqrt"),
    "miscounted": ("optimizer-bias-correction", "the count of steps is 2 instead of 1"),
    "uncorrected": ("optimizer-bias-correction", "-0.01 instead of -0.1"),
}


@pytest.mark.parametrize("way", STEPS)
def test_of_a_step_written_by_hand_the_term_or_the_number_is_told(tmp_path, way):
    label, said = STEPS[way]
    steps = (lambda p: torch.optim.AdamW(p, 1e-2, (0.9, 0.99), 1e-4, 0.1), lambda p: ByHand(p, way))
    plain = lambda parts, x: parts["lin"](x)  # noqa: E731
    cause = first_drift(tmp_path, plain, plain, {"lin": linear(5)}, steps=steps).cause
    assert cause.label == label, cause
    assert said in cause.sentence.replace("parts.", "")
