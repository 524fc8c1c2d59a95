"""Damaged texts for the C header: codes of its own, under sanitizers; and what it wrote is a trace."""

import struct
import subprocess
from random import Random

import pytest
from tests.c_header.compiling import ARGUMENT, CODES, MANIFEST, OK
from tests.mutations import mutated

import firstdrift as fd

SITE = b'fwd\nlayers.0.attn\nout\nLinear\n{"eps":1e-05,"bias":true}\nlayers.0.norm'
PROBES = b"conv1\r\nrelu1\n# a comment\n\nfc\n"
SAMPLE, CHUNK, ALL = 300, 5_000, 40_300  # inputs: of every run, of one test, of all


def inputs(seeds):
    chances = [Random(seed) for seed in seeds]
    return [mutated(chance.choice((SITE, SITE, PROBES)), chance, (SITE, PROBES)) for chance in chances]


@pytest.mark.parametrize(
    "seeds",
    [
        range(SAMPLE),
        *(pytest.param(range(start, start + CHUNK), marks=pytest.mark.slow) for start in range(SAMPLE, ALL, CHUNK)),
    ],
    ids=str,
)
def test_damaged_texts_give_codes_and_a_trace(compiled, tmp_path, seeds, counted):
    fed = b"".join(struct.pack("<I", len(text)) + text for text in inputs(seeds))
    done = subprocess.run([compiled("fuzzed.c"), tmp_path / "t"], input=fed, capture_output=True)
    assert done.returncode == OK, done.stderr.decode(errors="replace")
    found = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    counted("fuzzed inputs", len(found))
    assert len(found) == len(seeds)
    assert {code for both in found for code in both} <= set(range(len(CODES)))
    assert {parsed for parsed, _ in found} >= {OK, MANIFEST}
    trace = fd.open_trace(tmp_path / "t")
    assert [one for one in trace.problems if "no end line" not in one] == []  # a put was refused, so there is none
    assert {record.site.step for record in trace} == {number for number, (_, code) in enumerate(found) if code == OK}
    assert 0 < len(trace) < len(seeds)
    assert ARGUMENT not in {parsed for parsed, _ in found}
