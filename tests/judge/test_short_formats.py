"""From two traces in a short format: other layouts, masks on a kink, rows sent elsewhere, losses near their target."""

import copy

import pytest
import torch
from torch import nn

import firstdrift as fd

WIDTH, HIDDEN = 16, 40


def draw(*shape, seed=1):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def compare(tmp_path):
    def compared(reference, candidate, inputs, losses=None, **options):
        for side, model in (("r", reference), ("c", candidate)):
            with fd.trace(model, tmp_path / side, **options), torch.set_grad_enabled(losses is not None):
                y = model(*inputs)
                if losses is not None:
                    losses[side](y).backward()
        return fd.diff(tmp_path / "r", tmp_path / "c")

    return compared


class Block(nn.Module):
    """A norm and two layers, with what they are fed added where `share` says how much they count."""

    def __init__(self, share=None):
        super().__init__()
        self.norm, self.up, self.down = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)
        self.share = share

    def forward(self, x):
        y = self.down(torch.relu(self.up(self.norm(x))))
        return y if self.share is None else x + self.share * y


def blocks(share=None):
    torch.manual_seed(0)
    model = nn.Sequential(Block(share), Block(share), nn.Linear(WIDTH, 6))
    with torch.no_grad():
        for block in list(model)[:2]:
            block.norm.weight.uniform_(0.5, 2)
    return model.bfloat16()


ORDER = torch.randperm(HIDDEN, generator=torch.Generator().manual_seed(5))


def reorder_up(block):
    block.up.weight.copy_(block.up.weight[ORDER])
    block.up.bias.copy_(block.up.bias[ORDER])


def reorder(block):
    reorder_up(block)
    block.down.weight.copy_(block.down.weight[:, ORDER])


def move_scales(block):
    scales = torch.linspace(0.3, 3, HIDDEN).bfloat16()
    block.up.weight.mul_(scales[:, None])
    block.up.bias.mul_(scales)
    block.down.weight.div_(scales)


def fold_gain(block):
    block.up.weight.mul_(block.norm.weight)
    block.norm.weight.fill_(1)


def changed(model, change, where=(0, 1)):
    model = copy.deepcopy(model)
    with torch.no_grad():
        for index in where:
            change(model[index])
    return model


@pytest.mark.parametrize(
    ("share", "change", "where"),
    [(None, reorder, (0, 1)), (1.0, reorder, (1,)), (None, move_scales, (0,)), (1.0, move_scales, (0, 1)),
     (None, fold_gain, (0, 1)), (1.0, fold_gain, (1,))],
)  # fmt: skip
def test_another_layout_is_none_to_worry_about_in_bf16_either(compare, share, change, where):
    result = compare(blocks(share), changed(blocks(share), change, where), (draw(20, WIDTH).bfloat16(),))
    assert result.exit_code == 0, result.sentence
    assert result.cause.label == "layout-equivalent"


