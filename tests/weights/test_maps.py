"""Other names and layouts go through a declared map, and through nothing else."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.weights.networks import Attention, Tied, bits, other, plain, random, state
from torch import nn

import firstdrift as fd
from firstdrift.weights.loading.maps import OPTIONS
from firstdrift.weights.writing import write_checkpoint


def refused(model, source, map):
    before = bits(model)
    with pytest.raises((fd.WeightsError, fd.FormatError)) as caught:
        fd.load_weights(model, source, map=map)
    assert bits(model) == before
    return str(caught.value)


def test_names_with_placeholders_are_renamed():
    model = plain()
    source = {f"net.layers.{name}": value for name, value in other(model).items()}
    found = fd.load_weights(model, source, map={"net.layers.{}.*": "{}.*"})
    assert found.count == 9
    assert torch.equal(model[2].weight, source["net.layers.2.weight"])
    assert found.proof[0].sources == ("net.layers.0.weight",)


def test_none_drops_a_tensor_on_purpose():
    model = plain()
    found = fd.load_weights(model, {**other(model), "rotary.inv_freq": np.ones(3, np.float32)}, map={"rotary.*": None})
    assert found.dropped == ("rotary.inv_freq",)
    assert found.extra == ()


def test_a_tensor_that_neither_map_nor_model_knows_is_an_error():
    model = plain()
    said = refused(model, {**other(model), "stray": np.ones(3, np.float32)}, {"0.weight": "0.weight"})
    assert "stray: neither the map nor the model knows this tensor" in said


def test_a_line_that_fits_nothing_is_an_error():
    model = plain()
    assert "'nothing.{}': fits no tensor" in refused(model, other(model), {"nothing.{}": None})


def test_a_name_that_the_model_has_not_is_an_error():
    model = plain()
    assert "the model has no '0.wieght'" in refused(model, other(model), {"0.weight": "0.wieght"})


def test_dropping_what_the_model_needs_is_an_error():
    model = plain()
    assert "0.weight: not present in the given tensors" in refused(model, other(model), {"0.weight": None})


def test_a_transposed_matrix_is_turned_only_when_the_map_says_so():
    model = nn.Linear(4, 4)  # square: its shape would pass either way round
    source = {"weight": random(4, 4), "bias": random(4)}
    fd.load_weights(model, source)
    assert np.array_equal(model.weight.detach().numpy(), source["weight"])
    found = fd.load_weights(model, source, map={"weight": {"to": "weight", "transpose": True}})
    assert np.array_equal(model.weight.detach().numpy(), source["weight"].T)
    assert found.proof[0].sources == ("weight, transposed",)


@pytest.mark.parametrize("kind", ["weight", "bias"])
def test_a_fused_projection_is_split_by_the_models_sizes(kind):
    model = Attention(fused=False)
    shapes = {"weight": (16, 8), "bias": (16,)}
    source = {f"attn.{name}": random(*shape) for name, shape in shapes.items()}
    map = {"attn.{}": {"to": ["q.{}", "k.{}", "v.{}"], "split": 0}}
    found = fd.load_weights(model, source, map=map)
    assert found.count == 6
    together = np.concatenate([getattr(getattr(model, part), kind).detach().numpy() for part in "qkv"])
    assert np.array_equal(together, source[f"attn.{kind}"])


def test_single_projections_are_joined_in_their_places():
    model = Attention(fused=True)
    parts = {"q": random(8, 8), "k": random(4, 8, seed=1), "v": random(4, 8, seed=2)}
    biases = {"q": random(8), "k": random(4, seed=1), "v": random(4, seed=2)}
    source = {f"{name}.weight": value for name, value in parts.items()}
    source |= {f"{name}.bias": value for name, value in biases.items()}
    map = {f"{name}.{{}}": {"to": "qkv.{}", "join": 0, "place": place} for place, name in enumerate("qkv")}
    assert fd.load_weights(model, source, map=map).count == 2
    assert np.array_equal(model.qkv.weight.detach().numpy(), np.concatenate(list(parts.values())))
    map["q.{}"], map["v.{}"] = map["v.{}"], map["q.{}"]
    fd.load_weights(model, source, map=map)
    expected = np.concatenate([parts["v"], parts["k"], parts["q"]])
    assert np.array_equal(model.qkv.weight.detach().numpy(), expected)


def test_a_conv1d_weight_is_turned_and_then_split():
    model = Attention(fused=False)
    source = {"c_attn.weight": random(8, 16), "c_attn.bias": random(16)}
    map = {
        "c_attn.weight": {"to": ["q.weight", "k.weight", "v.weight"], "transpose": True, "split": 0},
        "c_attn.bias": {"to": ["q.bias", "k.bias", "v.bias"], "split": 0},
    }
    fd.load_weights(model, source, map=map)
    assert np.array_equal(model.k.weight.detach().numpy(), source["c_attn.weight"].T[8:12])


def test_heads_that_are_interleaved_are_put_apart_by_several_steps():
    model = Attention(fused=True)
    blocks = random(2, 3, 8, seed=4).reshape(2, 3, 8)  # heads, then q k v, then the rest
    source = {"qkv.weight": np.tile(blocks.reshape(6, 8), (1, 1))[:4].repeat(4, 0), "qkv.bias": random(16)}
    steps = [{"reshape": [4, 4, 8]}, {"permute": [1, 0, 2]}, {"reshape": [16, 8]}]
    fd.load_weights(model, source, map={"qkv.weight": {"to": "qkv.weight", "steps": steps}})
    expected = source["qkv.weight"].reshape(4, 4, 8).transpose(1, 0, 2).reshape(16, 8)
    assert np.array_equal(model.qkv.weight.detach().numpy(), expected)


@pytest.mark.parametrize(
    ("map", "said"),
    [
        ({"qkv.weight": {"to": ["q.weight", "k.weight"], "split": 0}}, "8 + 4 = 12"),
        ({"qkv.weight": {"to": ["q.weight", "k.weight", "v.weight"], "split": 1}}, "8 + 8 + 8 = 24"),
        ({"qkv.weight": {"to": ["q.weight", "k.weight", "v.weight"], "split": 2}}, "cannot be split along axis 2"),
        ({"qkv.weight": {"to": "q.weight", "reshape": [3, 5]}}, "does not fit shape [16, 8]"),
        ({"qkv.weight": {"to": ["q.weight", "k.weight"]}}, "add 'split: AXIS', or 'tie: true'"),
        ({"qkv.weight": {"to": "q.weight", "scale": 2}}, "'scale' is not an option"),
        ({"qkv.weight": {"to": "q.weight", "join": 0}}, "go together"),
        ({"qkv.weight": {"to": "q.weight", "place": 0}}, "go together"),
        ({"qkv.weight": {"to": "q.weight", "split": 0}}, "needs several names"),
        ({"qkv.weight": {"to": []}}, "is an empty list"),
        ({"qkv.weight": {"transpose": True}}, "does not say where it goes"),
        ({"qkv.weight": 3}, "does not say where it goes"),
        ({"qkv.{}": {"to": "q.{}.{}"}}, "has 2 {} but 'qkv.{}' has 1"),
        ({"qkv.weight": {"to": "q.weight", "join": 0, "place": -1}}, "number the pieces"),
        ({"qkv.weight": {"to": "q.weight", "join": 0, "place": 1}}, "the places 0 to 0"),
        ({"qkv.weight": {"to": "q.weight", "steps": [{"scale": 2}]}}, "is not one of transpose"),
        ({"qkv.weight": {"to": "q.weight", "steps": [], "transpose": True}}, "write one of the two"),
        ({3: "q.weight"}, "is a int, not text"),
    ],
)
def test_a_map_that_cannot_be_meant_says_what_is_wrong(map, said):
    model = Attention(fused=False)
    source = {"qkv.weight": random(16, 8), "qkv.bias": random(16)}
    assert said in refused(model, source, map)


def test_two_tensors_for_one_place_are_refused():
    model = nn.Linear(2, 2, bias=False)
    source = {"a": random(2, 2), "b": random(2, 2)}
    assert "2 tensors of the file would fill it (a, b)" in refused(model, source, {"a": "weight", "b": "weight"})


def test_joined_pieces_that_leave_a_gap_or_overflow_are_refused():
    model = nn.Linear(4, 8, bias=False)
    map = {"a": {"to": "weight", "join": 0, "place": 0}, "b": {"to": "weight", "join": 0, "place": 1}}
    said = refused(model, {"a": random(4, 4), "b": random(3, 4)}, map)
    assert "shape [7, 4] in the file, [8, 4] in the model" in said
    said = refused(model, {"a": random(4, 4), "b": random(4, 5)}, map)
    assert "cannot be joined" in said
    map["b"]["place"] = 2
    assert "a at 0, b at 2" in refused(model, {"a": random(4, 4), "b": random(4, 4)}, map)


def test_a_map_is_read_from_a_file(tmp_path):
    file = tmp_path / "names.yml"
    file.write_text("net.{}.*: '{}.*'\nold.*: null\n")
    model = plain()
    source = {f"net.{name}": value for name, value in other(model).items()} | {"old.x": torch.ones(2)}
    assert fd.load_weights(model, source, map=file).dropped == ("old.x",)
    file.write_text("net.{}.*: '{}.*'\nnet.{}.*: '{}.*'\n")
    with pytest.raises(fd.FormatError, match="line 2"):
        fd.load_weights(model, source, map=file)
    file.write_text("")
    with pytest.raises(fd.FormatError, match="is empty"):
        fd.load_weights(model, source, map=file)
    with pytest.raises(fd.NotFoundError, match="names.yaml"):
        fd.load_weights(model, source, map=tmp_path / "names.yaml")


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["q.weight", "{}", "*", "a{}b*", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*OPTIONS, "x"]), inner, max_size=4),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["qkv.weight", "qkv.{}", "*", "{}{}", "\\"]), JUNK, max_size=3))
def test_no_map_does_anything_but_load_or_refuse(map):
    model = Attention(fused=False)
    before = bits(model)
    try:
        fd.load_weights(model, {"qkv.weight": random(16, 8), "qkv.bias": random(16)}, map=map)
    except fd.FirstdriftError:
        assert bits(model) == before


# Maps that are suggested.


def suggestion(model, source):
    with pytest.raises(fd.WeightsError) as caught:
        fd.load_weights(model, source)
    found = caught.value.suggested_map
    assert found is None or found.rstrip("\n") in str(caught.value)
    return found


def loads_with(model, source, text, tmp_path):
    (tmp_path / "map.yml").write_text(text)
    return fd.load_weights(model, source, map=tmp_path / "map.yml")


def test_another_prefix_is_suggested_and_the_suggestion_loads(tmp_path):
    model = nn.Sequential(*(nn.Linear(3, 3) for _ in range(12)))
    source = {f"model.layers.{name}": value for name, value in other(model).items()} | {"step": torch.ones(1)}
    text = suggestion(model, source)
    assert "model.layers.{}.weight: '{}.weight'" in text
    assert "step: null" in text
    assert loads_with(model, source, text, tmp_path).count == 24
    assert torch.equal(model[11].weight, source["model.layers.11.weight"])


def test_fused_and_turned_layouts_are_suggested_and_load(tmp_path):
    model = nn.ModuleDict({"layers": nn.ModuleList(Attention(fused=False) for _ in range(3))})
    source = {f"layers.{i}.qkv.weight": random(16, 8, seed=i) for i in range(3)}
    source |= {f"layers.{i}.qkv.bias": random(16, seed=i) for i in range(3)}
    text = suggestion(model, source)
    assert "split: 0" in text
    assert loads_with(model, source, text, tmp_path).count == 18
    assert np.array_equal(model["layers"][2].v.weight.detach().numpy(), source["layers.2.qkv.weight"][12:])
    joined = nn.ModuleDict({"layers": nn.ModuleList(Attention(fused=True) for _ in range(3))})
    parts = {name: value.detach().numpy() for name, value in model.state_dict().items()}
    text = suggestion(joined, parts)
    assert "join: 0, place: 2" in text
    assert loads_with(joined, parts, text, tmp_path).count == 6
    assert np.array_equal(joined["layers"][1].qkv.weight.detach().numpy(), source["layers.1.qkv.weight"])


def test_a_fused_tensor_of_the_one_layer_is_suggested_to_be_split():
    model = nn.ModuleDict({"attn": Attention(fused=False)})
    text = suggestion(model, {"attn.qkv.weight": random(16, 8), "attn.qkv.bias": random(16)})
    assert "attn.qkv.weight: {to: [attn.q.weight, attn.k.weight, attn.v.weight], split: 0}" in text


def test_a_matrix_of_the_other_orientation_is_suggested_to_be_turned(tmp_path):
    model = nn.Linear(3, 5)
    source = {"weight": random(3, 5), "bias": random(5)}
    text = suggestion(model, source)
    assert text == "weight: {to: weight, transpose: true}\n"
    loads_with(model, source, text, tmp_path)
    assert np.array_equal(model.weight.detach().numpy(), source["weight"].T)


def test_only_matrices_are_suggested_to_be_turned():
    model = nn.Conv1d(5, 3, 2, bias=False)
    assert suggestion(model, {"conv.weight": random(2, 5, 3)}) is None
    assert suggestion(model, {"weight": random(2, 5, 3)}) is None


def test_a_tie_is_suggested_where_the_file_declares_one_and_the_shapes_are_equal(tmp_path):
    said = {"tie_word_embeddings": True}
    embed, body = random(12, 4), {"body.weight": random(4, 4), "body.bias": random(4)}
    tensors = [("embed.weight", embed), *body.items()]
    write_checkpoint(tmp_path / "m.safetensors", tensors, format="safetensors", metadata=said)
    model = Tied(tied=False)
    text = suggestion(model, tmp_path / "m.safetensors")
    assert text == "embed.weight: {to: [embed.weight, head.weight], tie: true}\n"
    assert loads_with(model, tmp_path / "m.safetensors", text, tmp_path).count == 4
    assert np.array_equal(model.head.weight.detach().numpy(), embed)
    write_checkpoint(tmp_path / "m.npz", tensors, format="npz")  # which says nothing of a tie
    assert suggestion(Tied(tied=False), tmp_path / "m.npz") is None
    wide = Tied(tied=False)
    wide.head = nn.Linear(4, 13, bias=False)
    assert suggestion(wide, tmp_path / "m.safetensors") is None


def test_a_suggestion_says_for_what_there_is_nothing():
    model = nn.ModuleDict({"a": nn.Linear(3, 2), "b": nn.Linear(7, 7, bias=False)})
    text = suggestion(model, {"net.a.weight": random(2, 3), "net.a.bias": random(2)})
    assert "# nothing likely for the model's b.weight [7, 7]" in text


def test_what_two_are_as_likely_for_is_called_ambiguous(tmp_path):
    model = nn.ModuleDict({"a": nn.Linear(2, 2, bias=False), "b": nn.Linear(2, 2, bias=False)})
    source = {"x.weight": random(2, 2), "y.weight": random(2, 2, seed=1)}
    text = suggestion(model, source)
    assert text.splitlines() == [
        f"# ambiguous: the model's {name}.weight [2, 2] may be the file's x.weight or y.weight; write a line for it"
        for name in "ab"
    ]
    assert "it is empty" in refused_with(model, source, text, tmp_path)


def refused_with(model, source, text, tmp_path):
    (tmp_path / "map.yml").write_text(text)
    return refused(model, source, tmp_path / "map.yml")


class Block(nn.Module):
    """A network of two layers whose matrices have each other's shapes once transposed."""

    def __init__(self, names, bias=True, square=None):
        super().__init__()
        up, down = names
        self.add_module(up, nn.Linear(4, 8, bias=bias))
        self.add_module(down, nn.Linear(8, 4, bias=bias))
        if square is not None:
            self.add_module(square, nn.Linear(4, 4))


