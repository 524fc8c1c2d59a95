"""npy step directories: file names, probe lists, inferred order, odd arrays and stray files."""

from __future__ import annotations

import os

import ml_dtypes
import numpy as np
import pytest

import firstdrift as fd
from firstdrift.store.formats import npy_steps
from firstdrift.store.formats.npy_steps import check_same_probes
from firstdrift.store.formats.probe_order import infer_order
from firstdrift.testing import memory_trace

KWS = [
    "avgpool", "conv1", "ln1", "relu1", "pool1", "conv2", "ln2", "relu2", "pool2", "conv3", "ln3", "relu3",
    "pool3", "adaptpool", "flatten", "linear", "softmax",
]  # fmt: skip
KWS_LENGTHS = [1000, *[1000] * 3, 250, *[250] * 3, 62, *[62] * 3, 15, 1, 64, 6, 6]


def step(directory, *files, shape=(2, 3)):
    """Make npy files of zeros, by name or by (name, array)."""
    directory.mkdir(parents=True, exist_ok=True)
    for file in files:
        name, array = (file, np.zeros(shape, np.float32)) if isinstance(file, str) else file
        np.save(directory / f"{name}.npy", array)
    return directory


def sites(trace):
    return [str(record.site) for record in trace]


def order(trace, phase="fwd"):
    return [record.site.name for record in trace if record.site.phase == phase]


# --- file names


@pytest.mark.parametrize(
    ("name", "site"),
    [
        ("conv1.fwd.s000", fd.Site(0, "fwd", "conv1", "out", 0, 0)),
        ("conv1.fwd.s1000", fd.Site(0, "fwd", "conv1", "out", 0, 1000)),
        ("conv1.fwd", fd.Site(0, "fwd", "conv1", "out")),
        ("conv1.agrad.s003", fd.Site(0, "agrad", "conv1", "out", 0, 3)),
        ("loss.lossgrad.s001", fd.Site(0, "lossgrad", "loss", "out", 0, 1)),
        ("conv1.grad_raw.weight", fd.Site(0, "grad", "conv1", "weight")),
        ("conv1.grad.bias", fd.Site(0, "grad", "conv1", "bias")),
        ("conv1.grad_scaled.bias", fd.Site(0, "grad_scaled", "conv1", "bias")),
        ("conv1.w_before.weight", fd.Site(0, "weight", "conv1", "weight")),
        ("conv1.w_after.bias", fd.Site(0, "weight_after", "conv1", "bias")),
        ("conv1.weight", fd.Site(0, "weight", "conv1", "weight")),
        ("fc.optim.weight.exp_avg", fd.Site(0, "optim", "fc", "weight.exp_avg")),
        ("fc.fwd.in.0.s002", fd.Site(0, "fwd", "fc", "in.0", 0, 2)),
    ],
)
def test_a_file_name_says_the_site(tmp_path, name, site):
    assert [record.site for record in fd.open_trace(step(tmp_path / "step000", name))] == [site]


@pytest.mark.parametrize("name", ["conv1", "conv1.forward", "layers.0.fwd.s000", "conv1.s000", "x.FWD", "x."])
def test_a_stray_or_dotted_file_name_is_refused_with_the_phases_there_are(tmp_path, name):
    step(tmp_path / "step000", "ok.fwd", name)
    with pytest.raises(fd.FormatError, match=r"\.npy: after the probe \(a name without dots\).*w_before"):
        fd.open_trace(tmp_path)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("a.grad.bias", "a.grad_raw.bias"),
        ("a.fwd", "a.fwd.out"),
        ("a.fwd.s001", "a.fwd.s1"),
        ("a.weight", "a.w_before"),
    ],
)
def test_two_files_of_one_site_are_refused(tmp_path, first, second):
    with pytest.raises(fd.FormatError, match=r"both are .*; remove one"):
        fd.open_trace(step(tmp_path / "step000", first, second))


def test_a_name_that_is_not_unicode_is_refused_and_named(tmp_path):
    step(tmp_path / "step000", "\udcff.fwd")
    with pytest.raises(fd.SiteError, match=r"step000/.*lone surrogate"):
        fd.open_trace(tmp_path)


