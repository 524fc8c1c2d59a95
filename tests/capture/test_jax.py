"""JAX models: flax nnx, flax linen, equinox and plain functions, each in one call."""

import json
from typing import ClassVar

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="the extra jax is not installed")
nnx = pytest.importorskip("flax.nnx", reason="flax is not installed")
linen = pytest.importorskip("flax.linen", reason="flax is not installed")
eqx = pytest.importorskip("equinox", reason="equinox is not installed")
optax = pytest.importorskip("optax", reason="optax is not installed")

import jax.numpy as jnp  # noqa: E402
from tests.capture.engine_conformance import EngineConformance  # noqa: E402

import firstdrift as fd  # noqa: E402

pytestmark = pytest.mark.engines
RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((2, 5, 8)).astype(np.float32)
Y = RANDOM.integers(0, 3, (2, 5))
BLOCKS = ("blocks.0", "blocks.1")
MODULES = tuple(f"{block}{part}" for block in BLOCKS for part in (".ln", ".fc1", ".fc2", ""))


def weights():
    """By module and port, as flax stores them."""
    held = {}
    for block in BLOCKS:
        held[f"{block}.ln.scale"] = 1 + RANDOM.standard_normal(8) / 4
        held[f"{block}.ln.bias"], held[f"{block}.fc1.bias"] = RANDOM.standard_normal(8), RANDOM.standard_normal(16)
        held[f"{block}.fc1.kernel"] = RANDOM.standard_normal((8, 16)) / 4
        held[f"{block}.fc2.kernel"] = RANDOM.standard_normal((16, 8)) / 4
        held[f"{block}.fc2.bias"] = RANDOM.standard_normal(8)
    held["head.kernel"] = RANDOM.standard_normal((8, 3))
    return {name: array.astype(np.float32) for name, array in held.items()}


WEIGHTS = weights()


def loss_of(outputs, target):
    return optax.softmax_cross_entropy_with_integer_labels(outputs, target).mean()


def of_phase(trace, phase):
    return {f"{r.site.name}.{r.site.port}": trace.array(r) for r in trace if r.site.phase == phase}


# ---- the network in each of its forms


class NnxBlock(nnx.Module):
    def __init__(self, rngs, eps=1e-5, gelu=False):
        self.ln = nnx.LayerNorm(8, epsilon=eps, rngs=rngs)
        self.fc1, self.fc2 = nnx.Linear(8, 16, rngs=rngs), nnx.Linear(16, 8, rngs=rngs)
        self.approximate = gelu

    def __call__(self, x):
        return x + self.fc2(jax.nn.gelu(self.fc1(self.ln(x)), approximate=self.approximate))


