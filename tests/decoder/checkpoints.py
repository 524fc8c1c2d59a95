"""Checkpoints of small models on disk, in every format, and traces of them."""

import json
from pathlib import Path

import numpy as np
from click.testing import CliRunner
from tests.decoder.families import config_json, theirs

from firstdrift.cli.main import cli
from firstdrift.decoder.tracing_checkpoints import perform, prepare
from firstdrift.weights.conversion import convert

IDS = ",".join(map(str, [5, 17, 3, 96, 0, 41, 41, 8, 63]))
HOW = {"engine": "decoder", "format": "trace", "dtype": "f32", "force": False}


def directory(path, family="llama", seed=0, **changes):
    """A Hugging Face directory as the library writes it; the same model every time."""
    theirs(config_json(family, seed, **changes)).save_pretrained(path)
    return Path(path)


def converted(source, target):
    """The same checkpoint in the format that a name tells."""
    convert(source, target)
    return Path(target)


def with_config(source, target, **changes):
    """A copy of a directory with other settings."""
    target.mkdir()
    for file in source.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    said = json.loads((source / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(said | changes))
    return target


def traced(model, target, stages="all", layers="0..9", tokens=IDS, **how):
    """A trace of a checkpoint, through the library."""
    return perform(prepare(Path(model), stages, layers, Path(target), tokens=tokens, **(HOW | how)))


def said(*arguments):
    """What the command prints, and its exit code."""
    return CliRunner().invoke(cli, ["trace", *map(str, arguments)])


def stage(path):
    """The header and values of a stage file, read by hand."""
    data = Path(path).read_bytes()
    magic, layer, count = data[:4], *np.frombuffer(data[4:12], "<u4").tolist()
    return magic, layer, count, np.frombuffer(data[12:], "<f4")
