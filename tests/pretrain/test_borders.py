"""Files of a run that were changed or damaged are refused with a sentence: never a traceback, never a guess."""

import json
import shutil
from pathlib import Path

import pytest
from tests.pretrain.worlds import FINETUNE, firstdrift, pretrain

WRONG = (None, "text", -1, 1.5, [], {}, True)


@pytest.fixture(scope="module")
def made(world, tmp_path_factory):
    out = tmp_path_factory.mktemp("made") / "run"
    shared = ["--data", world.text, "--tokenizer", world.tokenizer, *FINETUNE, "--num-steps", 2, "--eval-every", 1]
    assert pretrain("--init", world.apr, *shared, "--out", out).exit_code == 0
    return out


def changed(said, path, value=None, *, remove=False):
    """A copy of nested tables with one entry removed, or another."""
    copy = json.loads(json.dumps(said))
    inside = copy
    for key in path[:-1]:
        inside = inside[key]
    if remove:
        del inside[path[-1]]
    else:
        inside[path[-1]] = value
    return copy


def paths(said, before=()):
    """Every entry of nested tables."""
    for key, value in said.items():
        yield (*before, key)
        if isinstance(value, dict):
            yield from paths(value, (*before, key))


def codes_of(commands):
    done = [firstdrift(*arguments) for arguments in commands]
    internal = [one.stderr for one in done if one.exit_code == 3]
    assert not internal, internal
    return [one.exit_code for one in done]


def test_a_record_with_anything_missing_or_of_another_type_never_makes_a_traceback(made, tmp_path):
    run = Path(shutil.copytree(made, tmp_path / "run"))
    said = json.loads((run / "run.json").read_text())
    refused = 0
    for path in paths(said):
        for copy in (changed(said, path, remove=True), *(changed(said, path, value) for value in WRONG)):
            (run / "run.json").write_text(json.dumps(copy))
            (code,) = codes_of([["show", run]])
            refused += code == 2
    assert refused > 200


@pytest.mark.parametrize("key", ["settings", "config", "stamp", "data", "device", "tokenizer"])
def test_a_record_without_what_a_run_needs_cannot_be_gone_on_with(key, made, tmp_path):
    run = Path(shutil.copytree(made, tmp_path / "run"))
    said = json.loads((run / "run.json").read_text())
    for copy in (changed(said, (key,), remove=True), *(changed(said, (key,), value) for value in WRONG)):
        if copy["tokenizer" if key == "tokenizer" and "tokenizer" in copy else "format"] == "text":
            continue  # a tokenizer that is not there: the checkpoint has its copy
        (run / "run.json").write_text(json.dumps(copy))
        assert codes_of([["pretrain", "--resume", run]]) == [2]


def test_a_checkpoints_state_with_anything_missing_or_of_another_type_is_refused(made, tmp_path):
    run = Path(shutil.copytree(made, tmp_path / "run"))
    file = run / "checkpoints/step-000002/training/state.json"
    said = json.loads(file.read_text())
    for path in [path for path in paths(said) if path[0] not in ("config", "files")] + [("files",), ("config",)]:
        for copy in (changed(said, path, remove=True), *(changed(said, path, value) for value in WRONG)):
            file.write_text(json.dumps(copy))
            code = codes_of([["pretrain", "--resume", run]])
            assert code == [2] or copy == said or path[0] == "progress", (path, copy)


@pytest.mark.parametrize(
    "line",
    ["{", "[]", '{"event":"step"}', '{"event":"eval","step":1}', '{"event":"eval","val_loss":"x"}', '{"step":1}', "{}"],
)
def test_a_log_with_another_line_is_refused(line, made, tmp_path):
    run = Path(shutil.copytree(made, tmp_path / "run"))
    log = run / "log.jsonl"
    log.write_text(line + "\n" + log.read_text())
    assert codes_of([["show", run], ["pretrain", "--resume", run]]) == [2, 2]


def test_a_log_that_is_gone_or_empty_is_no_obstacle(made, tmp_path):
    run = Path(shutil.copytree(made, tmp_path / "run"))
    (run / "log.jsonl").write_text("")
    assert codes_of([["show", run], ["pretrain", "--resume", run]]) == [0, 0]
    (run / "log.jsonl").unlink()
    assert codes_of([["show", run], ["pretrain", "--resume", run]]) == [0, 0]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [("", "0 tokens are 0 windows"), ("short", "5 tokens are 0 windows"), ("x" * 63, "63 tokens are 1 windows")],
)
def test_empty_and_tiny_texts_are_refused(content, complaint, world, tmp_path):
    (tmp_path / "a.txt").write_text(content)
    shared = ["--tokenizer", world.tokenizer, *FINETUNE]
    done = pretrain("--init", world.apr, "--data", tmp_path / "a.txt", *shared, "--out", tmp_path / "run")
    assert (done.exit_code, complaint in done.stderr) == (2, True), done.stderr


def test_a_place_that_cannot_be_written_is_told(world, tmp_path):
    (tmp_path / "file").write_text("")
    shared = ["--data", world.text, "--tokenizer", world.tokenizer, *FINETUNE, "--num-steps", 0]
    for out in (tmp_path / "file", tmp_path / "file/run"):
        done = pretrain("--init", world.apr, *shared, "--out", out, "--force")
        assert (done.exit_code, "--out" in done.stderr) == (2, True), done.stderr