def test_optimizer_state_without_a_port_is_refused_and_named(tmp_path):
    step(tmp_path / "step000", "fc.optim")
    with pytest.raises(fd.SiteError, match=r"fc\.optim\.npy: optimizer state needs a port"):
        fd.open_trace(tmp_path)


@pytest.mark.parametrize("kind", ["directory", "pipe"])
def test_an_npy_that_is_no_file_is_refused(tmp_path, kind):
    path = step(tmp_path / "step000", "a.fwd") / "b.fwd.npy"
    path.mkdir() if kind == "directory" else os.mkfifo(path)
    with pytest.raises(fd.FormatError, match=r"b\.fwd\.npy: is not a regular file"):
        fd.open_trace(tmp_path)


def test_other_files_beside_the_arrays_are_left_alone(tmp_path):
    (step(tmp_path / "step000", "a.fwd") / "README.md").write_text("notes")
    assert len(fd.open_trace(tmp_path)) == 1


# --- steps and samples


def test_steps_and_samples_come_in_numeric_order(tmp_path):
    for number in (2, 10, 1000):
        step(tmp_path / f"step{number:03d}", "a.fwd.s002", "a.fwd.s1000", "a.fwd.s010")
    found = [(record.site.step, record.site.sample) for record in fd.open_trace(tmp_path)]
    assert found == [(number, sample) for number in (2, 10, 1000) for sample in (2, 10, 1000)]


def test_a_step_directory_alone_keeps_its_number(tmp_path):
    assert sites(fd.open_trace(step(tmp_path / "step007", "a.fwd"))) == ["fwd a:out step 7"]


def test_a_directory_of_another_name_is_step_0(tmp_path):
    assert sites(fd.open_trace(step(tmp_path / "dump", "a.fwd"))) == ["fwd a:out step 0"]


def test_two_spellings_of_one_step_are_refused(tmp_path):
    step(tmp_path / "step1", "a.fwd")
    step(tmp_path / "step001", "a.fwd")
    with pytest.raises(fd.FormatError, match="both are fwd a:out step 1"):
        fd.open_trace(tmp_path)


def test_files_beside_step_directories_are_refused_and_not_ignored(tmp_path):
    step(tmp_path / "step000", "a.fwd")
    step(tmp_path, "b.fwd")
    with pytest.raises(fd.FormatError, match=r"b\.fwd\.npy: lies beside step directories"):
        fd.open_trace(tmp_path)


def test_a_step_without_arrays_is_no_trace(tmp_path):
    (tmp_path / "step000").mkdir()
    with pytest.raises(fd.NotATraceError, match="holds no trace"):
        fd.open_trace(tmp_path)
    with pytest.raises(fd.NotATraceError, match="holds no npy files"):
        fd.open_trace(tmp_path, format="npy")


# --- probe lists


@pytest.mark.parametrize("where", ["step000", ".", ".."])
def test_the_probe_list_is_found_in_the_step_its_parent_and_above_the_dump(tmp_path, where):
    dump = tmp_path / "dump_c"
    step(dump / "step000", "a.fwd", "b.fwd", "c.fwd")
    (dump / where / "probes.txt").write_text("c\na\n\n  b \n")
    trace = fd.open_trace(dump)
    assert order(trace) == ["c", "a", "b"]
    assert trace.notes == ()
    assert trace.header["probes"] == ["c", "a", "b"]


@pytest.mark.parametrize("where", ["step000", "."])
def test_the_probe_list_is_found_for_one_step_alone_and_from_within(tmp_path, where, monkeypatch):
    directory = step(tmp_path / "step000", "a.fwd", "b.fwd")
    (tmp_path / where / "probes.txt").write_text("b\na\n")
    assert order(fd.open_trace(directory)) == ["b", "a"]
    monkeypatch.chdir(directory)
    assert order(fd.open_trace(".")) == ["b", "a"]


def test_an_order_file_wins(tmp_path):
    step(tmp_path / "run" / "step000", "a.fwd", "b.fwd")
    (tmp_path / "run" / "probes.txt").write_text("a\nb\n")
    (tmp_path / "order").write_text("\ufeffb\r\na\r\nloss\r\n", encoding="utf-8")
    assert order(fd.open_trace(tmp_path / "run", order=tmp_path / "order")) == ["b", "a"]


