"""The compiled programs, shared by all tests of the header."""

import pytest
from tests.c_header.compiling import Compiler


@pytest.fixture(scope="session")
def compiled(tmp_path_factory):
    return Compiler(tmp_path_factory.mktemp("c_header"))
