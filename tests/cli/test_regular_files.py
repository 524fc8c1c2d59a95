"""What a user names and is no regular file is refused in one sentence: a pipe would hang, a device never end."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import firstdrift as fd
from firstdrift.aprt import is_stage_file, read_header, read_stage_file
from firstdrift.cli.main import cli
from firstdrift.core.mapped import MappedFile
from firstdrift.pair.mapping.parse import parse_map, read_map
from firstdrift.pair.mapping.patterns import Pattern
from firstdrift.pretrain.data.corpora import find_corpus, open_shard
from firstdrift.pretrain.data.training_tokenizer import open_tokenizer
from firstdrift.sweeping.cases import parse_cases
from firstdrift.weights.json_file import read_json_object
from firstdrift.weights.loading.maps import read_map as read_load_map
from firstdrift.weights.open_checkpoint import open_checkpoint

pytestmark = pytest.mark.timeout(300)  # a pipe that is opened would wait for ever

KINDS = {"FIFO": "a FIFO", "socket": "a socket", "device": "a device", "directory": "a directory"}


def made(kind, path):
    if kind == "FIFO":
        os.mkfifo(path)
    elif kind == "socket":
        here = Path.cwd()
        os.chdir(path.parent)  # the path of a socket may have a hundred characters
        try:
            with socket.socket(socket.AF_UNIX) as opened:
                opened.bind(path.name)
        finally:
            os.chdir(here)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    return path


READERS = {
    "map.yml": [read_map, read_load_map],
    "x.npz": [lambda path: fd.open_trace(path, format="npz")],
    "x.safetensors": [lambda path: fd.open_trace(path, format="safetensors"), open_checkpoint, MappedFile],
    "x.safetensors.index.json": [lambda path: fd.open_trace(path, format="safetensors")],
    "config.json": [read_json_object],
    "x.bin": [read_header, read_stage_file, lambda path: open_shard(path, 100)],
    "x.npy": [lambda path: open_shard(path, 100)],
    "x.gguf": [open_checkpoint],
    "tokenizer.json": [open_tokenizer],
    "corpus": [find_corpus],
    "cases.jsonl": [lambda path: parse_cases([f"@{path}"])],
}
# These take a directory for what it is: one of checkpoints, of shards, of text.
DIRECTORIES = {"corpus", "tokenizer.json", "x.gguf", "x.safetensors", "x.safetensors.index.json"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", READERS)
def test_every_reader_refuses_what_is_no_regular_file(tmp_path, name, kind):
    path = made(kind, tmp_path / name)
    for read in READERS[name]:
        with pytest.raises(fd.FirstdriftError) as caught:
            read(path)
        if kind != "directory" or name not in DIRECTORIES:
            assert f"{path}: is not a regular file but {KINDS[kind]}; name a file" in str(caught.value)
    assert not is_stage_file(path)


@pytest.fixture
def trace(tmp_path):
    with fd.Writer(tmp_path / "t") as writer:
        writer.put("x", "fwd", np.ones(3))
    return tmp_path / "t"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "arguments",
    [
        ["diff", "T", "T", "--map", "F"],
        ["show", "F", "--format", "npz"],
        ["show", "steps", "--order", "F"],
        ["weights", "verify", "F.py:model", "F"],
        ["trace", "F.json", "--save-tensor", "all"],
        ["sweep", "--cases", "@F", "--reference", "true {out}", "--candidate", "true {out}"],
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_every_command_refuses_it_in_one_sentence(tmp_path, monkeypatch, trace, arguments, kind):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "steps" / "step000").mkdir(parents=True)
    np.save(tmp_path / "steps" / "step000" / "x.fwd.npy", np.ones(3))
    for suffix in ("", ".py", ".json"):
        made(kind, tmp_path / f"F{suffix}")
    done = CliRunner().invoke(cli, ["t" if word == "T" else word for word in arguments])
    assert done.exit_code == 2, done.output
    assert f"is not a regular file but {KINDS[kind]}; name a file" in done.output
    assert done.output.count("\n") == 1


@pytest.fixture
def matches(monkeypatch):
    """How often a name was held against a line of a map."""
    calls = []
    match = Pattern.match
    monkeypatch.setattr(Pattern, "match", lambda self, name: calls.append(1) or match(self, name))
    return calls


def test_long_maps_take_work_in_proportion(matches):
    count = 60_000
    text = "\n".join(
        ["pairs:", *(f"  a.{i}: b.{i}" for i in range(count // 2)), "candidate_ignore:",
         *(f"  b.{i}: not there" for i in range(count // 2, count))]
    )  # fmt: skip
    mapping = parse_map(text)
    ours = [fd.Site(0, "fwd", f"a.{i}", "out") for i in range(count // 2)]
    theirs = [fd.Site(0, "fwd", f"b.{i}", "out") for i in range(count)]
    mapping.check(ours, theirs)
    assert sum(mapping.ignores_candidate(site) is not None for site in theirs) == count // 2
    assert len(matches) <= 4 * count


def test_a_long_map_of_weights_takes_work_in_proportion(matches):
    count = 60_000
    found = read_load_map({f"a.{i}": f"b.{i}" for i in range(count)})
    assert all(found.find(f"a.{i}")[0].targets[0].text == f"b.{i}" for i in range(count))
    assert len(matches) <= 4 * count


def test_many_joined_candidates_are_compared_by_hash(monkeypatch):
    calls = []
    equal = Pattern.__eq__
    monkeypatch.setattr(Pattern, "__eq__", lambda self, other: calls.append(1) or equal(self, other))
    names = ", ".join(f"b.{i}" for i in range(60_000))
    parse_map(f"a: {{candidate: [{names}], concatenate: 0}}")
    assert len(calls) < 60_000
    with pytest.raises(fd.FormatError, match="'b' is joined twice"):
        parse_map("a: {candidate: [b, c, b], concatenate: 0}")
