"""The command for people and for scripts: what it prints, what it logs, when it ends, and with which code."""

import json
import subprocess
import sys

import pytest
from tests.pretrain.worlds import FINETUNE, NEVER, SMALL, events, firstdrift, newest, pretrain

from firstdrift.cli.commands.pretrain import command


def scratch(world, out, *more):
    return pretrain(
        "--config", "tiny", "--data", world.text, "--tokenizer", world.tokenizer, *SMALL, "--out", out, *more
    )


@pytest.mark.falsifies("FALSIFY-APR-PRETRAIN-INIT-001", "FALSIFY-APR-PRETRAIN-INIT-007")
def test_init_is_a_flag_that_takes_a_path_and_is_none_where_it_is_absent(world):
    option = next(one for one in command.params if one.name == "init")
    assert option.opts == ["--init"]
    assert "--init" in firstdrift("pretrain", "--help").stdout
    synthetic = ["--synthetic", "--json", *FINETUNE]
    assert json.loads(pretrain("--init", world.apr, *synthetic).stdout)["init"]["path"] == str(world.apr)
    for absent in ([], ["--init", "none"]):
        assert json.loads(pretrain(*absent, *synthetic).stdout)["init"] is None
    assert pretrain("--init").exit_code == 2


def test_json_is_one_object_that_says_everything(world, tmp_path):
    done = scratch(world, tmp_path / "run", "--num-steps", 4, "--eval-every", 2, "--json")
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert said["schema"] == "firstdrift-pretrain-v1"
    assert [one["step"] for one in said["evaluations"]] == [0, 2, 4]
    assert said["outcome"]["reason"] == said["state"] == "finished"
    assert said["outcome"]["val_loss"] == said["evaluations"][-1]["val_loss"]
    assert said["outcome"]["checkpoint"] == str(newest(tmp_path / "run"))
    assert (said["settings"]["mode"], said["device"], said["init"]) == ("from-scratch", "cpu", None)
    shown = json.loads(firstdrift("show", tmp_path / "run", "--json").stdout)
    assert shown["schema"] == "firstdrift-run-v1"
    assert {key: shown[key] for key in ("evaluations", "checkpoints", "settings")} == {
        key: said[key] for key in ("evaluations", "checkpoints", "settings")
    }


def test_an_error_in_json_is_json_too(world, tmp_path):
    done = pretrain(
        "--init", world.apr, "--data", world.text, "--tokenizer", world.tokenizer, *FINETUNE, "--num-steps", 0,
        "--out", tmp_path / "run", "--json", "--lr", 1e30, "--num-steps", 3, "--warmup", 0,
    )  # fmt: skip
    assert done.exit_code == 1, done.output
    assert "not finite" in json.loads(done.stdout)["error"] or "is nan" in json.loads(done.stdout)["error"]


def test_the_log_has_a_line_for_everything(world, tmp_path):
    scratch(world, tmp_path / "run", "--num-steps", 4, "--eval-every", 2, "--checkpoint-every", 2)
    kinds = [one["event"] for one in events(tmp_path / "run")]
    assert kinds == ["eval", "step", "step", "eval", "checkpoint", "step", "step", "eval", "checkpoint", "end"]
    step = events(tmp_path / "run", "step")[1]
    assert set(step) == {"event", "step", "loss", "gradient_norm", "lr", "tokens_per_second"}
    assert step["lr"] == pytest.approx(3e-3 * 2 / 5)


def test_a_target_that_is_reached_ends_the_run_and_one_that_was_asked_for_and_missed_fails_it(world, tmp_path):
    reached = scratch(world, tmp_path / "a", "--num-steps", 40, "--eval-every", 2, "--val-loss-target", 5.0)
    assert (reached.exit_code, "target reached" in reached.stdout) == (0, True), reached.output
    assert len(events(tmp_path / "a", "step")) < 40
    missed = scratch(world, tmp_path / "b", "--num-steps", 2, "--val-loss-target", 0.5)
    assert (missed.exit_code, "--val-loss-target is 0.5" in missed.stderr) == (1, True)
    unasked = scratch(world, tmp_path / "c", "--num-steps", 2)
    assert unasked.exit_code == 0  # the target of the mode ends a run, and fails none


