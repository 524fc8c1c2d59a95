"""Ctrl-C is one line, whenever it comes and whatever a library makes of it."""

from __future__ import annotations

import subprocess
import sys

import pytest

INTERRUPT = "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)\n"
CONVERT = """import os, signal, time
try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)
except BaseException:
    raise ImportError("initialisation failed") from None
"""
IN_A_CALLBACK = "class Noisy:\n    def __del__(self):\n        raise KeyboardInterrupt\n\nNoisy()\n" + INTERRUPT


def run(tmp_path, *arguments, program=("-m", "firstdrift"), **modules):
    for name, text in modules.items():
        (tmp_path / f"{name}.py").write_text(text)
    command = [sys.executable, *program, *arguments]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=250)


@pytest.mark.parametrize("text", [INTERRUPT, CONVERT, IN_A_CALLBACK], ids=["plain", "as an error", "in a callback"])
@pytest.mark.parametrize("module", ["click", "numpy", "yaml"])
def test_an_interruption_while_importing_is_one_line(tmp_path, module, text):
    (tmp_path / "t").mkdir()
    (tmp_path / "map.yml").write_text("a: b\n")
    with_map = (
        ["diff", "t", "t", "--map", "map.yml"] if module != "yaml" else ["weights", "verify", "net.py:build", "t"]
    )
    done = run(tmp_path, *with_map, **{module: text, "net": f"import {module}\n"})
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "firstdrift: interrupted\n")


@pytest.mark.parametrize("text", [INTERRUPT, CONVERT], ids=["plain", "as an error"])
def test_an_interruption_in_a_users_file_is_one_line(tmp_path, text):
    done = run(tmp_path, "weights", "verify", "net.py:build", "x", net="def build():\n    import slow\n", slow=text)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "firstdrift: interrupted\n")


def test_the_program_that_is_installed_listens_too(tmp_path):
    script = "import sys; from importlib.metadata import entry_points; sys.argv = ['firstdrift', 'diff', 'a', 'b']; "
    script += "(point,) = [p for p in entry_points(group='console_scripts') if p.name == 'firstdrift']; point.load()()"
    done = run(tmp_path, program=("-c", script), click=INTERRUPT)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "firstdrift: interrupted\n")


def test_a_program_that_ignores_interruptions_goes_on_ignoring_them(tmp_path):
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "from firstdrift.cli import interrupts; interrupts.listen()\n"
        "signal.raise_signal(signal.SIGINT); print(interrupts.heard())"
    )
    assert run(tmp_path, program=("-c", code)).stdout == "False\n"


def test_importing_the_library_leaves_signals_alone(tmp_path):
    code = (
        "import signal; before = signal.getsignal(2); import firstdrift.cli.main; print(before is signal.getsignal(2))"
    )
    assert run(tmp_path, program=("-c", code)).stdout == "True\n"
