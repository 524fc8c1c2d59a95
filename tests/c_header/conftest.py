"""The compiled programs, shared by all tests of the header."""

import pytest
from compiling import Compiler


@pytest.fixture(scope="session")
def compiled(tmp_path_factory):
    return Compiler(tmp_path_factory.mktemp("c_header"))
