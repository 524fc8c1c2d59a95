"""Observing does not disturb: a traced run is the untraced one bit for bit, and everything is put back after it."""

import copy
import io
import itertools
import pickle
import random
import warnings

import numpy as np
import pytest
import torch
from tests.capture import networks
from tests.capture.networks import NETWORKS, SETTINGS, batch, fill_disk, forward, plain_run
from tests.run_bits import Bits, assert_same_bits
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.checkpoint import checkpoint

import firstdrift as fd
from firstdrift.core import taps

TENTH = slice(None, None, 10)


def sampled():
    """Every network in both modes, and every setting with one network in one mode; the rest of the matrix is slow."""
    names, chosen = itertools.cycle(NETWORKS), {("mlp", "lbfgs", "full")}
    chosen |= {(name, "plain", keep) for name in NETWORKS for keep in ("full", "stats")}
    chosen |= {
        (next(names), one, keep) for one, keep in zip(SETTINGS, itertools.cycle(("full", "stats")), strict=False)
    }
    return [
        pytest.param(*case, marks=() if case in chosen else pytest.mark.slow, id=" ".join(case))
        for case in itertools.product(NETWORKS, SETTINGS, ("full", "stats"))
    ]


@pytest.mark.parametrize(("name", "setting", "keep"), sampled())
def test_a_traced_run_is_the_untraced_one_bit_for_bit(tmp_path, name, setting, keep):
    traced = networks.run(name, setting, count=100, path=tmp_path / "t", keep=keep, steps=TENTH)
    assert_same_bits(traced, plain_run(name, setting, 100))
    trace = fd.open_trace(tmp_path / "t")
    assert trace.complete
    assert {record.site.step % 10 for record in trace} == {0}
    expected = {"fwd", "weight", "input"} | (set() if "inference" in SETTINGS[setting] else {"grad", "weight_after"})
    assert expected <= {record.site.phase for record in trace}


@pytest.mark.parametrize(("name", "keep", "count"), [("mlp", "stats", 100), ("transformer", "full", 12)])
def test_recording_every_step_changes_nothing(tmp_path, name, keep, count):
    traced = networks.run(name, "plain", count=count, path=tmp_path / "t", keep=keep)
    assert_same_bits(traced, plain_run(name, "plain", count))
    assert {record.site.step for record in fd.open_trace(tmp_path / "t")} == set(range(count))


def test_the_comparison_of_runs_sees_one_bit():
    plain = plain_run("mlp", "plain", 3)
    seen = set()
    for name, digest in plain.items():
        changed = Bits(plain)
        changed[name] = digest + "?"
        with pytest.raises(AssertionError):
            assert_same_bits(changed, plain)
        seen.add(name.split(".")[0].split(" ")[0])
    assert seen >= {"output", "loss", "gradient", "parameter", "mode", "optimizer", "torch's"}


@pytest.mark.parametrize("options", [{}, {"granularity": "op"}], ids=["modules", "operations"])
@pytest.mark.parametrize("mode", ["no_grad", "inference_mode"])
def test_the_fast_path_of_an_encoder_layer_is_taken_under_a_trace(tmp_path, mode, options):
    model = NETWORKS["encoder"]().eval()
    x, _ = batch("encoder", 0)
    with getattr(torch, mode)():
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as plain:
            expected = model(x)
        with (
            fd.trace(model, tmp_path / "t", **options),
            torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as traced,
        ):
            output = model(x)
    for profile in (plain, traced):
        assert "aten::_transformer_encoder_layer_fwd" in {event.name for event in profile.events()}
    assert torch.equal(output, expected)


