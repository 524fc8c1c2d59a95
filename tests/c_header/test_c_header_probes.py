"""npy step directories, probe manifests and sinks: what a training harness in C has, and our reader takes."""

import subprocess

import numpy as np
import pytest
from tests.c_header.compiling import (
    ARGUMENT,
    CLOSE,
    CLOSED,
    DTYPES,
    EXISTS,
    FLOATS,
    IO,
    MANIFEST,
    OK,
    PATH,
    SANITIZED,
    SITE,
    number,
    opening,
    run,
    site,
    tensor,
    text,
    texts,
)

import firstdrift as fd
from firstdrift.core.dtypes import ITEMSIZE, ML_NAMES, numpy_dtype
from firstdrift.store.formats.npy_steps import _read_manifest

PROBES = ["conv1", "ln1", "relu1"]


def npy_open(path, probes=PROBES):
    return b"D" + text(str(path)) + texts(probes)


def npy_put(phase, name, data=FLOATS, dtype="f32", shape=None, **more):
    return b"N" + site(phase, name, **more) + tensor(data, dtype, shape)


def gradient_of(reduction, batch):
    return b"G" + text(reduction) + number(batch)


def parse(data):
    return b"M" + number(len(data)) + data


def load(path):
    return b"L" + text(str(path))


LIST = b"m"


def sink(layer, phase, data=FLOATS, *, where=3, step=0, sample=-1, op=None):
    return b"S" + number(where) + number(step) + number(sample) + text(op) + number(layer) + text(phase) + tensor(data)


@pytest.fixture(scope="module")
def program(compiled):
    return compiled("driver.c")


def test_files_are_named_as_the_harnesses_name_them(program, tmp_path):
    commands = [
        npy_put("fwd", "conv1", sample=0),
        npy_put("fwd", "conv1", sample=1234, step=12),
        npy_put("agrad", "relu1", sample=0),
        npy_put("lossgrad", "loss", sample=0),
        npy_put("loss", "loss"),
        npy_put("input", "conv1", port="x"),
        npy_put("fwd", "ln1", port="in.0"),
        npy_put("weight", "conv1"),
        npy_put("weight", "conv1", port="bias"),
        npy_put("grad", "conv1"),
        npy_put("grad", "conv1", port="bias"),
        npy_put("grad_scaled", "conv1"),
        npy_put("weight_after", "conv1", port="bias"),
        npy_put("optim", "conv1", port="weight.exp_avg"),
    ]
    assert run(program, npy_open(tmp_path / "a" / "dump"), *commands) == [(OK, "")] * (len(commands) + 1)
    found = sorted(str(file.relative_to(tmp_path / "a" / "dump")) for file in (tmp_path / "a").rglob("*.*"))
    assert found == sorted(
        [
            "probes.txt", "step000/conv1.fwd.s000.npy", "step012/conv1.fwd.s1234.npy", "step000/relu1.agrad.s000.npy",
            "step000/loss.lossgrad.s000.npy", "step000/loss.loss.npy", "step000/conv1.input.x.npy",
            "step000/ln1.fwd.in.0.npy", "step000/conv1.w_before.weight.npy", "step000/conv1.w_before.bias.npy",
            "step000/conv1.grad_raw.weight.npy", "step000/conv1.grad_raw.bias.npy",
            "step000/conv1.grad_scaled.weight.npy", "step000/conv1.w_after.bias.npy",
            "step000/conv1.optim.weight.exp_avg.npy",
        ]
    )  # fmt: skip
    trace = fd.open_trace(tmp_path / "a" / "dump")
    assert trace.complete, trace.problems
    assert trace.header["probes"] == PROBES
    assert len(trace) == len(commands)
    assert fd.Site(0, "grad", "conv1", "bias") in [record.site for record in trace]


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3), (1, 16, 2), (2, 0, 3), (1,) * 32, (10**6, 0)], ids=str)
def test_numpy_reads_every_shape(program, tmp_path, shape):
    array = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
    assert (
        run(program, npy_open(tmp_path / "d"), npy_put("fwd", "conv1", array.tobytes(), shape=shape)) == [(OK, "")] * 2
    )
    file = tmp_path / "d" / "step000" / "conv1.fwd.npy"
    loaded = np.load(file)
    assert (loaded.dtype, loaded.shape, loaded.tobytes()) == (np.dtype("<f4"), shape, array.tobytes())
    assert (file.stat().st_size - array.nbytes) % 64 == 0
    assert file.read_bytes()[:8] == b"\x93NUMPY\x01\x00"