class NnxNet(nnx.Module):
    def __init__(self, rngs, **options):
        self.blocks = nnx.List([NnxBlock(rngs), NnxBlock(rngs, **options)])
        self.head = nnx.Linear(8, 3, use_bias=False, rngs=rngs)

    def __call__(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def nnx_net(held=WEIGHTS, dtype=jnp.float32, **options):
    model = NnxNet(nnx.Rngs(0), **options)
    for name, array in held.items():
        *path, port = name.split(".")
        module = model
        for part in path:
            module = module[int(part)] if part.isdigit() else getattr(module, part)
        setattr(module, port, nnx.Param(jnp.asarray(array, dtype)))
    return model


class LinenBlock(linen.Module):
    def setup(self):
        self.ln = linen.LayerNorm(epsilon=1e-5)
        self.fc1, self.fc2 = linen.Dense(16), linen.Dense(8)

    def __call__(self, x):
        return x + self.fc2(jax.nn.gelu(self.fc1(self.ln(x)), approximate=False))


class LinenNet(linen.Module):
    def setup(self):
        self.blocks = [LinenBlock(), LinenBlock()]
        self.head = linen.Dense(3, use_bias=False)

    def __call__(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def linen_variables():
    tree = {}
    for name, array in WEIGHTS.items():
        *path, port = name.replace("blocks.", "blocks_").split(".")
        inside = tree
        for part in path:
            inside = inside.setdefault(part, {})
        inside[port] = jnp.asarray(array)
    return {"params": tree}


class EqxBlock(eqx.Module):
    ln: eqx.nn.LayerNorm
    fc1: eqx.nn.Linear
    fc2: eqx.nn.Linear

    def __call__(self, x):
        return x + self.fc2(jax.nn.gelu(self.fc1(self.ln(x)), approximate=False))


class EqxNet(eqx.Module):
    blocks: list
    head: eqx.nn.Linear

    def __call__(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def eqx_net():
    def linear(name, bias=True):
        kernel = WEIGHTS[f"{name}.kernel"].T
        made = eqx.nn.Linear(kernel.shape[1], kernel.shape[0], use_bias=bias, key=jax.random.key(0))
        made = eqx.tree_at(lambda one: one.weight, made, jnp.asarray(kernel))
        return eqx.tree_at(lambda one: one.bias, made, jnp.asarray(WEIGHTS[f"{name}.bias"])) if bias else made

    def block(name):
        norm = eqx.tree_at(
            lambda one: (one.weight, one.bias), eqx.nn.LayerNorm(8),
            (jnp.asarray(WEIGHTS[f"{name}.ln.scale"]), jnp.asarray(WEIGHTS[f"{name}.ln.bias"])),
        )  # fmt: skip
        return EqxBlock(norm, linear(f"{name}.fc1"), linear(f"{name}.fc2"))

    return EqxNet([block(name) for name in BLOCKS], linear("head", bias=False))


def batched(model, x):
    return jax.vmap(jax.vmap(model))(x)


def function(params, x):
    """The network without modules; taps say what is what."""
    for number, block in enumerate(params["blocks"]):
        mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        h = (x - mean) * jax.lax.rsqrt(var + 1e-5) * block["ln"]["scale"] + block["ln"]["bias"]
        h = fd.tap(f"blocks.{number}.ln", h)
        h = fd.tap(f"blocks.{number}.fc1", h @ block["fc1"]["kernel"] + block["fc1"]["bias"])
        h = fd.tap(f"blocks.{number}.fc2", jax.nn.gelu(h, False) @ block["fc2"]["kernel"] + block["fc2"]["bias"])
        x = fd.tap(f"blocks.{number}", x + h)
    return fd.tap("head", x @ params["head"]["kernel"])


def function_params():
    tree = linen_variables()["params"]
    return {"blocks": [tree["blocks_0"], tree["blocks_1"]], "head": tree["head"]}


# ---- what every recorder has to keep


class TestNnx(EngineConformance):
    modules = (*MODULES, "head", "")
    operations: ClassVar = {"blocks.0.ln": "LayerNorm", "blocks.1.fc1": "Linear", "": "NnxNet"}
    settings: ClassVar = {"blocks.0.ln": {"epsilon": 1e-5}, "head": {"in_features": 8, "use_bias": False}}
    weights = WEIGHTS

    @classmethod
    def record(cls, path, **options):
        return fd.trace(nnx_net(), path, inputs=(X,), **options)

    @classmethod
    def run(cls):
        return nnx_net()(X)


class TestLinen(EngineConformance):
    modules = tuple(name.replace("blocks.", "blocks_") for name in TestNnx.modules)
    operations: ClassVar = {"blocks_0.ln": "LayerNorm", "blocks_1.fc1": "Dense", "": "LinenNet"}
    settings: ClassVar = {"blocks_0.ln": {"epsilon": 1e-5}, "head": {"features": 3, "use_bias": False}}
    weights: ClassVar = {name.replace("blocks.", "blocks_"): array for name, array in WEIGHTS.items()}

    @classmethod
    def record(cls, path, **options):
        return fd.trace(LinenNet(), path, inputs=(X,), params=linen_variables(), **options)

    @classmethod
    def run(cls):
        return LinenNet().apply(linen_variables(), X)


class TestEquinox(EngineConformance):
    modules = TestNnx.modules
    operations: ClassVar = {"blocks.0.ln": "LayerNorm", "blocks.1.fc1": "Linear", "": "EqxNet"}
    settings: ClassVar = {"blocks.0.ln": {"eps": 1e-5}, "head": {"in_features": 8, "use_bias": False}}
    weights: ClassVar = {
        name.replace("kernel", "weight").replace("scale", "weight"): array.T if "kernel" in name else array
        for name, array in WEIGHTS.items()
    }

    @classmethod
    def record(cls, path, **options):
        return fd.trace(batched, path, inputs=(eqx_net(), X), **options)

    @classmethod
    def run(cls):
        return batched(eqx_net(), X)


class TestFunction(EngineConformance):
    modules = TestNnx.modules
    operations: ClassVar = {"blocks.0.ln": "tap", "": "function"}
    settings: ClassVar = {}
    weights = WEIGHTS

    @classmethod
    def record(cls, path, **options):
        return fd.trace(function, path, inputs=(function_params(), X), **options)

    @classmethod
    def run(cls):
        return function(function_params(), jnp.asarray(X))


# ---- training


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    path = tmp_path_factory.mktemp("jax") / "trained"
    return fd.trace(nnx_net(), path, inputs=(X,), loss_fn=loss_of, target=Y, optimizer=optax.adamw(1e-3))


def test_loss_gradients_and_update_are_those_of_jax(trained):
    model = nnx_net()
    graph, params = nnx.split(model)

    def loss(params):
        return loss_of(nnx.merge(graph, params)(X), Y)

    value, gradients = jax.value_and_grad(loss)(params)
    updates, state = optax.adamw(1e-3).update(gradients, optax.adamw(1e-3).init(params), params)
    after = optax.apply_updates(params, updates)
    assert of_phase(trained, "loss")["loss.out"] == value
    for phase, tree in (("grad", gradients), ("weight_after", after)):
        held = of_phase(trained, phase)
        assert held["blocks.1.fc1.kernel"].tobytes() == np.asarray(tree["blocks"][1]["fc1"]["kernel"][...]).tobytes()
        assert held.keys() == WEIGHTS.keys()
    optim = of_phase(trained, "optim")
    assert optim["head.kernel.exp_avg"].tobytes() == np.asarray(state[0].mu["head"]["kernel"][...]).tobytes()
    assert optim["head.kernel.exp_avg_sq"].tobytes() == np.asarray(state[0].nu["head"]["kernel"][...]).tobytes()
    assert optim["head.kernel.step"] == 1


def test_gradients_of_outputs_are_those_of_jax(trained):
    logits, kernel = of_phase(trained, "fwd")[".out"], WEIGHTS["head.kernel"]
    at_logits = jax.grad(loss_of)(jnp.asarray(logits), Y)
    assert of_phase(trained, "lossgrad")["loss.out"].tobytes() == np.asarray(at_logits).tobytes()
    found = of_phase(trained, "agrad")
    assert found.keys() == {f"{name}.out" for name in TestNnx.modules}
    assert np.allclose(found["blocks.1.out"], at_logits @ kernel.T, rtol=1e-5)


def test_inputs_of_modules_are_what_was_computed_before_them(trained):
    held = of_phase(trained, "fwd")
    for module, made in ((".in.0", None), ("blocks.0.fc1.in.0", "blocks.0.ln.out"), ("head.in.0", "blocks.1.out")):
        assert np.array_equal(held[module], X if made is None else held[made])


def test_every_tensor_behind_the_inputs_is_in_the_program_and_replays(trained):
    from firstdrift.program.interpreter import Interpreter
    from firstdrift.program.written.read_program import read_program

    step = read_program(trained).steps[0]
    values = dict(Interpreter(step, trained).run())
    assert {record.site for record in trained} == step.sites.keys()
    for site, (node, at) in step.sites.items():
        array = trained.array(site)
        assert np.allclose(values[node][at], array, rtol=1e-4, atol=1e-5 * np.abs(array).max()), site


def test_settings_of_the_optimizer_are_said_where_optax_keeps_them(trained, tmp_path):
    assert "optimizer" not in trained.header
    tx = optax.inject_hyperparams(optax.adamw)(1e-3, weight_decay=0.25)
    trace = fd.trace(nnx_net(), tmp_path / "t", inputs=(X,), loss_fn=loss_of, target=Y, optimizer=tx)
    assert trace.header["optimizer"]["class"] == "AdamW"
    (group,) = trace.header["optimizer"]["groups"]
    assert {key: group[key] for key in ("lr", "betas", "weight_decay")} == {
        "lr": 1e-3, "betas": [0.9, 0.999], "weight_decay": 0.25,
    }  # fmt: skip


def test_an_optimizer_goes_on_from_a_state(tmp_path):
    params = function_params()
    tx = optax.sgd(0.1, momentum=0.9)
    state = jax.tree.map(jnp.ones_like, tx.init(params))
    trace = fd.trace(
        function, tmp_path / "t", inputs=(params, X), loss_fn=loss_of, target=Y, optimizer=(tx, state)
    )  # fmt: skip
    gradient, after = of_phase(trace, "grad")["head.kernel"], of_phase(trace, "optim")["head.kernel.momentum_buffer"]
    assert np.allclose(after, gradient + 0.9, atol=1e-6)


# ---- the same network in torch


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    path = tmp_path_factory.mktemp("jax") / "reference"
    tx = optax.adamw(1e-3, weight_decay=0.1)
    return fd.trace(nnx_net(), path, inputs=(X,), loss_fn=loss_of, target=Y, optimizer=tx)


def torch_trace(path, eps=1e-5, gelu="none", decay=0.1, held=None):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    nn, functional = torch.nn, torch.nn.functional

    class Block(nn.Module):
        def __init__(self, eps=1e-5, gelu="none"):
            super().__init__()
            self.ln, self.fc1, self.fc2, self.gelu = nn.LayerNorm(8, eps), nn.Linear(8, 16), nn.Linear(16, 8), gelu

        def forward(self, x):
            return x + self.fc2(functional.gelu(self.fc1(self.ln(x)), approximate=self.gelu))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks, self.head = nn.ModuleList([Block(), Block(eps, gelu)]), nn.Linear(8, 3, bias=False)

        def forward(self, x):
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    own = {name.replace("kernel", "weight").replace("scale", "weight"): array.T if "kernel" in name else array
           for name, array in WEIGHTS.items()}  # fmt: skip
    model = Net()
    model.load_state_dict({name: torch.tensor(np.array(array)) for name, array in {**own, **(held or {})}.items()})
    return fd.trace(
        model, path, inputs=(torch.tensor(X),), target=torch.tensor(Y),
        loss_fn=lambda out, y: functional.cross_entropy(out.flatten(0, 1), y.flatten()),
        optimizer=torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=decay),
    )  # fmt: skip


def test_a_step_of_torch_agrees_with_one_of_jax_either_way(reference, tmp_path):
    candidate = torch_trace(tmp_path / "torch")
    assert fd.diff(reference.path, candidate.path).exit_code == 0
    assert fd.diff(candidate.path, reference.path).exit_code == 0


@pytest.mark.parametrize(
    ("mistake", "site"),
    [
        ({"eps": 1e-3}, ("fwd", "blocks.1.ln")),
        ({"gelu": "tanh"}, ("fwd", "blocks.1.fc2")),
        ({"held": {"blocks.1.fc1.weight": WEIGHTS["blocks.1.fc1.kernel"].reshape(16, 8)}}, ("fwd", "blocks.1.fc1")),
        ({"decay": 0.0}, ("weight_after", "blocks.0.ln")),
    ],
    ids=["eps", "gelu", "transposed", "decay"],
)
def test_a_planted_mistake_of_torch_is_found_where_it_is(mistake, site, reference, tmp_path):
    result = fd.diff(reference.path, torch_trace(tmp_path / "torch", **mistake).path, explain=False)
    assert result.exit_code == 1
    assert (result.first_drift.site.phase, result.first_drift.site.name) == site


def test_a_wrong_eps_of_torch_is_told_by_its_numbers(reference, tmp_path):
    result = fd.diff(reference.path, torch_trace(tmp_path / "torch", eps=1e-3).path)
    assert result.first_drift.site.name == "blocks.1.ln"
    assert "0.001 is added instead of 1e-05" in result.first_drift.cause.sentence


# ---- transformations


def test_taps_under_jit_change_no_bit_of_what_is_returned(tmp_path):
    def plain(params, x):
        return jnp.tanh(x @ params["w"]) * 3

    def tapped(params, x):
        return fd.tap("y", jnp.tanh(fd.tap("product", x @ params["w"]))) * 3

    params = {"w": jnp.asarray(WEIGHTS["head.kernel"])}
    jitted = jax.jit(tapped)
    before = jitted(params, X)
    trace = fd.trace(jitted, tmp_path / "t", inputs=(params, X))
    assert np.array_equal(before, jax.jit(plain)(params, X))
    assert np.array_equal(before, jitted(params, X))
    held = of_phase(trace, "fwd")
    assert np.array_equal(held["product.out"], X @ np.asarray(params["w"])) or np.allclose(
        held["product.out"], X @ np.asarray(params["w"]), atol=1e-6
    )
    assert np.allclose(held["y.out"], np.tanh(held["product.out"]), atol=1e-6)


def test_other_bits_of_a_jitted_function_are_said(tmp_path):
    @jax.jit
    def fused(params, x):
        return jnp.sum(fd.tap("y", jnp.exp(x * params["a"]) * x / 3 + jnp.sin(x) ** 3), -1) / 7

    params, x = {"a": jnp.float32(1.1)}, RANDOM.standard_normal((64, 1000)).astype(np.float32)
    with pytest.warns(fd.CaptureWarning, match="fused: a run that is not recorded gives other bits of the outputs"):
        trace = fd.trace(fused, tmp_path / "t", inputs=(params, x))
    assert "XLA compiles a jitted function or a loop as a whole" in trace.header["notes"][0]
    assert "equation by equation" in trace.header["options"]["evaluation"]


@pytest.mark.parametrize(
    ("function", "model"),
    [(eqx.filter_jit(batched), eqx_net), (nnx.jit(lambda model, x: model(x)), nnx_net)],
    ids=["equinox", "nnx"],
)
@pytest.mark.filterwarnings("ignore::firstdrift.CaptureWarning")  # the last bits are those of its parts
def test_modules_inside_a_jitted_function_are_recorded(function, model, tmp_path):
    trace = fd.trace(function, tmp_path / "t", inputs=(model(), X))
    assert {f"{name}.out" for name in TestNnx.modules} <= of_phase(trace, "fwd").keys()


def test_marks_are_found_in_checkpoints_loops_and_branches(tmp_path):
    def body(x, w):
        x = fd.tap("layer", jnp.tanh(x @ w))
        return x, (x**2).sum()

    def deep(params, x):
        x, sums = jax.lax.scan(jax.checkpoint(body), x, params["w"])
        x = jax.lax.cond(sums[0] > 1e9, lambda v: v, lambda v: fd.tap("branch", v * 2), x)
        return x, sums

    params = {"w": jnp.asarray(RANDOM.standard_normal((3, 8, 8)), jnp.float32)}
    with pytest.warns(fd.CaptureWarning, match="other bits of the .*gradients"):  # a loop compiled, and turn by turn
        trace = fd.trace(deep, tmp_path / "t", inputs=(params, X), loss_fn=lambda out, _: out[0].sum() + out[1].sum())
    found = {(r.site.phase, r.site.call): trace.array(r) for r in trace if r.site.name == "layer"}
    assert found.keys() == {(phase, call) for phase in ("fwd", "agrad") for call in range(3)}
    assert np.allclose(found["fwd", 2], np.tanh(found["fwd", 1] @ params["w"][2]), atol=1e-6)
    through = (1 - found["fwd", 2] ** 2) * found["agrad", 2]
    assert np.allclose(found["agrad", 1], through @ params["w"][2].T + 2 * found["fwd", 1], atol=1e-3)
    assert "branch.out" in of_phase(trace, "fwd")


def test_batches_lie_in_front_whatever_axis_vmap_took(tmp_path):
    def over_last(params, x):
        return jax.vmap(lambda row: fd.tap("row", row * params["a"]), in_axes=1, out_axes=1)(x)

    trace = fd.trace(over_last, tmp_path / "t", inputs=({"a": jnp.float32(2)}, X[0]))
    assert np.array_equal(of_phase(trace, "fwd")["row.out"], X[0].T * 2)
    assert np.array_equal(of_phase(trace, "fwd")[".out"], X[0] * 2)


def test_with_granularity_op_every_primitive_is_a_site(tmp_path):
    trace = fd.trace(nnx_net(), tmp_path / "t", inputs=(X,), granularity="op")
    names = [record.site.name for record in trace if record.site.phase == "fwd"]
    assert names.index("blocks.0.ln/rsqrt") < names.index("blocks.0.fc1/dot_general") < names.index("blocks.0/erfc")


# ---- state, precision, refusals


class Dropping(nnx.Module):
    def __init__(self, rngs):
        self.norm, self.drop = nnx.BatchNorm(8, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        return self.drop(self.norm(x))


def test_streams_of_random_numbers_and_statistics_are_not_moved(tmp_path):
    model, twin = Dropping(nnx.Rngs(0)), Dropping(nnx.Rngs(0))
    trace = fd.trace(model, tmp_path / "t", inputs=(X,))
    assert int(model.drop.rngs.count[...]) == 0
    assert np.array_equal(of_phase(trace, "fwd")[".out"], twin(X))
    assert np.array_equal(model(X), of_phase(trace, "fwd")[".out"])
    assert np.array_equal(of_phase(trace, "weight")["norm.mean"], np.zeros(8))
    assert np.array_equal(of_phase(trace, "weight_after")["norm.mean"], twin.norm.mean[...])
    drawn = [line for line in (tmp_path / "t" / "program.jsonl").read_text().splitlines() if '"name":"drawn"' in line]
    assert len(drawn) == 1


def test_linen_updates_its_collections_and_takes_keys(tmp_path):
    class Net(linen.Module):
        @linen.compact
        def __call__(self, x, train):
            x = linen.BatchNorm(use_running_average=not train)(x)
            return linen.Dropout(0.5, deterministic=not train)(x)

    net, keys = Net(), {"dropout": jax.random.key(1)}
    variables = net.init(jax.random.key(0), X, False)
    trace = fd.trace(net, tmp_path / "t", inputs={"x": X, "train": True, "rngs": keys}, params=variables)
    expected, changed = net.apply(variables, X, True, rngs=keys, mutable=["batch_stats"])
    assert np.array_equal(of_phase(trace, "fwd")[".out"], expected)
    after = of_phase(trace, "weight_after")["BatchNorm_0.mean"]
    assert np.array_equal(after, changed["batch_stats"]["BatchNorm_0"]["mean"])


def test_bfloat16_stays_bfloat16(tmp_path):
    model = nnx_net(dtype=jnp.bfloat16)
    trace = fd.trace(model, tmp_path / "t", inputs=(jnp.asarray(X, jnp.bfloat16),))
    dtypes = {record.dtype for record in trace}
    assert dtypes == {"bf16"}


def test_the_environment_says_what_changes_the_numbers(tmp_path):
    with jax.default_matmul_precision("highest"):
        trace = fd.trace(nnx_net(), tmp_path / "t", inputs=(X,))
    said = trace.header["environment"]
    assert said["jax_default_matmul_precision"] == "highest"
    assert said["jax_enable_x64"] is False
    assert (said["platform"], said["flax"]) == ("cpu", nnx.__name__ and __import__("flax").__version__)


def test_a_choice_of_sites_is_kept(tmp_path):
    trace = fd.trace(nnx_net(), tmp_path / "t", inputs=(X,), only="blocks.0.*", phases="fwd", classes="Linear")
    assert {record.site.name for record in trace} == {"blocks.0.fc1", "blocks.0.fc2"}
    with pytest.raises(fd.SelectionError, match="only 'nothing' matches nothing in the model"):
        fd.trace(nnx_net(), tmp_path / "u", inputs=(X,), only="nothing")


@pytest.mark.parametrize(
    ("model", "options", "said"),
    [
        (nnx_net, {}, "a JAX model or function is run by fd.trace itself; give inputs"),
        (LinenNet, {"inputs": (X,)}, "a linen module holds no parameters; give params=variables"),
        (nnx_net, {"inputs": (X,), "params": {}}, "an nnx.Module holds its parameters; leave params out"),
        (nnx_net, {"inputs": (X,), "optimizer": optax.sgd(1)}, "give loss_fn too"),
        (nnx_net, {"inputs": (X,), "loss_fn": lambda out, _: out}, "loss_fn returned shape .*; return one number"),
        (nnx_net, {"inputs": (X,), "loss_fn": loss_of, "target": Y, "optimizer": 3}, "give an optax transformation"),
    ],
)
def test_what_cannot_be_recorded_is_refused_in_one_sentence(model, options, said, tmp_path):
    with pytest.raises(fd.CaptureError, match=said):
        fd.trace(model(), tmp_path / "t", **options)
    assert not (tmp_path / "t").exists()


def test_a_model_that_fails_leaves_no_trace(tmp_path):
    with pytest.raises(TypeError):
        fd.trace(nnx_net(), tmp_path / "t", inputs=(X[..., :4],))
    assert not (tmp_path / "t").exists()


def test_header_is_json_that_says_who_wrote_it(trained):
    header = json.loads((trained.path / "trace.json").read_text())
    assert header["producer"].endswith(f"jax {jax.__version__}")
    assert header["model"] == "NnxNet"