def test_an_order_file_that_is_missing_is_named(tmp_path):
    with pytest.raises(fd.StorageError, match="nowhere: cannot read the probe list"):
        fd.open_trace(step(tmp_path / "step000", "a.fwd"), order=tmp_path / "nowhere")


def test_an_order_for_another_format_is_refused(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros(1))
    with pytest.raises(fd.SelectionError, match="only read for npy"):
        fd.open_trace(tmp_path / "a.npz", order=tmp_path / "order")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a\n", r"probes\.txt: does not list b, recorded in"),
        ("a\nb\na\n", r"probes\.txt: lists 'a' twice"),
        ("a\nb\nlayers.0\n", r"probes\.txt: probe 'layers\.0' is empty or has a dot"),
        ("a\nb\n../c\n", "has a dot, slash"),
        ("a\nb\nx/y\n", "has a dot, slash"),
        (b"a\nb\n\xff\n", r"probes\.txt: is not UTF-8 at byte 4"),
    ],
)
def test_a_bad_probe_list_is_refused(tmp_path, text, words):
    step(tmp_path / "step000", "a.fwd", "b.fwd")
    (tmp_path / "probes.txt").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises((fd.FormatError, fd.SiteError), match=words):
        fd.open_trace(tmp_path)


def test_probe_lists_that_disagree_are_refused(tmp_path):
    (step(tmp_path / "step000", "a.fwd", "b.fwd") / "probes.txt").write_text("a\nb\n")
    (tmp_path / "probes.txt").write_text("b\na\n")
    with pytest.raises(fd.FormatError, match=r"step000/probes\.txt and .*/probes\.txt: list different probes"):
        fd.open_trace(tmp_path)


def test_a_listed_probe_without_a_file_is_a_problem(tmp_path):
    step(tmp_path / "step000", "a.fwd")
    (tmp_path / "probes.txt").write_text("a\nb\n")
    assert fd.open_trace(tmp_path).problems == ("probe 'b' is in probes.txt but has no file",)
    (tmp_path / "order.txt").write_text("c\na\n")
    assert fd.open_trace(tmp_path, order=tmp_path / "order.txt").problems[0].startswith("probe 'c' is in order.txt")


def test_both_sides_must_be_made_from_one_probe_list(tmp_path):
    for name, text in (("c", "a\nb\n"), ("same", "a\nb\n"), ("turned", "b\na\n"), ("other", "a\nb\nx\n")):
        step(tmp_path / name / "step000", "a.fwd", "b.fwd")
        (tmp_path / name / "probes.txt").write_text(text)
    opened = {name: fd.open_trace(tmp_path / name) for name in ("c", "same", "turned", "other")}
    check_same_probes(opened["c"], opened["same"])
    with pytest.raises(fd.FormatError, match=r"stand in another order in .*/c than in .*/turned"):
        check_same_probes(opened["c"], opened["turned"])
    with pytest.raises(fd.FormatError, match=r"c alone has \[\], .*other alone has \['x'\]"):
        check_same_probes(opened["c"], opened["other"])


# --- inferred order


def test_the_order_of_the_keyword_spotter_is_inferred_and_said_so(tmp_path):
    arrays = [(f"{name}.fwd.s000", np.zeros((1, 4, length))) for name, length in zip(KWS, KWS_LENGTHS, strict=True)]
    gradients = [(f"{name}.agrad.s000", array) for (_, array), name in zip(arrays[:-1], KWS, strict=False)]
    weights = [f"{name}.grad_raw.{port}" for name in ("ln1", "conv1", "linear") for port in ("weight", "bias")]
    trace = fd.open_trace(step(tmp_path / "step000", *arrays, *gradients, *weights, "loss.lossgrad.s000"))
    assert order(trace) == KWS
    assert order(trace, "agrad") == KWS[-2::-1]
    assert order(trace, "grad") == ["linear", "linear", "ln1", "ln1", "conv1", "conv1"]
    assert [r.site.port for r in trace if r.site.phase == "grad"] == ["weight", "bias"] * 3
    assert trace.notes == ("forward order was inferred from names; put a probes.txt beside the steps",)


