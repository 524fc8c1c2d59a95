"""What fits by chance is no cause: other steps, other parameters or the candidate's own program refute it."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import firstdrift as fd

X = torch.randn(8, 6, generator=torch.Generator().manual_seed(1))
IDS = torch.randint(0, 20, (4, 8), generator=torch.Generator().manual_seed(2))


class Moments(torch.optim.Optimizer):
    """Adam by hand; without corrections, or with a rate that is warmed up from `first` on."""

    def __init__(self, params, *, corrects=True, first=None, skips=()):
        super().__init__(params, {"lr": 0.01})
        self.corrects, self.first, self.skips, self.count = corrects, first, skips, 0

    @torch.no_grad()
    def step(self, closure=None):
        self.count += 1
        rate = 0.01 if self.first is None else 0.01 * (self.count - 1 + self.first) / 5
        for p in self.param_groups[0]["params"]:
            if self.count in self.skips:
                continue
            state = self.state[p]
            m, v = (state.setdefault(name, torch.zeros_like(p)) for name in ("exp_avg", "exp_avg_sq"))
            m.mul_(0.9).add_(p.grad, alpha=1 - 0.9)
            v.mul_(0.99).addcmul_(p.grad, p.grad, value=1 - 0.99)
            first, second = (1 - 0.9**self.count, 1 - 0.99**self.count) if self.corrects else (1.0, 1.0)
            p.sub_(rate * (m / first) / ((v / second).sqrt() + 1e-6))


def network():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.SiLU(), nn.Linear(8, 5))


def first_drift(tmp_path, reference, candidate, x, losses, optimizers=(None, None), steps=1):
    """The first drift of two traced runs of `steps` steps."""
    candidate.load_state_dict(reference.state_dict())
    for name, model, loss, made in zip("ab", (reference, candidate), losses, optimizers, strict=True):
        optimizer = None if made is None else made(model.parameters())
        with fd.trace(model, tmp_path / name, optimizer=optimizer):
            for _ in range(steps):
                model.zero_grad()
                out = model(x)
                if loss is not None:
                    loss(out).backward()
                if optimizer is not None:
                    optimizer.step()
    return fd.diff(tmp_path / "a", tmp_path / "b").first_drift


def squared(out):
    return (out - 0.7).square().mean()


def adam(params):
    return torch.optim.AdamW(params, lr=0.01, weight_decay=0.0, betas=(0.9, 0.99), eps=1e-6)


STEPS = {  # both sides' optimizers, the label, what is said
    "no correction": (adam, lambda p: Moments(p, corrects=False), "optimizer-bias-correction", "is left out"),
    "no rate at first": (
        lambda p: Moments(p, first=1), lambda p: Moments(p, first=0), "optimizer-lr", "the learning rate is 0 at step 0"
    ),
    "no first step": (
        Moments, lambda p: Moments(p, skips=(1,)), "skipped-op", "at step 0, and does at step 1"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STEPS)
def test_a_change_of_the_first_step_has_to_hold_at_the_second(tmp_path, name):
    ours, theirs, label, said = STEPS[name]
    cause = first_drift(tmp_path, network(), network(), X, (squared, squared), (ours, theirs), 2).cause
    assert cause.label == label, cause
    assert said in cause.sentence


class Tied(nn.Module):
    """An embedding and a head of one weight, or of two that begin equal."""

    def __init__(self, *, tied):
        super().__init__()
        self.embed, self.mix, self.head = nn.Embedding(20, 12), nn.Linear(12, 12), nn.Linear(12, 20, bias=False)
        torch.manual_seed(4)
        nn.init.normal_(self.embed.weight)
        self.head.weight = self.embed.weight if tied else nn.Parameter(self.embed.weight.clone())

    def forward(self, ids):
        return self.head(torch.tanh(self.mix(self.embed(ids))))


def next_token(out):
    return F.cross_entropy(out[:, :-1].flatten(0, 1), IDS[:, 1:].flatten())


@pytest.mark.parametrize(("tied", "label"), [(True, "untied-head"), (False, "tied-gradient")])
def test_a_weight_of_one_side_that_is_two_on_the_other_is_told_as_that(tmp_path, tied, label):
    cause = first_drift(tmp_path, Tied(tied=tied), Tied(tied=not tied), IDS, (next_token, next_token)).cause
    assert cause.label == label, cause
    assert cause.parameters["tied_to"] in ("head.weight", "embed.weight")


class Codes(nn.Module):
    """A code and a commitment to it, that moves the encoder or, detached on the other side, the code."""

    def __init__(self, *, moves_code=False):
        super().__init__()
        self.encoder, self.code, self.moves_code = nn.Linear(6, 4), nn.Linear(4, 4), moves_code

    def forward(self, x):
        z = self.encoder(x)
        q = self.code(z.detach())
        commitment = z.detach() - q if self.moves_code else z - q.detach()
        return (q - z.detach()).square().mean() + 0.25 * commitment.square().mean() + 0.1 * z.square().mean()


def test_a_gradient_cut_on_the_other_side_is_no_factor(tmp_path):
    first = first_drift(tmp_path, Codes(), Codes(moves_code=True), X, (torch.sum, torch.sum))
    assert first.cause.label in ("gradient-formula", "gradient-missing"), first.cause
    assert "the reference detaches it (test_refuted_causes.py:" in first.cause.sentence


def mean_of_all(out):
    return F.cross_entropy(out.flatten(0, 1), labels().flatten())


def mean_of_means(out):
    parts = [
        F.cross_entropy(o.flatten(0, 1), y.flatten()) for o, y in zip(out.chunk(2), labels().chunk(2), strict=True)
    ]
    return sum(parts) / len(parts)


def labels():
    wanted = IDS.clone()
    wanted[0, 3:], wanted[1, 5:] = -100, -100
    return wanted


@pytest.mark.parametrize("seed", [19, 38])  # by which four groups, and float16, give the very number
def test_one_number_is_not_explained_by_what_meets_it_by_chance(tmp_path, seed):
    reference, candidate = head(seed), head(seed)
    cause = first_drift(tmp_path, reference, candidate, IDS, (mean_of_all, mean_of_means)).cause
    assert cause.label == "loss-formula", cause


def head(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Embedding(20, 12), nn.Tanh(), nn.Linear(12, 20))


class Dilated(nn.Module):
    """Convolutions of which the second one's dilation is another; so is the padding that keeps the length."""

    def __init__(self, dilation):
        super().__init__()
        self.one = nn.Conv1d(6, 8, 3, padding=1)
        self.two = nn.Conv1d(8, 8, 3, padding=dilation, dilation=dilation)

    def forward(self, x):
        return self.two(torch.relu(self.one(x)))


