"""Two checkpoints, tensor by tensor: what is the same is called that, what moved is found, errors get their names."""

import json

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from tests.weights.networks import diff_checkpoints, holder, random

import firstdrift as fd
from firstdrift.cli.main import cli
from firstdrift.weights.loading.map_lines import find_whole
from firstdrift.weights.writing import write_checkpoint

HEADS, SIZE, WIDTH = 4, 16, 64


def block(layer):
    seeds = iter(range(100 * layer, 100 * layer + 100))
    shapes = {
        "attn.q.weight": (WIDTH, WIDTH), "attn.k.weight": (WIDTH, WIDTH), "attn.v.weight": (WIDTH, WIDTH),
        "mlp.gate.weight": (96, WIDTH), "mlp.up.weight": (96, WIDTH), "mlp.up.bias": (96,), "norm.weight": (WIDTH,),
    }  # fmt: skip
    return {f"layers.{layer}.{name}": random(*shape, seed=next(seeds)) for name, shape in shapes.items()}


@pytest.fixture
def state():
    return {**block(0), **block(1), "embed.weight": random(50, WIDTH, seed=7)}


def compared(tmp_path, reference, candidate):
    paths = []
    for name, tensors in (("a", reference), ("b", candidate)):
        paths.append(tmp_path / f"{name}.safetensors")
        write_checkpoint(paths[-1], list(tensors.items()), format="safetensors")
    return diff_checkpoints(*paths)


def both_ways(tmp_path, reference, candidate):
    return compared(tmp_path, reference, candidate), compared(tmp_path, candidate, reference)


def only(found, name):
    """The one line that is not `same`."""
    different = [one for one in found.tensors if one.verdict != "same"]
    assert [one.name for one in different] == [name], different
    return different[0]


def test_equal_checkpoints_are_the_same(tmp_path, state):
    found = compared(tmp_path, state, dict(reversed(state.items())))
    assert (found.verdict, found.exit_code, found.counts) == ("same", 0, {"same": 15})


def test_one_bit_is_a_drift(tmp_path, state):
    other = {name: value.copy() for name, value in state.items()}
    other["layers.1.norm.weight"].view(np.uint32)[5] ^= 1
    for found in both_ways(tmp_path, state, other):
        assert only(found, "layers.1.norm.weight").verdict == "drift"
        assert found.exit_code == 1


def test_a_transposed_square_matrix_is_named_in_each_direction(tmp_path, state):
    other = {**state, "layers.0.attn.q.weight": state["layers.0.attn.q.weight"].T.copy()}
    for found in both_ways(tmp_path, state, other):
        assert only(found, "layers.0.attn.q.weight").label == "transpose"


def test_a_transposed_matrix_of_another_shape_is_named(tmp_path, state):
    other = {**state, "layers.0.mlp.up.weight": state["layers.0.mlp.up.weight"].T.copy()}
    for found in both_ways(tmp_path, state, other):
        one = only(found, "layers.0.mlp.up.weight")
        assert one.label == "transpose"
        assert "[96, 64]" in one.sentence


@pytest.mark.parametrize("axes", [(2, 3, 1, 0), (0, 2, 3, 1), (2, 3, 4, 1, 0)])
def test_the_axes_of_a_convolution_in_another_order_are_named(tmp_path, axes):
    kernel = random(*(8, 5, 3, 4, 2)[: len(axes)])
    found = compared(tmp_path, {"conv.weight": kernel}, {"conv.weight": kernel.transpose(axes).copy()})
    one = only(found, "conv.weight")
    assert (one.label, found.exit_code) == ("axis-order", 1)
    assert f"the axes are stored in the order {list(axes)}" in one.sentence