def turned(state, names):
    """A state under other names, with every matrix as a Conv1D layer has it."""
    renamed = {}
    for name, value in state.items():
        layer, _, leaf = name.rpartition(".")
        renamed[f"{names[layer]}.{leaf}"] = value.T.contiguous() if value.ndim == 2 else value
    return renamed


def test_a_weight_is_suggested_where_its_bias_is(tmp_path):
    """As shapes go, each matrix would fit the other layer without being transposed."""
    wanted = other(Block(("up", "down")))
    source = turned(wanted, {"up": "c_fc", "down": "c_proj"})
    model = Block(("up", "down"))
    text = suggestion(model, source)
    assert "c_fc.weight: {to: up.weight, transpose: true}" in text
    loads_with(model, source, text, tmp_path)
    assert all(torch.equal(value, wanted[name]) for name, value in model.state_dict().items())


def test_matrices_without_a_bias_that_fit_two_layers_are_ambiguous(tmp_path):
    model = Block(("up", "down"), bias=False)
    source = turned(other(model), {"up": "first", "down": "second"})
    text = suggestion(model, source)
    assert text.count("# ambiguous") == 2
    assert "up.weight [8, 4] may be the file's first.weight or second.weight" in text
    refused_with(model, source, text, tmp_path)


def test_a_word_in_common_outranks_a_shape_that_fits_without_a_transpose(tmp_path):
    wanted = other(Block(("up", "down"), bias=False))
    source = turned(wanted, {"up": "net.c_up", "down": "net.c_down"})
    model = Block(("up", "down"), bias=False)
    loads_with(model, source, suggestion(model, source), tmp_path)
    assert all(torch.equal(value, wanted[name]) for name, value in model.state_dict().items())