def test_file_times_do_not_matter(tmp_path):
    directory = step(tmp_path / "step000", *(f"{name}.fwd" for name in ("conv1", "relu1", "conv2")))
    for number, file in enumerate(sorted(directory.iterdir(), reverse=True)):
        os.utime(file, (number, number))
    assert order(fd.open_trace(directory)) == ["conv1", "relu1", "conv2"]


RESNET = [
    "conv1", "bn1", "relu1", "maxpool", "layer1_0_conv1", "layer1_0_bn1", "layer1_0_relu1", "layer1_0_conv2",
    "layer1_0_bn2", "layer1_0_add", "layer1_1_conv1", "layer1_1_bn1", "layer1_1_relu1", "layer1_1_conv2",
    "layer1_1_bn2", "layer1_1_add", "layer1", "layer2_0_conv1", "layer2_0_bn1", "layer2_0_conv2",
    "layer2_0_bn2", "layer2_0_downsample", "layer2_0_add", "layer2", "avgpool", "flatten", "fc", "softmax",
]  # fmt: skip
RESNET_LENGTHS = dict.fromkeys(RESNET[:3], 112) | {"maxpool": 56, "avgpool": 1}
RESNET_LENGTHS |= {name: 56 if name.startswith("layer1") else 28 for name in RESNET if name.startswith("layer")}


@pytest.mark.parametrize(
    ("forward", "lengths"),
    [
        (KWS, dict(zip(KWS, KWS_LENGTHS, strict=True))),
        (RESNET, RESNET_LENGTHS),
        (["conv1", "conv1_relu", "conv2", "conv2_relu", "conv10", "fc"], {}),
        (["embed", "block0", "block1", "block10", "norm_f", "head"], {}),
        (["input", "fc1", "relu1", "fc2", "relu2", "fc3", "softmax"], {}),
        (["prep", "conv_1", "bn_1", "conv_2", "bn_2", "global_pool", "classifier", "log_softmax", "loss"], {}),
    ],
    ids=["keyword spotter", "resnet", "numbered", "blocks", "mlp", "underscores"],
)
def test_names_are_put_in_forward_order_however_they_come(forward, lengths):
    assert infer_order(sorted(forward), lengths) == forward
    assert infer_order(forward[::-1], lengths) == forward


# --- arrays


@pytest.mark.parametrize(
    "array",
    [
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.arange(6, dtype=">f4").reshape(2, 3),
        np.asfortranarray(np.arange(6, dtype=">i2").reshape(2, 3)),
        np.array(3.5, ">f8"),
        np.zeros((0, 3), ">f4"),
    ],
    ids=["fortran", "big-endian", "both", "scalar", "empty"],
)
def test_fortran_and_big_endian_arrays_are_read_by_value(tmp_path, array):
    trace = fd.open_trace(step(tmp_path / "step000", ("a.fwd", array)))
    found = trace.array(trace.records[0])
    np.testing.assert_array_equal(found, array)
    assert found.shape == array.shape
    assert not found.flags.writeable or not found.size


@pytest.mark.parametrize("gone", ["vanished", "shortened"])
def test_an_odd_array_that_changes_after_opening_is_our_error(tmp_path, gone):
    directory = step(tmp_path / "step000", ("a.fwd", np.arange(6, dtype=">f4")))
    trace = fd.open_trace(directory)
    file = directory / "a.fwd.npy"
    file.unlink() if gone == "vanished" else file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises((fd.StorageError, fd.FormatError), match=r"a\.fwd\.npy: "):
        trace.array(trace.records[0])


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.array([{}, None]), "pickled Python objects, which are never loaded"),
        (np.array([1.0], ml_dtypes.bfloat16), "numpy cannot name bfloat16"),
        (np.array([1.0], ml_dtypes.float8_e5m2), "not a readable npy header"),
        (np.zeros(1, [("x", "f4")]), "is not one that a trace can hold"),
        (np.array(["text"]), "is not one that a trace can hold"),
        (np.array(["2020"], "M8[D]"), "is not one that a trace can hold"),
        (np.zeros(1, np.longdouble), "is not one that a trace can hold"),
    ],
    ids=["objects", "bfloat16", "float8", "records", "text", "dates", "longdouble"],
)
def test_arrays_that_no_trace_can_hold_are_refused(tmp_path, array, words):
    directory = step(tmp_path / "step000", ("a.fwd", array))
    with pytest.raises(fd.FormatError, match=rf"a\.fwd\.npy: .*{words}"):
        fd.open_trace(directory)


