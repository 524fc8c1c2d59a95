"""Checkpoints and going on: byte-identical, bit-identical, after a kill, on a full disk, after Ctrl-C."""

import errno
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from tests.pretrain.worlds import FINETUNE, NEVER, command, events, files_of, firstdrift, newest, pretrain

import firstdrift as fd
from firstdrift.pretrain import run_checkpoints as saving
from firstdrift.pretrain.run_checkpoints import whole_directory
from firstdrift.weights.open_checkpoint import open_checkpoint
from firstdrift.weights.writing import write_checkpoint


def base(world, out, *more):
    return ["--init", world.apr, "--data", world.text, "--tokenizer", world.tokenizer, *FINETUNE, "--out", out, *more]


def run(world, out, *more, code=1):
    done = pretrain(*base(world, out, *NEVER, *more))
    assert done.exit_code == code, done.output
    return done


# What a checkpoint is.


@pytest.mark.falsifies("FALSIFY-APR-PRETRAIN-INIT-010")
@pytest.mark.parametrize("form", ["safetensors", "apr"])
def test_two_loads_without_a_step_leave_byte_identical_checkpoints(form, world, tmp_path):
    for name in ("a", "b"):
        done = pretrain(*base(world, tmp_path / name, "--num-steps", 0, "--format", form))
        assert done.exit_code == 0, done.output
    first, second = files_of(tmp_path / "a/checkpoints"), files_of(tmp_path / "b/checkpoints")
    assert first == second
    assert f"step-000000/model.{form}" in first


@pytest.mark.parametrize("form", ["safetensors", "apr"])
def test_the_weights_of_a_run_without_steps_are_those_it_was_given(form, world, tmp_path):
    assert pretrain(*base(world, tmp_path / "run", "--num-steps", 0, "--format", form)).exit_code == 0
    with open_checkpoint(world.apr) as given, open_checkpoint(newest(tmp_path / "run") / f"model.{form}") as kept:
        assert list(given.entries) == sorted(kept.entries)
        for name in given.entries:
            assert np.array_equal(given.array(name), kept.array(name)), name


@pytest.mark.parametrize("form", ["safetensors", "apr"])
def test_a_checkpoint_carries_its_stamp_and_everything_that_builds_it_again(form, world, tmp_path):
    shared = ["--data", world.text, "--tokenizer", world.tokenizer, *FINETUNE, "--num-steps", 0, "--format", form]
    assert pretrain("--config", "tiny", *shared, "--out", tmp_path / "scratch").exit_code == 0
    assert pretrain("--init", world.apr, *shared, "--out", tmp_path / "tuned").exit_code == 0
    for name, stamp in (("scratch", "tiny-pretrain"), ("tuned", "llama-pretrain")):
        path = newest(tmp_path / name)
        with open_checkpoint(path / f"model.{form}") as checkpoint:
            said = checkpoint.metadata
            assert (said["name"], said["architecture"]) == (stamp, "LlamaForCausalLM")
            assert said["hf_model_type"] == "llama"
            assert "lm_head.weight" in checkpoint.aliases
        assert fd.read_architecture(path).to_json() == fd.read_architecture(world.apr).to_json()
        assert (path / "vocab.json").read_bytes() == (world.tokenizer / "vocab.json").read_bytes()


def test_the_presets_stamp_is_its_own():
    from firstdrift.decoder.decoder_config import PRESETS
    from firstdrift.pretrain.run_record import stamp_of

    assert stamp_of(PRESETS["llama-370m"], "llama-370m") == {
        "name": "llama-370m-pretrain", "architecture": "LlamaForCausalLM",
    }  # fmt: skip
    assert stamp_of(PRESETS["qwen2-0.5b"], "qwen2") == {
        "name": "qwen2-pretrain", "architecture": "Qwen2ForCausalLM",
    }  # fmt: skip


