"""The built port, exported weights, and reference traces that several tests share."""

import shutil

import pytest
from tests.demo.laboratory import SANITIZED, Laboratory

from firstdrift.demo.port import Port


def _build(directory, **flags):
    if shutil.which("gcc") is None:
        pytest.fail("gcc is not installed, so nobody knows whether the C port works; install gcc")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CC", "gcc")
        return Port.build(directory, **flags)


@pytest.fixture(scope="session")
def port(tmp_path_factory):
    return _build(tmp_path_factory.mktemp("port"))


@pytest.fixture(scope="session")
def sanitized(tmp_path_factory):
    return _build(tmp_path_factory.mktemp("sanitized"), flags=SANITIZED)


@pytest.fixture(scope="session")
def laboratory(port, tmp_path_factory):
    return Laboratory(port, tmp_path_factory.mktemp("laboratory"))


@pytest.fixture
def weights(laboratory):
    return laboratory.weights(0)