def npy(header, version=1, length=None):
    text = header.encode()
    size = len(text) if length is None else length
    return b"\x93NUMPY" + bytes([version, 0]) + size.to_bytes(2 if version == 1 else 4, "little") + text


PLAIN = "{{'descr': {}, 'fortran_order': False, 'shape': {}}}"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not a readable npy header"),
        (b"\x93NUMPX\x01\x00", "not a readable npy header"),
        (npy(PLAIN.format("'<f4'", "(2,)"), version=3), "npy version 3.0 is not 1.0 or 2.0"),
        (npy("", version=2, length=0xFFFFFFFF), "claims 4294967295 bytes, more than 65536"),
        (npy(PLAIN.format("'<f4'", "(2,)")) + bytes(7), "takes 73 bytes but 72 are there"),
        (npy(PLAIN.format("'<f4'", "(2,)")) + bytes(9), "takes 73 bytes but 74 are there"),
        (npy(PLAIN.format("'<f4'", "(-2,)")), r"dimension -2 of shape \(-2,\) is not a whole number"),
        (npy(PLAIN.format("'<f4'", "(True,)")) + bytes(4), r"dimension True of shape \(True,\) is not"),
        (npy(PLAIN.format("'<f4'", "(0, 1 << 62, 8)")), "not a readable npy header"),
        (npy(PLAIN.format("'<f4'", "(0, 4611686018427387904, 8)")), "is beyond 64 dimensions or 2"),
        (npy(PLAIN.format("'<f4'", "2")), "not a readable npy header"),
        (npy("[" * 9999), "not a readable npy header"),
        (npy("{'descr': '<f4'}"), "not a readable npy header"),
        (npy(PLAIN.format("'(2,)<f4'", "(1,)")) + bytes(8), "is not one that a trace can hold"),
    ],
    ids=range(14),
)
def test_lying_and_broken_headers_are_refused(tmp_path, data, words):
    directory = step(tmp_path / "step000")
    (directory / "a.fwd.npy").write_bytes(data)
    with pytest.raises(fd.FormatError, match=rf"a\.fwd\.npy: .*{words}"):
        fd.open_trace(directory)


def test_headers_of_version_2_and_of_python_2_are_read(tmp_path):
    directory = step(tmp_path / "step000")
    (directory / "a.fwd.npy").write_bytes(npy(PLAIN.format("'<f4'", "(2,)"), version=2) + bytes(8))
    (directory / "b.fwd.npy").write_bytes(npy(PLAIN.format("'<f4'", "(2L,)")) + bytes(8))
    assert [record.shape for record in fd.open_trace(directory)] == [(2,), (2,)]


# --- writing


def export(trace, path, **options):
    return npy_steps.write(trace, path, **{"overwrite": False, "advance": lambda n: None} | options)


