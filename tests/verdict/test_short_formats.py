"""From two traces in a short format: other layouts, masks on a kink, rows sent elsewhere, losses near their target."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import firstdrift as fd
from firstdrift._kernels import measure
from firstdrift.compare.result import Verdict
from firstdrift.verdict.flips import explained_by_flips, explained_by_kinks
from firstdrift.verdict.handed_on import multiple_of_error
from firstdrift.verdict.introduced import Introduced, settle
from firstdrift.verdict.parts import worst_for_its_size, worst_part

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


@pytest.mark.parametrize("share", [None, 1.0])
@pytest.mark.parametrize("change", [reorder, move_scales, fold_gain])
@pytest.mark.parametrize("where", [(0,), (1,), (0, 1)])
def test_another_layout_is_none_to_worry_about_in_bf16_either(compare, share, change, where):
    result = compare(blocks(share), changed(blocks(share), change, where), (draw(20, WIDTH).bfloat16(),))
    assert result.exit_code == 0, result.sentence
    assert result.cause.label == "layout-equivalent"


def left_half(block):
    block.down.weight.copy_(block.down.weight[:, ORDER])
    block.up.weight[: HIDDEN // 2].copy_(block.up.weight[ORDER][: HIDDEN // 2])


def fold_half(block):
    block.norm.weight.fill_(1)


@pytest.mark.parametrize("share", [None, 0.01], ids=["alone", "next to nothing beside what it is added to"])
@pytest.mark.parametrize("change", [reorder_up, left_half, fold_half])
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


def masked(x, cut):
    """A gradient behind a mask: ones and minus ones of random size, where x is between 0 and a cap."""
    gradient = np.random.default_rng(2).standard_normal(x.shape)
    return np.where((x > 0) & (x < 6), gradient, 0.0), np.where(cut(x), gradient, 0.0)


@pytest.fixture
def values():
    x = 3 + 4 * np.random.default_rng(1).standard_normal((20, 30))
    x[0, :3], x[1, :3] = 0.0, 6.0
    return x


CUTS = {"at zero": lambda x: (x >= 0) & (x < 6), "at the cap": lambda x: (x > 0) & (x <= 6), "at both": None}


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_on_a_kink_each_side_takes_its_own_subgradient(values, cut):
    cut = cut or (lambda x: (x >= 0) & (x <= 6))
    assert explained_by_flips(masked(values, cut), (values, values), 1e-2, 4e-3)


WRONG_CUTS = {
    "another cap": lambda x: (x > 0) & (x < 4),
    "no cap": lambda x: x > 0,
    "no mask": lambda x: x == x,
    "another kink": lambda x: (x > 0.5) & (x < 6),
}


@pytest.mark.parametrize("cut", WRONG_CUTS.values(), ids=WRONG_CUTS)
def test_a_mask_that_is_wrong_is_no_matter_of_kinks(values, cut):
    assert explained_by_flips(masked(values, cut), (values, values), 1e-2, 4e-3) is None


def test_zeros_in_plenty_are_a_rule_and_no_accident(values):
    values[:4] = 0.0
    assert explained_by_flips(masked(values, CUTS["at zero"]), (values, values), 1e-2, 4e-3) is None


def test_a_flip_does_not_vouch_for_a_part_that_is_wrong_elsewhere():
    x = np.random.default_rng(0).standard_normal((400, 50))
    z, ours = x.copy(), np.random.default_rng(1).standard_normal((400, 50))
    x[0, 0], z[0, 0] = 1e-4, -1e-4
    theirs = ours.copy()
    theirs[7] *= 1.5  # within what noise explains of the whole, and far beyond it in its row
    assert explained_by_flips((ours, theirs), (x, z), 5e-2, 4e-3) is None


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


def terms():
    x, y, z = (draw(30, 8, seed=seed) for seed in (1, 2, 3))
    x[3, 4], y[3, 4], z[3, 4] = 1.0, -1.0, 1e-9
    return x, y, z


def squares(y):
    return y.square().mean()


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


def test_only_a_multiple_of_an_outputs_error_is_handed_on():
    random = np.random.default_rng(0)
    x, rounding, gradient = random.standard_normal((3, 30, 20))
    z = x + 1e-3 * rounding
    assert multiple_of_error((gradient, gradient + 0.2 * rounding), (x, z), 1e-2) == pytest.approx(200)
    for error in (0.2 * gradient, 0.2 * rounding[::-1], 0.2 * rounding * x):
        assert multiple_of_error((gradient, gradient + error), (x, z), 1e-2) is None


def test_an_output_of_zero_is_on_a_kink_of_the_loss():
    random = np.random.default_rng(0)
    x, gradient = random.standard_normal((2, 20, 20))
    z, other = x.copy(), gradient.copy()
    x[0, :2], z[0, :2], other[0, :2] = 2e-3, 0.0, 3.0
    assert explained_by_kinks((gradient, other), (x, z), 1e-2, 4e-3)
    other[5, 5] += 3.0
    assert explained_by_kinks((gradient, other), (x, z), 1e-2, 4e-3) is None


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
    assert str(result.verdict) == "inconclusive", result.sentence
    assert "sent another way" in result.sentence


def test_a_row_that_another_of_two_experts_got_is_a_drift_where_the_program_chose(compare):
    result = compare(Experts(), Experts(sent=[3]), (draw(20, 8),), {"r": squares, "c": squares})
    assert result.exit_code == 1
    assert result.first_drift.phase == "agrad"


@pytest.mark.parametrize("candidate", [{"lost": [3]}, {"sent": list(range(9))}, {"sent": [4], "lost": [3]}], ids=str)
def test_rows_that_nobody_got_or_too_many_are_a_drift(compare, candidate):
    result = compare(Experts(), Experts(**candidate), (draw(20, 8),), {"r": squares, "c": squares})
    assert result.exit_code == 1
    assert result.first_drift.phase == "agrad"


def test_noise_is_where_the_numbers_are_large():
    ours = np.random.default_rng(0).standard_normal((40, 60))
    ours[:, 9] *= 300
    noisy = ours * (1 + 0.02 * np.random.default_rng(1).standard_normal(ours.shape))
    assert worst_for_its_size(ours, noisy, measure(ours, noisy)) < 0.1 < worst_part(measure(ours, noisy)) / 1.2
    noisy[:, 5] += 0.3 * np.abs(ours).max()  # a column of small numbers
    assert worst_for_its_size(ours, noisy, measure(ours, noisy)) > 1


class Alone:
    """A graph in which nothing is read by anything."""

    def consumers(self, site):
        return []

    def introducer(self, site):
        return "something"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_of_a_gradient_that_says_nothing_a_replay_knows_no_more_in_a_short_format(compare, dtype):
    model = blocks().to(dtype)
    result = compare(model, copy.deepcopy(model), (draw(20, WIDTH).to(dtype),), {"r": squares, "c": squares})
    open_one = next(pair for pair in result.pairs if (pair.site.phase, pair.site.name) == ("agrad", "1.up"))
    judged = replace(open_one, verdict=Verdict.INCONCLUSIVE)
    found = settle([judged], {judged.site: Introduced(1.0, 0.01, 1.0, "replayed")}, Alone(), {})
    assert str(found[0].verdict) == ("inconclusive" if dtype is torch.bfloat16 else "drift")