def test_of_several_settings_all_that_matter_are_told_and_padding_last(tmp_path):
    cause = first_drift(tmp_path, Dilated(1), Dilated(4), torch.randn(2, 6, 20), (None, None)).cause
    assert "dilation of conv1d is (4,) instead of (1,) and padding of conv1d is (4,)" in cause.sentence, cause
    assert cause.parameters["dilation"] == (4,)


class Pooled(nn.Module):
    """A mean of the rows that count, or of all."""

    def __init__(self, *, by_length=False):
        super().__init__()
        self.up, self.down, self.by_length = nn.Linear(6, 8), nn.Linear(8, 5), by_length
        self.register_buffer("seen", torch.arange(10)[None] < torch.tensor([[10], [6], [3]]))

    def forward(self, x):
        seen = self.seen.unsqueeze(-1).to(x.dtype)
        count = x.shape[1] if self.by_length else seen.sum(1).clamp(min=1e-9)
        return self.down((self.up(x) * seen).sum(1) / count)


def test_what_the_candidate_divides_by_is_told_and_no_limit_that_it_has_not(tmp_path):
    cause = first_drift(tmp_path, Pooled(), Pooled(by_length=True), torch.randn(3, 10, 6), (None, None)).cause
    assert cause.label == "changed-call", cause
    assert "10) instead of div(" in cause.sentence


class Scheduled(nn.Module):
    """Steps by the rates of a schedule; the last one goes to one."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.register_buffer("rates", (1 - torch.linspace(0.0123456789, 0.1, 40)).cumprod(0))

    def forward(self, x):
        steps = [29, 17, 5]
        for at, step in enumerate(steps):
            now = self.rates[step]
            then = self.rates[steps[at + 1]] if at < 2 else torch.ones(())
            moved = self.linear(x)
            x = then.sqrt() * ((x - moved) / now.sqrt()) + (1 - then).sqrt() * moved
        return x


class ScheduledByTable(Scheduled):
    """The same, the other way round; the last step goes to the first rate of the table."""

    def forward(self, x):
        taken = self.rates[[5, 17, 29]]
        then = torch.cat([self.rates[:1], taken[:-1]])
        for at in reversed(range(3)):
            moved = self.linear(x)
            start = (x - moved) / torch.sqrt(taken[at])
            x = torch.sqrt(then[at]) * start + torch.sqrt(1 - then[at]) * moved
        return x


def test_the_call_that_is_told_makes_the_numbers_that_are_read(tmp_path):
    cause = first_drift(tmp_path, Scheduled(), ScheduledByTable(), X, (None, None)).cause
    assert "getitem(rates, ...) instead of ones([]) (0.987654 instead of 1)" in cause.sentence, cause


class Sloped(nn.Module):
    """Attention of three heads by hand, with slopes that are kept in a table."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(6, 36), nn.Linear(12, 5)
        self.register_buffer("slopes", torch.tensor([0.25, 0.0625, 0.5]), persistent=False)

    def forward(self, x):
        q, k, v = self.qkv(x).view(2, 7, 3, 3, 4).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT / 2 + self.slopes[:, None, None] * self.apart(x)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(2, 7, 12))

    def apart(self, x):
        at = torch.arange(x.shape[1])
        return -(at[:, None] - at[None]).abs().to(x.dtype)


class SlopedByFormula(Sloped):
    """The same by a fused call, with slopes that are computed at every call."""

    def forward(self, x):
        q, k, v = (one.unflatten(-1, (3, 4)).transpose(1, 2) for one in self.qkv(x).chunk(3, -1))
        slopes = torch.pow(2, -8 * torch.arange(1, 4) / 3)
        mask = (slopes.view(3, 1, 1) * self.apart(x)).expand(2, 3, 7, 7)
        return self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2))


def test_a_table_that_one_side_computes_is_put_in_the_place_of_one_that_the_other_keeps(tmp_path):
    x = torch.randn(2, 7, 6, generator=torch.Generator().manual_seed(5))
    cause = first_drift(tmp_path, Sloped(), SlopedByFormula(), x, (None, None)).cause
    assert "0.15749, 0.0248031, 0.00390625 instead of 0.25, 0.0625, 0.5" in cause.sentence, cause
