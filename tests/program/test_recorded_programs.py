"""A recorded program, run again from its file, gives every recorded tensor bit for bit, whatever the model did."""

import warnings

import numpy as np
import pytest
import torch
from tests.program.replaying import WIDTH, Body, Recorded, assert_replays, batch, mlp, record, record_training, replay
from torch import nn
from torch.nn import functional

import firstdrift as fd
from firstdrift.program.calls import Bytes, Inline, Missing, Ref
from firstdrift.program.process_settings import as_recorded

# In place, views, memory.


def add_to_slice(self, h):
    h = h * 1.0
    h[:, 1:3] += 0.5
    return h


def fill_masked(self, h):
    return (h * 1.0).masked_fill_(h > 0.3, -1.0)


def copy_into_buffer(self, h):
    buffer = torch.zeros(h.shape[0], WIDTH)
    buffer[:, :3].copy_(h[:, :3])
    buffer[:, 3:].copy_(h[:, 3:] * 2)
    return buffer


def relu_in_place(self, h):
    return (h + 0.1).relu_()


def put_by_index(self, h):
    h = h * 1.0
    return h.index_put_((torch.tensor([0, 2, 2]), torch.tensor([1, 0, 0])), h[:3, 4].detach(), accumulate=True)


def transpose_in_place(self, h):
    h = h * 1.0
    h.transpose_(0, 1)
    h[1] *= 3.0
    return h.transpose_(0, 1)


def write_to_out(self, h):
    with torch.no_grad():
        given = torch.empty(h.shape)
        torch.mul(h, 2.0, out=given)
        torch.add(given[:, :2], 1.0, out=given[:, 2:4])
    return h + given


def write_through_the_base(self, h):
    base = h * 1.0
    view = base[:, ::2]
    base.mul_(2.0)
    return base + view.sum()


def write_through_two_views(self, h):
    base = h * 1.0
    base[:2].add_(1.0)
    base[:, 3].zero_()
    return base.t()[1:].t().sum(1, keepdim=True) + base


def overlap(self, h):
    windows = functional.pad(h, (1, 1)).unfold(1, 3, 1)
    return windows.mean(-1)


IN_PLACE = [
    add_to_slice, fill_masked, copy_into_buffer, relu_in_place, put_by_index, transpose_in_place, write_to_out,
    write_through_the_base, write_through_two_views, overlap,
]  # fmt: skip


@pytest.mark.parametrize("body", IN_PLACE, ids=lambda one: one.__name__)
def test_what_is_written_in_place_or_through_views_replays(tmp_path, body):
    assert_replays(record_training(tmp_path / "t", Body(body), steps=2))


def test_a_write_through_a_view_is_said_as_what_memory_holds_after_it(tmp_path):
    found = record_training(tmp_path / "t", Body(add_to_slice))
    implied = [call for call in found.calls() if call.implied]
    assert "aten.as_strided_scatter.default" in [call.op for call in implied]
    assert all(call.place is None and call.function is None for call in implied)


def test_a_value_never_changes_so_that_a_site_keeps_what_it_was(tmp_path):
    """What a module returned is another value than what somebody made of it afterwards, in the same memory."""
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 3))
    found = record_training(tmp_path / "t", model)
    assert_replays(found)
    sites = {(site.phase, site.name, site.port): ref for site, ref in found.step.sites.items()}
    assert sites["fwd", "0", "out"] != sites["fwd", "1", "out"]
    assert sites["fwd", "1", "in.0"] == sites["fwd", "0", "out"]
    assert [call.args for call in found.calls("aten.relu_")] == [(sites["fwd", "0", "out"],)]


