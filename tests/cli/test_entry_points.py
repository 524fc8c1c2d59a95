"""One form for functions of the user's own in all commands, one or several globs, one signature for two functions."""

from __future__ import annotations

import os
from inspect import signature
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import firstdrift as fd
from firstdrift.cli.factories import load_function
from firstdrift.cli.main import cli

CODE = """
import numpy as np, torch, firstdrift as fd
def build():
    return torch.nn.Linear(2, 2)
def pair():
    return torch.nn.Linear(2, 2), torch.ones(1, 2)
def side(out, n):
    with fd.Writer(out) as w:
        w.put("x", "fwd", np.full(3, float(n)))
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    import torch
    from safetensors.torch import save_file

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    name = f"own_{os.getpid()}_{tmp_path.name}"  # a module that no other test has imported
    Path("pkg_" + name).mkdir()
    for file in (f"{name}.py", f"pkg_{name}/inner.py"):
        Path(file).write_text(CODE)
    save_file(torch.nn.Linear(2, 2).state_dict(), "w.safetensors")
    return name


@pytest.mark.parametrize("form", ["{0}.py", "./{0}.py", "{0}", "pkg_{0}.inner"])
def test_every_command_takes_every_form(place, form):
    where = form.format(place)
    for arguments in (
        ["weights", "verify", f"{where}:build", "w.safetensors"],
        ["calibrate", f"{where}:pair", "ref", "--force"],
        ["sweep", "--reference", f"{where}:side", "--candidate", f"{where}:side", "--cases", "n=1,2", "--force"],
    ):
        done = CliRunner().invoke(cli, arguments)
        assert done.exit_code == 0, (arguments, done.output)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("mine.py", "'mine.py' does not name a function; write FILE.py:function or pkg.module:function"),
        ("none.py:f", "none.py: there is no such file; write FILE.py:function or pkg.module:function"),
        ("a/b:f", "'a/b' is neither a file FILE.py nor a module; write FILE.py:function or pkg.module:function"),
        ("no_such_module:f", "no_such_module: importing it raised ModuleNotFoundError"),
        ("json:nothing", "json: has no function 'nothing'; it has"),
    ],
)
def test_what_names_no_function_is_refused_alike(text, words):
    with pytest.raises(fd.FirstdriftError, match=words.replace(".", r"\.")):
        load_function(text)


def test_globs_may_be_one_or_several(tmp_path):
    for side in "ab":
        with fd.Writer(tmp_path / side) as writer:
            writer.put("xy", "fwd", np.ones(3))
            writer.put("z", "fwd", np.ones(3) * (side == "a"))
            writer.put("xy", "agrad", np.ones(3) * (side == "a"))
    both = tmp_path / "a", tmp_path / "b"
    for options in (
        {"phases": "fwd", "only": "xy"},
        {"phases": ["fwd"], "only": ("xy",)},
        {"phases": "fwd", "ignore": "z"},
    ):
        assert [str(one.site) for one in fd.diff(*both, **options).pairs] == ["fwd xy:out step 0"]
        assert fd.assert_same(*both, **options).exit_code == 0
    with pytest.raises(AssertionError):
        fd.assert_same(*both, phases="agrad")


def test_assert_same_takes_what_diff_takes():
    assert signature(fd.assert_same) == signature(fd.diff)
