"""Everything arrives, or nothing changes: names, shapes, values and dtypes, each refused by name and all at once."""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tests.weights.networks import bits, other, plain, random, state
from torch import nn

import firstdrift as fd
from firstdrift.weights.formats.apr_metadata import ChecksumMismatch
from firstdrift.weights.writing import write_checkpoint

POPULATE = "FALSIFY-APR-PRETRAIN-INIT-007"
LOAD = "FALSIFY-APR-PRETRAIN-INIT-006"


def refused(model, source, **options):
    """The error of a load that must fail, which must leave the model as it was."""
    before = bits(model)
    with pytest.raises(fd.WeightsError) as caught:
        fd.load_weights(model, source, **options)
    assert bits(model) == before
    return caught.value


# What the original claims.


def test_every_parameter_matched_returns_their_number():
    model = plain()
    source = other(model)
    assert fd.populate_from_init(model, source) == len(source) == 9
    for name, value in model.state_dict().items():
        assert torch.equal(value, source[name])


def test_extra_tensors_are_ignored_and_listed():
    model = plain()
    found = fd.load_weights(model, {**other(model), "lm_head.weight": torch.ones(3)})
    assert found.count == 9
    assert found.extra == ("lm_head.weight",)


def test_a_length_that_differs_is_refused_by_name_and_id():
    model = plain()
    error = refused(model, {**other(model), "2.bias": torch.zeros(5)})
    assert POPULATE in str(error)
    (line,) = error.problems
    assert "2.bias" in line
    assert "init length 5" in line
    assert "(from" not in line
    assert "[5]" in line
    assert "[6]" in line


def test_a_missing_parameter_is_refused_by_name_and_id():
    model, source = plain(), other(plain())
    del source["0.bias"]
    error = refused(model, source)
    assert POPULATE in str(error)
    (line,) = error.problems
    assert line.startswith("0.bias: not present in the given tensors")


@pytest.mark.parametrize("format", ["safetensors", "apr"])
def test_a_missing_parameter_names_the_file_at_hand(tmp_path, format):
    source = {name: value.numpy() for name, value in other(plain()).items() if name != "0.bias"}
    path = tmp_path / f"m.{format}"
    write_checkpoint(path, list(source.items()), format=format)
    place = f"init APR ({path})" if format == "apr" else path
    (line,) = refused(plain(), path).problems
    assert line == f"0.bias: not present in {place}; the model's parameter has shape [4]"


# And what it should.


def test_a_missing_buffer_is_refused_too():
    model, source = plain(), other(plain())
    del source["1.running_var"]
    assert "1.running_var: not present in the given tensors" in str(refused(model, source))


def test_a_buffer_that_is_not_saved_is_not_asked_for():
    model = nn.Module()
    model.weight = nn.Parameter(torch.zeros(2))
    model.register_buffer("cache", torch.ones(3), persistent=False)
    assert fd.load_weights(model, {"weight": np.ones(2, np.float32)}).count == 1
    assert torch.equal(model.cache, torch.ones(3))


def test_another_shape_of_the_same_length_is_refused():
    model = plain()
    error = refused(model, {**other(model), "0.weight": torch.zeros(6, 4)})
    (line,) = error.problems
    assert "0.weight" in line
    assert "[6, 4] in the file, [4, 6] in the model" in line


def test_a_scalar_for_a_tensor_of_one_element_is_refused():
    model = nn.Linear(1, 1)
    error = refused(model, {"weight": np.float32(1), "bias": np.ones(1, np.float32)})
    assert "shape [] in the file, [1, 1] in the model" in str(error)


