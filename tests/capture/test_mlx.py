"""MLX models: one call, every module's tensors."""

from typing import ClassVar

import numpy as np
import pytest

mx = pytest.importorskip("mlx.core", reason="the extra mlx is not installed")

import mlx.nn as nn  # noqa: E402
from mlx import optimizers  # noqa: E402
from mlx.utils import tree_flatten  # noqa: E402
from tests.capture.engine_conformance import EngineConformance  # noqa: E402

import firstdrift as fd  # noqa: E402

pytestmark = pytest.mark.engines
RANDOM = np.random.default_rng(0)
X = mx.array(RANDOM.standard_normal((2, 5, 8)).astype(np.float32))
Y = mx.array(RANDOM.integers(0, 3, (2, 5)))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln, self.fc1, self.fc2 = nn.LayerNorm(8, eps=1e-3), nn.Linear(8, 16), nn.Linear(16, 8)
        self.act = nn.GELU()

    def __call__(self, x):
        return x + self.fc2(self.act(self.fc1(self.ln(x))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks, self.head = [Block(), Block()], nn.Linear(8, 3, bias=False)

    def __call__(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def network():
    mx.random.seed(0)
    return Net()


def loss_of(outputs, target):
    return nn.losses.cross_entropy(outputs, target, reduction="mean")


def of_phase(trace, phase):
    return {f"{r.site.name}.{r.site.port}": trace.array(r) for r in trace if r.site.phase == phase}


class TestConformance(EngineConformance):
    modules = (
        *(f"blocks.{n}{part}" for n in (0, 1) for part in (".ln", ".fc1", ".act", ".fc2", "")), "head", "",
    )  # fmt: skip
    operations: ClassVar = {"blocks.0.ln": "LayerNorm", "blocks.1.act": "GELU", "head": "Linear"}
    settings: ClassVar = {"blocks.0.ln": {"eps": 1e-3, "dims": 8}}
    weights: ClassVar = {name: np.array(array) for name, array in tree_flatten(network().parameters())}

    @classmethod
    def record(cls, path, **options):
        return fd.trace(network(), path, inputs=(X,), **options)

    @classmethod
    def run(cls):
        return np.array(network()(X))


def test_a_step_of_training_is_that_of_mlx(tmp_path):
    model, twin = network(), network()
    trace = fd.trace(
        model, tmp_path / "t", inputs=(X,), loss_fn=loss_of, target=Y, optimizer=optimizers.AdamW(1e-2)
    )  # fmt: skip
    loss, gradients = nn.value_and_grad(twin, lambda x, y: loss_of(twin(x), y))(X, Y)
    optimizer = optimizers.AdamW(1e-2)
    optimizer.update(twin, gradients)
    assert of_phase(trace, "loss")["loss.out"] == np.array(loss)
    for phase, tree in (("grad", gradients), ("weight_after", twin.parameters())):
        for name, array in tree_flatten(tree):
            assert of_phase(trace, phase)[name].tobytes() == np.array(array).tobytes(), (phase, name)
    moments = of_phase(trace, "optim")
    assert np.array_equal(moments["head.weight.exp_avg"], np.array(optimizer.state["head"]["weight"]["m"]))


def test_bfloat16_stays_bfloat16(tmp_path):
    model = network()
    model.set_dtype(mx.bfloat16)
    trace = fd.trace(model, tmp_path / "t", inputs=(X.astype(mx.bfloat16),))
    assert {record.dtype for record in trace} == {"bf16"}


def test_a_choice_of_classes_is_kept(tmp_path):
    trace = fd.trace(network(), tmp_path / "t", inputs=(X,), classes="LayerNorm", phases="fwd")
    assert {record.site.name for record in trace} == {"blocks.0.ln", "blocks.1.ln"}


def test_classes_of_modules_are_as_before(tmp_path):
    before = nn.Linear.__call__
    fd.trace(network(), tmp_path / "t", inputs=(X,))
    assert nn.Linear.__call__ is before


def test_without_inputs_the_error_says_what_to_give(tmp_path):
    with pytest.raises(fd.CaptureError, match="an MLX model is run by fd.trace itself; give inputs"):
        fd.trace(network(), tmp_path / "t")


def test_a_planted_eps_is_found_where_it_is(tmp_path):
    wrong = network()
    wrong.blocks[1].ln.eps = 1e-1
    fd.trace(network(), tmp_path / "reference", inputs=(X,))
    fd.trace(wrong, tmp_path / "candidate", inputs=(X,))
    result = fd.diff(tmp_path / "reference", tmp_path / "candidate", explain=False)
    assert (result.exit_code, result.first_drift.site.name) == (1, "blocks.1.ln")
