"""Ties are understood both ways, and the proof accounts for every element once."""

import json
import zlib
from math import prod

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tests.weights.networks import Tied, bits, other, plain, random
from torch import nn

import firstdrift as fd
from firstdrift.weights.loading import arriving


def embeddings(**more):
    return {"embed.weight": random(12, 4), "body.weight": random(4, 4), "body.bias": random(4), **more}


def test_a_tied_model_takes_a_file_that_has_the_weight_once_under_either_name():
    for name in ("embed.weight", "head.weight"):
        model, source = Tied(), embeddings()
        source[name] = source.pop("embed.weight")
        found = fd.load_weights(model, source)
        assert found.count == 3
        assert found.proof[0].tied == ("head.weight",)
        assert np.array_equal(model.head.weight.detach().numpy(), source[name])
        assert model.head.weight is model.embed.weight


def test_two_parameters_on_one_memory_are_tied_as_well():
    model, source = Tied(tied=False), embeddings()
    model.head.weight = nn.Parameter(model.embed.weight.data)
    found = fd.load_weights(model, source)
    assert (found.count, found.proof[0].tied) == (3, ("head.weight",))
    assert np.array_equal(model.head.weight.detach().numpy(), source["embed.weight"])


def test_a_tied_model_takes_a_file_that_has_the_same_numbers_twice():
    model, source = Tied(), embeddings()
    source["head.weight"] = source["embed.weight"].copy()
    assert fd.load_weights(model, source).count == 3


def test_a_tied_model_refuses_a_file_with_two_different_tensors():
    model, source = Tied(), embeddings(**{"head.weight": random(12, 4, seed=9)})
    before = bits(model)
    with pytest.raises(fd.WeightsError, match="embed.weight and head.weight are tied in the model but not the same"):
        fd.load_weights(model, source)
    assert bits(model) == before


def as_float16(weight):
    return weight.astype(np.float16).astype(np.float32)


def as_bfloat16(weight):
    return torch.from_numpy(weight).bfloat16().float().numpy()


def as_eight_bits(weight):
    step = np.abs(weight).max() / 127
    return (np.round(weight / step) * step).astype(np.float32)


@pytest.mark.parametrize("rounded", [as_float16, as_bfloat16, as_eight_bits])
def test_a_rounded_copy_is_taken_for_one_and_the_largest_difference_is_said(rounded):
    model, source = Tied(), embeddings()
    source["head.weight"] = rounded(source["embed.weight"])
    largest = np.abs(source["head.weight"] - source["embed.weight"]).max()
    assert largest > 0
    loaded = fd.load_weights(model, source)
    assert np.array_equal(model.head.weight.detach().numpy(), source["embed.weight"])
    (note,) = loaded.notes
    assert note.startswith("head.weight is a rounded copy of embed.weight, which is used for both")
    assert f"they differ by up to {largest:.3g}" in note


def one_row_of_another(weight):
    return np.concatenate([weight[:3], -weight[3:4], weight[4:]])


def rows_in_another_order(weight):
    return np.roll(weight, 1, axis=0)


def scaled(weight):
    return weight * 1.05


def trained_on(weight):
    return weight + 0.1 * random(*weight.shape, seed=3)


def with_a_mean(weight):
    return weight + 0.5


@pytest.mark.parametrize("changed", [one_row_of_another, rows_in_another_order, scaled, trained_on, with_a_mean])
def test_a_copy_that_is_off_by_more_than_rounding_is_another_matrix(changed):
    model, source = Tied(), embeddings()
    source["head.weight"] = changed(source["embed.weight"]).astype(np.float32)
    before = bits(model)
    with pytest.raises(fd.WeightsError, match=r"not the same in the file .*differ by up to .*--untie"):
        fd.load_weights(model, source)
    assert bits(model) == before


def test_four_bits_are_a_copy_where_a_side_is_stored_so_and_never_another_matrix(tmp_path):
    from firstdrift.weights.conversion import convert

    wide = {"embed.weight": random(12, 32), "body.weight": random(4, 4), "body.bias": random(4)}
    for name, head, is_copy in (
        ("copy", wide["embed.weight"] + 0.02 * random(12, 32, seed=3), True),
        ("other", random(12, 32, seed=9), False),
    ):
        save_file(
            {key: torch.from_numpy(value) for key, value in {**wide, "head.weight": head.astype("f4")}.items()},
            tmp_path / f"{name}.safetensors",
        )
        convert(tmp_path / f"{name}.safetensors", tmp_path / f"{name}.apr", dtype="apr_q4")
        model = Tied()
        model.embed = nn.Embedding(12, 32)
        model.head.weight = model.embed.weight
        if is_copy:
            assert (
                "head.weight is a rounded copy" in fd.load_weights(model, tmp_path / f"{name}.apr", cast=True).notes[-1]
            )
        else:
            with pytest.raises(fd.WeightsError, match="not the same in the file"):
                fd.load_weights(model, tmp_path / f"{name}.apr", cast=True)


