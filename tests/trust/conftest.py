"""The adversary's cases, drawn once for all tests."""

import os
import tempfile
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

SAMPLED = 200  # cases of `make test`
COMPLETE = 37_000  # cases of `make test-all`


@pytest.fixture(scope="session")
def scratch():
    """A directory that costs no disk, where there is one."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as path:
        yield Path(path)


@pytest.fixture(scope="session")
def sampled(scratch):
    """The same few hundred cases every time."""
    return draw(11, SAMPLED, scratch)


@pytest.fixture(scope="session")
def complete(scratch):
    """All cases; ADVERSARY_SEED draws others."""
    return draw(int(os.environ.get("ADVERSARY_SEED", "1")), COMPLETE, scratch, workers=os.cpu_count() or 1)


def draw(seed, count, scratch, workers=1):
    from adversary.crowd import outcomes

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return list(outcomes(seed, count, scratch, workers=workers))
    finally:
        torch.set_num_threads(before)