def test_a_fast_path_over_nested_tensors_is_recorded_as_not_comparable(tmp_path):
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=True).eval()
    x, padding = batch("encoder", 0)[0], torch.tensor([[False] * 5 + [True] * 2] * 3)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.filterwarnings("ignore", message=".*nested tensors is in prototype")
        expected = model(x, src_key_padding_mask=padding)
        with fd.trace(model, tmp_path / "t"):
            output = model(x, src_key_padding_mask=padding)
    assert torch.equal(output, expected)
    records = {record.site.name: record for record in fd.open_trace(tmp_path / "t") if record.site.port == "out"}
    assert records["layers.1"].absent.startswith("not comparable: a nested tensor")
    assert records[""].shape == (3, 7, 16) or records[""].shape == (3, 5, 16)


# Things a trace might do to a run that the networks above would not show.


def plain_and_traced(tmp_path, make, work, **options):
    """What `work` returns without and with a trace around it, each on a model of its own."""
    found = []
    for path in (None, tmp_path / "t"):
        networks.seed()
        model = make()
        with fd.trace(model, path, **options) if path else torch.enable_grad():
            found.append(work(model))
        found[-1] = (found[-1], {name: tensor.clone() for name, tensor in model.state_dict().items()})
    return found


class LossInside(nn.Module):
    """Returns its own loss, made inside a checkpoint; counts how often that was computed."""

    def __init__(self, loss):
        super().__init__()
        self.linear, self.norm, self.loss, self.runs = nn.Linear(4, 4), nn.BatchNorm1d(4), loss, 0

    def forward(self, x, y):
        def inner(x):
            self.runs += 1
            return self.loss(self.norm(self.linear(x)), y)

        return checkpoint(inner, x, use_reentrant=False)


@pytest.mark.parametrize("loss", [nn.functional.mse_loss, nn.functional.cross_entropy, nn.functional.huber_loss])
def test_a_loss_inside_a_checkpoint_is_not_computed_once_more(tmp_path, loss):
    x, y = torch.randn(3, 4), torch.rand(3, 4)
    y = y.argmax(1) if loss is nn.functional.cross_entropy else y

    def work(model):
        model(x, y).backward()
        return model.runs

    plain, traced = plain_and_traced(tmp_path, lambda: LossInside(loss), work)
    assert traced[0] == plain[0] == 2
    assert all(torch.equal(traced[1][name], tensor) for name, tensor in plain[1].items())


def test_the_backward_pass_inside_a_reentrant_checkpoint_is_a_part_of_the_one_around_it(tmp_path):
    model = networks.with_checkpoints("mlp", NETWORKS["mlp"](), reentrant=True)
    with fd.trace(model, tmp_path / "t"):
        forward("mlp", model, *batch("mlp", 0))[1].backward()
    trace = fd.open_trace(tmp_path / "t")
    assert [record.site.call for record in trace if record.site.phase == "loss"] == [0]
    flowed = [record.site.name for record in trace if record.site.phase == "agrad" and record.absent is None]
    assert sorted(set(flowed)) == ["", "0", "1", "2", "3", "4", "5"]


def test_hooks_of_the_user_on_saved_tensors_run_as_often_as_without_a_trace(tmp_path):
    def work(model):
        packed, unpacked = [], []
        hooks = torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: packed.append(1) or tensor, lambda tensor: unpacked.append(1) or tensor
        )
        with hooks:
            _, loss = forward("mlp", model, *batch("mlp", 0))
        loss.backward()
        return len(packed), len(unpacked)

    plain, traced = plain_and_traced(tmp_path, NETWORKS["mlp"], work)
    assert traced[0] == plain[0]
    assert min(plain[0]) > 0


ROOTS = {
    "a tensor": lambda losses: losses[0],
    "a list": lambda losses: losses,
    "a generator": lambda losses: (loss for loss in losses),
    "an edge of the graph": lambda losses: torch.autograd.graph.get_gradient_edge(losses[0]),
}


@pytest.mark.parametrize("roots", ROOTS)
def test_every_way_to_call_backward_gives_the_same_gradients(tmp_path, roots):
    def work(model):
        output = model(batch("mlp", 0)[0])
        torch.autograd.backward(ROOTS[roots]([output.square().sum(), output.mean()]))
        return [parameter.grad.clone() for parameter in model.parameters()]

    plain, traced = plain_and_traced(tmp_path, NETWORKS["mlp"], work)
    assert all(torch.equal(*pair) for pair in zip(traced[0], plain[0], strict=True))