@pytest.mark.parametrize(
    ("value", "said"), [(float("nan"), "1 NaN among 24"), (float("inf"), "1 Inf among 24"), (-float("inf"), "1 Inf")]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_one_value_that_is_no_number_is_refused(value, said, dtype):
    model = nn.Linear(6, 4, dtype=dtype)
    source = other(model)
    source["weight"][3, 5] = value
    error = refused(model, source)
    assert LOAD in str(error)
    assert "weight" in error.problems[0]
    assert said in error.problems[0]


@pytest.mark.parametrize(("mean", "fits"), [(99.0, True), (101.0, False), (-101.0, False), (-99.0, True)])
def test_a_mean_beyond_a_hundred_is_refused(mean, fits):
    model = nn.Linear(64, 64)
    source = {"weight": random(64, 64) + np.float32(mean), "bias": random(64)}
    if fits:
        assert fd.load_weights(model, source).count == 2
    else:
        assert "PMAT-187" in str(refused(model, source))


def test_complex_weights_are_judged_by_both_parts():
    model = nn.Module()
    model.w = nn.Parameter(torch.zeros(2, dtype=torch.complex64))
    assert fd.load_weights(model, {"w": np.array([1 + 2j, 3], np.complex64)}).count == 1
    assert model.w.tolist() == [1 + 2j, 3]
    assert "1 NaN among 2 values" in str(refused(model, {"w": np.array([complex(1, np.nan), 3], np.complex64)}))
    assert "its mean is 150, beyond" in str(refused(model, {"w": np.array([200j, 100j], np.complex64)}))


def test_large_values_with_a_small_mean_are_weights():
    model = nn.Linear(64, 64)
    values = 1e4 * random(64, 64)
    assert fd.load_weights(model, {"weight": values - values.mean() - 50, "bias": random(64)}).count == 2


def test_integers_may_have_any_mean():
    model = nn.Module()
    model.register_buffer("positions", torch.arange(512))
    assert fd.load_weights(model, {"positions": np.arange(512) + 1000}).count == 1
    assert model.positions[0] == 1000


def test_all_problems_come_together_and_the_model_stays():
    model, source = plain(), other(plain())
    del source["0.bias"]
    source["2.bias"] = torch.zeros(5)
    source["0.weight"] = source["0.weight"].T.contiguous()
    source["1.weight"] = torch.full((4,), float("nan"))
    source["1.bias"] = source["1.bias"].half()
    error = refused(model, source)
    assert len(error.problems) == 5
    for name in ("0.bias", "2.bias", "0.weight", "1.weight", "1.bias"):
        assert any(line.startswith(name) for line in error.problems), name
    assert POPULATE in str(error)
    assert LOAD in str(error)
    assert "5 problems" in str(error)


def test_every_line_is_shown_however_many():
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(40)))
    error = refused(model, {"nothing": np.ones(3, np.float32)})
    assert len(error.problems) == 80
    assert all(line in str(error) for line in error.problems)


def test_a_model_without_weights_is_never_loaded():
    with pytest.raises(fd.WeightsError, match="nothing would be loaded"):
        fd.load_weights(nn.ReLU(), {"weight": np.ones(2, np.float32)})


# Dtypes.


def test_another_dtype_is_refused_unless_asked_for():
    model = plain()
    source = {name: value.half() if value.is_floating_point() else value for name, value in other(model).items()}
    error = refused(model, source)
    assert len(error.problems) == 8
    assert "f16 in the file and f32 in the model" in str(error)
    found = fd.load_weights(model, source, cast=True)
    assert (found.count, found.rounded) == (9, 0)
    assert torch.equal(model[0].weight, source["0.weight"].float())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_what_was_asked_for_is_rounded_to_nearest_even_and_counted(dtype):
    model = nn.Linear(64, 64, dtype=dtype)
    source = {"weight": random(64, 64), "bias": np.ones(64, np.float32)}
    found = fd.load_weights(model, source, cast=True)
    expected = torch.from_numpy(source["weight"]).to(dtype)
    assert torch.equal(model.weight, expected)
    assert found.rounded == int((expected.float() != torch.from_numpy(source["weight"])).sum()) > 3000
    assert [arrival.rounded for arrival in found.proof] == [found.rounded, 0]


def test_halfway_cases_go_to_the_even_neighbour_in_one_rounding():
    model = nn.Linear(3, 1, bias=False, dtype=torch.bfloat16)
    unit = 2.0**-7
    just_above = 1 + unit / 2 + 2.0**-40  # two roundings, by way of float32, would make this 1
    source = {"weight": np.array([[1 + unit / 2, 1 + 3 * unit / 2, just_above]])}
    fd.load_weights(model, source, cast=True)
    assert model.weight.float().tolist() == [[1.0, 1 + 2 * unit, 1 + unit]]