def test_rows_that_hardly_matter_may_differ_as_much_as_rounding_does():
    model, source = Tied(), embeddings()
    source["embed.weight"][5] = 1e-9  # of a token that no text has
    source["head.weight"] = source["embed.weight"].copy()
    source["head.weight"][5] = 0.0
    assert "they differ by up to 1e-09" in fd.load_weights(model, source).notes[0]


def test_a_tied_model_refuses_a_twin_of_another_shape():
    model, source = Tied(), embeddings(**{"head.weight": random(12, 5)})
    with pytest.raises(fd.WeightsError, match=r"is tied to head.weight in the model; shape \[12, 5\]"):
        fd.load_weights(model, source)


def test_an_untied_model_takes_a_declared_tie_and_nothing_else():
    model, source = Tied(tied=False), embeddings()
    with pytest.raises(fd.WeightsError, match="head.weight: not present in the given tensors"):
        fd.load_weights(model, source)
    both = {"embed.weight": {"to": ["embed.weight", "head.weight"], "tie": True}}
    assert fd.load_weights(model, source, map=both).count == 4
    assert torch.equal(model.head.weight, model.embed.weight)
    assert model.head.weight is not model.embed.weight


def test_an_untied_model_takes_the_aliases_of_a_checkpoint(tmp_path):
    (tmp_path / "config.json").write_text('{"tie_word_embeddings": true}')
    save_file({"model.embed_tokens.weight": torch.ones(12, 4)}, tmp_path / "model.safetensors")
    model = nn.Module()
    model.model = nn.Module()
    model.model.embed_tokens = nn.Embedding(12, 4)
    model.lm_head = nn.Linear(4, 12, bias=False)
    assert fd.load_weights(model, tmp_path).count == 2
    assert torch.equal(model.lm_head.weight, torch.ones(12, 4))


def test_the_proof_accounts_for_every_element_once_with_the_checksum_of_its_bytes():
    model = plain()
    source = other(model)
    found = json.loads(json.dumps(fd.load_weights(model, source).to_json()))
    assert found["schema"] == "firstdrift-load-v1"
    assert found["hash"] == "crc32"
    assert [line["name"] for line in found["parameters"]] == list(model.state_dict())
    for line in found["parameters"]:
        value = model.state_dict()[line["name"]].numpy()
        assert line["shape"] == list(value.shape)
        assert line["crc32"] == f"{zlib.crc32(value.tobytes()):08x}"
        assert line["crc32"] == f"{zlib.crc32(source[line['name']].numpy().tobytes()):08x}"
    elements = sum(prod(line["shape"]) for line in found["parameters"])
    assert elements == sum(value.numel() for value in model.state_dict().values())


@pytest.mark.parametrize("name", ["0.weight", "1.running_mean", "2.bias"])
def test_a_tensor_that_arrives_rolled_by_one_is_caught(name, monkeypatch):
    """The negative control: what is written differs from what was read, by one roll of one tensor."""
    model, write = plain(), arriving.write

    def rolled(tensor, array):
        target = dict(model.named_parameters()) | dict(model.named_buffers())
        write(tensor, np.roll(array, 1) if tensor is target[name] else array)

    monkeypatch.setattr(arriving, "write", rolled)
    with pytest.raises(fd.WeightsError, match=f"{name}: holds bytes of checksum"):
        fd.load_weights(model, other(model))


def test_a_tensor_that_is_never_written_is_caught(monkeypatch):
    model, write = plain(), arriving.write
    monkeypatch.setattr(
        arriving, "write", lambda tensor, array: None if tensor is model[0].bias else write(tensor, array)
    )
    with pytest.raises(fd.WeightsError, match=r"0\.bias: holds bytes"):
        fd.load_weights(model, other(model))


def test_a_model_that_grows_while_it_is_loaded_is_caught(monkeypatch):
    model, write = plain(), arriving.write

    def growing(tensor, array):
        write(tensor, array)
        if not hasattr(model, "late"):
            model.register_parameter("late", nn.Parameter(torch.zeros(2)))

    monkeypatch.setattr(arriving, "write", growing)
    with pytest.raises(fd.WeightsError, match="late: never written"):
        fd.load_weights(model, other(model))


def test_several_threads_prove_the_same(monkeypatch):
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(50)))
    source = other(model)
    alone = fd.load_weights(model, source).to_json()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    assert fd.load_weights(model, source).to_json() == alone
