"""What is written is read, bit for bit, in every format; what a format cannot say is refused or reported."""

import json
import pickle
import struct

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.numpy import save_file
from tests.weights.samples import bits, same, some_tensors

from firstdrift.core.dtypes import numpy_dtype
from firstdrift.errors import FirstdriftError, FormatError, NotFoundError, SelectionError
from firstdrift.store.formats.safetensors_trace import DTYPES
from firstdrift.weights.json_file import read_json_object
from firstdrift.weights.open_checkpoint import open_checkpoint
from firstdrift.weights.writing import write_checkpoint

EXACT = {"safetensors": "m.safetensors", "safetensors-sharded": "m.safetensors.index.json", "pt": "m.pt"}


@pytest.mark.parametrize("format", EXACT)
def test_every_dtype_comes_back_bit_for_bit(tmp_path, tensors, format):
    report = write_checkpoint(tmp_path / EXACT[format], tensors.items(), format=format, shard_bytes=40)
    assert report.changes == ()
    with open_checkpoint(tmp_path / EXACT[format]) as checkpoint:
        assert checkpoint.format == format
        assert same(checkpoint, tensors)


def test_an_npz_widens_what_numpy_cannot_name_and_says_so(tmp_path, tensors):
    report = write_checkpoint(tmp_path / "m.npz", tensors.items(), format="npz")
    assert [(change.name, change.target, change.changed) for change in report.changes] == [("brain", "f32", 0)]
    tensors["brain"] = tensors["brain"].astype(np.float32)
    with open_checkpoint(tmp_path / "m.npz") as checkpoint:
        assert same(checkpoint, tensors)


def test_a_safetensors_file_is_byte_for_byte_what_the_library_writes(tmp_path, tensors):
    tensors |= {f"every {name}": np.zeros(1, numpy_dtype(name)) for name in DTYPES.values()}
    save_file(tensors, tmp_path / "library.safetensors", {"format": "pt"})
    write_checkpoint(tmp_path / "ours.safetensors", tensors.items(), format="safetensors", metadata={"format": "pt"})
    assert (tmp_path / "ours.safetensors").read_bytes() == (tmp_path / "library.safetensors").read_bytes()


@given(
    array=hnp.arrays(
        st.sampled_from([np.float32, np.float16, np.int8, np.uint16, np.bool_, np.complex64]),
        hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4),
    ),
    name=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40),
)
def test_any_array_under_any_name_survives_safetensors(tmp_path_factory, array, name):
    path = tmp_path_factory.mktemp("any") / "m.safetensors"
    if name == "__metadata__":
        return
    write_checkpoint(path, [(name, array)], format="safetensors")
    with open_checkpoint(path) as checkpoint:
        assert same(checkpoint, {name: array})


def test_a_header_that_the_library_would_refuse_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr("firstdrift.weights.formats.safetensors_weights.MAX_HEADER", 200)
    write_checkpoint(tmp_path / "a.safetensors", [("w", np.ones(1))], format="safetensors")
    with pytest.raises(FormatError, match="is more than 200; leave metadata out"):
        write_checkpoint(tmp_path / "b.safetensors", [("w" * 200, np.ones(1))], format="safetensors")
    assert [file.name for file in tmp_path.iterdir()] == ["a.safetensors"]


def test_metadata_that_are_no_strings_survive_safetensors(tmp_path):
    said = {"format": "pt", "layers": 3, "tokens": ["a", "ü"], "eps": 1e-6}
    write_checkpoint(tmp_path / "m.safetensors", [("w", np.ones(1))], format="safetensors", metadata=said)
    assert open_checkpoint(tmp_path / "m.safetensors").metadata == said


def test_arrays_are_mapped_and_read_only(tmp_path, tensors):
    write_checkpoint(tmp_path / "m.safetensors", tensors.items(), format="safetensors")
    array = open_checkpoint(tmp_path / "m.safetensors")["model.layers.0.q.weight"]
    assert not array.flags.owndata
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1


def test_a_format_is_told_by_content_not_by_name(tmp_path, tensors):
    for format, file in {"safetensors": "a", "npz": "b", "pt": "c", "apr": "d"}.items():
        write_checkpoint(tmp_path / file, tensors.items(), format=format)
        assert open_checkpoint(tmp_path / file).format == format