def left_half(block):
    block.down.weight.copy_(block.down.weight[:, ORDER])
    block.up.weight[: HIDDEN // 2].copy_(block.up.weight[ORDER][: HIDDEN // 2])


def fold_half(block):
    block.norm.weight.fill_(1)


@pytest.mark.parametrize(
    ("share", "change"),
    [(None, reorder_up), (None, left_half), (None, fold_half), (0.01, reorder_up), (0.01, fold_half)],
)  # 0.01: next to nothing beside what it is added to
def test_half_of_another_layout_is_a_drift_in_bf16_too(compare, share, change):
    result = compare(blocks(share), changed(blocks(share), change, (1,)), (draw(20, WIDTH).bfloat16(),))
    assert result.exit_code == 1
    assert result.first_drift.name.startswith("1"), result.sentence


class Flat(Block):
    """The same without a module around what is added."""

    def __init__(self):
        super().__init__(0.01)
        self.head = nn.Linear(WIDTH, 6)

    def forward(self, x):
        return self.head(super().forward(x))


def test_what_is_next_to_nothing_beside_what_it_is_added_to_is_no_layout_without_a_module_around_it(compare):
    torch.manual_seed(0)
    reference = Flat().bfloat16()
    candidate = copy.deepcopy(reference)
    with torch.no_grad():
        reorder_up(candidate)
    result = compare(reference, candidate, (draw(20, WIDTH).bfloat16(),))
    assert result.exit_code == 1
    assert result.first_drift.name == "up", result.sentence


class Cut(torch.autograd.Function):
    """A ReLU with a cap, whose gradient is cut where it is told to."""

    @staticmethod
    def forward(ctx, x, cut):
        ctx.save_for_backward(x)
        ctx.cut = cut
        return x.clamp(0, 6)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * ctx.cut(x), None


class Capped(nn.Module):
    """A layer and a ReLU with a cap, some of whose inputs lie on a kink."""

    def __init__(self, cut=None):
        super().__init__()
        self.first, self.last, self.cut = nn.Linear(30, 30), nn.Linear(30, 4), cut
        nn.init.eye_(self.first.weight)
        nn.init.zeros_(self.first.bias)

    def forward(self, x):
        h = self.first(x)
        return self.last(nn.functional.relu6(h) if self.cut is None else Cut.apply(h, self.cut))


def capped(compare, cut, zeros=3):
    torch.manual_seed(0)
    reference, candidate = Capped(), Capped(cut)
    candidate.load_state_dict(reference.state_dict())
    x = 3 + 4 * draw(20, 30)
    x[0, :zeros], x[1, :3] = 0.0, 6.0
    x.requires_grad_()
    return compare(reference, candidate, (x,), {"r": squares, "c": squares})


WRONG_CUTS = {
    "another cap": lambda x: (x > 0) & (x < 4),
    "no cap": lambda x: x > 0,
    "no mask": lambda x: x == x,
    "another kink": lambda x: (x > 0.5) & (x < 6),
}


CUTS = {
    "at zero": lambda x: (x >= 0) & (x < 6),
    "at the cap": lambda x: (x > 0) & (x <= 6),
    "at both": lambda x: (x >= 0) & (x <= 6),
}


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize("zeros", [3, 30])
def test_another_subgradient_on_a_kink_is_another_rule_and_no_near_tie(compare, cut, zeros):
    """Where the forward is equal to the bit, nothing was decided otherwise."""
    assert capped(compare, cut, zeros).exit_code != 0


def test_a_mask_of_the_same_cut_is_right(compare):
    assert capped(compare, lambda x: (x > 0) & (x < 6)).exit_code == 0


@pytest.mark.parametrize("cut", WRONG_CUTS.values(), ids=WRONG_CUTS)
def test_a_mask_that_is_wrong_is_no_matter_of_kinks(compare, cut):
    result = capped(compare, cut)
    assert result.exit_code == 1, result.sentence
    assert (result.first_drift.phase, result.first_drift.name) == ("agrad", "first")


class Sums(nn.Module):
    """Three terms in either order, and a ReLU that nobody records, before the layer that reads them."""

    def __init__(self, other=False):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = (nn.Linear(8, 8, bias=False) for _ in range(3))
        self.post, self.other = nn.Linear(8, 4), other
        with torch.no_grad():
            for layer in (self.a, self.b, self.c):
                layer.weight.copy_(torch.eye(8))

    def forward(self, x, y, z):
        x, y, z = self.a(x), self.b(y), self.c(z)
        return self.post(torch.relu(x + (y + z) if self.other else (x + y) + z))


def squares(y):
    return y.square().mean()


def terms():
    x, y, z = (draw(30, 8, seed=seed) for seed in (1, 2, 3))
    x[3, 4], y[3, 4], z[3, 4] = 1.0, -1.0, 1e-9
    return x, y, z


def test_a_sign_decided_between_an_output_and_who_reads_it_is_a_flip(compare):
    result = compare(Sums(), Sums(other=True), terms(), {"r": squares, "c": squares})
    assert str(result.verdict) == "flip", result.sentence


def test_a_gradient_lost_between_an_output_and_who_reads_it_is_a_drift(compare):
    candidate = Sums()

    def lose(gradient):
        gradient = gradient.clone()
        gradient[:, 4] = 0
        return gradient

    candidate.a.register_forward_hook(lambda module, args, output: output.register_hook(lose) and None)
    result = compare(Sums(), candidate, terms(), {"r": squares, "c": squares})
    assert result.exit_code == 1
    assert result.first_drift.name == "a", result.sentence


class InPieces(nn.Linear):
    def forward(self, x):
        return (
            sum(nn.functional.linear(a, b) for a, b in zip(x.split(7, -1), self.weight.split(7, -1), strict=True))
            + self.bias
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("factor", [1.0, 1.2])
def test_noise_of_an_output_next_to_its_target_is_all_that_is_left_to_learn(compare, dtype, factor):
    torch.manual_seed(0)
    reference = nn.Sequential(nn.Linear(512, 24))
    candidate = nn.Sequential(InPieces(512, 24))
    candidate.load_state_dict(reference.state_dict())
    x = draw(12, 512)
    off = 1e-4 if dtype is torch.float32 else 3e-2
    target = (reference(x).detach() + off * draw(12, 24, seed=4)).to(dtype)
    losses = {"r": lambda y: nn.functional.mse_loss(y, target), "c": lambda y: factor * (y - target).pow(2).mean()}
    result = compare(reference.to(dtype), candidate.to(dtype), (x.to(dtype),), losses)
    said = {str(pair.verdict) for pair in result.pairs if pair.site.phase == "lossgrad"}
    assert said == ({"noise"} if factor == 1 else said - {"noise", "same"}), result.sentence
    assert result.exit_code == (0 if factor == 1 else 1)


class Experts(nn.Module):
    """Two experts, alike on purpose: who gets a token shows in gradients alone."""

    def __init__(self, sent=None, lost=()):
        super().__init__()
        torch.manual_seed(0)
        self.inp = nn.Linear(8, 8)
        self.experts = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])
        self.experts[1].load_state_dict(self.experts[0].state_dict())
        self.out = nn.Linear(8, 3)
        self.sent, self.lost = sent or [], list(lost)

    def forward(self, x):
        first = torch.arange(len(x)) % 2 == 0
        first[self.sent] = ~first[self.sent]
        x = self.inp(x)
        a, b = (expert(x) for expert in self.experts)
        y = torch.where(first[:, None], a, b)
        keep = torch.ones(len(x), 1)
        keep[self.lost] = 0
        return self.out(keep * y + (1 - keep) * y.detach())