def test_leaves_keep_their_strides_and_channels_last_replays(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
    model = model.to(memory_format=torch.channels_last)
    x = torch.randn(2, 3, 6, 6).to(memory_format=torch.channels_last)
    found = record(tmp_path / "t", model, lambda: model(x).sum().backward())
    assert_replays(found)
    types = {one.source.phase: one.type for one in found.leaves() if len(one.type.shape) == 4}
    assert types["input"].strides == x.stride() != torch.empty(x.shape).stride()
    assert types["weight"].strides == model[0].weight.stride()


def test_an_expanded_and_a_transposed_leaf_replay(tmp_path):
    table = torch.randn(WIDTH, 40).t()[::2]  # transposed, with gaps
    row = torch.randn(WIDTH, 7)[:, 0].expand(20, -1)
    model = Body(lambda self, h: h * self.table + self.row, table=table, row=row)
    found = record_training(tmp_path / "t", model, rows=20)
    assert_replays(found)
    named = {one.name: one.type for one in found.leaves() if one.name}
    assert named["table"].strides == table.stride() == (2, 40)
    assert named["row"].strides == row.stride() == (0, 7)


# Random numbers.


def test_dropout_masks_are_stored_as_bits_and_never_drawn_again(tmp_path):
    model = nn.Sequential(nn.Linear(4, 80), nn.Dropout(0.3), nn.Linear(80, 3))
    found = record_training(tmp_path / "t", model, steps=2)
    (call,) = [one for one in found.calls() if one.drawn]
    (leaf,) = [found.step.nodes[number] for number in call.drawn.values()]
    assert leaf.source.bits
    assert leaf.source.at[2] == 5 * 80 // 8
    before = torch.get_rng_state()
    assert_replays(found)
    assert torch.equal(torch.get_rng_state(), before)


def test_masks_that_do_not_fill_their_last_byte_replay(tmp_path):
    model = nn.Sequential(nn.Linear(4, 7), nn.Dropout(0.5), nn.Linear(7, 3))
    found = record_training(tmp_path / "t", model)
    assert [leaf.source.at[2] for leaf in found.leaves(Bytes) if leaf.source.bits] == [5]  # 35 bits
    assert_replays(found)


@pytest.mark.parametrize(
    "draw",
    [
        lambda self, h: h + torch.randn_like(h) * 0.1,
        lambda self, h: h[torch.randperm(h.shape[0])],
        lambda self, h: h * torch.rand(WIDTH),
        lambda self, h: h + torch.empty_like(h).normal_(0, 0.1),
        lambda self, h: h * torch.randint(1, 5, (h.shape[0], 1)),
        lambda self, h: h[torch.multinomial(h.detach().exp()[:, 0], 4, replacement=True)].repeat(2, 1)[:5],
        lambda self, h: functional.rrelu(h, training=True),
        lambda self, h: functional.gumbel_softmax(h, hard=True),
        lambda self, h: functional.alpha_dropout(h, 0.3, training=True),
        lambda self, h: h + torch.distributions.Normal(0.0, 1.0).sample((WIDTH,)),
        lambda self, h: h * torch.bernoulli(torch.full_like(h, 0.5)),
        lambda self, h: h + torch.randn(h.shape, generator=torch.Generator().manual_seed(3)),
    ],
    ids=[
        "randn_like", "randperm", "rand", "normal_", "randint", "multinomial", "rrelu", "gumbel", "alpha_dropout",
        "distribution", "bernoulli", "generator",
    ],
)  # fmt: skip
def test_whatever_was_drawn_is_stored_and_replayed(tmp_path, draw):
    found = record_training(tmp_path / "t", Body(draw))
    assert any(call.drawn for call in found.calls())
    assert_replays(found)


def attend(self, h):
    q = h[None, None]
    return functional.scaled_dot_product_attention(q, q, q, dropout_p=0.5)[0, 0]


def test_dropout_in_attention_that_is_written_out_replays(tmp_path):
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        assert_replays(record_training(tmp_path / "t", Body(attend)))


def test_dropout_inside_a_fused_kernel_is_said_to_be_lost(tmp_path):
    with torch.library._scoped_library("fdtest", "FRAGMENT") as library:
        library.define("fused(Tensor x, float dropout_p=0.0) -> Tensor")
        library.impl("fused", lambda x, dropout_p=0.0: x * 1.0, "CPU")
        model = Body(lambda self, h: torch.ops.fdtest.fused(torch.ops.fdtest.fused(h.detach()), 0.5))
        found = record(tmp_path / "t", model, lambda: model(batch()[0]))
    without, drawing = found.calls("fdtest.fused")
    assert "lost" not in str(without.args)
    assert drawing.args[0] == {"lost": "dropout inside a fused kernel"}


def test_the_thread_count_of_the_run_is_in_the_header_and_used_again(tmp_path):
    torch.set_num_threads(2)
    try:
        found = record_training(tmp_path / "t", mlp())
    finally:
        torch.set_num_threads(1)
    assert found.program.header["threads"] == 2
    assert found.program.header["engine"] == f"torch {torch.__version__}"
    with as_recorded(found.program.header):
        assert torch.get_num_threads() == 2
    assert torch.get_num_threads() == 1


# Numbers that leave tensors, shapes that depend on data.


def test_numbers_read_out_of_tensors_are_marked_with_what_was_read(tmp_path):
    seen = {}

    def read(self, h):
        seen["item"] = h.max().item()
        seen["bool"] = bool((h > 0).any())
        seen["list"] = h[0, :3].tolist()
        seen["long"] = h.tolist()
        seen["float"] = float(h.detach()[1, 1])
        seen["int"] = int(torch.tensor(3) + 1)
        return h * seen["item"]

    found = record(tmp_path / "t", model := Body(read), lambda: model(batch()[0]))
    assert_replays(found)
    reads = [call.read for call in found.calls("aten._local_scalar_dense")]
    for kind in ("item", "float", "int"):
        assert seen[kind] in reads
    assert seen["bool"] in [call.read for call in found.calls() if call.read is not None]
    lists = [one.read for one in found.functions("torch.Tensor.tolist")]
    assert lists == [seen["list"], {"elements": 30}]


def test_what_is_handed_to_numpy_is_marked_and_said(tmp_path):
    def through_numpy(self, h):
        return h + torch.from_numpy(np.tanh(h.detach().numpy()))

    found = record(tmp_path / "t", model := Body(through_numpy), lambda: model(batch()[0]))
    assert_replays(found)
    assert [one.read for one in found.functions("torch.Tensor.numpy")] == [{"as": "ndarray"}]
    assert any("numpy" in note and "not in the program" in note for note in found.step.notes)
    assert not found.calls("aten.set_")  # our own looks at that memory are no calls of the model


def test_what_numpy_writes_into_a_tensor_is_given_from_then_on(tmp_path):
    def written_by_numpy(self, h):
        h = h.detach() * 1.0
        array = h.numpy()
        before = h + 1.0
        array[:, 0] = 7.0
        return before + h

    found = record(tmp_path / "t", model := Body(written_by_numpy), lambda: model(batch()[0]))
    assert_replays(found)


def test_an_array_that_numpy_changes_under_a_tensor_is_read_anew(tmp_path):
    array = np.zeros((5, WIDTH), np.float32)
    table = torch.from_numpy(array)

    def changing(self, h):
        before = h + table
        array[:] += 1.0
        return before + table

    found = record(tmp_path / "t", model := Body(changing), lambda: model(batch()[0]))
    assert_replays(found)


def test_nan_and_infinity_that_were_read_or_passed_survive(tmp_path):
    def odd(self, h):
        assert (h[0, 0] * float("nan")).item() != 0
        return h.clamp(min=float("-inf"), max=float("inf")).masked_fill(h > 5, float("nan"))

    found = record(tmp_path / "t", model := Body(odd), lambda: model(batch()[0]))
    assert_replays(found)
    assert "nan" in [call.read for call in found.calls("aten._local_scalar_dense")]
    (call,) = found.calls("aten.clamp")
    assert call.args[1:] == ({"float": "-inf"}, {"float": "inf"})


def test_shapes_and_indices_that_depend_on_data_replay(tmp_path):
    def chosen(self, h):
        rows = (h[:, 0] > 0).nonzero()[:, 0]
        extra = h[h > 0.1].sum() + torch.unique((h * 4).round()).sum().detach()
        return h.index_add(0, rows, h[rows]) + extra

    assert_replays(record_training(tmp_path / "t", Body(chosen), steps=2))


# Leaves.


def test_tables_held_as_attributes_are_named_and_stored_once(tmp_path):
    table = torch.randn(5, 3 * WIDTH)
    model = Body(lambda self, h: h + self.table[:, :WIDTH], table=table)
    found = record_training(tmp_path / "t", model, steps=4)
    assert_replays(found)
    places = set()
    for number in range(4):
        (leaf,) = [one for one in found.leaves(Bytes, number) if one.name == "table"]
        places.add(leaf.source.at)
    assert len(places) == 1
    assert (tmp_path / "t" / "data-00000.bin").read_bytes().count(table.numpy().tobytes()) == 1


def test_the_table_of_a_submodule_is_named_by_its_path(tmp_path):
    inner = Body(lambda self, h: h + self.table, table=torch.randn(20, WIDTH))
    model = nn.Sequential(nn.Linear(4, 4), inner)
    found = record_training(tmp_path / "t", model, rows=20)
    assert "1.table" in {one.name for one in found.leaves()}
    assert_replays(found)


def test_a_target_is_stored_as_a_leaf_of_the_loss(tmp_path):
    found = record_training(tmp_path / "t", mlp(), rows=70)
    (target,) = [one for one in found.leaves(Bytes) if one.type.dtype == "i64"]
    assert found.trace.stored(target.source.at, "i64", (70,), "target").tolist() == batch(0, 70)[1].tolist()
    (loss,) = found.calls("aten.nll_loss_forward")
    assert found.step.nodes[loss.args[1].node] is target
    assert loss.part == "loss"


def test_small_constants_stand_in_their_line(tmp_path):
    model = Body(lambda self, h: h * torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 0.1]))
    found = record_training(tmp_path / "t", model)
    assert (1.0, 2.0, 3.0, 4.0, 5.0, float(np.float32(0.1))) in [one.source.elements for one in found.leaves(Inline)]
    assert_replays(found)