def test_transformers_reads_a_checkpoint_and_computes_the_same(world):
    transformers = pytest.importorskip("transformers")
    import torch

    from firstdrift.decoder.engines import load_decoder

    theirs, ours = transformers.AutoModelForCausalLM.from_pretrained(world.safetensors), load_decoder(world.safetensors)
    tokens = torch.arange(64)[None]
    with torch.no_grad():
        torch.testing.assert_close(theirs(tokens).logits, ours(tokens), atol=1e-4, rtol=1e-4)


# Going on.


@pytest.mark.parametrize("more", [["--accumulate", 2], ["--dtype", "bf16", "--format", "apr"]], ids=["f32", "bf16"])
def test_a_run_that_goes_on_ends_as_one_that_never_stopped(more, world, tmp_path):
    run(world, tmp_path / "whole", "--num-steps", 12, "--eval-every", 4, *more)
    run(world, tmp_path / "parts", "--num-steps", 12, "--eval-every", 4, *more, "--checkpoint-every", 5)
    for later in ("step-000010", "step-000012"):
        _remove(tmp_path / "parts/checkpoints" / later)
    done = pretrain("--resume", tmp_path / "parts")
    assert done.exit_code == 1, done.output
    assert "going on from" in done.stdout
    assert "step-000005" in done.stdout
    assert files_of(newest(tmp_path / "whole")) == files_of(newest(tmp_path / "parts"))
    kinds = ("step", "loss", "gradient_norm", "lr", "val_loss")
    logs = [
        [
            {key: one[key] for key in kinds if key in one}
            for one in events(tmp_path / name)
            if one["event"] in ("step", "eval")
        ]
        for name in ("whole", "parts")
    ]
    assert logs[0] == logs[1]


def test_a_checkpoint_by_name_is_gone_on_from_even_if_there_are_newer_ones(world, tmp_path):
    run(world, tmp_path / "run", "--num-steps", 6, "--checkpoint-every", 2, "--eval-every", 0)
    before = files_of(newest(tmp_path / "run"))
    done = pretrain("--resume", tmp_path / "run/checkpoints/step-000002", "--checkpoint-every", 0)
    assert "step-000002" in done.stdout
    kept = ["abandoned-step-000004", "abandoned-step-000006", "step-000002", "step-000006"]
    assert sorted(path.name for path in (tmp_path / "run/checkpoints").iterdir()) == kept
    assert files_of(newest(tmp_path / "run")) == before
    assert [one["step"] for one in events(tmp_path / "run", "step")] == list(range(6))


