"""Options of both sides, and what is refused: one sentence each, and what was recorded stays."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.demo.laboratory import basics, refusal, run

import firstdrift as fd
from firstdrift.demo.audio import CLIPS, make_batch
from firstdrift.demo.port import Port, find_bug, find_compiler
from firstdrift.demo.spotter_files import PROBES, read_probes
from firstdrift.demo.twin import main as twin


def told(*arguments, code=0):
    done = CliRunner().invoke(twin, [str(argument) for argument in arguments])
    assert done.exit_code == code, done.output
    return done.output


def test_a_batch_is_cut_at_the_end_of_the_data_and_it_is_said(port, weights, tmp_path):
    asked = ("--start", 318, "--batch", 8)
    note = "note: 2 clips are left from 318 on, so the batch is 2, not 8\n"
    assert run(port, *basics(weights), *asked, "--out", tmp_path / "c").stdout.startswith(note)
    assert told("--weights", weights, *asked, "--out", tmp_path / "torch").startswith(note)
    for side in ("c", "torch"):
        assert fd.open_trace(tmp_path / side).header["gradient_of"]["batch"] == 2
    assert fd.diff(tmp_path / "torch", tmp_path / "c").exit_code == 0


def test_both_sides_print_the_same_losses(port, weights, tmp_path):
    asked = ("--start", 5, "--batch", 3, "--steps", 2, "--seed", 9)
    ours = told("--weights", weights, *asked, "--out", tmp_path / "torch").splitlines()
    theirs = run(port, *basics(weights), *asked).stdout.splitlines()
    assert len(ours) == len(theirs) == 2
    for one, other in zip(ours, theirs, strict=True):
        assert float(one.removeprefix("mean_loss=")) == pytest.approx(float(other.removeprefix("mean_loss=")), abs=3e-6)


def test_more_samples_than_the_batch_has_are_not_recorded_and_it_is_said(port, weights, tmp_path):
    done = run(port, *basics(weights), "--batch", 2, "--samples", 9, "--out", tmp_path / "run")
    assert done.stdout.startswith("note: the batch has 2 clips, so 2 are recorded, not 9\n")
    assert "note" not in run(port, *basics(weights), "--batch", 2).stdout  # the default is no request


def test_no_samples_means_no_activations(port, weights, tmp_path):
    port.record(weights, tmp_path / "c", start=0, batch=2, samples=0, steps=1, seed=0, bug="none")
    told("--weights", weights, "--batch", 2, "--samples", 0, "--out", tmp_path / "torch")
    expected = {"weight", "loss", "grad", "grad_scaled", "weight_after"}
    for side in ("c", "torch"):
        assert {record.site.phase for record in fd.open_trace(tmp_path / side)} - {"optim"} == expected


def test_a_start_beyond_the_data_is_refused(port, weights, tmp_path):
    sentence = f"--start 320: there are {CLIPS} clips; give a number from 0 to 319"
    assert refusal(port, *basics(weights), "--start", 320) == sentence
    assert told("--weights", weights, "--start", 320, "--out", tmp_path / "run", code=2) == f"twin: {sentence}\n"
    with pytest.raises(fd.SelectionError):
        make_batch(0, -1, 4)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "--weights and --probes are needed; --help says what they are"),
        (["--weigths", "x"], "there is no option --weigths; --help lists them"),
        (["--batch"], "--batch needs a value; --help says which"),
        (["--bug", "gremlins"], "there is no bug gremlins; --bug list names them"),
        (["--batch", "0"], "--batch 0: is no whole number from 1 on; give one"),
        (["--steps", "1x"], "--steps 1x: is no whole number from 1 on; give one"),
        (["--start", "-1"], "--start -1: is no whole number from 0 on; give one"),
        (["--seed", "99999999999999999999"], "--seed 99999999999999999999: is no whole number from 0 on; give one"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(port, arguments, sentence):
    assert refusal(port, *arguments) == sentence


def _shorter(data):
    return data[:-1]


def _longer(data):
    return data + b"\0"


def _other_shape(data):
    return data.replace(b"conv2.weight 32 16 5\n", b"conv2.weight 32 16 3\n")


def _other_name(data):
    return data.replace(b"ln2.bias", b"ln2.beta")


def _text(data):
    return b"these are no weights\n"


def _first_line_only(data):
    return data[:17]


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (_shorter, "ends within fc.bias 6"),
        (_longer, "goes on after the last parameter"),
        (_other_shape, "has 'conv2.weight 32 16 3' where 'conv2.weight 32 16 5' belongs"),
        (_other_name, "has 'ln2.beta 32 250' where 'ln2.bias 32 250' belongs"),
        (_text, "is no weights file, for it does not begin with 'firstdrift-kws 1"),
        (_first_line_only, "has 'its end' where 'conv1.weight 16 1 9' belongs"),
    ],
)
def test_damaged_weights_are_refused_by_both_sides(port, weights, tmp_path, damage, sentence):
    damaged = tmp_path / "damaged.bin"
    damaged.write_bytes(damage(weights.read_bytes()))
    assert f"damaged.bin: {sentence}" in refusal(port, *basics(damaged), "--out", tmp_path / "c").replace('"', "'")
    assert f"damaged.bin: {sentence}" in told("--weights", damaged, "--out", tmp_path / "torch", code=2)
    assert not (tmp_path / "c").exists()
    assert not (tmp_path / "torch").exists()


def test_missing_weights_are_refused_by_both_sides(port, tmp_path):
    missing = tmp_path / "missing.bin"
    for said in (refusal(port, *basics(missing)), told("--weights", missing, "--out", tmp_path / "run", code=2)):
        assert "missing.bin: cannot read the weights (No such file or directory); export them with" in said


@pytest.mark.parametrize("text", ["", "conv1\n", "\n".join([*read_probes(), "one more"])])
def test_a_manifest_of_another_network_is_refused_by_both_sides(port, weights, tmp_path, text):
    manifest = tmp_path / "probes.txt"
    manifest.write_text(text)
    assert "probes.txt: " in refusal(port, "--weights", weights, "--probes", manifest)
    said = told("--weights", weights, "--probes", manifest, "--out", tmp_path / "run", code=2)
    assert "and the network has 17 layers; name each" in said


def test_a_manifest_that_is_not_there_is_refused(port, weights, tmp_path):
    assert "cannot read the probe manifest" in refusal(port, "--weights", weights, "--probes", tmp_path / "none")


def test_a_manifest_that_is_no_text_is_refused(tmp_path):
    (tmp_path / "latin.txt").write_bytes(b"conv1\n\xb3")
    with pytest.raises(fd.FormatError, match="latin.txt: is not UTF-8 at byte 6"):
        read_probes(tmp_path / "latin.txt")


def test_what_cannot_be_written_ends_the_port_with_1_and_the_twin_with_2(port, weights, tmp_path):
    (tmp_path / "file").write_text("in the way")
    for option in ("--out", "--npy"):
        assert str(tmp_path / "file") in refusal(port, *basics(weights), option, tmp_path / "file" / "run", code=1)
    saved = ("--save", tmp_path / "file" / "w", "--batch", 1)
    assert "cannot write the weights" in refusal(port, *basics(weights), *saved, code=1)
    assert told("--weights", weights, "--out", tmp_path / "file" / "run", code=2).startswith("twin: ")
    assert told("--export", tmp_path / "file" / "w.bin", code=2).startswith("twin: ")


def test_a_path_longer_than_the_buffer_is_refused_and_never_cut(port, weights, tmp_path):
    long = tmp_path / Path(*["directory" * 10] * 20)
    for option in ("--out", "--npy"):
        said = refusal(port, *basics(weights), option, long)
        assert "long" in said or "FD_PATH_BYTES" in said
    assert list(tmp_path.iterdir()) == []


def test_a_trace_that_is_there_stays_unless_forced(port, weights, tmp_path):
    first = ("--batch", 1, "--out", tmp_path / "run")
    assert run(port, *basics(weights), *first).returncode == 0
    before = (tmp_path / "run" / "index.jsonl").read_bytes()
    assert str(tmp_path / "run") in refusal(port, *basics(weights), *first)
    assert (tmp_path / "run" / "index.jsonl").read_bytes() == before
    assert run(port, *basics(weights), *first, "--force").returncode == 0


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs a limit on the size of files")
def test_what_was_recorded_stays_when_the_disk_is_full(port, weights, tmp_path):
    limited = ["/bin/sh", "-c", 'ulimit -f 1200; trap "" XFSZ; exec "$@"', "-", str(port.program)]
    command = [*limited, *map(str, basics(weights)), "--batch", "4", "--out", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("kws: ")
    trace = fd.open_trace(tmp_path / "run")
    assert not trace.complete
    assert trace.array(trace.lines[0]).shape == (16, 1, 9)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs a limit on the size of files")
@pytest.mark.parametrize("option", ["--out", "--npy"])
def test_a_failed_write_ends_the_port_within_the_step(port, weights, tmp_path, option):
    limited = ["/bin/sh", "-c", 'ulimit -f 20; trap "" XFSZ; exec "$@"', "-", str(port.program)]
    asked = [*map(str, basics(weights)), "--batch", "1", "--steps", "3", option, str(tmp_path / "run")]
    done = subprocess.run([*limited, *asked], capture_output=True, text=True)
    assert done.returncode == 1
    assert "cannot write it (File too large)" in done.stderr
    assert done.stdout.count("mean_loss=") == 1


def test_the_twin_asks_for_one_thing_to_do(weights, tmp_path):
    for arguments in (
        [],
        ["--weights", weights],
        ["--export", tmp_path / "w", "--weights", weights, "--out", tmp_path],
    ):
        assert "give either --export FILE, or --weights FILE and --out DIR or --npy DIR" in told(*arguments, code=2)


def test_the_twin_runs_as_a_module(tmp_path):
    command = [sys.executable, "-m", "firstdrift.demo.twin", "--export", str(tmp_path / "w.bin"), "--seed", "3"]
    subprocess.run(command, check=True)
    told("--export", tmp_path / "again.bin", "--seed", 3)
    assert (tmp_path / "w.bin").read_bytes() == (tmp_path / "again.bin").read_bytes()


def test_the_environment_names_the_compiler(monkeypatch, tmp_path):
    monkeypatch.setenv("CC", "gcc -DNDEBUG")
    assert find_compiler()[1:] == ["-DNDEBUG"]
    monkeypatch.setenv("CC", "no-such-compiler")
    assert find_compiler() is not None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_compiler() is None
    with pytest.raises(fd.CaptureError, match="no C compiler was found: neither CC nor cc, gcc or clang; install one"):
        Port.build(tmp_path)


def test_a_compiler_that_fails_is_told_from_none(monkeypatch, tmp_path):
    monkeypatch.setenv("CC", "gcc -include missing.h")
    with pytest.raises(fd.CaptureError, match="gcc cannot build the C port .*missing.h.*; try another by CC="):
        Port.build(tmp_path)
    monkeypatch.setenv("CC", "false")
    with pytest.raises(fd.CaptureError, match="false cannot build the C port .it says nothing.; try another by CC="):
        Port.build(tmp_path)


def test_a_program_that_cannot_be_run_is_told(tmp_path):
    with pytest.raises(fd.CaptureError, match="cannot be run"):
        Port(tmp_path / "kws").run("--help")


def test_an_unknown_bug_is_refused_with_the_names_of_all():
    with pytest.raises(fd.SelectionError, match="there is no bug 'gremlins'; choose one of: none, clip-off-by-one, "):
        find_bug("gremlins")


def test_the_manifest_is_one_file():
    assert PROBES.is_file()
    example = Path(__file__).parents[2] / "examples" / "demo"
    assert example.is_symlink()
    assert (example / "probes.txt").resolve() == PROBES.resolve()
