"""A tensor that one side makes in another shape: green where both make the same of it, and only there."""

import pytest

import firstdrift as fd

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

X = torch.randn(3, 2, 6, 6, generator=torch.Generator().manual_seed(1))


def filled(model):
    rng = torch.Generator().manual_seed(0)
    for one in model.parameters():
        one.data = 0.3 * torch.randn(one.shape, generator=rng)
    return model


class Convolved(nn.Module):
    """Padded inside, or before in some way; `keeps` gives what was padded as well."""

    def __init__(self, mode=None, keeps=False):
        super().__init__()
        self.pass_, self.conv, self.out = nn.Identity(), nn.Conv2d(2, 4, 3, padding=0 if mode else 1), nn.Linear(6, 2)
        self.mode, self.keeps = mode, keeps

    def forward(self, x):
        x = functional.pad(x, (1, 1, 1, 1), mode=self.mode) if self.mode else x
        x = self.pass_(x)
        y = self.out(self.conv(x))
        return (y, x) if self.keeps else y


class Placed(nn.Module):
    """Positions once, or once a sample; `late` is a sample whose positions begin later."""

    def __init__(self, each=False, late=None, other=None):
        super().__init__()
        self.words, self.places, self.head = nn.Embedding(9, 4), nn.Embedding(8, 4), nn.Linear(4, 3)
        self.each, self.late, self.other = each, late, other

    def forward(self, ids):
        at = torch.arange(ids.shape[1])
        if self.each:
            at = at.repeat(len(ids), 1)
            at = at if self.late is None else at + (torch.arange(len(ids)) == self.late)[:, None]
        if self.other is not None:
            at = at + (ids == self.other).long() if self.each else at
        return self.head(self.words(ids) + self.places(at))


IDS = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 1], [2, 2, 5, 3]])


def checked(ref, cand, x, **more):
    return fd.check(reference=filled(ref), candidate=filled(cand), inputs=(x,), **more)


def diffed(tmp_path, ref, cand, x):
    for name, model in (("ref", ref), ("cand", cand)):
        with fd.trace(filled(model), tmp_path / name, program=True):
            model(x)
    return fd.diff(tmp_path / "ref", tmp_path / "cand")


def test_padding_before_a_convolution_is_padding_inside(tmp_path):
    assert checked(Convolved(), Convolved("constant"), X).exit_code == 0
    result = diffed(tmp_path, Convolved(), Convolved("constant"), X)
    assert result.exit_code == 0
    (padded,) = [one for one in result.pairs if (one.site.name, one.site.port) == ("conv", "in.0")]
    assert padded.chain[-1].why == "same-function"


def test_other_padding_is_a_drift(tmp_path):
    assert checked(Convolved(), Convolved("replicate"), X).exit_code == 1
    assert diffed(tmp_path, Convolved(), Convolved("replicate"), X).exit_code == 1


def test_other_padding_that_this_batch_does_not_show_is_not_green():
    x = X.clone()
    x[..., 0], x[..., -1], x[..., 0, :], x[..., -1, :] = 0, 0, 0, 0
    assert checked(Convolved(), Convolved("replicate"), x).exit_code == 2


def test_what_the_model_gives_in_another_shape_is_not_green():
    assert checked(Convolved(keeps=True), Convolved("constant", keeps=True), X).exit_code == 2


@pytest.mark.parametrize(
    "training", [{}, {"loss_fn": lambda out, y: (out - y).square().mean(), "target": torch.zeros(())}]
)
def test_positions_may_be_those_of_a_batch_or_of_every_sample(training):
    assert checked(Placed(), Placed(each=True), IDS, **training).exit_code == 0


def test_other_positions_of_one_sample_are_a_drift():
    assert checked(Placed(), Placed(each=True, late=1), IDS).exit_code == 1


def test_positions_that_depend_on_a_word_are_a_drift():
    assert checked(Placed(), Placed(each=True, other=7), IDS).exit_code == 1


class Split(nn.Module):
    """Two outputs, one of which may be cut; the second is read by nobody, or in part."""

    def __init__(self, length=8, factor=1.0, reads=False):
        super().__init__()
        self.body, self.head = Halves(length, factor), nn.Linear(4, 2)
        self.reads = reads

    def forward(self, x):
        first, second = self.body(x)
        return self.head(first + second[:, :4] if self.reads else first)


class Halves(nn.Module):
    def __init__(self, length, factor):
        super().__init__()
        self.left, self.right = nn.Linear(6, 4), nn.Linear(6, 8)
        self.length, self.factor = length, factor

    def forward(self, x):
        return self.left(x), self.right(x)[:, : self.length] * self.factor


ROWS = torch.randn(5, 6, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("factor", [1.0, 1.5])
def test_an_output_that_was_cut_and_that_nobody_reads_is_not_green(factor):
    assert checked(Split(), Split(6, factor), ROWS).exit_code == 2


def test_an_output_that_was_cut_to_what_is_read_of_it_is_green():
    assert checked(Split(reads=True), Split(6, reads=True), ROWS).exit_code == 0


def test_an_output_that_was_cut_and_is_wrong_is_a_drift():
    assert checked(Split(reads=True), Split(6, 1.01, reads=True), ROWS).exit_code == 1