def test_leaves_are_no_lines_of_the_index(tmp_path):
    model = Body(lambda self, h: h + self.table, table=torch.randn(20, WIDTH))
    sites = []
    for program in (True, False):
        with fd.trace(model, tmp_path / str(program), program=program):
            model(batch(0, 20)[0])
        sites.append({one.site for one in fd.open_trace(tmp_path / str(program))})
    assert sites[0] == sites[1]
    assert Recorded(tmp_path / "True").leaves(Bytes)


def test_a_cache_that_a_model_keeps_between_steps_replays(tmp_path):
    def remember(self, h):
        self.cache = torch.cat([self.cache, h.detach()])[-5:]
        return h + self.cache.mean(0)

    assert_replays(record_training(tmp_path / "t", Body(remember, cache=torch.zeros(5, WIDTH)), steps=3))


def test_bfloat16_half_float8_and_bool_leaves_replay(tmp_path):
    torch.manual_seed(0)
    tables = {
        "b": torch.randn(5, 20).bfloat16(), "h": torch.randn(5, 20).half(), "m": torch.randn(5, 20) > 0,
        "e": torch.randn(5, 20).to(torch.float8_e4m3fn),
    }  # fmt: skip

    def mixed(self, h):
        added = self.b.float() + self.h.float() + self.e.float() + self.m
        return h + added[:, :WIDTH]

    found = record_training(tmp_path / "t", Body(mixed, **tables))
    assert_replays(found)
    assert {one.type.dtype for one in found.leaves(Bytes) if one.name} == {"bf16", "f16", "bool", "f8e4m3fn"}