def started(world, out, *more):
    """The run in a process of its own."""
    arguments = command(*base(world, out, *NEVER, *more))
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_until(condition, process):
    deadline = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_killed_run_goes_on_bit_for_bit(world, tmp_path):
    out, shared = tmp_path / "killed", ["--num-steps", 80, "--eval-every", 20, "--checkpoint-every", 2]
    process = started(world, out, *shared)
    wait_until(lambda: len(list(out.glob("checkpoints/step-*"))) >= 2, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert newest(out).name < "step-000080"
    with open(out / "log.jsonl", "a") as log:
        log.write('{"event":"step","st')  # a line that was being written
    (out / "checkpoints/.step-000099.partial").mkdir()
    assert "running or killed" in firstdrift("show", out).stdout
    assert pretrain("--resume", out).exit_code == 1
    run(world, tmp_path / "whole", *shared[:4])
    assert files_of(newest(out)) == files_of(newest(tmp_path / "whole"))
    assert [one["step"] for one in events(out, "step")] == list(range(80))
    assert not list((out / "checkpoints").glob(".*"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_finishes_the_step_writes_a_checkpoint_and_goes_on_bit_for_bit(number, world, tmp_path):
    out, shared = tmp_path / "stopped", ["--num-steps", 200, "--eval-every", 0]
    process = started(world, out, *shared)
    wait_until(lambda: (out / "log.jsonl").exists() and len(events_so_far(out)) >= 5, process)
    process.send_signal(number)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 2, told
    step = int(newest(out).name.removeprefix("step-"))
    assert step < 200
    assert f"interrupted after step {step}" in told
    assert f"--resume {out}" in told
    assert events(out, "end")[0]["reason"] == "interrupted"
    assert events(out, "step")[-1]["step"] == step - 1
    assert pretrain("--resume", out).exit_code == 1
    run(world, tmp_path / "whole", *shared)
    assert files_of(newest(out)) == files_of(newest(tmp_path / "whole"))


def events_so_far(path):
    return (path / "log.jsonl").read_text().splitlines()


def test_a_finished_run_that_goes_on_is_finished(world, tmp_path):
    run(world, tmp_path / "run", "--num-steps", 3)
    before = files_of(newest(tmp_path / "run"))
    done = pretrain("--resume", tmp_path / "run")
    assert "finished, 3 of 3 steps" in done.stdout
    assert files_of(newest(tmp_path / "run")) == before


# What cannot be gone on from.


@pytest.fixture(scope="module")
def made(world, tmp_path_factory):
    out = tmp_path_factory.mktemp("short") / "run"
    run(world, out, "--num-steps", 4, "--checkpoint-every", 2, "--eval-every", 0)
    return out


@pytest.fixture
def short(made, tmp_path):
    """A run of four steps with two checkpoints, to be damaged."""
    return Path(shutil.copytree(made, tmp_path / "run"))


def _flip(path):
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(bytes(data))


def _edit(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def _remove(directory):
    for path in sorted(directory.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    directory.rmdir()


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda p: _flip(p / "model.safetensors"), "model.safetensors: is damaged, its checksum is"),
        (lambda p: _flip(p / "training/optimizer.safetensors"), "optimizer.safetensors: is damaged"),
        (lambda p: (p / "model.safetensors").write_bytes(b"short"), "has 5 bytes and was written with"),
        (lambda p: (p / "model.safetensors").unlink(), "model.safetensors: is missing"),
        (lambda p: (p / "training/state.json").write_text("{"), "state.json: is not JSON"),
        (lambda p: _edit(p / "training/state.json", version=2), "has version 2, and this is for 1"),
        (lambda p: _edit(p / "training/state.json", format="other"), "says format 'other'"),
        (lambda p: _edit(p / "training/state.json", step=-1), "step is -1, and has to be a count"),
        (lambda p: _edit(p / "training/state.json", step=3), "position in the data: it was 16 and is 12"),
        (lambda p: _edit(p / "training/state.json", files={"../../run.json": {}}), "lacks the model"),
        (lambda p: _edit(p / "training/state.json", progress={"best": 1}), "progress: evaluations is missing"),
        (lambda p: _edit(p / "training/state.json", data="00000000"), "another data: it was '00000000'"),
    ],
)  # fmt: skip
def test_a_damaged_checkpoint_is_refused_by_what_is_wrong_with_it(damage, complaint, short):
    damage(newest(short))
    done = pretrain("--resume", short)
    assert (done.exit_code, complaint in done.stderr) == (2, True), done.stderr
    if complaint.startswith(("model", "optimizer")):
        assert f"resume from {short}/checkpoints/step-000002" in done.stderr
        assert pretrain("--resume", short / "checkpoints/step-000002").exit_code == 1  # the target is out of reach


def test_a_checkpoint_cannot_name_files_elsewhere(short):
    state = newest(short) / "training/state.json"
    _edit(state, files=json.loads(state.read_text())["files"] | {"../../run.json": {"bytes": 1, "crc32": ""}})
    done = pretrain("--resume", short)
    assert (done.exit_code, "'../../run.json', which is none" in done.stderr) == (2, True), done.stderr


def test_a_checkpoint_that_names_a_file_too_long_for_the_system_is_refused(short):
    state = newest(short) / "training/state.json"
    _edit(state, files=json.loads(state.read_text())["files"] | {"é" * 300: {"bytes": 1, "crc32": ""}})
    done = pretrain("--resume", short)
    assert (done.exit_code, "cannot look for its files (File name too long)" in done.stderr) == (2, True), done.stderr


def test_another_architecture_is_refused_with_both_values(short):
    record = json.loads((short / "run.json").read_text())
    _edit(short / "run.json", config=record["config"] | {"num_hidden_layers": 3, "intermediate_size": 100})
    done = pretrain("--resume", short)
    assert done.exit_code == 2
    assert "another architecture: intermediate_size was 176 and is 100; num_hidden_layers was 2 and is 3" in done.stderr


def test_weights_of_another_model_are_refused_even_where_every_checksum_is_right(world, short):
    path = newest(short)
    with open_checkpoint(path / "model.safetensors") as checkpoint:
        tensors = {name: np.array(checkpoint.array(name)) for name in checkpoint.entries}
    tensors["model.norm.weight"] = tensors["model.norm.weight"][:-1]
    from safetensors.numpy import save_file

    save_file(tensors, path / "model.safetensors")
    state = json.loads((path / "training/state.json").read_text())
    about = {"bytes": (path / "model.safetensors").stat().st_size, "crc32": saving.checksum(path / "model.safetensors")}
    _edit(path / "training/state.json", files=state["files"] | {"model.safetensors": about})
    done = pretrain("--resume", short)
    assert (done.exit_code, "model.norm.weight: init length 63" in done.stderr) == (2, True), done.stderr


def test_other_data_is_refused(world, short, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text(world.text.read_text()[1:])
    record = json.loads((short / "run.json").read_text())
    _edit(short / "run.json", data=record["data"] | {"path": str(other)})
    done = pretrain("--resume", short)
    assert (done.exit_code, "another data" in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (["--lr", "1e-4"], "--lr was 0.003 and is 0.0001"),
        (["--seed", "1"], "--seed was 42 and is 1"),
        (["--data", "x"], "--data was "),
        (["--init", "none"], "--init was "),
        (["--tokenizer", "x"], "--tokenizer was "),
        (["--config", "qwen2-0.5b"], "--config is another architecture ("),
        (["--dry-run"], "--dry-run cannot be given with --resume"),
        (["--force"], "--force cannot be given with --resume"),
        (["--out", "x"], "both name a run"),
    ],
)
def test_a_run_goes_on_with_what_it_began_with(given, complaint, short):
    done = pretrain("--resume", short, *given)
    assert (done.exit_code, complaint in done.stderr) == (2, True), done.stderr


def test_the_same_command_with_resume_goes_on(world, short):
    before = files_of(newest(short))
    _remove(newest(short))
    again = base(world, short, *NEVER, "--num-steps", 4, "--checkpoint-every", 2, "--eval-every", 0, "--config", "tiny")
    done = pretrain(*again, "--resume")
    assert done.exit_code == 1, done.output  # the target is out of reach
    assert "going on from" in done.stdout
    assert files_of(newest(short)) == before


def test_what_is_no_run_cannot_be_gone_on_with(tmp_path):
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "empty", tmp_path / "missing"):
        done = pretrain("--resume", path)
        assert (done.exit_code, "holds no checkpoint of a run" in done.stderr) == (2, True), done.stderr


def test_a_run_is_not_put_over_another_unless_asked_and_nothing_of_the_old_one_stays(world, short):
    done = pretrain(*base(world, short, "--num-steps", 0))
    assert (done.exit_code, "--force" in done.stderr) == (2, True), done.stderr
    assert pretrain(*base(world, short, "--num-steps", 0, "--force")).exit_code == 0
    assert [path.name for path in (short / "checkpoints").iterdir()] == ["step-000000"]
    assert not events(short, "step")


def test_a_run_that_never_had_a_checkpoint_is_replaced_without_asking(world, tmp_path):
    assert pretrain(*base(world, tmp_path / "run", "--num-steps", 0)).exit_code == 0
    shutil.rmtree(tmp_path / "run/checkpoints")
    assert pretrain(*base(world, tmp_path / "run", "--num-steps", 0)).exit_code == 0
    (tmp_path / "run/notes.txt").write_text("mine")
    shutil.rmtree(tmp_path / "run/checkpoints")
    assert pretrain(*base(world, tmp_path / "run", "--num-steps", 0)).exit_code == 2


def test_an_init_that_fails_leaves_the_run_that_was_to_be_replaced(world, short):
    with open_checkpoint(world.apr) as checkpoint:
        tensors = {name: np.array(checkpoint.array(name)) for name in checkpoint.entries}
        metadata = dict(checkpoint.metadata)
    tensors["model.norm.weight"][0] = np.inf
    write_checkpoint(short.parent / "broken.apr", tensors.items(), format="apr", metadata=metadata)
    before = files_of(short / "checkpoints")
    done = pretrain("--init", short.parent / "broken.apr", *base(world, short, "--force")[2:])
    assert (done.exit_code, "FALSIFY-APR-PRETRAIN-INIT-006" in done.stderr) == (2, True)
    assert files_of(short / "checkpoints") == before


def test_a_tokenizer_that_is_gone_is_the_copy_in_the_checkpoint(world, tmp_path):
    tokenizer = Path(shutil.copytree(world.tokenizer, tmp_path / "tokenizer"))
    run(world, tmp_path / "run", "--num-steps", 3, "--checkpoint-every", 2, "--tokenizer", tokenizer)
    before = files_of(newest(tmp_path / "run"))
    shutil.rmtree(tokenizer)
    assert pretrain("--resume", tmp_path / "run/checkpoints/step-000002").exit_code == 1
    assert files_of(newest(tmp_path / "run")) == before


def test_two_processes_cannot_train_one_run(world, short):
    from firstdrift.pretrain.run_record import locked

    with locked(short, new=False):
        done = pretrain("--resume", short)
    assert (done.exit_code, "another process is training there" in done.stderr) == (2, True), done.stderr


# A disk that is full.


def test_a_full_disk_ends_the_run_and_the_last_good_checkpoint_stays(world, tmp_path):
    out = tmp_path / "run"
    code = (
        "import resource, sys\n"
        "from firstdrift.pretrain import training\n"
        "save = training.save_checkpoint\n"
        "def limited(run, trainer, *rest):\n"
        "    if trainer.step == 4:\n"  # the optimizer's file is larger than the weights'
        "        resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, resource.RLIM_INFINITY))\n"
        "    return save(run, trainer, *rest)\n"
        "training.save_checkpoint = limited\n"
        "from firstdrift.cli.main import main\n"
        "main()\n"
    )
    arguments = command(*base(world, out, *NEVER, "--num-steps", 9, "--checkpoint-every", 2, "--eval-every", 0))
    done = subprocess.run([arguments[0], "-c", code, *arguments[3:]], capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert os.strerror(errno.EFBIG) in done.stderr
    assert "step-000004" in done.stderr
    assert f"the last whole checkpoint is {out}/checkpoints/step-000002" in done.stderr
    assert [path.name for path in sorted((out / "checkpoints").iterdir())] == ["step-000002"]
    run(world, tmp_path / "whole", "--num-steps", 9, "--eval-every", 0)
    assert pretrain("--resume", out).exit_code == 1
    assert files_of(newest(out)) == files_of(newest(tmp_path / "whole"))


def test_a_directory_appears_whole_or_not_at_all(tmp_path):
    path = tmp_path / "step"
    with whole_directory(path) as partial:
        (partial / "a").write_text("1")
        assert not path.exists()
    with pytest.raises(KeyError), whole_directory(tmp_path / "other") as partial:
        (partial / "a").write_text("2")
        raise KeyError
    assert files_of(tmp_path) == {"step/a": b"1"}


def test_the_newest_stays_the_newest_beyond_six_digits(tmp_path):
    from firstdrift.pretrain.run_checkpoints import all_checkpoints

    for step in (999_999, 1_000_000, 2):
        saving.step_directory(tmp_path / "checkpoints", step).mkdir(parents=True)
    assert [path.name for path in all_checkpoints(tmp_path)] == ["step-000002", "step-999999", "step-1000000"]