def test_a_name_given_twice_is_refused(tmp_path):
    with pytest.raises(FormatError, match="'w': is given twice"):
        write_checkpoint(tmp_path / "m.npz", [("w", np.ones(1)), ("w", np.ones(2))], format="npz")


def test_a_missing_tensor_and_a_closed_checkpoint_are_said(tmp_path, tensors):
    write_checkpoint(tmp_path / "m.safetensors", tensors.items(), format="safetensors")
    checkpoint = open_checkpoint(tmp_path / "m.safetensors")
    with pytest.raises(SelectionError, match="holds no tensor 'nothing'"):
        checkpoint["nothing"]
    checkpoint.close()
    with pytest.raises(FormatError, match="was closed"):
        checkpoint["odd"]
    with pytest.raises(NotFoundError):
        open_checkpoint(tmp_path / "nothing")


def test_tied_tensors_of_pytorch_are_one_tensor_and_an_alias(tmp_path):
    weight = torch.arange(6.0).reshape(2, 3)
    torch.save({"embed.weight": weight, "head.weight": weight, "view": weight[:1]}, tmp_path / "m.bin")
    checkpoint = open_checkpoint(tmp_path / "m.bin")
    assert list(checkpoint) == ["embed.weight", "view"]
    assert checkpoint.aliases == {"head.weight": "embed.weight"}
    assert bits(checkpoint["head.weight"]) == weight.numpy().tobytes()


@pytest.mark.parametrize("legacy", [False, True])
def test_weights_are_found_where_training_scripts_keep_them(tmp_path, legacy):
    said = {"state_dict": {"w": torch.ones(2)}, "epoch": 3}
    torch.save(said, tmp_path / "m.pt", _use_new_zipfile_serialization=not legacy)
    checkpoint = open_checkpoint(tmp_path / "m.pt")
    assert list(checkpoint) == ["w"]
    assert "the weights are those under 'state_dict'" in checkpoint.notes


def test_a_pickle_with_code_is_never_run(tmp_path):
    class Attack:
        def __reduce__(self):
            return (open, (str(tmp_path / "owned"), "w"))

    torch.save({"w": torch.ones(1), "x": Attack()}, tmp_path / "m.pt")
    (tmp_path / "plain.pt").write_bytes(pickle.dumps(Attack()))
    for name in ("m.pt", "plain.pt"):
        with pytest.raises(FormatError, match="weights_only=True"):
            open_checkpoint(tmp_path / name)
    assert not (tmp_path / "owned").exists()


def test_shards_of_pytorch_are_read_through_their_index(tmp_path):
    torch.save({"a": torch.ones(2)}, tmp_path / "m-1.bin")
    torch.save({"b": torch.zeros(3)}, tmp_path / "m-2.bin")
    index = tmp_path / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": {"a": "m-1.bin", "b": "m-2.bin"}}))
    assert set(open_checkpoint(index)) == {"a", "b"}
    index.write_text(json.dumps({"weight_map": {"a": "m-1.bin", "c": "m-2.bin"}}))
    with pytest.raises(FormatError, match="says that m-2.bin holds 'c'"):
        open_checkpoint(index)


def sharded(tmp_path):
    write_checkpoint(
        tmp_path / "m.safetensors.index.json", some_tensors().items(), format="safetensors-sharded", shard_bytes=60
    )
    return tmp_path / "m.safetensors.index.json", sorted(tmp_path.glob("*.safetensors"))


def test_a_missing_shard_is_named(tmp_path):
    index, files = sharded(tmp_path)
    files[1].unlink()
    with pytest.raises(FormatError, match=f"names the shard {files[1].name}, which is not there"):
        open_checkpoint(index)


def test_two_shards_with_the_same_tensor_are_refused(tmp_path):
    index, files = sharded(tmp_path)
    files[1].write_bytes(files[0].read_bytes())
    with pytest.raises(FormatError, match="both hold"):
        open_checkpoint(index)