# Modules.


def test_tied_parameters_are_one_leaf(tmp_path):
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    model[2].weight = model[0].weight
    found = record(tmp_path / "t", model, lambda: model(batch()[0]).sum().backward())
    assert_replays(found)
    weights = [one for one in found.leaves() if one.type.shape == (4, 4)]
    assert len(weights) == 1


def test_a_module_called_twice_has_a_site_for_each_call(tmp_path):
    model = Body(lambda self, h: self.inner(torch.tanh(self.inner(h))), inner=nn.Linear(WIDTH, WIDTH))
    found = record_training(tmp_path / "t", model)
    assert_replays(found)
    refs = {site.call: ref for site, ref in found.step.sites.items() if site[1:4] == ("fwd", "inner", "out")}
    assert refs.keys() == {0, 1}
    assert refs[0] != refs[1]
    assert [call.op for call in found.calls() if call.module == "inner"] == []  # the operations of a function
    assert [one.module for one in found.functions("torch.nn.functional.linear")] == ["lift", "inner", "inner", "head"]


def test_recurrent_attention_and_normalizing_layers_replay(tmp_path):
    torch.manual_seed(0)

    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(11, 8)
            self.rnn = nn.LSTM(8, 8, batch_first=True, bidirectional=True)
            self.attend = nn.MultiheadAttention(16, 2, batch_first=True)
            self.norm, self.batch, self.head = nn.LayerNorm(16), nn.BatchNorm1d(16), nn.Linear(16, 3)

        def forward(self, x):
            h = self.rnn(self.embed(x))[0]
            h = self.norm(h + self.attend(h, h, h, need_weights=False)[0])
            return self.head(self.batch(h.mean(1)))

    model = Mixed()
    optimizer = torch.optim.AdamW(model.parameters())

    def run():
        for number in range(2):
            tokens = torch.arange(12).reshape(3, 4) % 11 + number - 1
            functional.cross_entropy(model(tokens.abs()), torch.tensor([0, 1, 2])).backward()
            optimizer.step()
            optimizer.zero_grad()

    assert_replays(record(tmp_path / "t", model, run, optimizer=optimizer))