def test_an_export_has_the_names_and_the_bytes_a_c_harness_would_write(tmp_path):
    values = np.float32([1, 2])
    sources = [
        fd.Site(0, "weight", "conv1", "weight"), fd.Site(0, "fwd", "conv1", "out", 0, 3),
        fd.Site(0, "lossgrad", "loss", "out", 0, 3), fd.Site(0, "grad", "conv1", "bias"),
        fd.Site(12, "weight_after", "conv1", "weight"),
    ]  # fmt: skip
    export(memory_trace(dict.fromkeys(sources, values)), tmp_path / "out")
    written = sorted(str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*.*"))
    assert written == [
        "probes.txt", "step000/conv1.fwd.s003.npy", "step000/conv1.grad_raw.bias.npy",
        "step000/conv1.w_before.weight.npy", "step000/loss.lossgrad.s003.npy", "step012/conv1.w_after.weight.npy",
    ]  # fmt: skip
    assert (tmp_path / "out" / "probes.txt").read_text() == "conv1\n"
    raw = (tmp_path / "out" / "step000" / "conv1.fwd.s003.npy").read_bytes()
    assert raw[:8] == b"\x93NUMPY\x01\x00"
    assert raw[-8:] == values.tobytes()


def test_bfloat16_is_widened_exactly_and_said(tmp_path):
    patterns = np.array([0x3F81, 0x7F81, 0xFFC1, 0x8000], np.uint16)
    source = memory_trace({fd.Site(0, "fwd", "a", "out"): patterns.view(ml_dtypes.bfloat16)})
    assert export(source, tmp_path / "out") == [
        "1 tensors were widened to float32, exactly: npy has no bfloat16 or float8"
    ]
    trace = fd.open_trace(tmp_path / "out")
    assert (trace.array(trace.records[0]).view(np.uint32) == patterns.astype(np.uint32) << 16).all()


@pytest.mark.parametrize(
    "site",
    [
        fd.Site(0, "fwd", "layers.0", "out"), fd.Site(0, "fwd", "", "out"), fd.Site(0, "fwd", "a/b", "out"),
        fd.Site(0, "fwd", "a\nb", "out"), fd.Site(0, "fwd", " a", "out"), fd.Site(0, "fwd", "a", "out", 1),
        fd.Site(0, "fwd", "a", "s001"), fd.Site(0, "fwd", "a", ""), fd.Site(0, "fwd", "a", "x/y"),
    ],
    ids=repr,
)  # fmt: skip
def test_sites_that_a_file_name_cannot_say_are_refused_before_writing(tmp_path, site):
    with pytest.raises(fd.SiteError, match=r"rename it|export to npz instead"):
        export(memory_trace({site: np.zeros(1)}), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_overwriting_removes_old_steps_and_their_lists_and_nothing_else(tmp_path):
    out = tmp_path / "out"
    (step(out / "step005", "old.fwd") / "probes.txt").write_text("old\n")
    (out / "notes.md").write_text("mine")
    export(memory_trace({fd.Site(0, "fwd", "new", "out"): np.zeros(1)}), out, overwrite=True)
    assert sites(fd.open_trace(out)) == ["fwd new:out step 0"]
    assert (out / "notes.md").read_text() == "mine"


def test_overwriting_never_deletes_arrays_outside_of_steps(tmp_path):
    step(tmp_path / "data", "a.fwd")
    with pytest.raises(fd.TraceExistsError, match="npy files outside of step directories"):
        export(memory_trace({fd.Site(0, "fwd", "b", "out"): np.zeros(1)}), tmp_path / "data", overwrite=True)
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["a.fwd.npy"]


def test_a_module_recorded_only_by_its_input_is_in_the_list(tmp_path):
    source = memory_trace({fd.Site(0, "fwd", "a", "in.0"): np.zeros(1), fd.Site(0, "fwd", "b", "out"): np.zeros(1)})
    export(source, tmp_path / "out")
    assert {record.site for record in fd.open_trace(tmp_path / "out")} == {record.site for record in source}


@pytest.mark.parametrize("name", ["conv.weight.fwd.s000", "net.input.fwd.s000", "a.fwd.s000.s001"])
def test_a_second_phase_or_sample_shows_a_dot_in_the_probe(tmp_path, name):
    step(tmp_path / "step000", "ok.fwd", name)
    with pytest.raises(fd.FormatError, match="a probe must have no dot, rename it"):
        fd.open_trace(tmp_path)


def test_hidden_files_are_left_alone(tmp_path):
    step(tmp_path / "step000", "ok.fwd")
    (tmp_path / "step000" / "._ok.fwd.npy").write_bytes(b"resource fork")
    assert len(fd.open_trace(tmp_path)) == 1


# --- what gradients are of


def dumped(tmp_path, text, where="."):
    step(tmp_path / "step000", "a.grad_raw.weight")
    (tmp_path / where / "gradient_of.json").write_text(text)
    return tmp_path


@pytest.mark.parametrize("where", [".", "step000"])
def test_what_gradients_are_of_is_read_beside_the_steps_or_in_one(tmp_path, where):
    path = dumped(tmp_path, '\ufeff {"reduction": "mean", "batch": 4}\n', where)
    for opened in (path, path / "step000"):
        assert fd.open_trace(opened).header["gradient_of"] == {"reduction": "mean", "batch": 4}


def test_dumps_of_a_mean_and_of_a_sum_are_reconciled_without_flags(tmp_path):
    gradient = np.arange(1, 7, dtype=np.float32)
    for name, factor, said in (
        ("mean", 1, '{"reduction":"mean","batch":4}'),
        ("sum", 4, '{"reduction":"sum","batch":4}'),
    ):
        step(tmp_path / name / "step000", ("a.grad_raw.weight", gradient * factor), ("a.fwd", gradient))
        (tmp_path / name / "gradient_of.json").write_text(said)
    assert fd.diff(tmp_path / "mean", tmp_path / "sum").verdict == "same"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is no JSON object"),
        ("[]", "is no JSON object"),
        ('{"reduction": "mean"}', r"says reduction 'mean' and batch None; write mean or sum, and how many"),
        ('{"reduction": "average", "batch": 4}', "says reduction 'average' and batch 4"),
        ('{"reduction": "sum", "batch": true}', "says reduction 'sum' and batch True"),
        ('{"reduction": "sum", "batch": 0}', "says reduction 'sum' and batch 0"),
        ('{"x": "' + "x" * 5000 + '"}', "says reduction None and batch None"),
    ],
)
def test_a_file_that_does_not_say_what_gradients_are_of_is_refused(tmp_path, text, words):
    with pytest.raises(fd.FormatError, match=rf"gradient_of\.json: {words}"):
        fd.open_trace(dumped(tmp_path, text))


