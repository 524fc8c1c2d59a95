"""Writers killed a thousand times, at every step and byte and at any time: nothing is lost beyond the promise."""

import shutil
import sys
from random import Random

import pytest
from tests.killing.forking import Killer
from tests.killing.killed_writers import WRITERS, nothing

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="forks")
AT_LEAST = 1_000
WAYS = ("step", "byte", "time")
SAMPLE, ALL = 2, 15  # kills of a writer in each way: in every run, and with the slow ones


@pytest.fixture(scope="module")
def killer():
    found = Killer("killed_writers")
    yield found
    found.close()


@pytest.fixture(scope="module")
def known(killer, tmp_path_factory):
    """Of a writer that nobody kills: how many steps and bytes it takes, and how long."""
    found = {}

    def ask(name):
        if name not in found:
            path = tmp_path_factory.mktemp("whole")
            WRITERS[name].before(path)
            before = _sizes(path)
            done = killer(name, path, "none", 0)
            written = [size for file, size in _sizes(path).items() if before.get(file) != size]
            assert not done["died"]
            WRITERS[name].check(path, done["said"], WRITERS[name].before is not nothing)
            found[name] = {"step": done["steps"], "byte": max(written)[0] - 1, "time": done["seconds"]}
        return found[name]

    return ask


def _sizes(path):
    """Every file with its bytes, and when and as what it was written."""
    files = {file: file.stat() for file in path.rglob("*") if file.is_file()}
    return {file: (one.st_size, one.st_mtime_ns, one.st_ino) for file, one in files.items()}


def chunks():
    for name in WRITERS:
        for way in WAYS:
            yield pytest.param(name, way, range(SAMPLE), id=f"{name}, {way}, sample")
            yield pytest.param(name, way, range(SAMPLE, ALL), id=f"{name}, {way}", marks=pytest.mark.slow)


@pytest.mark.parametrize(("name", "way", "attempts"), [*chunks()])
def test_a_killed_writer_loses_no_more_than_it_may(name, way, attempts, killer, known, tmp_path, counted):
    kills = 0
    for attempt in attempts:
        kills += _killed(WRITERS[name], name, way, attempt, killer, known(name)[way], tmp_path / str(attempt))
    counted("kills of writers", kills)
    assert kills == len(attempts)


def _killed(writer, name, way, attempt, killer, most, path):
    """Kill it once; where it was gone already, earlier."""
    chance = Random(f"{name} {way} {attempt}")
    for _ in range(20):
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        writer.before(path)
        done = killer(name, path, way, chance.random() * most if way == "time" else chance.randint(1, most))
        writer.check(path, done["said"], writer.before is not nothing)
        if done["died"]:
            return 1
        most = most * 0.8 if way == "time" else most
    return 0


def test_all_of_them_are_at_least_a_thousand():
    assert sum(len(chunk.values[2]) for chunk in chunks()) == len(WRITERS) * len(WAYS) * ALL >= AT_LEAST
