"""Half a million damaged inputs for every reader and the program: errors of ours or an answer, in little memory."""

import os
import signal
import sys
from math import ceil

import pytest
from tests.fuzzing.apart import feed_apart
from tests.fuzzing.feeding import Subject, feed
from tests.fuzzing.text_subjects import TEXTS
from tests.fuzzing.trace_subjects import TRACES
from tests.fuzzing.weight_subjects import CHECKPOINTS

SUBJECTS = {**TRACES, **CHECKPOINTS, **TEXTS}
AT_LEAST = 500_000
CHUNK = 10_000  # inputs of one test, so that workers share them
SAMPLE = 60  # inputs of each subject in every run


def chunks():
    """Every input once: a first few in every run, the others where there is time."""
    for name, (_, inputs) in SUBJECTS.items():
        yield pytest.param(name, range(SAMPLE), id=f"{name}, sample")
        pieces = ceil((inputs - SAMPLE) / CHUNK)
        for piece in range(pieces):
            seeds = range(SAMPLE + piece * CHUNK, min(inputs, SAMPLE + (piece + 1) * CHUNK))
            yield pytest.param(name, seeds, id=f"{name}, {piece + 1} of {pieces}", marks=pytest.mark.slow)


@pytest.mark.parametrize(("name", "seeds"), [*chunks()])
def test_damaged_inputs_give_answers_or_our_errors_in_little_memory(name, seeds, tmp_path, counted):
    whole, place = tmp_path / "whole", tmp_path / "fed"
    whole.mkdir()
    place.mkdir()
    fed = feed_apart(SUBJECTS[name][0](whole), place, seeds)
    counted("fuzzed inputs", fed.inputs, peak=fed.peak)
    fed.assert_ours()
    assert fed.inputs == len(seeds)


def test_all_of_them_are_at_least_half_a_million():
    seeds = [(chunk.values[0], seed) for chunk in chunks() for seed in chunk.values[1]]
    assert len(seeds) == len(set(seeds)) == sum(inputs for _, inputs in SUBJECTS.values()) >= AT_LEAST


def test_the_feeder_tells_of_foreign_errors_and_of_memory(tmp_path):
    def careless(directory):
        data = (directory / "f").read_bytes()
        return bytearray(data[0] << 19), data.decode()

    fed = feed(Subject({"f": b"\x01abc"}, careless), tmp_path, range(150))
    said = " ".join(fed.foreign.values())
    assert "UnicodeDecodeError" in said
    assert "IndexError" in said  # an empty file
    assert "MiB beyond its" in said
    with pytest.raises(AssertionError, match="UnicodeDecodeError"):
        fed.assert_ours()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_reader_that_ends_its_process_ends_no_other_and_its_input_is_named(tmp_path):
    def deadly(directory):
        if (directory / "f").read_bytes() != b"whole":
            os.kill(os.getpid(), signal.SIGKILL)

    fed = feed_apart(Subject({"f": b"whole"}, deadly), tmp_path, range(7, 20))
    with pytest.raises(AssertionError, match="input +7: the process ended by signal 9"):
        fed.assert_ours()


@pytest.mark.skipif(sys.platform != "linux", reason="limits memory")
def test_a_reader_that_asks_for_all_memory_gets_an_error(tmp_path):
    def greedy(directory):
        return bytearray(1 << 44 if (directory / "f").read_bytes() != b"whole" else 1)

    fed = feed_apart(Subject({"f": b"whole"}, greedy), tmp_path, range(3))
    assert "MemoryError" in " ".join(fed.foreign.values())