def test_running_statistics_that_a_kernel_writes_without_saying_so_replay(tmp_path):
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    found = record_training(tmp_path / "t", model, steps=2)
    assert_replays(found)
    after = [site for site in found.step.sites if (site.phase, site.name) == ("weight_after", "1")]
    assert {"running_mean", "running_var", "num_batches_tracked"} <= {site.port for site in after}


# What no program can hold.


def test_complex_tensors_replay_lazily_conjugated_ones_too(tmp_path):
    def spectrum(self, h):
        f = torch.fft.rfft(h)
        return torch.fft.irfft(f.conj() * f * (1 + 2j), n=WIDTH) + f.imag.sum()

    assert_replays(record_training(tmp_path / "t", Body(spectrum)))


def test_sparse_tensors_are_said_to_be_lost_and_the_rest_replays(tmp_path):
    def sparse(self, h):
        return h + torch.sparse.mm(torch.eye(5).to_sparse(), h.detach())

    found = record(tmp_path / "t", model := Body(sparse), lambda: model(batch()[0]))
    assert '{"lost":"sparse tensor (sparse_coo)"}' in found.text
    assert_replays(found, lost=True)
    lost = [call.op for call in found.calls() if "lost" in str(call.args)]
    assert lost
    assert any(site.name == "lift" and site.port == "out" for site in found.step.sites)


def test_sparse_gradients_are_absent_and_the_rest_replays(tmp_path):
    model = nn.Sequential(nn.Embedding(9, 4, sparse=True), nn.Linear(4, 3))
    optimizer = torch.optim.SparseAdam(model[0].parameters())

    def run():
        model(torch.tensor([1, 2, 2])).sum().backward()
        optimizer.step()

    found = record(tmp_path / "t", model, run, optimizer=optimizer)
    assert_replays(found, lost=True)
    assert "sparse tensor" in found.text


