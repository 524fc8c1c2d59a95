"""What the system says no to, and what a user's own code ends, is one sentence and exit code 2: never a verdict."""

from __future__ import annotations

import errno
import io
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import save_file

import firstdrift as fd
from firstdrift.cli.main import cli
from firstdrift.core.atomic import replacing, replacing_together

PROGRAM = [sys.executable, "-m", "firstdrift"]
ENDS = "import sys\nsys.exit(0)\n"
CODE = """
import sys, torch
def leave():
    sys.exit(0)
def fail():
    raise RuntimeError("no\\nluck")
def pair():
    return Leaving(), torch.ones(1, 2)
class Leaving(torch.nn.Module):
    def forward(self, x):
        sys.exit(0)
"""
LONG = "m" * 5000  # no file system has such a name


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    for name, count in (("t", 400), ("u", 400)):
        with fd.Writer(name) as writer:
            for number in range(count):
                writer.put(f"x{number}", "fwd", np.ones(3))
    save_file({"weight": np.ones((2, 2), np.float32)}, "w.safetensors")
    Path("ends.py").write_text(ENDS)
    Path("code.py").write_text(CODE)
    return tmp_path


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a device that is always full")
@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["diff", "--help"], ["diff", "t", "u"]])
def test_an_output_without_room_is_no_drift(place, arguments):
    with open("/dev/full", "w") as full:
        done = subprocess.run([*PROGRAM, *arguments], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stderr == "firstdrift: cannot write the output (No space left on device); free some space\n"


@pytest.mark.skipif(sys.platform == "win32", reason="has no such pipes")
@pytest.mark.parametrize("arguments", [["--help"], ["show", "t"]])
def test_an_output_that_nobody_reads_is_no_drift(place, arguments):
    here, there = os.pipe()
    os.close(here)
    done = subprocess.run([*PROGRAM, *arguments], stdout=there, stderr=subprocess.PIPE, text=True)
    os.close(there)
    assert done.returncode == 2
    assert done.stderr == "firstdrift: nobody reads the output to its end; ask for less of it (--limit, --quiet)\n"


@pytest.mark.skipif(sys.platform == "win32", reason="has no sh")
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_a_verdict_does_not_need_anybody_to_listen(place, closed):
    for arguments, code in (("diff t u", 0), ("diff t none", 2)):
        command = f'"{sys.executable}" -m firstdrift {arguments} {closed}'
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
        assert done.returncode == code, done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["weights", "verify", "ends.py:f", "w.safetensors"], "ends.py: importing it raised SystemExit: 0; mend it"),
        (
            ["weights", "verify", "code.py:leave", "w.safetensors"],
            "code.py:leave: building the model raised SystemExit: 0; mend it",
        ),
        (["calibrate", "code.py:leave", "c"], "code.py:leave raised SystemExit: 0; mend it"),
        (["calibrate", "code.py:fail", "c"], r"code.py:fail raised RuntimeError: no\nluck; mend it"),
        (["calibrate", "code.py:pair", "c"], "code that was run here ended it by sys.exit(0); mend it"),
    ],
)
def test_a_users_own_code_neither_ends_a_command_well_nor_breaks_it(place, arguments, said):
    done = CliRunner().invoke(cli, arguments)
    assert (done.exit_code, done.output) == (2, f"firstdrift: {said}\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ["show", LONG], ["diff", "t", "u", "--write-map", LONG], ["export", "t", LONG, "--format", "npz"],
        ["weights", "verify", f"{LONG}:build", "w.safetensors"], ["sweep", LONG], ["calibrate", "code.py:pair", LONG],
        ["weights", "diff", "w.safetensors", "w.safetensors", "--write-map", LONG],
        ["pretrain", "--config", LONG, "--synthetic"], ["trace", LONG, "--save-tensor", "all"],
    ],
    ids=lambda arguments: " ".join(arguments[:2])[:20],
)  # fmt: skip
def test_a_path_that_the_system_refuses_is_named(place, arguments):
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 2, done.output
    assert done.output.startswith("firstdrift: ")
    assert LONG[:100] in done.output
    assert "(File name too long)" in done.output
    assert "the output" not in done.output
    assert done.output.count("\n") == 1