def test_a_tensor_that_the_index_forgets_is_refused(tmp_path):
    index, _ = sharded(tmp_path)
    said = json.loads(index.read_text())
    said["weight_map"].pop("odd")
    index.write_text(json.dumps(said))
    with pytest.raises(FormatError, match="does not list 'odd'"):
        open_checkpoint(index)


def test_an_index_that_names_a_tensor_twice_is_refused(tmp_path):
    index = tmp_path / "m.safetensors.index.json"
    index.write_text('{"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}}')
    with pytest.raises(FormatError, match="key 'a' is there twice"):
        open_checkpoint(index)


@pytest.mark.parametrize("name", ["../m.safetensors", "/etc/passwd", "a/b", "..", "a\\b", ""])
def test_a_shard_outside_of_the_directory_is_refused(tmp_path, name):
    index = tmp_path / "m.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(FormatError, match="is not a plain file name beside the index"):
        open_checkpoint(index)


@pytest.mark.parametrize("said", [[1], "a", 7, {}, {"a": 1}])
def test_an_index_of_any_name_whose_map_is_none_is_refused(tmp_path, said):
    index = tmp_path / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": said}))
    with pytest.raises(FormatError, match="has no 'weight_map' from tensors to files"):
        open_checkpoint(index)


def test_a_shard_whose_name_is_too_long_is_refused(tmp_path):
    index = tmp_path / "m.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "é" * 300}}))
    with pytest.raises(FirstdriftError, match="cannot look for its shards .File name too long.; fetch it again"):
        open_checkpoint(index)


def test_a_damaged_archive_of_pytorch_that_spans_disks_is_refused(tmp_path):
    torch.save({"a": torch.ones(2)}, tmp_path / "m.pt")
    data = (tmp_path / "m.pt").read_bytes()
    at = data.rindex(b"PK\x05\x06")
    record = b"PK\x06\x07" + struct.pack("<IQI", 1, 0, 2)  # the directory is on disk 1 of 2
    (tmp_path / "m.pt").write_bytes(b"\x80\x02" + data[2:at] + record + data[at:])
    with pytest.raises(FormatError, match="torch.load.weights_only=True. refuses it"):
        open_checkpoint(tmp_path / "m.pt")


def test_a_checkpoint_that_changes_while_it_is_read_is_refused(tmp_path, tensors):
    for format in ("safetensors", "apr", "npz", "pt"):
        path = tmp_path / f"m.{format}"
        write_checkpoint(path, tensors.items(), format=format)
        checkpoint = open_checkpoint(path)
        checkpoint["odd"]
        with open(path, "ab") as file:
            file.write(b"more")
        with pytest.raises(FormatError, match="was changed since"):
            checkpoint["odd"]


def test_a_checkpoint_replaced_by_rename_is_still_the_one_that_was_opened(tmp_path, tensors):
    path = tmp_path / "m.safetensors"
    write_checkpoint(path, tensors.items(), format="safetensors")
    checkpoint = open_checkpoint(path)
    write_checkpoint(path, [("other", np.zeros(9))], format="safetensors")
    assert same(checkpoint, tensors)


def hf_directory(tmp_path, **config):
    tmp_path.mkdir(exist_ok=True)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **config}))
    weights = [("model.embed_tokens.weight", np.ones((2, 3), np.float32))]
    write_checkpoint(tmp_path / "model.safetensors", weights, format="safetensors")
    return tmp_path


def test_a_hugging_face_directory_has_its_config_and_its_tie(tmp_path):
    hf_directory(tmp_path, tie_word_embeddings=True)
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.format == "hf"
    assert checkpoint.metadata["model_type"] == "llama"
    assert checkpoint.aliases == {"lm_head.weight": "model.embed_tokens.weight"}
    assert any("no tokenizer" in note for note in checkpoint.notes)
    (tmp_path / "tokenizer.json").write_text("{}")
    assert open_checkpoint(tmp_path).notes == ()


def test_a_directory_without_config_is_its_weights(tmp_path):
    (hf_directory(tmp_path) / "config.json").unlink()
    assert open_checkpoint(tmp_path).format == "safetensors"