def test_nested_tensors_are_said_to_be_lost_and_the_rest_replays(tmp_path):
    def nest(self, h):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            nested = torch.nested.nested_tensor([h[:2].detach(), h[2:].detach()])
        return h + torch.nested.to_padded_tensor(nested * 2.0, 0.0).sum()

    found = record(tmp_path / "t", model := Body(nest), lambda: model(batch()[0]))
    assert '"lost":"nested tensor"' in found.text
    assert_replays(found, lost=True)


def test_operations_of_other_libraries_are_recorded_and_not_run(tmp_path):
    with torch.library._scoped_library("fdtest", "FRAGMENT") as library:
        library.define("many(Tensor x, str[] names) -> Tensor")
        library.impl("many", lambda x, names: x * len(names), "CPU")
        model = Body(lambda self, h: torch.ops.fdtest.many(h.detach(), ["a", "b"]))
        found = record(tmp_path / "t", model, lambda: model(batch()[0]))
        (call,) = found.calls("fdtest.many")
        assert call.args[1] == ("a", "b")
        assert_replays(found, lost=True)
        _, failed = replay(found, 0)
    assert "fdtest.many.default is not on the list of operations that are run from a file" in failed.values()


# Precision.


def test_autocast_replays_in_bfloat16(tmp_path):
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters())

    def run():
        for number in range(2):
            x, y = batch(number)
            with torch.autocast("cpu", torch.bfloat16):
                loss = functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    found = record(tmp_path / "t", model, run, optimizer=optimizer)
    assert_replays(found)
    assert {call.results[0].dtype for call in found.calls("aten.addmm")} == {"bf16"}
    assert {"dtype": "bf16"} in [call.kwargs.get("dtype") for call in found.calls("aten._to_copy")]


def test_float64_and_float16_replay(tmp_path):
    for kind in (torch.float64, torch.float16):
        model = mlp().to(kind)
        x = batch()[0].to(kind)
        assert_replays(record(tmp_path / str(kind), model, lambda model=model, x=x: model(x).sum().backward()))


def test_references_to_further_results_name_them(tmp_path):
    model = Body(lambda self, h: h + h.topk(2).values.sum(1, keepdim=True) + h.max(1, keepdim=True)[0])
    found = record_training(tmp_path / "t", model)
    assert_replays(found)
    assert any(ref.at == 1 for call in found.calls() for ref in call.args if isinstance(ref, Ref))


def test_inference_mode_and_no_grad_replay(tmp_path):
    model = Body(add_to_slice).eval()
    for name, context in (("inference", torch.inference_mode), ("no_grad", torch.no_grad)):
        with context():
            found = record(tmp_path / name, model, lambda: [model(batch(number)[0]) for number in range(2)])
        assert_replays(found)
        assert set(found.program.steps) == {0, 1}


def test_functions_transformed_by_vmap_and_grad_do_not_fail(tmp_path):
    def transformed(self, h):
        return h + torch.func.vmap(torch.func.grad(lambda row: (row**2).sum()))(h.detach())

    model = Body(transformed)
    plain = model(batch()[0])
    found = record(tmp_path / "t", model, lambda: model(batch()[0]))
    assert found.program.problems == ()
    outs = [site for site in found.step.sites if site.name == "" and site.port == "out"]
    assert torch.equal(plain, torch.from_numpy(np.array(found.trace.array(outs[0]))))


def test_statistics_only_stores_no_bytes_of_leaves_and_says_so(tmp_path):
    model = nn.Sequential(nn.Linear(4, 80), nn.Dropout(0.3), nn.Linear(80, 3))
    found = record_training(tmp_path / "t", model, rows=70, keep="stats")
    assert not found.leaves(Bytes)
    assert {one.source.why for one in found.leaves(Missing)} == {"statistics only are kept here"}
    data = tmp_path / "t" / "data-00000.bin"
    assert not data.exists() or data.stat().st_size == 0
    assert Recorded(tmp_path / "t").calls("aten.addmm")