def test_a_value_without_room_in_the_dtype_is_refused_and_not_made_infinite():
    model = nn.Linear(2, 1, bias=False, dtype=torch.float16)
    error = refused(model, {"weight": np.array([[1.0, 1e6]], np.float32)}, cast=True)
    assert "beyond f16" in str(error)


def test_integers_are_never_made_floats():
    model = nn.Linear(2, 1, bias=False)
    error = refused(model, {"weight": np.array([[1, 2]])}, cast=True)
    assert "i64 in the file and f32 in the model" in str(error)


# What a tensor of a model may be.


def test_values_arrive_bit_for_bit_with_signed_zeros_and_denormals():
    model = nn.Linear(4, 1, bias=False)
    source = np.array([[-0.0, 1e-45, 3.4e38 / 1e38, 0.1]], np.float32)
    fd.load_weights(model, {"weight": source})
    assert model.weight.detach().numpy().tobytes() == source.tobytes()


def test_parameters_that_are_not_contiguous_are_filled():
    model = nn.Linear(3, 5, bias=False)
    model.weight = nn.Parameter(torch.zeros(3, 5).T)
    source = random(5, 3)
    fd.load_weights(model, {"weight": source})
    assert np.array_equal(model.weight.detach().numpy(), source)


def test_empty_and_scalar_tensors_are_loaded():
    model = nn.Module()
    model.empty = nn.Parameter(torch.zeros(0, 3))
    model.one = nn.Parameter(torch.zeros(()))
    assert fd.load_weights(model, {"empty": np.zeros((0, 3), np.float32), "one": np.float32(7)}).count == 2
    assert model.one.item() == 7


def test_numbers_in_the_other_byte_order_are_the_same_numbers():
    model = nn.Linear(3, 2, bias=False)
    source = random(2, 3)
    fd.load_weights(model, {"weight": source.astype(">f4")})
    assert np.array_equal(model.weight.detach().numpy(), source)


def test_a_model_on_the_meta_device_is_refused():
    error = refused_on_meta()
    assert "to_empty" in str(error)


def refused_on_meta():
    with torch.device("meta"):
        model = nn.Linear(2, 2)
    with pytest.raises(fd.WeightsError) as caught:
        fd.load_weights(model, {"weight": np.ones((2, 2), np.float32), "bias": np.ones(2, np.float32)})
    return caught.value


def test_expanded_and_overlapping_tensors_are_refused():
    model = nn.Module()
    whole = torch.zeros(10)
    model.a, model.b = nn.Parameter(whole[:6]), nn.Parameter(whole[4:])
    model.c = nn.Parameter(torch.zeros(1).expand(3))
    error = None
    with pytest.raises(fd.WeightsError) as caught:
        fd.load_weights(model, {name: np.ones(n, np.float32) for name, n in (("a", 6), ("b", 6), ("c", 3))})
    error = str(caught.value)
    assert "b: shares a part of its memory with a" in error
    assert "c: is an expanded view" in error
    assert torch.equal(whole, torch.zeros(10))


def test_neighbours_in_one_memory_do_not_overlap():
    model, whole = nn.Module(), torch.zeros(4, 3)
    model.a, model.b = nn.Parameter(whole[:2]), nn.Parameter(whole[2:])
    numbers = np.arange(12, dtype=np.float32).reshape(4, 3)
    fd.load_weights(model, {"a": numbers[:2], "b": numbers[2:]})
    assert np.array_equal(whole.numpy(), numbers)


def test_an_axis_of_one_element_may_have_any_stride():
    model = nn.Module()
    model.row = nn.Parameter(torch.zeros(3).as_strided((1, 3), (0, 1)))
    fd.load_weights(model, {"row": np.array([[1, 2, 3]], np.float32)})
    assert model.row.tolist() == [[1, 2, 3]]