def test_two_files_that_contradict_each_other_are_refused_with_both_values(tmp_path):
    path = dumped(tmp_path, '{"reduction": "mean", "batch": 4}')
    (path / "step000" / "gradient_of.json").write_text('{"reduction": "sum", "batch": 4}')
    with pytest.raises(fd.FormatError, match=r'says \{"reduction":"sum".* and .* \{"reduction":"mean".*keep one'):
        fd.open_trace(path)


def exported(tmp_path, **header):
    with fd.Writer(tmp_path / "t", overwrite=True, **header) as writer:
        for port in ("weight", "bias"):
            for phase in ("weight", "grad", "grad_scaled", "weight_after"):
                writer.put("a", phase, np.ones(2, np.float32), port=port)
    npy_steps.write(fd.open_trace(tmp_path / "t"), tmp_path / "d", overwrite=True, advance=lambda nbytes: None)
    return tmp_path / "d"


def test_export_spells_out_the_port_of_a_parameter_in_every_phase(tmp_path):
    names = {file.name for file in (exported(tmp_path) / "step000").iterdir()}
    tags = ("w_before", "grad_raw", "grad_scaled", "w_after")
    assert names == {f"a.{tag}.{port}.npy" for tag in tags for port in ("weight", "bias")}


def test_a_parameter_called_out_keeps_its_name(tmp_path):
    with fd.Writer(tmp_path / "t") as writer:
        writer.put("a", "grad", np.ones(2, np.float32), port="out")
    npy_steps.write(fd.open_trace(tmp_path / "t"), tmp_path / "d", overwrite=False, advance=lambda nbytes: None)
    assert [record.site.port for record in fd.open_trace(tmp_path / "d")] == ["out"]


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ({"gradient_of": {"reduction": "mean", "batch": 3}}, {"reduction": "mean", "batch": 3}),
        ({"gradient_of": {"reduction": "mean"}, "batch": 5}, {"reduction": "mean", "batch": 5}),
        ({"gradient_of": {"reduction": "sum"}}, {"reduction": "sum", "batch": 1}),
        ({"gradient_of": {"reduction": "mean"}}, None),
        ({"gradient_of": "mean"}, None),
        ({}, None),
    ],
)
def test_export_carries_the_reduction_and_no_earlier_one_lingers(tmp_path, header, said):
    exported(tmp_path, gradient_of={"reduction": "sum", "batch": 99})
    assert fd.open_trace(exported(tmp_path, **header)).header.get("gradient_of") == said
