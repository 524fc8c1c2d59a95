"""Names and texts from files reach a terminal escaped, in every command and in errors."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import save_file

import firstdrift as fd
import firstdrift.cli
from firstdrift.cli.main import cli
from firstdrift.cli.options import say
from firstdrift.errors import printable

EVIL = "a\x1b]0;owned\x07\nforged_line\x9b2J\u202e"


def put(path, factor=1.0):
    with fd.Writer(path, producer=EVIL, note=EVIL, problems=[EVIL], notes=[EVIL]) as writer:
        x = np.arange(6, dtype=np.float32).reshape(2, 3)
        writer.put("x", "input", x)
        writer.put(EVIL, "weight", x.T.copy(), port=EVIL)
        writer.put(EVIL, "fwd", x * factor, op=EVIL, attrs={EVIL: EVIL}, producers=["x"])
        writer.put_absent(EVIL, "agrad", EVIL)
    return path


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    put("t"), put("u", 2.0)
    for case in ("1", EVIL.replace("\n", "")):
        put(Path("pairs", case, "reference"))
        put(Path("pairs", case, "candidate"), 2.0)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    save_file({EVIL: x, "n": x}, "w.safetensors", metadata={EVIL: EVIL})
    save_file({EVIL: x + 1, f"{EVIL}2": x, "n": x}, "v.safetensors")
    Path("net.py").write_text("import torch\ndef build():\n    return torch.nn.Linear(3, 2)\n")
    Path("map.yml").write_text('"a\\e]0;owned\\a": b\n')
    for name in ("bad.npz", f"{EVIL}.npz"):
        Path(name).write_bytes(b"not a zip")


COMMANDS = [
    "show t", "show t --only x", "show t --only a*", "show t --only \x1bnone", "diff t u", "diff t u --ranked",
    "diff t u --map map.yml", "export t out.npz", "export t out2.npz --inputs-of x", "export t out --format aprt",
    "isolate t u --module x", "power t", "weights inspect w.safetensors", "weights diff w.safetensors v.safetensors",
    "weights verify net.py:build w.safetensors", "weights convert w.safetensors o.npz",
    "weights convert w.safetensors o.gguf", "trace w.safetensors --save-tensor all", "show bad.npz", "sweep pairs",
    f"show {EVIL}.npz", f"weights inspect {EVIL}.npz", f"weights diff w.safetensors {EVIL}.npz",
    "diff t u --write-map m.yml", "show t --debug --only \x1bnone", "weights diff w.safetensors t",
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_prints_what_a_terminal_acts_on(files, command):
    done = CliRunner().invoke(cli, command.split(" "))
    assert done.exit_code != 3, done.output
    assert done.output
    assert done.output.replace("\n", "").isprintable(), repr(done.output)
    assert not any(line.startswith("forged_line") for line in done.output.splitlines()), done.output


def test_the_commands_do_show_the_names(files):
    for command in COMMANDS[0], COMMANDS[4], "weights diff w.safetensors v.safetensors", "export t o.npz":
        assert r"a\x1b]0;owned" in CliRunner().invoke(cli, command.split(" ")).output, command


def test_errors_are_printable_outside_of_commands_too(files):
    code = f"import firstdrift as fd; fd.open_trace('t')[fd.Site(0, 'fwd', {EVIL!r} + '2', 'out')]"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert "SelectionError" in done.stderr
    assert done.stderr.replace("\n", "").isprintable()
    assert str(fd.FormatError(EVIL)) == r"a\x1b]0;owned\x07\nforged_line\x9b2J\u202e"
    assert str(fd.NotFoundError("a\x1b")) == r"a\x1b"


@pytest.mark.parametrize("text", ["", "plain", "Käse → ×", "two\nlines", r"a\x1b", "a\x1b", EVIL, "\ud800"])
def test_escaping_again_changes_nothing(text):
    assert printable(printable(text)) == printable(text)
    assert printable(text) == text or not text.replace("\n", "").isprintable()


def test_colours_of_ours_stay_and_nothing_else(capsys):
    say("\x1b[1mbold\x1b[0m \x1b]0;x\x07", colour=True)
    assert capsys.readouterr().out == "\x1b[1mbold\x1b[0m \\x1b]0;x\\x07\n"


def test_commands_print_by_one_function():
    for path in Path(firstdrift.cli.__file__).parent.glob("*.py"):
        if path.name in ("options.py", "c_header.py"):  # the function itself, and a file of ours as it is
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            assert not (isinstance(node, ast.Attribute) and node.attr in ("echo", "secho")), (path, node.lineno)
            assert not (isinstance(node, ast.Name) and node.id == "print"), (path, node.lineno)
