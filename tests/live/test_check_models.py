"""`fd.check` on models that are hard to replay: each is the same as its copy, and a planted mistake is found."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import firstdrift as fd


def where(result):
    first = result.first_drift
    return None if first is None else (first.phase, first.name, first.port)


class Residual(nn.Module):
    """One rectifier, called twice, that writes over its input; a sum in place."""

    def __init__(self, eps=1e-5):
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4, eps=eps)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        y = self.norm(self.relu(self.conv(x)))
        y += x
        return self.relu(y)


class Biased(nn.Module):
    """Makes a bias, uses it, and returns it for the next one to use, as the attention of T5 does."""

    def __init__(self, scale=1.0):
        super().__init__()
        self.table = nn.Parameter(torch.randn(6))
        self.mix = nn.Linear(6, 6)
        self.scale = scale

    def forward(self, x, bias=None):
        bias = 2 * self.table if bias is None else bias
        return torch.tanh(self.mix(x) * self.scale + bias), bias


class Handing(nn.Module):
    def __init__(self, scale=1.0):
        super().__init__()
        self.layers = nn.ModuleList([Biased(), Biased(scale), Biased()])

    def forward(self, x):
        bias = None
        for layer in self.layers:
            x, bias = layer(x, bias)
        return x


class Penalised(nn.Module):
    """Asks for a gradient of its own while it runs."""

    def __init__(self, slope=0.2):
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(5, 8), nn.LeakyReLU(slope), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x):
        x = x.detach().requires_grad_()
        y = self.critic(x - 1)
        (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return y, slope.norm(dim=-1)


class Spectral(nn.Module):
    def __init__(self, conjugated=False):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(9, dtype=torch.complex64))
        self.turn = nn.Identity()
        self.head = nn.Linear(16, 3)
        self.conjugated = conjugated

    def forward(self, x):
        weight = self.weight.conj_physical() if self.conjugated else self.weight
        return self.head(torch.fft.irfft(self.turn(torch.fft.rfft(x) * weight)))


class Recurrent(nn.Module):
    """A dict of a tensor, a tuple and nothing."""

    def __init__(self, backwards=False):
        super().__init__()
        self.lstm = nn.LSTM(5, 7, 2, batch_first=True)
        self.gru = nn.GRU(7, 4, batch_first=True, bidirectional=True)
        self.backwards = backwards

    def forward(self, x):
        y, state = self.lstm(x)
        return {"logits": self.gru(y.flip(1) if self.backwards else y)[0], "state": state, "nothing": None}


def total(output):
    parts = output["logits"] if isinstance(output, dict) else output
    return sum(part.square().mean() for part in (parts if isinstance(parts, tuple) else (parts,)))


MODELS = {
    "in place": (Residual, {"eps": 1e-3}, (3, 4, 6, 6), ("fwd", "norm", "out")),
    "handed on": (Handing, {"scale": 1.01}, (4, 6), ("fwd", "layers.1", "out.0")),
    "penalty": (Penalised, {"slope": 0.3}, (4, 5), ("fwd", "critic.1", "out")),
    "complex": (Spectral, {"conjugated": True}, (4, 16), ("fwd", "turn", "in.0")),
    "recurrent": (Recurrent, {"backwards": True}, (3, 6, 5), ("fwd", "gru", "in.0")),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_the_same_as_its_copy_and_a_mistake_is_found(name):
    make, mistake, shape, place = MODELS[name]
    torch.manual_seed(0)
    reference, wrong = make(), make(**mistake)
    wrong.load_state_dict(reference.state_dict())
    options = {
        "inputs": (torch.randn(shape),), "loss_fn": total, "train": True, "steps": 2,
        "optimizer": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
    }  # fmt: skip
    same = fd.check(reference=reference, candidate=copy.deepcopy(reference), **options)
    assert (same.verdict, same.exit_code) == ("same", 0), same.sentence
    assert where(fd.check(reference=reference, candidate=wrong, **options)) == place


def test_a_gradient_that_a_replay_cannot_repeat_is_judged_by_its_traces():
    """The bias that is used inside and handed on has a gradient from both, and a replay sees one of them."""
    torch.manual_seed(0)
    reference = Handing()

    class Careless(Handing):
        def forward(self, x):
            bias = None
            for number, layer in enumerate(self.layers):
                x, bias = layer(x, bias)
                bias = _Doubled.apply(bias) if number == 1 else bias
            return x

    options = {"inputs": (torch.randn(4, 6),), "loss_fn": total, "train": True, "load": "reference"}
    result = fd.check(reference=reference, candidate=Careless(), **options)
    assert result.exit_code == 1
    assert result.first_drift.phase in ("agrad", "grad"), result.sentence


class _Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


def test_a_mistake_inside_what_the_reference_computes_in_one_kernel_is_found():
    """An encoder layer in evaluation calls none of its modules, unless their eps differ."""
    torch.manual_seed(0)
    layers = [nn.TransformerEncoderLayer(16, 4, 32, batch_first=True) for _ in range(2)]
    reference = nn.Sequential(*layers).eval()
    candidate = copy.deepcopy(reference)
    candidate[1].norm1.eps = 1e-2
    result = fd.check(reference=reference, candidate=candidate, inputs=(torch.randn(2, 6, 16),))
    assert where(result) == ("fwd", "1", "out"), result.sentence


class Picking(nn.Module):
    """Returns the row of a table that has the largest score."""

    def __init__(self, *, backwards):
        super().__init__()
        self.score = Scores(backwards=backwards)
        self.pick = Pick()
        self.head = nn.Linear(6, 4)

    def forward(self, x):
        return self.head(self.pick(self.score(x)))


class Scores(nn.Module):
    def __init__(self, *, backwards):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 4))
        self.backwards = backwards

    def forward(self, x):
        terms = [x[:, i, None] * self.weight[:, i] for i in range(4)]
        total = torch.zeros(len(x), 5, dtype=x.dtype)
        for term in reversed(terms) if self.backwards else terms:
            total = total + term
        return total


class Pick(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(5, 6))

    def forward(self, scores):
        return self.table[scores.argmax(-1)]


def test_a_choice_between_near_ties_is_a_flip():
    torch.manual_seed(0)
    reference, candidate = Picking(backwards=False), Picking(backwards=True)
    with torch.no_grad():  # 1 - 1 + 1e-9 is 1e-9 or 0, as one adds it up; the other one is 0 in either order
        reference.score.weight[0] = torch.tensor([0.0, 0.0, 0.0, 0.0])
        reference.score.weight[1] = torch.tensor([1.0, -1.0, 1e-9, 0.0])
        reference.score.weight[2:] -= 3
    x = torch.rand(60, 4) + 0.1
    x[:, 1] += x[:, 0]
    x[7] = 1.0
    result = fd.check(reference=reference, candidate=candidate, inputs=(x,), load="reference")
    assert (result.verdict, result.exit_code) == ("flip", 0), result.sentence
    assert {pair.site.name for pair in result.pairs if pair.verdict == "flip"} == {"pick"}


def test_an_update_that_is_wrong_in_its_imaginary_part_is_found():
    class Halved(torch.optim.SGD):
        @torch.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                for weight in group["params"]:
                    gradient = weight.grad
                    if gradient.is_complex():
                        gradient = torch.complex(gradient.real, 0.5 * gradient.imag)
                    weight -= group["lr"] * gradient

    torch.manual_seed(0)
    result = fd.check(
        reference=Spectral(), candidate=Spectral(), inputs=(torch.randn(4, 16),), load="reference", loss_fn=total,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        candidate_optimizer=lambda model: Halved(model.parameters(), lr=0.1), train=True,
    )  # fmt: skip
    assert where(result) == ("weight_after", "", "weight"), result.sentence


def test_noise_of_one_run_against_the_next_is_no_want_of_determinism():
    class Restless(nn.Linear):
        def forward(self, x):
            order = torch.randperm(64, generator=torch.Generator().manual_seed(next(COUNT)))
            return F.linear(x[:, order], self.weight[:, order], self.bias)

    torch.manual_seed(0)
    reference, candidate = nn.Sequential(nn.Linear(64, 8)), nn.Sequential(Restless(64, 8))
    x = torch.randn(20, 64)
    result = fd.check(reference=reference, candidate=candidate, inputs=(x,), load="reference")
    assert (result.verdict, result.exit_code) == ("noise", 0), result.sentence


COUNT = iter(range(10**6))


@pytest.mark.parametrize("loss", [None, lambda output: output.square().mean()])
def test_a_wrong_momentum_of_running_statistics_shows_where_nobody_steps(loss):
    def network(momentum):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8, momentum=momentum), nn.Linear(8, 3))

    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(1))
    result = fd.check(reference=network(0.1), candidate=network(0.2), inputs=(x,), loss_fn=loss, train=True)
    first = result.first_drift
    assert (first.phase, first.name, first.introduced_by) == ("weight_after", "1", "1's forward pass")
    assert first.cause.label == "batchnorm-momentum"


class Tables(nn.Module):
    """Cosines and sines of a rotation, maybe by way of a shorter format."""

    def __init__(self, dtype=None):
        super().__init__()
        self.dtype = dtype

    def forward(self, x):
        angles = torch.arange(x.shape[1])[:, None] * 10_000.0 ** (-torch.arange(0, 16, 2) / 16)
        tables = angles.cos(), angles.sin()
        return tuple(table if self.dtype is None else table.to(self.dtype).to(x.dtype) for table in tables)


class Rotated(nn.Module):
    """A layer whose output is turned by tables."""

    def __init__(self, dtype=None):
        super().__init__()
        self.proj, self.tables, self.out = nn.Linear(16, 16), Tables(dtype), nn.Linear(16, 16)

    def forward(self, x):
        (one, other), (cos, sin) = self.proj(x).chunk(2, -1), self.tables(x)
        return self.out(torch.cat((one * cos - other * sin, other * cos + one * sin), -1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_tables_of_a_rotation_in_a_shorter_format_are_told_as_rounded(dtype):
    torch.manual_seed(0)
    result = fd.check(reference=Rotated(), candidate=Rotated(dtype), inputs=(torch.randn(2, 64, 16),), load="reference")
    first = result.first_drift
    assert (first.site.name, first.site.port, first.cause.label) == ("tables", "out.0", "dtype-rounding")


class Store:
    """A cache that is neither list nor dict."""

    def __init__(self):
        self.kept = []

    def append(self, tensor):
        self.kept.append(tensor)

    def __iter__(self):
        return iter(self.kept)


class Remembering(nn.Module):
    """Attends to all keys that were put into what its caller handed over."""

    def __init__(self, forgets=False):
        super().__init__()
        self.key, self.forgets = nn.Linear(4, 4), forgets

    def forward(self, x, cache):
        own = self.key(x)
        if isinstance(cache, dict):
            cache[f"keys {len(cache)}"] = own
        else:
            cache.append(own)
        keys = own if self.forgets else torch.cat(list(cache.values() if isinstance(cache, dict) else cache), 1)
        return x + torch.softmax(x @ keys.mT, -1) @ keys


class Decoding(nn.Module):
    """Two passes over one cache, which it looks into afterwards."""

    def __init__(self, kind, forgets=False):
        super().__init__()
        self.kind, self.first, self.attention = kind, nn.Linear(4, 4), Remembering(forgets)

    def forward(self, x):
        cache, h = self.kind(), self.first(x)
        passes = [self.attention(part, cache) for part in h.chunk(2, 1)]
        return torch.cat(passes, 1) * len(list(cache))


@pytest.mark.parametrize("kind", [dict, list, Store])
def test_what_a_module_puts_into_a_cache_is_there_for_its_caller_in_replays(kind):
    torch.manual_seed(0)
    x = torch.randn(2, 4, 4)
    result = fd.check(reference=Decoding(kind), candidate=Decoding(kind), inputs=(x,), load="reference")
    assert (result.verdict, result.notes) == ("same", ())
    result = fd.check(reference=Decoding(kind), candidate=Decoding(kind, forgets=True), inputs=(x,), load="reference")
    first = result.first_drift
    assert (first.site.name, first.site.port, first.site.call) == ("attention", "out", 1), result.sentence


class Insisting(nn.Module):
    """Refuses what it has not computed itself."""

    def __init__(self, factor=1.0):
        super().__init__()
        self.one, self.other, self.factor = nn.Linear(4, 4), nn.Linear(4, 4), factor
        self.one.register_forward_hook(self.remember)

    def remember(self, module, given, made):
        self.made = made

    def forward(self, x):
        h = self.one(x)
        if h is not self.made:
            raise KeyError("somebody else's tensor")
        return self.other(h * self.factor)


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "same"), (1.5, "drift")])
def test_a_reference_that_cannot_be_replayed_is_compared_as_it_ran(factor, verdict):
    torch.manual_seed(0)
    result = fd.check(
        reference=Insisting(), candidate=Insisting(factor), inputs=(torch.randn(32, 4),), load="reference"
    )  # fmt: skip
    assert result.verdict == verdict, result.sentence
    if factor != 1:
        assert (result.first_drift.site.name, result.first_drift.cause.label) == ("other", "scale")


class Casting(nn.Linear):
    """Rounds what it reads to bfloat16 first."""

    def forward(self, x):
        return F.linear(x.bfloat16().to(x.dtype), self.weight.to(torch.bfloat16).to(x.dtype), self.bias)


@pytest.mark.parametrize(("dtype", "verdict"), [(torch.bfloat16, "same"), (torch.float32, "drift")])
def test_a_cast_to_the_dtype_that_a_model_has_changes_nothing(dtype, verdict):
    torch.manual_seed(0)
    reference = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8)).to(dtype)
    candidate = nn.Sequential(nn.Linear(16, 32), nn.GELU(), Casting(32, 8)).to(dtype)
    result = fd.check(
        reference=reference, candidate=candidate, inputs=(torch.randn(20, 16).to(dtype),), load="reference"
    )
    assert result.verdict == verdict, result.sentence
