"""That two parts are the same function is tried on the inputs of the run, not only on random ones."""

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import firstdrift as fd  # noqa: E402


class Loudness(nn.Module):
    """What is far below the loudest is cut off: the loudest of each sample, or of the whole batch."""

    def __init__(self, dims):
        super().__init__()
        self.register_buffer("bands", torch.rand(6, 20, generator=torch.Generator().manual_seed(0)))
        self.dims = dims

    def forward(self, x):
        power = ((x.unfold(1, 20, 10) ** 2) @ self.bands.t()).clamp(min=1e-10).log10()
        return torch.maximum(power, power.amax(self.dims, keepdim=True) - 2)


class Capped(nn.Module):
    def __init__(self, cap):
        super().__init__()
        torch.manual_seed(0)
        self.into, self.out, self.cap = nn.Linear(8, 8), nn.Linear(8, 8), cap

    def forward(self, x):
        return self.out(self.into(x).clamp(max=self.cap))


def among_containers(module, count):
    return module if not count else nn.Sequential(among_containers(module, count - 1), nn.Tanh())


@pytest.mark.parametrize("containers", range(3))
@pytest.mark.parametrize("kind", ["loudness", "cap"])
def test_what_differs_on_these_inputs_alone_is_a_drift(kind, containers):
    draw = torch.Generator().manual_seed(1)
    if kind == "loudness":  # as loud as one another, random samples hide that one is quiet here
        sides = Loudness((1, 2)), Loudness((0, 1, 2))
        x = torch.randn(3, 200, generator=draw) * torch.tensor([[1.0], [0.01], [0.2]])
    else:
        sides, x = (Capped(30.0), Capped(1e4)), torch.randn(4, 8, generator=draw) * 100
    reference, candidate = (among_containers(side, containers) for side in sides)
    result = fd.check(reference=reference, candidate=candidate, inputs=(x,))
    assert result.exit_code == 1, result.sentence