def test_a_lazy_module_is_refused_by_name():
    with pytest.raises(fd.WeightsError, match="weight: has no shape yet"):
        fd.load_weights(nn.LazyLinear(3), {"weight": np.ones((3, 2), np.float32)})


def test_loading_counts_as_a_change_for_autograd():
    model = nn.Linear(2, 2)
    loss = (model(torch.ones(1, 2)) ** 2).sum() * model.weight.pow(2).sum()
    fd.load_weights(model, {"weight": np.ones((2, 2), np.float32), "bias": np.ones(2, np.float32)})
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_parameters_stay_trainable_and_the_same_objects():
    model = nn.Linear(2, 2)
    before = model.weight
    fd.load_weights(model, {"weight": np.ones((2, 2), np.float32), "bias": np.ones(2, np.float32)})
    assert model.weight is before
    assert model.weight.requires_grad


def test_a_models_own_tensors_may_be_exchanged():
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    first, second = (layer.weight.detach().clone() for layer in model)
    fd.load_weights(model, model.state_dict(), map={"0.weight": "1.weight", "1.weight": "0.weight"})
    assert torch.equal(model[0].weight, second)
    assert torch.equal(model[1].weight, first)


# Files.


def test_a_file_is_loaded_from_its_path(tmp_path):
    model = plain()
    source = other(model)
    save_file(source, tmp_path / "m.safetensors")
    found = fd.load_weights(model, tmp_path / "m.safetensors")
    assert (found.format, found.count) == ("safetensors", 9)
    assert torch.equal(model[2].weight, source["2.weight"])


def test_a_file_that_is_not_there_or_broken_carries_the_id_of_a_failure_to_load(tmp_path):
    model = plain()
    with pytest.raises(fd.NotFoundError, match=LOAD):
        fd.load_weights(model, tmp_path / "none.safetensors")
    (tmp_path / "bad.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{broken}")
    with pytest.raises(fd.FormatError, match=LOAD):
        fd.load_weights(model, tmp_path / "bad.safetensors")


@pytest.mark.parametrize("name", ["m.apr", "m.apr.index.json", "directory"])
def test_a_damaged_file_is_refused_as_a_whole_before_the_model_changes(tmp_path, name):
    model = plain()
    state = [(key, value.numpy()) for key, value in other(model).items()]
    path = tmp_path / ("m.apr" if name == "directory" else name)
    write_checkpoint(path, state, format=name.partition(".")[2].replace(".index.json", "-sharded") or "apr")
    damaged = next(tmp_path.glob("*.apr"))
    data = bytearray(damaged.read_bytes())
    data[-100] ^= 1
    damaged.write_bytes(data)
    if name == "directory":
        (tmp_path / "config.json").write_text("{}")
        path = tmp_path
    before = bits(model)
    with pytest.raises(ChecksumMismatch, match=LOAD):
        fd.load_weights(model, path)
    assert bits(model) == before
    with pytest.raises(ChecksumMismatch, match=LOAD):
        fd.load_init_tensors(path)


def test_init_tensors_are_all_there_or_refused_together(tmp_path):
    source = other(plain())
    save_file(source, tmp_path / "m.safetensors")
    tensors = fd.load_init_tensors(tmp_path / "m.safetensors")
    assert tensors.keys() == source.keys()
    model = plain()
    assert fd.populate_from_init(model, tensors) == 9
    source["0.weight"][0, 0] = float("nan")
    source["2.weight"] += 1000
    save_file(source, tmp_path / "bad.safetensors")
    with pytest.raises(fd.WeightsError, match=LOAD) as caught:
        fd.load_init_tensors(tmp_path / "bad.safetensors")
    assert [line.split(":")[0] for line in caught.value.problems] == ["0.weight", "2.weight"]


def test_a_state_survives_the_way_through_a_file(tmp_path):
    model = plain()
    save_file(state(model), tmp_path / "m.safetensors")
    twin = plain(seed=5)
    fd.load_weights(twin, tmp_path / "m.safetensors")
    assert bits(twin) == bits(model)