def test_further_ways_to_use_gradients_are_left_alone(tmp_path):
    def work(model):
        x = batch("mlp", 0)[0].requires_grad_()
        kept = model(x)
        kept.retain_grad()
        (slope,) = torch.autograd.grad(kept.square().sum(), x, create_graph=True)
        (kept.sum() + slope.square().sum()).backward(inputs=[*model.parameters()])
        model(x).sum().backward()
        per_sample = torch.func.vmap(torch.func.grad(lambda one: model(one).sum()), randomness="different")(x.detach())
        called = torch.func.functional_call(model, dict(model.named_parameters()), x)
        return [kept.grad, x.grad, per_sample, called, *(parameter.grad for parameter in model.parameters())]

    plain, traced = plain_and_traced(tmp_path, NETWORKS["mlp"], work)
    assert all(torch.equal(*pair) for pair in zip(traced[0], plain[0], strict=True))


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, 6))

    def forward(self, x):
        return x * self.weight


@pytest.mark.parametrize("factor", [-0.0, float("nan"), float("-inf"), 1e-42])
def test_gradients_keep_their_signs_payloads_and_small_numbers(tmp_path, factor):
    def work(model):
        x = torch.ones(3, 6, requires_grad=True)
        model(x).backward(torch.full((3, 6), factor))
        return [x.grad, *(parameter.grad for parameter in model.parameters())]

    plain, traced = plain_and_traced(tmp_path, lambda: nn.Sequential(Scale(), nn.Identity(), Scale()), work)
    for ours, theirs in zip(traced[0], plain[0], strict=True):
        assert torch.equal(ours.view(torch.int32), theirs.view(torch.int32))
        assert theirs.signbit().all() or factor != 0  # so that a sum with zero would show


class Doubling(nn.Module):
    """Hooks of the user: before and after forward, and on the way back."""

    def __init__(self):
        super().__init__()
        self.inner, self.calls = nn.Linear(6, 5), []
        self.inner.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
        self.inner.register_forward_hook(lambda module, args, output: output + 1)
        self.inner.register_full_backward_hook(lambda module, grads, out: self.calls.append("full"))
        self.inner.weight.register_hook(lambda gradient: gradient * 3)

    def forward(self, x):
        output = self.inner(x)
        output.register_hook(lambda gradient: gradient * 5)
        return output


def test_hooks_of_the_user_work_as_without_a_trace(tmp_path):
    def work(model):
        x, y = batch("mlp", 0)
        output, loss = forward("mlp", model, x.requires_grad_(), y)
        loss.backward()
        return [output, x.grad, model.inner.weight.grad, torch.tensor(len(model.calls))]

    plain, traced = plain_and_traced(tmp_path, Doubling, work, verify=True)
    assert all(torch.equal(*pair) for pair in zip(traced[0], plain[0], strict=True))


class Sgd(torch.optim.SGD):
    """Overrides `step`, as many optimizers of users do."""

    def step(self, closure=None):
        result = super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["steps"] = self.state[parameter].get("steps", 0) + 1
        return result


def test_an_optimizer_that_extends_another_is_stepped_and_recorded_once(tmp_path):
    torch.optim.SGD([torch.ones(1)], 0.1)  # the first of its class makes torch call the hooks of its steps
    found = []
    for path in (None, tmp_path / "t"):
        networks.seed()
        model = NETWORKS["mlp"]()
        optimizer = Sgd(model.parameters(), 0.1, momentum=0.9)
        bits = Bits()
        with fd.trace(model, path, optimizer=optimizer) if path else torch.enable_grad():
            for step in range(3):
                forward("mlp", model, *batch("mlp", step))[1].backward()
                optimizer.step()
                optimizer.zero_grad()
        bits.add_run(model, optimizer)
        found.append(bits)
    assert_same_bits(found[1], found[0])
    trace = fd.open_trace(tmp_path / "t")
    assert {record.site.step for record in trace} == {0, 1, 2}
    steps = [trace.array(one).item() for one in trace if one.site.port == "weight.steps" and one.site.name == "0"]
    assert steps == [1, 2, 3]


