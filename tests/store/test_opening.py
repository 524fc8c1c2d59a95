"""The one door: what is recognised, what is ambiguous, what is refused, and formats that others add."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import save_file

import firstdrift as fd
from firstdrift.compare.open_trace import BUILT_IN, load_format
from firstdrift.testing import memory_trace

ONE = memory_trace({fd.Site(0, "fwd", "lm_head", "out"): np.float32([1, 2])})


def write(name, path):
    load_format(name).write(ONE, path, overwrite=False, advance=lambda n: None)
    return path


@pytest.mark.parametrize(
    ("name", "target"),
    [("trace", "run"), ("aprt", "run"), ("npy", "run"), ("npz", "a.npz"), ("safetensors", "a.safetensors")],
)
def test_every_format_is_found_by_its_path_alone_and_by_name(tmp_path, name, target):
    path = write(name, tmp_path / target)
    assert fd.open_trace(path).format == name
    assert fd.open_trace(str(path), format=name).array(ONE.records[0].site).tolist() == [1.0, 2.0]


def test_all_built_in_formats_are_named_as_they_say():
    assert [load_format(name).NAME for name in BUILT_IN] == list(BUILT_IN)


def test_a_missing_path_is_named(tmp_path):
    with pytest.raises(fd.StorageError, match=r"nowhere: cannot open it \(No such file or directory\); check the path"):
        fd.open_trace(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["x" * 5000, "file/below"])
def test_a_path_the_system_refuses_is_our_error(tmp_path, name):
    (tmp_path / "file").touch()
    with pytest.raises(fd.StorageError, match="cannot open it"):
        fd.open_trace(tmp_path / name)


def test_an_empty_directory_is_said_to_be_empty(tmp_path):
    with pytest.raises(fd.NotATraceError, match=r"the directory is empty; expected a trace directory, APRT stages"):
        fd.open_trace(tmp_path)


def test_a_directory_of_other_things_holds_no_trace(tmp_path):
    (tmp_path / "README.md").touch()
    with pytest.raises(fd.NotATraceError, match="the directory holds no trace"):
        fd.open_trace(tmp_path)


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle"])
def test_pickles_are_never_loaded(tmp_path, suffix):
    marker = tmp_path / "was-loaded"
    # Unpickling this would run os.mkdir; nothing here may.
    payload = b"cposix\nmkdir\n(V" + os.fsencode(marker) + b"\ntR."
    (tmp_path / f"model{suffix}").write_bytes(payload)
    with pytest.raises(fd.NotATraceError, match="may be a pickle, and pickles are never loaded"):
        fd.open_trace(tmp_path / f"model{suffix}")
    assert not marker.exists()


@pytest.mark.parametrize("name", ["model.safetensors", "model.npz"])
def test_a_pickle_under_another_name_is_never_loaded(tmp_path, name):
    marker = tmp_path / "was-loaded"
    (tmp_path / name).write_bytes(b"cposix\nmkdir\n(V" + os.fsencode(marker) + b"\ntR.")
    with pytest.raises(fd.FormatError, match=name):
        fd.open_trace(tmp_path / name)
    assert not marker.exists()


def test_a_directory_that_could_be_two_formats_asks_which(tmp_path):
    write("aprt", tmp_path)
    save_file({"a": np.float32([1])}, tmp_path / "a.safetensors")
    with pytest.raises(fd.NotATraceError, match=r"could be aprt and safetensors; say which with format=\.\.\. or --fo"):
        fd.open_trace(tmp_path)
    assert fd.open_trace(tmp_path, format="safetensors").format == "safetensors"


def test_a_trace_directory_wins_over_what_lies_in_it(tmp_path):
    write("trace", tmp_path)
    np.save(tmp_path / "notes.npy", np.zeros(1))
    assert fd.open_trace(tmp_path).format == "trace"


def test_a_newer_version_is_refused(tmp_path):
    header = write("trace", tmp_path / "run") / "trace.json"
    header.write_text(header.read_text().replace('"version":1', '"version":2'))
    with pytest.raises(fd.VersionError, match="format version 2, but this firstdrift reads up to 1; upgrade"):
        fd.open_trace(tmp_path / "run")


def test_an_unknown_format_lists_those_there_are(tmp_path):
    with pytest.raises(fd.SelectionError, match="no format 'onnx'; known are trace, aprt, npy, npz, safetensors"):
        fd.open_trace(tmp_path, format="onnx")


# --- formats of others, installed as a distribution would be

PLUGIN = '''
import numpy as np
from firstdrift import FormatError, Record, Site, Trace

class Plain:
    """Text files of numbers."""
    NAME = "plain"

    def recognise(self, path):
        return path.suffix == ".plain"

    def read(self, path):
        values = np.array([float(word) for word in path.read_text().split()])
        site = Site(0, "fwd", "x", "out")
        record = Record(site, "f64", values.shape, (0, 0, values.nbytes))
        return Trace(path, self.NAME, [record], lambda n: path, special={site: lambda: values})

    def write(self, trace, path, *, overwrite, advance):
        path.write_text(" ".join(map(str, trace.array(trace.records[0]).tolist())))
        return []

plain = Plain()
'''


def install(site_packages, entry_point):
    """A distribution on the path, with an entry point of ours."""
    info = site_packages / "firstdrift_plain-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: firstdrift-plain\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[firstdrift.formats]\nplain = {entry_point}\n")
    (site_packages / "firstdrift_plain.py").write_text(PLUGIN)
    return site_packages


def python(site_packages, *arguments):
    environment = {**os.environ, "PYTHONPATH": str(site_packages)}
    return subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False)


def test_a_format_of_others_is_found_through_its_entry_point(tmp_path):
    packages = install(tmp_path / "packages", "firstdrift_plain:plain")
    (tmp_path / "a.plain").write_text("1.5 2.5")
    code = (
        "import firstdrift as fd, sys; t = fd.open_trace(sys.argv[1]); print(t.format, t.array(t.records[0]).tolist())"
    )
    done = python(packages, "-c", code, str(tmp_path / "a.plain"))
    assert done.stdout == "plain [1.5, 2.5]\n", done.stderr


def test_a_format_of_others_that_cannot_be_loaded_is_named(tmp_path):
    packages = install(tmp_path / "packages", "firstdrift_plain:nowhere")
    (tmp_path / "a.plain").write_text("1.5 2.5")
    code = """if True:
        import firstdrift as fd, sys
        try:
            fd.open_trace(sys.argv[1])
        except fd.SelectionError as error:
            print(error)
    """
    done = python(packages, "-c", code, str(tmp_path / "a.plain"))
    assert "the format 'plain' cannot be loaded from firstdrift_plain:nowhere" in done.stdout, done.stderr


def test_a_broken_format_of_others_does_not_harm_ours(tmp_path):
    packages = install(tmp_path / "packages", "nowhere:plain")
    path = write("npz", tmp_path / "a.npz")
    done = python(packages, "-c", "import firstdrift as fd, sys; print(fd.open_trace(sys.argv[1]).format)", str(path))
    assert done.stdout == "npz\n", done.stderr