def test_a_directory_with_two_checkpoints_or_none_is_refused(tmp_path):
    with pytest.raises(FormatError, match="holds no weights"):
        open_checkpoint(tmp_path)
    for name in ("a", "b"):
        write_checkpoint(tmp_path / f"{name}.safetensors", [("w", np.ones(1))], format="safetensors")
    with pytest.raises(FormatError, match="holds 2 checkpoints and no index"):
        open_checkpoint(tmp_path)


def test_a_json_file_may_be_as_large_as_allowed_and_no_larger(tmp_path):
    (tmp_path / "a.json").write_text('{"a": 1}')
    assert read_json_object(tmp_path / "a.json", 8) == {"a": 1}
    with pytest.raises(FormatError, match="is larger than 7 bytes"):
        read_json_object(tmp_path / "a.json", 7)


def test_weights_in_two_usual_places_are_not_chosen_from(tmp_path):
    torch.save({"model": {"w": torch.ones(1)}, "state_dict": {"w": torch.zeros(1)}}, tmp_path / "m.pt")
    with pytest.raises(FormatError, match="has weights in state_dict and model"):
        open_checkpoint(tmp_path / "m.pt")


def test_what_lies_beside_the_weights_is_not_taken_for_them(tmp_path):
    write_checkpoint(tmp_path / "pytorch_model.bin", [("w", np.ones(1))], format="pt")
    write_checkpoint(tmp_path / "training_args.bin", [("other", np.ones(1))], format="pt")
    (tmp_path / "old.safetensors").mkdir()
    assert list(open_checkpoint(tmp_path)) == ["w"]
    write_checkpoint(tmp_path / "model.safetensors", [("v", np.ones(1))], format="safetensors")
    write_checkpoint(tmp_path / "adapter.safetensors", [("other", np.ones(1))], format="safetensors")
    assert list(open_checkpoint(tmp_path)) == ["v"]


def test_a_trace_is_not_a_checkpoint(tmp_path):
    import firstdrift as fd
    from firstdrift.compare.open_trace import load_format

    with fd.Writer(tmp_path / "run") as writer:
        writer.put("x", "fwd", np.ones(3))
    load_format("npz").write(
        fd.open_trace(tmp_path / "run"), tmp_path / "t.npz", overwrite=False, advance=lambda n: None
    )
    with pytest.raises(FormatError, match="is a recorded trace"):
        open_checkpoint(tmp_path / "t.npz")


def test_big_endian_and_fortran_members_are_read_as_they_mean(tmp_path):
    array = np.arange(6, dtype=">f4").reshape(2, 3)
    np.savez(tmp_path / "m.npz", a=array, b=np.asfortranarray(array.astype("<f4")))
    checkpoint = open_checkpoint(tmp_path / "m.npz")
    for name in "ab":
        assert checkpoint[name].dtype == np.dtype("<f4")
        assert np.array_equal(checkpoint[name], array)


def test_a_dtype_that_we_do_not_have_is_named(tmp_path):
    header = json.dumps({"w": {"dtype": "F8_E8M0", "shape": [2], "data_offsets": [0, 2]}}).encode()
    (tmp_path / "m.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"\0\0")
    with pytest.raises(FormatError, match="'w': has dtype F8_E8M0"):
        open_checkpoint(tmp_path / "m.safetensors")


def test_what_a_format_has_no_dtype_for_is_refused_by_name(tmp_path):
    with pytest.raises(FormatError, match="'z': safetensors has no c128"):
        write_checkpoint(tmp_path / "m.safetensors", [("z", np.ones(1, np.complex128))], format="safetensors")
    with pytest.raises(FormatError, match="dtype object is not one of|that is no array"):
        write_checkpoint(tmp_path / "m.npz", [("z", np.array([object()]))], format="npz")
    with pytest.raises(FormatError, match="format 'zip' cannot be written"):
        write_checkpoint(tmp_path / "m.zip", [], format="zip")


def test_float8_is_kept_by_safetensors_and_pytorch(tmp_path):
    array = np.arange(4, dtype=np.float32).astype(ml_dtypes.float8_e4m3fn)
    for format in ("safetensors", "pt"):
        write_checkpoint(tmp_path / f"m.{format}", [("w", array)], format=format)
        assert same(open_checkpoint(tmp_path / f"m.{format}"), {"w": array})