def test_rows_in_the_interleaved_order_are_named_in_each_direction(tmp_path, state):
    rows = state["layers.1.attn.k.weight"].reshape(HEADS, 2, SIZE // 2, WIDTH).swapaxes(1, 2).reshape(WIDTH, WIDTH)
    other = {**state, "layers.1.attn.k.weight": rows}
    for found in both_ways(tmp_path, state, other):
        one = only(found, "layers.1.attn.k.weight")
        assert one.label == "rope-interleave"
        assert "every block of 16" in one.sentence


def test_exchanged_layers_are_named_with_each_other(tmp_path, state):
    a, b = "layers.0.mlp.up.weight", "layers.1.mlp.up.weight"
    other = {**state, a: state[b], b: state[a]}
    for found in both_ways(tmp_path, state, other):
        lines = {one.name: one for one in found.tensors if one.verdict != "same"}
        assert {name: (one.label, one.others) for name, one in lines.items()} == {
            a: ("weight-swap", (b,)),
            b: ("weight-swap", (a,)),
        }


def test_a_layer_that_was_copied_over_another_is_named(tmp_path, state):
    a, b = "layers.0.mlp.up.weight", "layers.1.mlp.up.weight"
    one = only(compared(tmp_path, state, {**state, a: state[b]}), a)
    assert (one.label, one.others) == ("wrong-weight", (b,))


def test_numbers_that_two_others_have_are_given_to_neither(tmp_path, state):
    a, b, c = (f"layers.0.attn.{part}.weight" for part in "qkv")
    reference = {**state, b: state[a].copy()}
    one = only(compared(tmp_path, reference, {**reference, c: state[a].copy()}), c)
    assert (one.verdict, one.others) == ("drift", ())


def test_a_part_is_used_once():
    part = random(3, 4)
    assert find_whole("w", np.concatenate([part, part]), ["p"], {"p": part}.__getitem__) is None


def test_a_dropped_bias_is_missing_in_one_direction_and_listed_in_the_other(tmp_path, state):
    other = {name: value for name, value in state.items() if name != "layers.1.mlp.up.bias"}
    there, back = both_ways(tmp_path, state, other)
    assert only(there, "layers.1.mlp.up.bias").verdict == "missing"
    assert (there.verdict, there.exit_code) == ("missing", 2)
    assert back.candidate_only == ("layers.1.mlp.up.bias",)
    assert back.exit_code == 0


def test_fused_and_split_projections_are_the_same_numbers(tmp_path, state):
    names = [f"layers.0.attn.{part}.weight" for part in "qkv"]
    other = {name: value for name, value in state.items() if name not in names}
    other["layers.0.attn.qkv.weight"] = np.concatenate([state[name] for name in names])
    there, back = both_ways(tmp_path, state, other)
    assert {one.name: one.label for one in there.tensors if one.verdict == "moved"} == dict.fromkeys(names, "fused")
    assert (there.exit_code, there.candidate_only) == (0, ())
    sentences = {one.name: one.sentence for one in there.tensors}
    assert sentences[names[0]] == "part 1 of 3 of layers.0.attn.qkv.weight, joined along axis 0"
    assert sentences[names[2]].startswith("part 3 of 3")
    one = only(back, "layers.0.attn.qkv.weight")
    assert (one.label, one.others) == ("split", tuple(names))
    assert (back.exit_code, back.candidate_only) == (0, ())


def test_gate_and_up_fused_and_turned_are_found(tmp_path, state):
    names = ["layers.1.mlp.gate.weight", "layers.1.mlp.up.weight"]
    other = {name: value for name, value in state.items() if name not in names}
    other["layers.1.mlp.gate_up.weight"] = np.concatenate([state[name] for name in names]).T.copy()
    there, back = both_ways(tmp_path, state, other)
    assert all("transposed" in one.sentence for one in there.tensors if one.name in names)
    assert there.exit_code == back.exit_code == 0


def test_a_fused_tensor_with_one_wrong_number_is_missing_its_parts(tmp_path, state):
    names = [f"layers.0.attn.{part}.weight" for part in "qkv"]
    other = {name: value for name, value in state.items() if name not in names}
    fused = np.concatenate([state[name] for name in names])
    fused[100, 3] += 1
    other["layers.0.attn.qkv.weight"] = fused
    found = compared(tmp_path, state, other)
    assert {one.name for one in found.tensors if one.verdict == "missing"} == set(names)
    assert (found.exit_code, found.candidate_only) == (2, ("layers.0.attn.qkv.weight",))


def test_a_tied_head_is_recognised_in_each_direction(tmp_path, state):
    other = {**state, "head.weight": state["embed.weight"].copy()}
    there, back = both_ways(tmp_path, state, other)
    assert (there.verdict, there.candidate_only) == ("same", ())
    one = only(back, "head.weight")
    assert (one.verdict, one.label, one.others) == ("moved", "tied", ("embed.weight",))


def test_renamed_tensors_are_found_by_their_numbers(tmp_path, state):
    other = {f"model.{name}": value for name, value in state.items()}
    found = compared(tmp_path, state, other)
    assert found.counts == {"moved": 15}
    assert all(one.others == (f"model.{one.name}",) for one in found.tensors)


def test_another_dtype_is_one_rounding_and_no_drift(tmp_path, state):
    for dtype in (np.float16, ml_dtypes.bfloat16):
        other = {name: value.astype(dtype) for name, value in state.items()}
        for found in both_ways(tmp_path, state, other):
            assert found.counts == {"rounded": 15}
            assert found.exit_code == 0


def test_a_rounding_that_is_off_by_one_is_a_drift(tmp_path, state):
    other = {name: value.astype(np.float16) for name, value in state.items()}
    other["embed.weight"] = other["embed.weight"].copy()
    other["embed.weight"].view(np.uint16)[3, 3] += 1
    found = compared(tmp_path, state, other)
    assert (found.verdict, found.counts) == ("drift", {"drift": 1, "rounded": 14})


def test_an_exact_change_of_dtype_is_the_same(tmp_path):
    state = {"w": random(8, 8).astype(np.float16).astype(np.float32)}
    assert compared(tmp_path, state, {"w": state["w"].astype(np.float16)}).verdict == "same"


def test_a_value_that_is_no_number_on_one_side_is_a_drift(tmp_path, state):
    other = {name: value.copy() for name, value in state.items()}
    other["embed.weight"][0, 0] = np.nan
    for found in both_ways(tmp_path, state, other):
        assert only(found, "embed.weight").verdict == "drift"


def test_weights_with_nothing_in_common_are_not_given_a_layout(tmp_path, state):
    other = {**state, "layers.0.attn.q.weight": random(WIDTH, WIDTH, seed=999)}
    for found in both_ways(tmp_path, state, other):
        assert only(found, "layers.0.attn.q.weight").label in (None, "wrong-weight")


def test_nothing_in_common_is_never_green(tmp_path, state):
    found = compared(tmp_path, state, {"other": random(3, 3)})
    assert (found.verdict, found.exit_code) == ("nothing compared", 2)


def test_integers_and_flags_are_compared_by_their_bits(tmp_path):
    state = {"steps": np.arange(5), "mask": np.array([True, False])}
    assert compared(tmp_path, state, state).verdict == "same"
    other = {"steps": np.arange(5) + 1, "mask": np.array([True, True])}
    assert compared(tmp_path, state, other).counts == {"drift": 2}
    assert compared(tmp_path, state, {**state, "steps": np.arange(5.0)}).exit_code == 1


def test_formats_may_differ(tmp_path, state):
    write_checkpoint(tmp_path / "a.safetensors", list(state.items()), format="safetensors")
    write_checkpoint(tmp_path / "b.npz", list(state.items()), format="npz")
    assert diff_checkpoints(tmp_path / "a.safetensors", tmp_path / "b.npz").verdict == "same"


def test_constant_tensors_are_not_taken_for_each_other(tmp_path):
    state = {"a": np.ones(8, np.float32), "b": np.zeros(8, np.float32)}
    found = compared(tmp_path, state, {"a": state["b"], "b": state["a"]})
    assert not {one.label for one in found.tensors} & {"weight-swap", "wrong-weight"}


@given(st.data())
def test_whatever_is_cut_and_joined_is_found_again(data):
    rows = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    axis, turned = data.draw(st.integers(0, 1)), data.draw(st.booleans())
    parts = {f"p{i}": random(*((n, 4) if axis == 0 else (4, n)), seed=i) for i, n in enumerate(rows)}
    whole = np.concatenate(list(parts.values()), axis)
    found = find_whole("w", whole.T.copy() if turned else whole, list(parts)[::-1], parts.__getitem__)
    assert found is not None
    view = whole if found.turned == turned else whole.T
    joined = np.concatenate([parts[name] for name in found.parts], found.axis)
    assert np.array_equal(joined, view)


def run(*arguments):
    found = CliRunner().invoke(cli, ["weights", "diff", *map(str, arguments)])
    return found.exit_code, found.output


def test_the_command_prints_what_it_found_and_exits_by_it(tmp_path, state):
    compared(tmp_path, state, {**state, "layers.0.attn.q.weight": state["layers.0.attn.q.weight"].T.copy()})
    a, b = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    code, output = run(a, b)
    assert code == 1
    assert "layers.0.attn.q.weight" in output
    assert "[transpose]" in output
    code, output = run(a, b, "--json")
    found = json.loads(output)
    assert (code, found["schema"], found["verdict"]) == (1, "firstdrift-weights-diff-v1", "drift")
    assert [one["label"] for one in found["tensors"] if one["verdict"] == "drift"] == ["transpose"]
    assert run(a, a)[0] == 0
    assert run(a, tmp_path / "none")[0] == 2


def mapped(tmp_path, reference, candidate):
    """The map of a diff; and what a model with the candidate's names holds once it has loaded the reference by it."""
    compared(tmp_path, reference, candidate)
    (tmp_path / "map.yml").unlink(missing_ok=True)
    run(tmp_path / "a.safetensors", tmp_path / "b.safetensors", "--write-map", tmp_path / "map.yml")
    model = holder(candidate)
    fd.load_weights(model, tmp_path / "a.safetensors", map=tmp_path / "map.yml")
    text = (tmp_path / "map.yml").read_text()
    return text, {name: value.numpy() for name, value in model.state_dict().items()}


def carried(tmp_path, reference, candidate):
    text, held = mapped(tmp_path, reference, candidate)
    assert set(held) == set(candidate)
    assert all(held[name].tobytes() == np.ascontiguousarray(value).tobytes() for name, value in candidate.items())
    return text


def port(state):
    """Another implementation's names, layouts, fused and cut tensors, and ties; biases and norms never trained."""
    q, k, v = (f"layers.0.attn.{part}.weight" for part in "qkv")
    interleaved = state["layers.1.attn.k.weight"].reshape(HEADS, 2, SIZE // 2, WIDTH).swapaxes(1, 2)
    return {
        "h.0.att.qkv": np.concatenate([state[name] for name in (v, q, k)]).T.copy(),
        "h.0.mlp.c_gate.weight": state["layers.0.mlp.gate.weight"].T.copy(),
        "h.0.mlp.c_up.weight": state["layers.0.mlp.up.weight"],
        "h.0.mlp.c_up.bias": state["layers.0.mlp.up.bias"],
        "h.0.scale.weight": state["layers.0.norm.weight"],
        "layers.1.attn.q.weight": state["layers.1.attn.q.weight"].T.copy(),
        "layers.1.attn.k.weight": interleaved.reshape(WIDTH, WIDTH),
        "layers.1.attn.v.weight": state["layers.1.attn.v.weight"],
        "layers.1.mlp.gate.weight": state["layers.1.mlp.gate.weight"].T.copy(),
        "layers.1.mlp.up.first": state["layers.1.mlp.up.weight"][:40].copy(),
        "layers.1.mlp.up.second": state["layers.1.mlp.up.weight"][40:].copy(),
        "layers.1.mlp.up.bias": state["layers.1.mlp.up.bias"],
        "layers.1.norm.weight": state["layers.1.norm.weight"],
        "tokens.weight": state["embed.weight"],
        "head.weight": state["embed.weight"].copy(),
    }


def test_a_map_that_was_found_by_numbers_carries_all_of_them(tmp_path, state):
    state["layers.0.mlp.up.bias"] = np.zeros(96, np.float32)  # which its weight tells
    state["layers.0.norm.weight"] = np.ones(WIDTH, np.float32)  # which is the only one left
    text = carried(tmp_path, state, port(state))
    assert "layers.0.attn.q.weight: {to: h.0.att.qkv, transpose: true, join: 1, place: 1}" in text
    assert "layers.1.attn.q.weight: {to: layers.1.attn.q.weight, transpose: true}" in text
    assert "embed.weight: {to: [" in text
    assert "layers.1.attn.v" not in text
    assert not [line for line in text.splitlines()[2:] if line.startswith("#")]


def test_a_map_goes_back_as_well(tmp_path, state):
    there = port(state)
    back = {**state, "head": state["embed.weight"].copy()}
    carried(tmp_path, there, back)


def test_a_map_of_renamed_layers_is_one_line_a_kind(tmp_path, state):
    text = carried(tmp_path, state, {f"model.{name}": value for name, value in state.items()})
    assert "layers.{}.attn.q.weight: model.layers.{}.attn.q.weight" in text
    assert len(text.splitlines()) == 2 + 8


def test_untrained_tensors_that_names_do_not_tell_are_ambiguous(tmp_path):
    ones = np.ones(4, np.float32)
    compared(tmp_path, {"a.weight": ones, "b.weight": ones, "w": random(3)}, {"x.weight": ones, "y.weight": ones})
    found = diff_checkpoints(tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    assert {one.name: one.verdict for one in found.tensors} == dict.fromkeys(("a.weight", "b.weight", "w"), "missing")
    run(tmp_path / "a.safetensors", tmp_path / "b.safetensors", "--write-map", tmp_path / "map.yml")
    text = (tmp_path / "map.yml").read_text()
    assert "# a.weight: ambiguous: x.weight or y.weight may be it, by their numbers" in text
    assert "# w: the candidate has no such tensor; write a line for it, or null to drop it" in text
    assert "# nothing fills x.weight, which only the candidate has" in text


def test_exchanged_layers_are_in_the_map_with_a_warning(tmp_path, state):
    a, b = "layers.0.mlp.up.weight", "layers.1.mlp.up.weight"
    text = carried(tmp_path, state, {**state, a: state[b], b: state[a]})
    assert f"# {a}: exchanged with {b}; keep its line only if the names are meant so" in text


def test_a_map_that_is_there_is_kept(tmp_path, state):
    compared(tmp_path, state, state)
    (tmp_path / "map.yml").write_text("mine")
    code, output = run(tmp_path / "a.safetensors", tmp_path / "b.safetensors", "--write-map", tmp_path / "map.yml")
    assert (code, (tmp_path / "map.yml").read_text()) == (2, "mine")
    assert "exists, and may have been edited" in output


def test_norms_of_ones_and_biases_of_zeros_are_moved_with_their_layers(tmp_path, state):
    """They were missing, and a checkpoint that was only renamed could not be told to be whole."""
    untrained = {**state, "layers.1.mlp.up.bias": np.zeros(96, np.float32)}
    untrained |= {f"layers.{i}.norm.weight": np.ones(WIDTH, np.float32) for i in range(2)}
    found = compared(tmp_path, untrained, {f"model.{name}": value for name, value in untrained.items()})
    assert (found.counts, found.exit_code) == ({"moved": 15}, 0)
    assert all(one.others == (f"model.{one.name}",) for one in found.tensors)


def written(path, **tensors):
    from safetensors.numpy import save_file

    save_file(tensors, str(path))
    return path


def both(tmp_path, ours, theirs):
    return diff_checkpoints(written(tmp_path / "a.safetensors", **ours), written(tmp_path / "b.safetensors", **theirs))


def test_numbers_that_are_none_on_both_sides_are_not_comparable(tmp_path):
    weights = np.arange(6, dtype=np.float32).reshape(2, 3)
    lost = weights.copy()
    lost[1, 2] = np.nan
    result = both(tmp_path, {"w": lost}, {"w": lost})
    assert (result.verdict, result.exit_code) == ("not comparable", 2)
    assert both(tmp_path, {"w": lost}, {"w": weights}).exit_code == 1


def test_a_drift_beside_numbers_that_are_none_is_found(tmp_path):
    lost = np.array([1.0, np.nan, 3.0], np.float32)
    assert both(tmp_path, {"w": lost}, {"w": np.array([1.5, np.nan, 3.0], np.float32)}).exit_code == 1


def test_empty_tensors_cover_nothing(tmp_path):
    empty = np.zeros((0, 3), np.float32)
    assert both(tmp_path, {"w": empty}, {"w": empty}).exit_code == 2
    full = np.ones((2, 3), np.float32)
    assert both(tmp_path, {"w": empty, "v": full}, {"w": empty, "v": full}).exit_code == 0


def test_zeros_of_another_sign_are_the_same_numbers(tmp_path):
    zeros = np.array([0.0, 1.0], np.float32)
    result = both(tmp_path, {"w": zeros}, {"w": -zeros * np.array([1, -1], np.float32)})
    assert (result.exit_code, result.tensors[0].sentence) == (0, "the same numbers; zeros have other signs")
