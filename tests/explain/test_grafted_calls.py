"""What two versions of one code do differently is found by making the reference's calls as the candidate makes them."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import firstdrift as fd


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Mixed(nn.Module):
    """Queries, keys and values of one projection; `way` is what a version of it does otherwise."""

    def __init__(self, way=""):
        super().__init__()
        self.qkv, self.way = nn.Linear(16, 48), way
        self.bias = nn.Parameter(2 * normal(12, 12))

    def forward(self, x):
        return self.mixed(*self.qkv(x).chunk(3, -1))


class Capped(Mixed):
    """A bias behind the cap of the scores, or under it."""

    def mixed(self, q, k, v):
        scores, bias = q @ k.mT, self.bias[: q.shape[1], : q.shape[1]]
        if self.way:
            return (5 * torch.tanh((scores + bias) / 5)).softmax(-1) @ v
        return (5 * torch.tanh(scores / 5) + bias).softmax(-1) @ v


class Signed(Mixed):
    """A bias that grows with key minus query, or with query minus key."""

    def mixed(self, q, k, v):
        at = torch.arange(q.shape[1])
        apart = at[:, None] - at[None] if self.way else at[None] - at[:, None]
        return (q @ k.mT + apart * self.bias[0, 0]).softmax(-1) @ v


class Twice(Mixed):
    """Two numbers that are others at once."""

    def mixed(self, q, k, v):
        scores = q @ k.mT / (2.0 if self.way else 4.0)
        return scores.clamp(max=0.3 if self.way else 0.5).softmax(-1) @ v


class Counted(Mixed):
    """Two masks that are left out, of a sum and of what it is divided by."""

    def mixed(self, q, k, v):
        seen, hit = torch.arange(12) < 9, torch.arange(12) % 3 == 0
        count = torch.full((16,), 12.0) if self.way else (seen[:, None] * torch.ones(12, 16)).sum(0)
        both = hit if self.way else hit & (torch.arange(12) != 6)
        return (v * both[:, None]).sum(1) / count


class Landmarks(Mixed):
    """Means over six positions each, or over four: all that follows has other sizes."""

    def mixed(self, q, k, v):
        length = 4 if self.way else 6
        marks = k.reshape(2, -1, length, 16).mean(2)
        kernel = (marks @ marks.mT + torch.eye(marks.shape[1])).inverse()
        return (q @ marks.mT).softmax(-1) @ kernel @ ((marks @ k.mT).softmax(-1) @ v)


class Function(Mixed):
    """A function of a few numbers that hardly differs from another one."""

    def mixed(self, q, k, v):
        half = torch.tensor([0.1, 0.2] * 8)
        shift = torch.tan(half) if self.way else torch.atanh(half)
        return ((q + shift).tanh() @ k.mT).softmax(-1) @ v


class Elsewhere(Mixed):
    """Values that are what was projected for keys, in both of two products."""

    def mixed(self, q, k, v):
        read = k if self.way else v
        return (q @ k.mT).softmax(-1) @ read + (q @ k.mT / 4).softmax(-1) @ read


CASES = [
    (Capped, "op-order", "add("),
    (Twice, "attention-scale", "divided by 2 instead of 4; max of clamp is 0.3 instead of 0.5"),
    (Counted, "skipped-op", "and(the result of eq of line"),
    (Landmarks, "changed-call", "4, 16) instead of reshape"),
    (Function, "activation-variant", "tan("),
    (Elsewhere, "qkv-order", "instead of part 3 of chunk"),
]


def of_traces(tmp_path, reference, candidate, *inputs):
    for name, model in (("reference", reference), ("candidate", candidate)):
        with fd.trace(model, tmp_path / name), torch.no_grad():
            model(*inputs)
    return fd.diff(tmp_path / "reference", tmp_path / "candidate")


def sides(kind, *given):
    torch.manual_seed(1)
    reference, candidate = kind(), kind(*(given or ("other",)))
    candidate.load_state_dict(reference.state_dict())
    return reference, candidate


@pytest.mark.parametrize(("kind", "label", "said"), CASES, ids=[case[0].__name__ for case in CASES])
def test_a_version_is_told_by_what_it_does_otherwise(tmp_path, kind, label, said):
    cause = of_traces(tmp_path, *sides(kind), normal(2, 12, 16)).first_drift.cause
    assert cause.label == label, cause
    assert said in cause.sentence
    assert "test_grafted_calls.py:" in cause.sentence


def test_check_says_the_same(tmp_path):
    reference, candidate = sides(Capped)
    result = fd.check(reference=reference, candidate=candidate, inputs=(normal(2, 12, 16),))
    assert result.first_drift.cause.label == "op-order"


class Detached(nn.Module):
    """A maximum that is taken out of exponents, without a gradient of its own."""

    def __init__(self, way=""):
        super().__init__()
        self.lin, self.way = nn.Linear(8, 8), way

    def forward(self, x):
        scores = self.lin(x)
        most = scores.amax(-1, keepdim=True)
        return torch.exp(scores - (most if self.way else most.detach())).sum(-1) + scores.sum(-1)


def test_a_gradient_that_flows_where_it_is_stopped_names_the_forward_line():
    reference, candidate = sides(Detached)
    result = fd.check(
        reference=reference, candidate=candidate, inputs=(normal(3, 8),), loss_fn=lambda out: out.square().sum()
    )
    cause = result.first_drift.cause
    assert cause.label == "gradient-formula"
    assert "test_grafted_calls.py:" in cause.sentence


class Padded(nn.Module):
    """Positions counted from the first token that is none of padding, or from the first of all."""

    def __init__(self, way=""):
        super().__init__()
        self.tok, self.pos, self.way = nn.Embedding(20, 16), nn.Embedding(12, 16), way

    def forward(self, ids, mask):
        at = torch.arange(ids.shape[1])[None] if self.way else (mask.cumsum(-1) - 1).clamp(min=0)
        return self.tok(ids) + self.pos(at)


def test_positions_of_another_shape_are_looked_into_where_they_are_made(tmp_path):
    mask = torch.ones(2, 8, dtype=torch.long)
    mask[0, :3] = 0
    ids = torch.randint(0, 20, (2, 8), generator=torch.Generator().manual_seed(0))
    cause = of_traces(tmp_path, *sides(Padded), ids, mask).first_drift.cause
    assert cause.label == "position-shift", cause
    assert "0 to 7 in every row" in cause.sentence


class Crossed(nn.Module):
    """Two inputs, one of which a layer reads."""

    def __init__(self, way=""):
        super().__init__()
        self.lin, self.way = nn.Linear(16, 16), way

    def forward(self, x, context):
        return self.lin(context if self.way else x) + x


def test_a_module_that_is_handed_another_recorded_tensor_names_it(tmp_path):
    found = of_traces(tmp_path, *sides(Crossed), normal(2, 5, 16), normal(2, 5, 16, seed=1)).first_drift
    assert (found.name, found.port) == ("lin", "in.0")
    assert found.cause.label != "unknown"
    assert "context" in found.cause.sentence or "in.1" in found.cause.sentence


class Shifted(nn.Module):
    """Every token sees the one before it, or the one behind it."""

    def __init__(self, way=""):
        super().__init__()
        self.mix, self.way = nn.Parameter(torch.rand(16)), way

    def forward(self, x):
        if self.way:
            other = torch.cat((x[:, 1:], torch.zeros_like(x[:, :1])), 1)
        else:
            other = F.pad(x, (0, 0, 1, -1))
        return x * self.mix + other * (1 - self.mix)


def test_a_shift_to_the_other_side_is_one_however_it_is_written(tmp_path):
    cause = of_traces(tmp_path, *sides(Shifted), normal(2, 7, 16)).first_drift.cause
    assert cause.label == "index-shift", cause
    assert "-1 instead of 1" in cause.sentence


class Held(nn.Module):
    """A buffer of numbers."""

    def __init__(self, numbers):
        super().__init__()
        self.register_buffer("freqs", numbers)

    def forward(self, x):
        return x @ self.freqs.reshape(-1, self.freqs.shape[-1]).mT


def test_two_rows_of_any_numbers_are_no_table_of_positions(tmp_path):
    first, levels = torch.ones(5), torch.tensor([8.0, 5.0, 5.0, 5.0, 4.0])
    reference, candidate = torch.stack([first, 1 / (levels - 1)]), torch.stack([first, 1 / levels])
    cause = of_traces(tmp_path, Held(reference), Held(candidate), normal(2, 5)).first_drift.cause
    assert not cause.label.startswith("rope-")


def test_lines_are_the_models_where_a_library_writes_the_axes(tmp_path):
    einops = pytest.importorskip("einops")

    class Rearranged(nn.Module):
        def __init__(self, way=""):
            super().__init__()
            self.way = way

        def forward(self, x):
            return einops.rearrange(x, "b (h d) -> b (d h)" if self.way else "b (h d) -> b h d", h=4).flatten(1)

    cause = of_traces(tmp_path, Rearranged(), Rearranged("other"), normal(2, 12)).first_drift.cause
    assert "_backends.py" not in cause.sentence
