"""What the tests of training share: real text, a tokenizer of bytes, and how the command is run."""

import json
import pydoc_data.topics
import sys
from pathlib import Path

from click.testing import CliRunner

from firstdrift.cli.main import cli
from firstdrift.pretrain.run_settings import Settings

TEXT = Path(pydoc_data.topics.__file__)  # Python's own help, which is prose with examples
SMALL = ["--batch", "4", "--seq-length", "32", "--warmup", "5", "--lr", "3e-3", "--device", "cpu"]
FINETUNE = [*SMALL, "--force-under-provisioned"]
NEVER = ["--val-loss-target", "0.001", "--patience", "0"]  # neither ends a run early


def byte_vocabulary():
    """GPT-2's letters for the 256 bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    letters = {byte: chr(byte) for byte in plain} | {byte: chr(256 + n) for n, byte in enumerate(others)}
    return {letters[byte]: byte for byte in range(256)}


def write_tokenizer(directory):
    directory.mkdir()
    (directory / "vocab.json").write_text(json.dumps(byte_vocabulary()))
    return directory


def settings(**given):
    numbers = {"batch": 4, "seq_length": 32, "warmup": 5, "lr": 3e-3, "num_steps": 6, **given}
    return Settings.of(numbers.pop("mode", "finetune"), **numbers)


def firstdrift(*arguments):
    """Run the command in this process; the result has exit_code, stdout and stderr."""
    return CliRunner().invoke(cli, [str(one) for one in arguments])


def pretrain(*arguments):
    return firstdrift("pretrain", *arguments)


def command(*arguments):
    """The command line of the same in a process of its own."""
    return [sys.executable, "-m", "firstdrift", "pretrain", *map(str, arguments)]


def files_of(directory):
    """Every file below a directory with its bytes."""
    return {
        path.relative_to(directory).as_posix(): path.read_bytes() for path in directory.rglob("*") if path.is_file()
    }


def newest(run):
    return sorted((Path(run) / "checkpoints").iterdir())[-1]


def events(run, kind=None):
    lines = [json.loads(line) for line in (Path(run) / "log.jsonl").read_text().splitlines()]
    return [line for line in lines if kind in (None, line["event"])]
