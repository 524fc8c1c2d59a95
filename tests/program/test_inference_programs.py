"""In inference mode operations arrive whole: what they consist of runs as if nobody watched, and replays."""

import pytest
import torch
from tests.program.replaying import assert_replays, record
from torch import nn
from torch.nn import functional

import firstdrift as fd


class Composites(nn.Module):
    """Operations that consist of others, on tensors of which some were made outside inference mode."""

    def __init__(self, body):
        super().__init__()
        self.body, self.linear = body, nn.Linear(64, 64)

    def forward(self, x, y):
        return self.linear(self.body(self, x, y).float().mean()[None].expand(64)), self.body(self, x, y)


BODIES = {
    "a linear layer over a transposed input": lambda self, x, y: self.linear(x[:2, :5].transpose(0, 1)),
    "einsum": lambda self, x, y: torch.einsum("bij,bkj->bik", x, y),
    "tensordot": lambda self, x, y: torch.tensordot(x, y, ([2], [2])),
    "a chain of products": lambda self, x, y: torch.linalg.multi_dot([x[0], y[0].T, y[0]]),
    "products with a parameter": lambda self, x, y: x.transpose(0, 1) @ self.linear.weight,
    "distances": lambda self, x, y: torch.cdist(x, y),
    "attention": lambda self, x, y: functional.scaled_dot_product_attention(x, y, y),
    "an interpolation": lambda self, x, y: functional.interpolate(x, scale_factor=2.0, mode="linear"),
    "chunks": lambda self, x, y: torch.cat(x.chunk(3, 1)[::-1], 1),
    "a convolution": lambda self, x, y: functional.conv1d(x, self.linear.weight[:48].reshape(4, 6, 128)[:, :, :3]),
    "a norm of layers": lambda self, x, y: functional.layer_norm(x, (64,), self.linear.bias),
    "cosines": lambda self, x, y: functional.cosine_similarity(x, y[:, :6], -1),
}


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("cast", [False, True], ids=["as it is", "autocast"])
@pytest.mark.parametrize("kind", BODIES)
def test_what_arrives_whole_computes_and_replays_as_if_nobody_watched(tmp_path, kind, cast):
    torch.manual_seed(0)
    model, x, y = Composites(BODIES[kind]), torch.randn(5, 6, 64), torch.randn(5, 7, 64)

    def run():
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=cast):
            return model(x, y)

    expected, found = run(), []
    replayed = record(tmp_path / "t", model, lambda: found.extend(run()))
    assert [one.dtype for one in found] == [one.dtype for one in expected]
    assert all(map(torch.equal, found, expected))
    assert_replays(replayed)
    with fd.trace(model, tmp_path / "without", program=False):
        assert all(map(torch.equal, run(), expected))


@pytest.mark.parametrize("program", [False, True])
def test_what_casts_inside_one_operation_keeps_its_numbers(tmp_path, program):
    torch.manual_seed(0)
    bilinear = Composites(lambda self, x, y: functional.bilinear(x, y[:, :6], self.linear.weight[None]))
    encoder = nn.TransformerEncoderLayer(64, 4, batch_first=True).eval()
    x, y = torch.randn(5, 6, 64), torch.randn(5, 7, 64)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        expected = (*bilinear(x, y), encoder(x))
        with fd.trace(bilinear, tmp_path / "bilinear", program=program):
            found = bilinear(x, y)
        with fd.trace(encoder, tmp_path / "encoder", program=program):
            found = (*found, encoder(x))
    assert [one.dtype for one in found] == [one.dtype for one in expected]
    assert all(map(torch.equal, found, expected))


def test_a_recurrent_layer_keeps_the_precision_of_autocast(tmp_path):
    torch.manual_seed(0)
    model, x = nn.LSTM(8, 8), torch.randn(3, 2, 8)

    def run():
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
            return model(x)[0]

    expected, found = run(), []
    assert_replays(record(tmp_path / "t", model, lambda: found.append(run())))
    assert found[0].dtype == expected.dtype
    assert torch.equal(found[0], expected)