def test_a_row_that_another_of_two_experts_got_is_inconclusive_where_nothing_says_what_chose(compare):
    sides = Experts(), Experts(sent=[3])
    result = compare(*sides, (draw(20, 8),), {"r": squares, "c": squares}, program=False)
    assert result.exit_code != 0, result.sentence


def test_a_row_that_another_of_two_experts_got_is_a_drift_where_the_program_chose(compare):
    result = compare(Experts(), Experts(sent=[3]), (draw(20, 8),), {"r": squares, "c": squares})
    assert result.exit_code == 1
    assert result.first_drift.phase == "agrad"


@pytest.mark.parametrize("candidate", [{"lost": [3]}, {"sent": list(range(9))}, {"sent": [4], "lost": [3]}], ids=str)
def test_rows_that_nobody_got_or_too_many_are_a_drift(compare, candidate):
    result = compare(Experts(), Experts(**candidate), (draw(20, 8),), {"r": squares, "c": squares})
    assert result.exit_code == 1
    assert result.first_drift.phase == "agrad"


class Spread(nn.Module):
    """The variance of every row; `loosely` as a difference of means, which rounds more, and cast to float32 again."""

    def __init__(self, loosely):
        super().__init__()
        self.is_loose = loosely

    def forward(self, x):
        if not self.is_loose:
            return x.var(-1, unbiased=False)
        x = x.double().float()
        return (x * x).mean(-1) - x.mean(-1) ** 2


def test_a_cast_to_the_format_that_is_stored_is_no_shorter_precision(tmp_path):
    """Its own calls explain what it has, and none of them has fewer digits than it declares."""
    x = 30 + draw(8, 64)
    for name, loosely in (("a", False), ("b", True)):
        model = Spread(loosely)
        with fd.trace(model, tmp_path / name), torch.no_grad():
            model(x)
    result = fd.diff(tmp_path / "a", tmp_path / "b", explain=False)
    (found,) = (pair for pair in result.pairs if pair.site.phase == "fwd" and pair.site.port == "out")
    assert str(found.why) == "declared-precision", result.sentence
    assert result.exit_code == 0