@pytest.mark.parametrize("big_endian", [0, 1])
def test_npy_files_hold_every_dtype_that_numpy_has_and_others_are_refused(compiled, tmp_path, big_endian):
    raw = bytes(range(1, 33)) * 100
    commands = [
        npy_put("fwd", "conv1", raw, dtype, (len(raw) // ITEMSIZE[dtype],), sample=n) for n, dtype in enumerate(DTYPES)
    ]
    program = compiled("driver.c", *([] if not big_endian else [SANITIZED, "-DFD_BIG_ENDIAN=1"]))
    _, *replies = run(program, npy_open(tmp_path / "d"), *commands)
    for sample, (dtype, (code, said)) in enumerate(zip(DTYPES, replies, strict=True)):
        file = tmp_path / "d" / "step000" / f"conv1.fwd.s{sample:03d}.npy"
        if dtype in ML_NAMES:
            assert code == ARGUMENT
            if sample == 3:  # the first error is the one that is kept
                assert "npy has no bf16; widen it to FD_F32, or write a trace with fd_put" in said
            assert not file.exists()
        else:
            expected = np.frombuffer(raw, numpy_dtype(dtype))
            assert np.load(file).dtype == expected.dtype
            assert np.load(file).tobytes() == (expected.byteswap() if big_endian else expected).tobytes()


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        (npy_put("fwd", "conv9"), SITE, "fwd conv9:out step 0: probe 'conv9' is not in the list; add it to the probes"),
        (npy_put("fwd", "conv1", call=1), SITE, "file names cannot say its call, its port, or numbers of more than 18"),
        (npy_put("fwd", "conv1", step=10**18), SITE, "file names cannot say"),
        (npy_put("fwd", "conv1", sample=10**18), SITE, "file names cannot say"),
        *(
            (npy_put("fwd", "conv1", port=port), SITE, "file names cannot say")
            for port in ("", "a/b", "a\\b", "s001", "out.s1", "grad", "w_before", "x.fwd.y", "ü", "a\tb",
                         "a b", "x.", ".x", "a..b")
        ),
        (npy_put("fwd", "../conv1"), SITE, "'..' component"),
        (npy_put("forward", "conv1"), SITE, "phase 'forward' is not one of"),
        (npy_put("fwd", "conv1", None, shape=(3,)), ARGUMENT, "its data is NULL"),
        (npy_put("fwd", "conv1", port="p" * 1000), PATH, "bytes, which does not fit; choose a shorter one"),
        (npy_put("fwd", "conv1", port="p" * 300), IO, "conv1.fwd.ppp"),
    ],
)  # fmt: skip
def test_what_a_file_name_cannot_say_is_refused_and_the_rest_is_readable(program, tmp_path, command, code, message):
    _, refused, after = run(program, npy_open(tmp_path / "d", ["conv1"]), command, npy_put("fwd", "conv1"))
    assert refused[0] == code
    assert message in refused[1]
    assert "; " in refused[1]
    assert after[0] == (IO if code == IO else OK)  # a failed write ends the recording
    if code != IO:
        assert [str(record.site) for record in fd.open_trace(tmp_path / "d")] == ["fwd conv1:out step 0"]


def test_a_port_may_be_called_weight_in_any_place(program, tmp_path):
    assert run(program, npy_open(tmp_path / "d", ["conv1"]), npy_put("fwd", "conv1", port="in.weight"))[1][0] == OK
    assert [record.site.port for record in fd.open_trace(tmp_path / "d")] == ["in.weight"]


def test_a_directory_with_probes_is_not_written_over(program, tmp_path):
    run(program, npy_open(tmp_path / "d"), npy_put("fwd", "conv1"))
    again, late = run(program, npy_open(tmp_path / "d"), npy_put("fwd", "ln1"))
    assert again[0] == EXISTS
    assert again[1].startswith(
        f"{tmp_path / 'd' / 'probes.txt'}: is there already; remove the directory, so that no file"
    )
    assert late[0] == CLOSED
    assert [file.name for file in (tmp_path / "d" / "step000").iterdir()] == ["conv1.fwd.npy"]


def test_a_site_that_is_put_twice_into_npy_files_is_refused(program, tmp_path):
    *_, twice = run(program, npy_open(tmp_path / "d"), npy_put("fwd", "conv1"), npy_put("fwd", "conv1", b"\0" * 4))
    assert twice[0] == EXISTS
    assert "conv1.fwd.npy: fwd conv1:out step 0: is there already; put each site once" in twice[1]
    assert np.load(tmp_path / "d" / "step000" / "conv1.fwd.npy").tolist() == [1, 1, 1]


BAD_PROBES = ["", "a.b", "a/b", "a\\b", " a", "a ", "a\nb", "a\tb", "ü", "a\x7f"]


