"""What `fd.check` says of parameters that only the reference has, where all that is computed agrees."""

import pytest
import torch
from torch import nn

import firstdrift as fd

WIDTH = 16


class Adapted(nn.Module):
    """A layer with an adapter that adds nothing yet, as adapters begin."""

    def __init__(self, *, adapted):
        super().__init__()
        self.base, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 5)
        if adapted:
            self.down, self.up = nn.Linear(WIDTH, 4, bias=False), nn.Linear(4, WIDTH, bias=False)
            nn.init.zeros_(self.up.weight)

    def forward(self, x):
        y = self.base(x)
        return self.head(y + self.up(self.down(y)) if hasattr(self, "up") else y)


class Tabled(nn.Module):
    """Positions from a buffer, or computed where they are needed."""

    def __init__(self, *, kept):
        super().__init__()
        self.head = nn.Linear(WIDTH, 5)
        if kept:
            self.register_buffer("table", torch.linspace(0, 1, WIDTH))

    def forward(self, x):
        return self.head(x + (self.table if hasattr(self, "table") else torch.linspace(0, 1, WIDTH)))


def both(kind, option):
    sides = []
    for value in (True, False):
        torch.manual_seed(0)
        sides.append(kind(**{option: value}))
    sides[1].load_state_dict(sides[0].state_dict(), strict=False)
    return sides


@pytest.mark.parametrize("trained", [False, True])
def test_an_adapter_that_adds_nothing_yet_cannot_be_left_out_unnoticed(trained):
    """The outputs are bit-equal; a training run would not be."""
    reference, candidate = both(Adapted, "adapted")
    more = {"optimizer": lambda model: torch.optim.SGD(model.parameters(), 0.1)} if trained else {}
    loss = (lambda output: output.square().mean()) if trained else None
    result = fd.check(
        reference=reference, candidate=candidate, inputs=torch.randn(3, WIDTH), loss_fn=loss, train=trained, **more
    )
    assert result.exit_code == 2
    assert "have no counterpart" in result.sentence
    assert {"up", "down"} <= {item.site.name for item in result.reference_only if item.site.phase == "weight"}


def test_a_table_that_the_candidate_computes_where_it_needs_it_is_no_parameter():
    reference, candidate = both(Tabled, "kept")
    result = fd.check(reference=reference, candidate=candidate, inputs=torch.randn(3, WIDTH))
    assert result.exit_code == 0, result.sentence


class Activated(nn.Linear):
    """A layer that states nothing of its activation."""

    def forward(self, x):
        y = super().forward(x)
        return torch.where(y > 0, y, self.slope * y)


def test_a_check_can_judge_without_explaining():
    torch.manual_seed(0)
    reference, candidate = Activated(8, 8), Activated(8, 8)
    candidate.load_state_dict(reference.state_dict())
    reference.slope, candidate.slope = torch.tensor(0.25), torch.tensor(0.125)
    asked = {"reference": reference, "candidate": candidate, "inputs": torch.randn(4, 8)}
    explained, judged = fd.check(**asked), fd.check(**asked, explain=False)
    assert explained.first_drift.cause.label != "unknown"
    assert judged.first_drift.cause is None
    assert (
        (judged.first_drift.port, judged.exit_code) == (explained.first_drift.port, explained.exit_code) == ("out", 1)
    )
