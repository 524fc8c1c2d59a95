"""The C port computes what it says: audio, gradients, the step; and a sink changes nothing."""

import numpy as np
import pytest
import torch
from tests.demo.laboratory import basics, run

import firstdrift as fd
from firstdrift.demo.audio import CLASSES, clip_label, make_clip
from firstdrift.demo.port import known_bugs
from firstdrift.demo.spotter_files import read_probes, read_weights, write_weights
from firstdrift.demo.twin import KeywordSpotter, initial_weights

PROBES = read_probes()
SHAPES = {name: value.shape for name, value in initial_weights(0, PROBES).items()}


def arrays(path, phase):
    trace = fd.open_trace(path)
    records = (record for record in trace if record.site.phase == phase and record.at is not None)
    return {(r.site.name, r.site.port, r.site.sample): trace.array(r) for r in records}


def test_both_sides_synthesize_the_same_bits(laboratory):
    seen = set()
    for seed in (0, 1, 4294967295 // 5):
        inputs = arrays(laboratory.candidate(seed=seed, batch=24, samples=24), "input")
        for clip in range(24):
            ours = make_clip(seed, clip)
            assert ours.tobytes() == inputs["input", "audio", clip].tobytes()
            seen.add(clip_label(seed, clip))
    assert seen == set(range(CLASSES))


def test_the_classes_sound_different():
    loudness = {}
    for clip in range(60):
        loudness.setdefault(clip_label(0, clip), []).append(float(np.abs(make_clip(0, clip)).mean()))
    silence, noise, *tones = (np.mean(loudness[label]) for label in range(CLASSES))
    assert silence < 0.01 < 0.1 < min(noise, *tones)


def test_the_port_agrees_with_autograd_in_float64(laboratory):
    """Every activation, every activation gradient and every parameter's gradient, by its norm."""
    exact = laboratory.reference(dtype=torch.float64, batch=3)
    port = laboratory.candidate(batch=3, samples=3)
    compared = set()
    for phase, scale in ("fwd", 1), ("lossgrad", 3), ("agrad", 3), ("grad", 3), ("grad_scaled", 1):
        truth = arrays(exact, phase)
        for (name, parameter, sample), ours in arrays(port, phase).items():
            theirs = truth[name, parameter, None] * scale
            theirs = theirs if sample is None else theirs[sample : sample + 1]
            assert np.linalg.norm(ours - theirs) <= 1e-4 * np.linalg.norm(theirs), (phase, name, parameter, sample)
            compared.add((phase, name, parameter))
    assert {n for p, n, _ in compared if p == "fwd"} == set(PROBES)
    assert {n for p, n, _ in compared if p == "agrad"} == set(PROBES[:-1])
    assert {f"{n}.{port}" for p, n, port in compared if p == "grad"} == set(SHAPES)


@pytest.mark.parametrize("name", SHAPES)
def test_the_loss_moves_as_each_gradient_says(laboratory, port, tmp_path, name):
    """Finite differences along a gradient, by the C code alone."""
    probe, parameter = name.split(".")
    before = read_weights(laboratory.weights(0), SHAPES)
    gradient = arrays(laboratory.candidate(batch=2), "grad_scaled")[probe, parameter, None].astype(np.float64)
    length = np.linalg.norm(gradient)
    losses = []
    for sign in (1, -1):
        moved = before[name] + sign * 0.02 / length * gradient
        write_weights(tmp_path / "moved.bin", before | {name: moved.astype(np.float32)})
        out = tmp_path / str(sign)
        port.record(tmp_path / "moved.bin", out, start=0, batch=2, samples=0, steps=1, seed=0, bug="none")
        losses.append(float(arrays(out, "loss")["loss", "out", None]))
    assert (losses[0] - losses[1]) / (2 * 0.02 * length) == pytest.approx(1, rel=0.05)


def test_the_gradient_at_the_logits_is_that_of_the_loss(laboratory):
    path = laboratory.candidate(batch=2, samples=2)
    of_loss, of_logits = arrays(path, "lossgrad"), arrays(path, "agrad")
    for sample in range(2):
        assert of_loss["loss", "out", sample].tobytes() == of_logits["fc", "out", sample].tobytes()


def test_tensors_come_in_the_order_of_the_step(laboratory):
    lines = fd.open_trace(laboratory.candidate(batch=3, samples=2)).lines
    events = [(r.site.phase, r.site.name) for r in lines if r.site.sample == 1]
    assert events == [
        ("input", "input"),
        *(("fwd", name) for name in PROBES),
        ("lossgrad", "loss"),
        *(("agrad", name) for name in PROBES[-2::-1]),
    ]
    parameters = [(r.site.phase, f"{r.site.name}.{r.site.port}") for r in lines if r.site.name not in ("input", "loss")]
    phases = ("weight", "grad", "grad_scaled", "weight_after")
    dumped = [item for item in parameters if item[0] in phases]
    assert dumped == [(phase, name) for phase in phases for name in SHAPES]
    assert {r.site.sample for r in lines} == {None, 0, 1}
    assert all(r.shape[0] == 1 for r in lines if r.site.phase in ("fwd", "agrad", "lossgrad") and r.shape)


def test_the_trace_says_what_its_gradients_are_of(laboratory):
    header = fd.open_trace(laboratory.candidate(batch=3, samples=2)).header
    assert header["gradient_of"] == {"reduction": "sum", "batch": 3}
    assert (header["seed"], header["optimizer"]["momentum"]) == (0, 0.9)


def test_without_a_sink_the_step_is_the_same_to_the_byte(port, weights, tmp_path):
    asked = (*basics(weights), "--batch", 4, "--steps", 3)
    recorded = (["--out", tmp_path / "run"], ["--npy", tmp_path / "npy"], ["--out", tmp_path / "all", "--samples", 4])
    saved, printed = set(), set()
    for number, sink in enumerate(([], *recorded)):
        done = run(port, *asked, *sink, "--save", tmp_path / f"{number}.bin")
        assert done.returncode == 0, done.stderr
        saved.add((tmp_path / f"{number}.bin").read_bytes())
        printed.add(done.stdout)
    assert len(saved) == len(printed) == 1
    assert saved != {weights.read_bytes()}
    after = arrays(tmp_path / "run", "weight_after")
    for name, value in read_weights(tmp_path / "0.bin", SHAPES).items():
        assert np.array_equal(after[*name.split("."), None], value)


def test_npy_directories_hold_what_the_trace_holds(laboratory, port, weights, tmp_path):
    reference = laboratory.reference(batch=4)
    done = run(port, *basics(weights), "--batch", 4, "--out", tmp_path / "run", "--npy", tmp_path / "npy")
    assert done.returncode == 0, done.stderr
    from_trace = fd.diff(reference, tmp_path / "run")
    from_npy = fd.diff(reference, tmp_path / "npy")  # which says itself what its gradients are of
    assert from_npy.exit_code == from_trace.exit_code == 0
    errors = [{p.site: p.error for p in r.pairs if p.measurement is not None} for r in (from_trace, from_npy)]
    assert errors[0] == errors[1]
    assert len(errors[0]) > 100


def test_the_program_lists_the_bugs_of_the_table(port):
    listed = [line.split(None, 2) for line in port.run("--bug", "list").splitlines()]
    assert [(name, int(steps), what) for name, steps, what in listed] == [
        (bug.name, bug.steps, bug.what) for bug in known_bugs().values()
    ]
    assert len(listed) > 12


def test_both_sides_name_their_layers_by_the_manifest(port, weights, tmp_path):
    renamed = [f"stage.{name}" for name in PROBES]
    with pytest.raises(KeyError):  # a module's name has no dot: torch says so itself
        KeywordSpotter(renamed)
    (tmp_path / "probes.txt").write_text("\n".join(name.upper() for name in PROBES))
    done = run(port, "--weights", weights, "--probes", tmp_path / "probes.txt")
    assert 'has "conv1.weight 16 1 9" where "CONV1.weight 16 1 9" belongs' in done.stderr


@pytest.mark.parametrize("bug", [pytest.param(name, marks=pytest.mark.slow) for name in known_bugs()] + ["relu-mask"])
def test_sanitizers_find_nothing(sanitized, weights, tmp_path, bug):
    sinks = ("--out", tmp_path / "run", "--npy", tmp_path / "npy", "--save", tmp_path / "saved.bin")
    done = run(sanitized, *basics(weights), *sinks, "--batch", 2, "--start", 318, "--steps", 2, "--bug", bug)
    assert (done.returncode, done.stderr) == (0, "")


def test_sanitizers_find_nothing_in_refusals(sanitized, weights, tmp_path):
    (tmp_path / "short.bin").write_bytes(weights.read_bytes()[:1000])
    for arguments in (
        ("--weights", tmp_path / "short.bin", "--probes", "nowhere"),
        basics(tmp_path / "short.bin"),
        (*basics(weights), "--out", tmp_path / "short.bin" / "run"),
        (*basics(weights), "--out", "x" * 5000),
        ("--bug",),
    ):
        done = run(sanitized, *arguments)
        assert done.returncode == (1 if "cannot write" in done.stderr else 2)
        assert "Sanitizer" not in done.stderr