@pytest.mark.parametrize("probes", [*([probe] for probe in BAD_PROBES), ["a", "a"], ["a", None]], ids=repr)
def test_probes_that_no_list_can_carry_are_refused(program, tmp_path, probes):
    refused = run(program, npy_open(tmp_path / "d", probes))[0]
    assert refused[0] == MANIFEST
    assert (
        "is empty or there twice, or has a dot, slash, outer space or what is not printable ASCII; rename it"
        in refused[1]
    )
    assert not (tmp_path / "d").exists()


GOOD_LISTS = [
    b"",
    b"conv1\nln1\n",
    b"conv1\r\nln1\r\n",
    b"conv1\nln1",
    b"\n\n conv1 \n\t\nln1\t\n\n",
    b"\xef\xbb\xbfconv1\n",
    b"a b\n",
]


@pytest.mark.parametrize("data", GOOD_LISTS)
def test_a_manifest_reads_as_the_python_side_reads_it(program, tmp_path, data):
    file = tmp_path / "probes.txt"
    file.write_bytes(data)
    for command in parse(data), load(file):
        replied, listed = run(program, command, LIST)
        assert replied == (OK, "")
        names = "".join(f"{name}|" for name in _read_manifest(file))
        assert " ".join(map(str, listed)) == f"{names}{len(_read_manifest(file))} "


@pytest.mark.parametrize("data", [b"a\na\n", b"a.b", "ü".encode(), b"\xff", b"a\0b", b"a/b", b"x" * 8192, b"a\x0bb"])
def test_a_manifest_that_one_side_could_read_otherwise_is_refused(program, tmp_path, data):
    file = tmp_path / "probes.txt"
    file.write_bytes(data)
    for command, place in (parse(data), "the probe manifest"), (load(file), str(file)):
        (code, said), _ = run(program, command, LIST)
        assert code == MANIFEST
        assert said.startswith(f"{place}: ")
        assert "; " in said


def test_a_manifest_may_be_as_long_as_its_room_and_no_longer(program):
    lines = [f"{n:07d}\n".encode() for n in range(2000)]
    assert run(program, parse(b"".join(lines[:256])))[0] == (OK, "")
    assert run(program, parse(b"".join(lines[:257])))[0] == (
        MANIFEST, "the probe manifest: lists too many; define a larger FD_MAX_PROBES"
    )  # fmt: skip
    assert run(program, parse(b"\n" * 8190 + b"x"))[0] == (OK, "")
    assert run(program, parse(b"\n" * 8191 + b"x"))[0] == (
        MANIFEST, "the probe manifest: is too long; define a larger FD_MANIFEST_BYTES"
    )  # fmt: skip


def test_a_manifest_that_is_not_there_is_named(program, tmp_path):
    code, said = run(program, load(tmp_path / "missing"))[0]
    assert code == IO
    assert said.startswith(f"{tmp_path}/missing: cannot read the probe manifest (No such file or directory); check")


