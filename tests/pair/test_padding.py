"""Rows that only the candidate has are padding where nothing reads them, and a mistake where they come out."""

import pytest
import torch
from torch import nn

import firstdrift as fd
from firstdrift import Verdict

TOKENS, WIDTH = 5, 16


class Network(nn.Module):
    """Maps tokens one by one; `padded` appends a token, and `dropped` takes it away again before the last layer."""

    def __init__(self, *, padded, dropped):
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.is_padded, self.is_dropped = padded, dropped

    def forward(self, x):
        if self.is_padded:
            x = nn.functional.pad(x, (0, 0, 0, 1))
        y = torch.relu(self.first(x))
        return self.last(y[:, :TOKENS] if self.is_dropped else y)


def compared(tmp_path, *, dropped):
    torch.manual_seed(0)
    reference, candidate = Network(padded=False, dropped=False), Network(padded=True, dropped=dropped)
    candidate.load_state_dict(reference.state_dict())
    x = torch.randn(2, TOKENS, WIDTH)
    for name, model in ("reference", reference), ("candidate", candidate):
        with fd.trace(model, tmp_path / name), torch.no_grad():
            model(x)
    return fd.diff(tmp_path / "reference", tmp_path / "candidate")


def test_padding_that_nothing_reads_is_cut_off(tmp_path):
    result = compared(tmp_path, dropped=True)
    assert result.exit_code == 0
    (first,) = (pair for pair in result.pairs if pair.site.name == "first" and pair.site.port == "out")
    assert "cut to [0:5]" in first.pair.notes[0]


@pytest.mark.parametrize("named", ["(root)", "last"])
def test_a_result_with_a_row_more_is_never_green(tmp_path, named):
    result = compared(tmp_path, dropped=False)
    assert result.exit_code == 2
    verdicts = {str(pair.site): pair.verdict for pair in result.pairs}
    assert verdicts[f"fwd {named}:out step 0"] is Verdict.NOT_COMPARABLE