def test_a_square_matrix_beside_transposed_ones_is_ambiguous_and_the_map_waits(tmp_path):
    names = {name: name for name in ("up", "down", "out")}
    wanted = other(Block(("up", "down"), square="out"))
    for prefix in ("", "net."):  # under the model's own names, and under others
        source = turned(wanted, {name: prefix + name for name in names})
        model = Block(("up", "down"), square="out")
        text = suggestion(model, source)
        assert f"{prefix}out.weight: {{to: out.weight, transpose: ambiguous}}" in text
        assert "transpose is 'ambiguous'; write true, or leave it out" in refused_with(model, source, text, tmp_path)
        loads_with(model, source, text.replace("ambiguous", "true"), tmp_path)
        assert all(torch.equal(value, wanted[name]) for name, value in model.state_dict().items())


def test_square_kernels_lie_as_the_other_kernels_do(tmp_path):
    wanted = other(Block(("up", "down"), square="out"))
    source = turned(wanted, {name: f"params.{name}" for name in ("up", "down", "out")})
    source = {name.replace("weight", "kernel"): value for name, value in source.items()}
    model = Block(("up", "down"), square="out")
    loads_with(model, source, suggestion(model, source), tmp_path)
    assert all(torch.equal(value, wanted[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_numbers_that_the_model_holds_decide(tmp_path, dtype):
    """Names say nothing and shapes mislead; the model was loaded from another file of the same weights."""
    model = Block(("up", "down"), bias=False, square="out").to(dtype)
    model.load_state_dict(other(model))
    wanted = {name: value.clone() for name, value in model.state_dict().items()}
    source = turned(wanted, {"up": "x", "down": "y", "out": "z"})
    source = {name: value.float() for name, value in source.items()}
    text = suggestion(model, source)
    assert "ambiguous" not in text
    (tmp_path / "map.yml").write_text(text)
    fd.load_weights(model, source, map=tmp_path / "map.yml", cast=True)
    assert all(torch.equal(value, wanted[name]) for name, value in model.state_dict().items())


def test_numbers_decide_how_parts_are_joined_and_cut(tmp_path):
    split = Attention(fused=False)
    wanted = state(split)
    q, k, v = (wanted[f"{part}.weight"] for part in "qkv")
    fused = {"c.weight": torch.cat([v, q, k]).T.contiguous()}
    fused["c.bias"] = torch.cat([wanted[f"{part}.bias"] for part in "vqk"])
    text = suggestion(split, fused)
    assert "c.weight: {to: [v.weight, q.weight, k.weight], transpose: true, split: 0}" in text
    loads_with(split, fused, text, tmp_path)
    assert all(torch.equal(value, wanted[name]) for name, value in split.state_dict().items())
    joined = Attention(fused=True)
    joined.load_state_dict({"qkv.weight": fused["c.weight"].T, "qkv.bias": fused["c.bias"]})
    parts = {f"x.{name}": value.T.contiguous() if value.ndim == 2 else value for name, value in wanted.items()}
    text = suggestion(joined, parts)
    assert "x.v.weight: {to: qkv.weight, transpose: true, join: 0, place: 0}" in text
    loads_with(joined, parts, text, tmp_path)
    assert torch.equal(joined.qkv.weight, fused["c.weight"].T)


def test_parts_are_ordered_by_the_whole_and_not_by_the_model(tmp_path):
    model = nn.ModuleDict({"up": nn.Linear(4, 3), "gate": nn.Linear(4, 3)})
    source = {"gate_up.weight": random(6, 4), "gate_up.bias": random(6)}
    loads_with(model, source, suggestion(model, source), tmp_path)
    assert np.array_equal(model["gate"].weight.detach().numpy(), source["gate_up.weight"][:3])
    text = suggestion(model, {"both.weight": random(6, 4, seed=5), "both.bias": random(6, seed=5)})
    assert "# ambiguous: the file's both.weight [6, 4] may be up.weight, gate.weight together" in text


def test_a_transposed_fused_tensor_is_suggested_and_square_parts_are_ambiguous(tmp_path):
    model = Attention(fused=False)
    source = {"c_attn.weight": random(8, 16), "c_attn.bias": random(16)}
    text = suggestion(model, source)
    assert "c_attn.weight: {to: [q.weight, k.weight, v.weight], transpose: true, split: 0}" in text
    loads_with(model, source, text, tmp_path)
    assert np.array_equal(model.k.weight.detach().numpy(), source["c_attn.weight"][:, 8:12].T)
    square = nn.ModuleDict({part: nn.Linear(8, 8) for part in "qkv"})
    text = suggestion(square, {"c_attn.weight": random(8, 24), "c_attn.bias": random(24)})
    assert "# ambiguous: the file's c_attn.weight [8, 24] may be q.weight, k.weight, v.weight together" in text
    assert "split" not in text


def test_a_bias_without_a_place_is_not_dropped_with_its_weight_in_use(tmp_path):
    model = nn.ModuleDict({"a": nn.Linear(3, 2, bias=False)})
    source = {"net.a.weight": random(2, 3), "net.a.bias": random(2)}
    text = suggestion(model, source)
    assert "# the model has no place for the file's net.a.bias [2]; give it one, or null to drop it" in text
    assert "net.a.bias: neither the map nor the model knows" in refused_with(model, source, text, tmp_path)


def test_a_suggestion_is_never_used_by_itself():
    model = nn.Linear(3, 5)
    before = bits(model)
    suggestion(model, {"model.weight": random(5, 3), "model.bias": random(5)})
    assert bits(model) == before