def test_a_sink_fires_one_traced_step_into_a_trace_and_into_npy_files(program, tmp_path):
    """The events of a Linear and a softmax under cross-entropy, then the parameter dumps, in their order."""
    events = [
        (0, "w_before.weight"), (0, "w_before.bias"), (0, "fwd"), (1, "fwd"), (2, "lossgrad"), (0, "agrad"),
        (0, "grad_raw.weight"), (0, "grad_raw.bias"), (0, "grad_scaled.weight"), (0, "w_after.weight"), (7, "loss"),
    ]  # fmt: skip
    commands = [sink(layer, phase, FLOATS * (n + 1), sample=3, step=1) for n, (layer, phase) in enumerate(events)]
    replies = run(
        program,
        parse(b"fc\nsoftmax\n"),
        opening(tmp_path / "t"),
        npy_open(tmp_path / "d", ["fc", "softmax"]),
        *commands,
        CLOSE,
    )
    assert replies == [(OK, "")] * len(replies)
    trace, dump = fd.open_trace(tmp_path / "t"), fd.open_trace(tmp_path / "d")
    expected = {
        "weight fc:weight step 1", "weight fc:bias step 1", "fwd fc:out step 1 sample 3",
        "fwd softmax:out step 1 sample 3", "lossgrad loss:out step 1 sample 3", "agrad fc:out step 1 sample 3",
        "grad fc:weight step 1", "grad fc:bias step 1", "grad_scaled fc:weight step 1",
        "weight_after fc:weight step 1", "loss loss:out step 1 sample 3",
    }  # fmt: skip
    assert {str(record.site) for record in trace} == {str(record.site) for record in dump} == expected
    for record in trace:
        assert trace.array(record).tobytes() == dump.array(record.site).tobytes()
    assert [len(trace.array(record)) // 3 for record in trace.lines] == list(range(1, 12))
    assert trace.complete
    assert dump.complete
    assert (tmp_path / "d" / "step001" / "fc.grad_raw.bias.npy").exists()


def test_a_sink_states_the_operation_and_the_order_of_layers(program, tmp_path):
    run(program, parse(b"fc\nsoftmax\n"), opening(tmp_path / "t"), sink(1, "fwd", where=1, op="Softmax"), CLOSE)
    record = fd.open_trace(tmp_path / "t").records[0]
    assert (record.op, record.order, record.site.sample) == ("Softmax", 1, None)


def test_an_engine_can_pass_the_type_of_a_layer_with_its_tensor(program, tmp_path):
    typed = [b"T" + sink(layer, "fwd", where=1, op=op)[1:] for layer, op in enumerate(("Conv1d", None))]
    run(program, parse(b"fc\nsoftmax\n"), opening(tmp_path / "t"), *typed, CLOSE)
    assert [record.op for record in fd.open_trace(tmp_path / "t").records] == ["Conv1d", None]


def test_npy_directories_say_what_their_gradients_are_of(program, tmp_path):
    replies = run(program, npy_open(tmp_path / "d", ["conv1"]), gradient_of("mean", 32), npy_put("grad", "conv1"))
    assert replies == [(OK, "")] * 3
    assert fd.open_trace(tmp_path / "d").header["gradient_of"] == {"reduction": "mean", "batch": 32}
    assert fd.open_trace(tmp_path / "d" / "step000").header["gradient_of"]["batch"] == 32


@pytest.mark.parametrize(("reduction", "batch"), [("average", 4), (None, 4), ("sum", 0), ("mean", -1)])
def test_gradients_of_what_cannot_be_meant_are_refused(program, tmp_path, reduction, batch):
    before, opened, refused, put = run(
        program, gradient_of("sum", 1), npy_open(tmp_path / "d", ["conv1"]), gradient_of(reduction, batch),
        npy_put("fwd", "conv1"),
    )  # fmt: skip
    assert (before[0], opened[0], refused[0], put[0]) == (CLOSED, OK, ARGUMENT, OK)
    assert f"reduction '{reduction or 'NULL'}' over a batch of {batch} cannot be meant; give mean or sum" in refused[1]
    assert not (tmp_path / "d" / "gradient_of.json").exists()


@pytest.mark.parametrize(
    ("layer", "phase"), [(-1, "fwd"), (0, "forward"), (0, ""), (0, "fwd./../x"), (0, None), (0, "optim")]
)
def test_what_a_sink_refuses_waits_for_close(program, tmp_path, layer, phase):
    *_, after, closed = run(program, parse(b"fc\n"), opening(tmp_path / "t"), sink(layer, phase, where=1), CLOSE)
    assert after == closed
    assert closed[0] == SITE
    assert closed[1].startswith(f"{tmp_path / 't'}: ")
    assert not fd.open_trace(tmp_path / "t").complete


def test_a_sink_without_a_destination_does_nothing(program, tmp_path):
    assert run(program, parse(b"fc\n"), sink(0, "fwd", where=0), cwd=tmp_path) == [(OK, "")] * 2
    assert list(tmp_path.iterdir()) == []


def test_the_engine_of_the_documentation_fires_the_events_and_values_of_the_published_unit_test(compiled, tmp_path):
    """Linear(2, 2), softmax and cross-entropy with closed-form values: specified with the original facility."""
    (tmp_path / "probes.txt").write_text("fc\nsoftmax\n")
    engine = compiled("engine.c", SANITIZED, "-lm")
    assert subprocess.check_output([engine, "run"], cwd=tmp_path, text=True) == "loss=0.91302\n"
    trace = fd.open_trace(tmp_path / "run")
    assert trace.complete
    values = {(record.site.phase, record.site.name): trace.array(record).tolist() for record in trace.lines}
    fired = [key for key in values if key[0] not in ("weight", "grad")]
    assert fired == [("fwd", "fc"), ("fwd", "softmax"), ("lossgrad", "loss"), ("agrad", "fc")]
    np.testing.assert_allclose(values["grad", "fc"], [[-0.59869] * 2, [0.59869] * 2], atol=5e-6)
    assert values["agrad", "fc"] == values["lossgrad", "loss"]


def test_the_engine_of_the_documentation_tells_what_went_wrong(compiled, tmp_path):
    engine = compiled("engine.c", SANITIZED, "-lm")
    without = subprocess.run([engine, "run"], cwd=tmp_path, capture_output=True, text=True)
    assert without.returncode == 2
    assert "probes.txt: cannot read the probe manifest (No such file or directory)" in without.stderr
    (tmp_path / "probes.txt").write_text("fc\nsoftmax\n")
    (tmp_path / "run").write_text("in the way")
    blocked = subprocess.run([engine, "run"], cwd=tmp_path, capture_output=True, text=True)
    assert blocked.returncode == 1
    assert blocked.stderr.startswith("run/index.jsonl: cannot write it (Not a directory); ")