def test_a_run_that_does_not_become_better_ends(world, tmp_path):
    done = pretrain(
        "--init", world.apr, "--data", world.text, "--tokenizer", world.tokenizer, *SMALL,
        "--force-under-provisioned", "--out", tmp_path / "run", "--lr", 0.3, "--warmup", 0, "--num-steps", 60,
        "--eval-every", 1, "--patience", 2, "--val-loss-target", 0.1,
    )  # fmt: skip
    assert "no improvement" in done.stdout, done.output
    losses = [one["val_loss"] for one in events(tmp_path / "run", "eval")[1:]]
    best = losses.index(min(losses))
    assert 3 <= len(losses) == max(3, best + 3)


def test_from_scratch_with_init_is_allowed_and_warned_of(world, tmp_path):
    shared = ["--data", world.text, "--tokenizer", world.tokenizer, *FINETUNE, "--dry-run"]
    done = pretrain("--init", world.apr, *shared, "--mode", "from-scratch")
    assert (done.exit_code, "warning: --mode from-scratch with --init" in done.stdout) == (0, True)
    done = pretrain("--config", "tiny", *shared, "--mode", "finetune")
    assert (done.exit_code, "warning: --mode finetune without --init" in done.stdout) == (0, True)


def test_the_tokenizer_beside_the_checkpoint_is_taken_when_none_is_named(world, tmp_path):
    done = pretrain(
        "--init", world.safetensors, "--data", world.text, *FINETUNE, "--num-steps", 0, "--out", tmp_path / "r"
    )
    assert done.exit_code == 0, done.output
    assert json.loads((tmp_path / "r/run.json").read_text())["tokenizer"] == str(world.safetensors)


def test_plain_weights_with_a_config_beside_them_are_an_init(world, tmp_path):
    from safetensors.numpy import load_file, save_file

    save_file(load_file(world.safetensors / "model.safetensors"), tmp_path / "weights.safetensors")
    shared = ["--data", world.text, "--tokenizer", world.tokenizer, *FINETUNE, "--num-steps", 0]
    done = pretrain("--init", tmp_path / "weights.safetensors", *shared, "--out", tmp_path / "a")
    assert (done.exit_code, "FALSIFY-APR-PRETRAIN-INIT-005" in done.stderr) == (2, True), done.output
    (tmp_path / "config.json").write_bytes((world.safetensors / "config.json").read_bytes())
    done = pretrain("--init", tmp_path / "weights.safetensors", *shared, "--out", tmp_path / "b")
    assert done.exit_code == 0, done.output


def test_a_bar_is_drawn_on_a_terminal_and_nowhere_else(world, tmp_path):
    pty = pytest.importorskip("pty")
    import os

    leader, follower = pty.openpty()
    arguments = ["--config", "tiny", "--data", world.text, "--tokenizer", world.tokenizer, *SMALL, *NEVER]
    process = subprocess.Popen(
        [sys.executable, "-m", "firstdrift", "pretrain", *map(str, arguments), "--num-steps", "30", "--eval-every", "0",
         "--out", str(tmp_path / "run")],
        stdout=subprocess.PIPE, stderr=follower, env=os.environ | {"TERM": "xterm", "COLUMNS": "120"},
    )  # fmt: skip
    os.close(follower)
    drawn = b""
    while True:
        try:
            data = os.read(leader, 4096)
        except OSError:  # the other end is closed
            break
        if not data:
            break
        drawn += data
    out, _ = process.communicate()
    os.close(leader)
    assert process.returncode == 1, out
    for said in (b"training", b"tokens/s", b"loss", b"left"):
        assert said in drawn
    assert b"tokens/s" in out


def test_without_torch_it_says_what_to_install():
    code = (
        "import sys\nsys.modules['torch'] = None\nfrom click.testing import CliRunner\n"
        "from firstdrift.cli.main import cli\nfound = CliRunner().invoke(cli, ['pretrain', '--data', 'x'])\n"
        "print(found.exit_code, found.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("2 firstdrift: training needs torch; pip install 'firstdrift[decoder]'")


def test_help_does_not_import_torch():
    code = (
        "import sys\nfrom click.testing import CliRunner\nfrom firstdrift.cli.main import cli\n"
        "found = CliRunner().invoke(cli, ['pretrain', '--help'])\nassert found.exit_code == 0\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_showing_a_run_does_not_import_torch(world, tmp_path):
    code = (
        "import sys\nfrom click.testing import CliRunner\nfrom firstdrift.cli.main import cli\n"
        f"found = CliRunner().invoke(cli, ['show', {str(world.root / 'base')!r}])\nassert found.exit_code == 0, found\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