def test_a_scheduler_and_a_clone_of_the_optimizer_work_inside_the_block(tmp_path):
    model = NETWORKS["mlp"]()
    optimizer = torch.optim.AdamW(model.parameters())
    with fd.trace(model, tmp_path / "t", optimizer=optimizer):
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        forward("mlp", model, *batch("mlp", 0))[1].backward()
        optimizer.step()
        scheduler.step()
        twin, pickled = copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))
        assert len(twin.state) == len(pickled.state) == len(optimizer.state) > 0
    assert optimizer.param_groups[0]["lr"] == 0.0005


# Everything as before.


class StopError(Exception):
    pass


def snapshot(model, optimizer):
    """Whatever a trace could leave behind, by identity where there is one."""
    modules = torch.nn.modules.module
    flags = {
        "default device": torch.get_default_device(),
        "default dtype": torch.get_default_dtype(),
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "autocast": (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")),
        "autocast's cache": torch.is_autocast_cache_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "warned of": torch.is_deterministic_algorithms_warn_only_enabled(),
        "precision": torch.get_float32_matmul_precision(),
        "threads": torch.get_num_threads(),
        "modes": (_get_current_dispatch_mode_stack(), torch.overrides._len_torch_function_stack()),
        "anomaly": torch.is_anomaly_enabled(),
        "filters": list(warnings.filters),
        "listener": taps._listener,
        "module": {name: id(item) for name, item in vars(nn.Module).items()},
        "functions": (torch.autograd.backward, torch.autograd.grad, torch.Tensor.backward, torch.Tensor.register_hook),
        "global hooks": {
            name: dict(item)
            for name, item in vars(modules).items()
            if name.startswith("_global_") and isinstance(item, dict)
        },
        "optimizer": {name: id(item) for name, item in vars(optimizer).items()},
        "optimizer's hooks": [dict(item) for name, item in vars(optimizer).items() if name.endswith("_hooks")],
        "optimizer's class": {name: id(item) for name, item in vars(type(optimizer)).items()},
    }  # fmt: skip
    flags |= {
        f"{name} itself": {key: id(item) for key, item in vars(one).items()} for name, one in model.named_modules()
    }
    flags |= {f"mode of {name}": one.training for name, one in model.named_modules()}
    flags |= {
        f"{key} of {name}": {hook: id(item) for hook, item in vars(one)[key].items()}
        for name, one in model.named_modules()
        for key in vars(one)
        if key.endswith("_hooks")
    }
    flags |= {
        f"tensor {name}": (one.requires_grad, one.is_leaf, dict(one._backward_hooks or {}), vars(one))
        for name, one in itertools.chain(model.named_parameters(), model.named_buffers())
    }
    return flags | {"names": list(model.state_dict())}


def mixed():
    """A network whose children are in different modes and whose parameters are not all trained."""
    networks.seed()
    model = NETWORKS["transformer"]()
    model.blocks[1].eval()
    model.blocks[0].norm1.weight.requires_grad_(False)
    model.norm.register_forward_hook(lambda module, args, output: None)
    model.norm.weight.register_hook(lambda gradient: None)
    return model


def step(model, optimizer):
    _, loss = forward("transformer", model, *batch("transformer", 0))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


class FailingBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise StopError("backward")


def fail_in_forward(model, optimizer, error):
    hook = model.blocks[1].down.register_forward_pre_hook(lambda module, args: (_ for _ in ()).throw(error))
    try:
        step(model, optimizer)
    finally:
        hook.remove()


def fail_in_backward(model, optimizer, error):
    FailingBackward.apply(forward("transformer", model, *batch("transformer", 0))[1]).backward()


def fail_amid_backward(model, optimizer, error):
    hook = model.blocks[1].down.weight.register_hook(lambda gradient: (_ for _ in ()).throw(error))
    try:
        step(model, optimizer)
    finally:
        hook.remove()


def fail_in_user_code(model, optimizer, error):
    step(model, optimizer)
    raise error


def fail_in_evaluation(model, optimizer, error):
    step(model, optimizer)
    with torch.no_grad():
        fail_in_forward(model, optimizer, error)


ENDINGS = {
    "forward raises": (fail_in_forward, StopError("forward")),
    "forward is interrupted": (fail_in_forward, KeyboardInterrupt()),
    "evaluation raises": (fail_in_evaluation, StopError("evaluation")),
    "backward raises": (fail_in_backward, StopError("backward")),
    "backward raises in the middle": (fail_amid_backward, StopError("middle")),
    "user code raises": (fail_in_user_code, StopError("user")),
    "user code is interrupted": (fail_in_user_code, KeyboardInterrupt()),
    "a generator is closed": (fail_in_user_code, GeneratorExit()),
}
OPTIONS = {"modules": {}, "operations": {"granularity": "op"}, "verification": {"verify": True}}


def check_as_before(model, optimizer, before):
    after = snapshot(model, optimizer)
    assert after.keys() == before.keys()
    assert [name for name in before if after[name] != before[name]] == []
    assert taps._listener is None  # by itself: a listener left behind by an earlier test would be there before, too
    assert nn.Module.__call__ is nn.Module._wrapped_call_impl
    twin = copy.deepcopy(model)
    x, y = batch("transformer", 1)
    model.eval(), twin.eval()
    assert torch.equal(forward("transformer", model, x, y)[0], forward("transformer", twin, x, y)[0])


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_everything_is_as_before_when_a_block_has_ended(tmp_path, options):
    model = mixed()
    optimizer = torch.optim.AdamW(model.parameters())
    before = snapshot(model, optimizer)
    with fd.trace(model, tmp_path / "t", optimizer=optimizer, **options):
        step(model, optimizer)
        step(model, optimizer)
    check_as_before(model, optimizer, before)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("ending", ENDINGS)
def test_everything_is_as_before_after_an_exception(tmp_path, ending, options):
    fail, error = ENDINGS[ending]
    model = mixed()
    optimizer = torch.optim.AdamW(model.parameters())
    before = snapshot(model, optimizer)
    with pytest.raises(type(error)) as raised, fd.trace(model, tmp_path / "t", optimizer=optimizer, **options):
        fail(model, optimizer, error)
    assert raised.value is error or str(raised.value) == str(error)
    check_as_before(model, optimizer, before)
    assert not fd.open_trace(tmp_path / "t").complete


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("inference", [False, True], ids=["training", "inference"])
@pytest.mark.parametrize("after", [0, 5, 75, 130, 250])
def test_everything_is_as_before_after_the_disk_was_full(tmp_path, monkeypatch, after, inference, options):
    model = mixed()
    optimizer = torch.optim.AdamW(model.parameters())
    before = snapshot(model, optimizer)
    fill_disk(monkeypatch, after)
    tracing = fd.trace(model, tmp_path / "t", optimizer=None if inference else optimizer, **options)
    with pytest.raises(fd.StorageError, match="No space left"), torch.set_grad_enabled(not inference), tracing:
        for _ in range(4):
            forward("transformer", model, *batch("transformer", 0)) if inference else step(model, optimizer)
    check_as_before(model, optimizer, before)


REFUSED = {
    "an existing trace": ("t", {}),
    "a file in the way": ("file", {}),
    "a scope that matches nothing": ("new", {"only": "nothing.*"}),
}


@pytest.mark.parametrize("problem", REFUSED)
def test_everything_is_as_before_when_a_trace_was_refused(tmp_path, problem):
    model = mixed()
    optimizer = torch.optim.AdamW(model.parameters())
    fd.Writer(tmp_path / "t").close()
    (tmp_path / "file").write_text("in the way")
    before = snapshot(model, optimizer)
    path, options = REFUSED[problem]
    with pytest.raises(fd.FirstdriftError), fd.trace(model, tmp_path / path, optimizer=optimizer, **options):
        step(model, optimizer)
    check_as_before(model, optimizer, before)


def test_settings_of_torch_survive_a_trace_that_runs_under_them(tmp_path):
    model = NETWORKS["mlp"]()
    optimizer = Sgd(model.parameters(), 0.1)  # whose state is a number, not a tensor
    before = torch.get_default_device(), torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled()
    try:
        torch.set_default_device("meta")
        torch.set_default_dtype(torch.float64)
        torch.use_deterministic_algorithms(True)
        x, y = (tensor.to("cpu") for tensor in batch_on_cpu("mlp"))
        with fd.trace(model, tmp_path / "t", optimizer=optimizer):
            forward("mlp", model, x, y)[1].backward()
            optimizer.step()
        assert (torch.get_default_device().type, torch.get_default_dtype()) == ("meta", torch.float64)
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(before[1])
        torch.use_deterministic_algorithms(before[2])
    assert not [record.site for record in fd.open_trace(tmp_path / "t") if record.absent]


def batch_on_cpu(name):
    with torch.device("cpu"):
        generator = torch.Generator("cpu").manual_seed(0)
        x = torch.randn(networks.SHAPES[name], generator=generator, dtype=torch.float32)
        return x, torch.randint(5, (networks.BATCH,), generator=generator)


def test_a_model_can_be_copied_saved_and_loaded_inside_the_block(tmp_path):
    model = NETWORKS["conv"]()
    x, y = batch("conv", 0)
    with fd.trace(model, tmp_path / "t"):
        forward("conv", model, x, y)
        twin, pickled, file = copy.deepcopy(model), pickle.loads(pickle.dumps(model)), io.BytesIO()
        torch.save(model.state_dict(), file)
        forward("conv", twin, x, y)  # not the model that is traced
        forward("conv", pickled, x, y)
    file.seek(0)
    assert model.load_state_dict(torch.load(file))
    trace = fd.open_trace(tmp_path / "t")
    assert {(record.site.step, record.site.call) for record in trace} == {(0, 0)}
    for other in (twin, pickled):
        assert [vars(one).keys() for one in other.modules()] == [vars(one).keys() for one in model.modules()]


def test_verification_leaves_random_numbers_and_buffers_alone(tmp_path):
    def work(model):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        bits = Bits()
        for number in range(3):
            output = model(batch("conv", number)[0])
            output.sum().backward()
            optimizer.step()
            bits.add(f"output {number}", output)
        bits.add_run(model, optimizer)
        return bits

    plain, traced = plain_and_traced(tmp_path, Restless, work, verify=True)
    assert_same_bits(traced[0], plain[0])


class Restless(nn.Module):
    """Draws random numbers of every kind, writes to buffers and replaces them."""

    def __init__(self):
        super().__init__()
        self.conv = NETWORKS["conv"]()
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("mean", None)

    def forward(self, x):
        self.calls = self.calls + 1
        output = self.conv(x)
        self.mean = output.detach().mean()
        return output * random.random() * np.random.rand() + self.calls  # noqa: NPY002


def test_a_tensor_that_was_recorded_can_still_be_resized_and_freed(tmp_path):
    """As sharded training does with its parameters: numpy's view of a tensor would forbid it."""
    model = nn.Linear(4, 4)
    with fd.trace(model, tmp_path / "t"):
        out = model(torch.ones(2, 4))
        out.sum().backward()
    for tensor in (model.weight.data, model.weight.grad, out.detach()):
        tensor.untyped_storage().resize_(0)