def loops(path):
    path.symlink_to(path.name)


MADE = {"FIFO": os.mkfifo, "directory": Path.mkdir, "link to itself": loops} if sys.platform != "win32" else {}


@pytest.mark.parametrize("kind", MADE)
def test_only_files_are_replaced(place, kind):
    MADE[kind](Path("there"))
    was = Path("there").lstat()
    for arguments in (
        ["export", "t", "there", "--format", "npz", "--force"],
        ["export", "t", "there", "--format", "safetensors", "--force"],
        *(["weights", "convert", "w.safetensors", "there", "--format", f, "--force"] for f in ("npz", "apr", "pt")),
    ):
        done = CliRunner().invoke(cli, arguments)
        assert done.exit_code == 2, done.output
        assert ("is not a regular file" in done.output) or ("symbolic links" in done.output), done.output
    assert Path("there").lstat().st_ino == was.st_ino
    assert not list(place.glob(".*partial"))


def test_a_directory_that_may_not_be_read_is_not_said_to_be_empty(place, monkeypatch):
    def refuse(path="."):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    Path("locked").mkdir()
    monkeypatch.setattr("os.listdir", refuse)
    monkeypatch.setattr("os.scandir", refuse)
    for arguments in (["weights", "inspect", "locked"], ["show", "locked"], ["sweep", "locked"]):
        done = CliRunner().invoke(cli, arguments)
        assert done.exit_code == 2
        assert "locked: cannot " in done.output
        assert "(Permission denied)" in done.output


@pytest.mark.skipif(sys.platform == "win32", reason="has no FIFO")
def test_a_link_to_what_is_no_file_leaves_it_there(tmp_path):
    """As a link to /dev/null, which as root would be gone for everybody."""
    os.mkfifo(tmp_path / "null")
    (tmp_path / "link").symlink_to(tmp_path / "null")
    with pytest.raises(fd.FormatError, match="link: is not a regular file but a FIFO"), replacing(tmp_path / "link"):
        pass
    with pytest.raises(fd.FormatError, match="FIFO"), replacing_together(tmp_path / "link"):
        pass
    with pytest.raises(fd.FormatError, match="FIFO"), replacing_together(tmp_path / "index") as put:
        put(tmp_path / "link")
    assert (tmp_path / "null").is_fifo()
    assert (tmp_path / "link").is_symlink()


def _room(nbytes):
    import resource  # in the child: files end there, as on a disk that is full

    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, nbytes))


@pytest.mark.skipif(sys.platform == "win32", reason="has no such limits")
@pytest.mark.parametrize("room", [0, 70_000])
@pytest.mark.parametrize("format", ["safetensors", "safetensors-sharded", "apr", "npz"])
def test_a_disk_that_is_full_at_any_time_leaves_nothing_of_a_checkpoint(place, format, room):
    save_file({"weight": np.ones((200, 200), np.float32), "b": np.ones(3, np.float32)}, "w.safetensors")
    target = "out.safetensors.index.json" if "sharded" in format else "out"
    command = [*PROGRAM, "weights", "convert", "w.safetensors", target, "--format", format]
    before = set(place.iterdir())
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=lambda: _room(room))
    assert done.returncode == 2, done.stderr
    assert "cannot write the checkpoint" in done.stderr
    assert done.stderr.count("\n") == 1
    assert {path for path in place.iterdir() if path.name != "__pycache__"} == before


@pytest.mark.parametrize("room", [0, 100, 1000, 100_000])
def test_what_the_disk_said_is_not_lost_in_torch(room):
    import torch

    from firstdrift.weights.formats.torch_weights import _save

    class Full(io.RawIOBase):
        def write(self, part):
            nonlocal room
            room -= len(part)
            if room < 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            return len(part)

    with pytest.raises(OSError, match="No space left on device"):
        _save(torch, {"weight": torch.ones(100_000)}, Full())
