"""The ways firstdrift.h can be compiled, and what is in the object file then."""

import json
import re
import subprocess
from importlib.resources import files

import pytest
from click.testing import CliRunner
from tests.c_header.compiling import C99, CPP11, CPP17, HEADER, HERE, SANITIZED, Compiler

import firstdrift as fd
from firstdrift.cli.main import cli


def symbols(program):
    """Names and kinds of the symbols of an object file."""
    found = subprocess.check_output(["nm", "--demangle", program], text=True)
    return {line[19:]: line[17] for line in found.splitlines()}


def foreign(program):
    """What an object file needs from elsewhere, less what sanitizers and the dynamic linker add."""
    return {name.split("@")[0] for name, kind in symbols(program).items() if kind == "U"}


@pytest.mark.parametrize("flags", [("-O2",), ("-DFD_STATIC", "-Wconversion", "-Wshadow")], ids=["plain", "static"])
@pytest.mark.parametrize("command", [C99, CPP17, CPP11], ids=["C99", "C++17", "C++11"])
def test_it_compiles_without_a_warning(compiled, command, flags):
    names = symbols(compiled("bare.c", command, "-c", *flags)) | symbols(
        compiled("one_unit.c", command, "-c", *flags[1:])
    )
    assert names["fd_npy_put"] == "T"


def test_without_the_implementation_it_only_declares(compiled):
    assert symbols(compiled("other_unit.c", C99, "-c")) == {"fd_make_site": "U", "fd_put": "U", "other_unit": "T"}


def test_static_functions_that_are_not_used_are_not_there(compiled):
    names = symbols(compiled("killed.c", C99, "-c", "-O2", "-DFD_STATIC"))
    assert not [name for name in names if name.startswith(("fd_npy", "fd_manifest", "fd_sink"))]


@pytest.mark.parametrize("command", [SANITIZED, CPP17], ids=["C99", "C++17"])
def test_two_units_share_one_implementation(compiled, tmp_path, command):
    program = compiled("one_unit.c other_unit.c", command)
    subprocess.run([program, tmp_path / "t"], check=True)
    trace = fd.open_trace(tmp_path / "t")
    assert trace.complete
    assert trace.array(trace.records[0]).item() == 0.5


def test_it_neither_allocates_nor_exits_nor_prints(compiled):
    needed = foreign(compiled("one_unit.c", C99, "-c"))
    assert needed <= {
        "fopen", "setvbuf", "fwrite", "fflush", "fclose", "fread", "ferror", "remove", "rename", "mkdir", "strerror",
        "__errno_location", "other_unit", "__stack_chk_fail", "_GLOBAL_OFFSET_TABLE_", *STRINGS,
    }  # fmt: skip


STRINGS = {
    "memcpy", "memset", "memcmp", "memchr", "strlen", "strchr", "strcmp", "strncmp", "strcpy", "strcat", "strspn",
    "strcspn", "stpcpy",
}  # fmt: skip


def test_without_stdio_it_needs_functions_of_memory_and_text_only(compiled):
    needed = foreign(compiled("one_unit.c", C99, "-c", "-DFD_NO_STDIO"))
    assert needed <= {"other_unit", "__stack_chk_fail", "_GLOBAL_OFFSET_TABLE_", *STRINGS}


@pytest.fixture(scope="module")
def board(compiled):
    return subprocess.check_output([compiled("bare.c")], text=True).split("\n")[:-1]


def test_callbacks_get_the_bytes_of_a_tensor_in_one_write_and_then_its_line_in_another(board):
    start, stop = board.index("create run/data-00000.bin"), board.index("close run/data-00000.bin")
    writes = [line.split(" ") for line in board[start + 1 : stop]]
    assert [path for _, path, _ in writes] == ["run/data-00000.bin", "run/index.jsonl"] * 2
    assert [len(data) // 2 for _, path, data in writes if "data" in path] == [64, 32]
    lines = [json.loads(bytes.fromhex(data)) for _, path, data in writes if "index" in path]
    assert [line["at"] for line in lines] == [[0, 0, 64], [0, 64, 32]]
    plain = {"phase": "fwd", "name": "conv1", "port": "out", "call": 0, "sample": None, "dtype": "f32"}  # and no more
    assert lines[1] == {"step": 1, **plain, "shape": [8], "at": [0, 64, 32]}


def test_callbacks_get_files_in_an_order_in_which_nothing_points_at_what_is_not_there(board):
    said = [line[: line.find(".") + 4] for line in board[1 : board.index("close run/index.jsonl") + 1]]
    kept = [line for line, after in zip(said, [*said[1:], ""], strict=True) if line != after]
    assert kept[:4] == ["create run/index.jso", "create run/trace.jso", "write run/trace.jso", "close run/trace.jso"]
    assert kept[-3:] == ["close run/data-00000.bin", "write run/index.jso", "close run/index.jso"]
    assert bytes.fromhex(board[board.index("close run/index.jsonl") - 1].split(" ")[2]) == b'{"end":2}\n'


def test_without_stdio_io_must_be_given_and_its_error_numbers_are_named(board):
    assert board[0] == "1 run: io lacks create, write or close; give all three"
    refused, closed = board[-4], board[-1]
    assert refused == closed
    assert refused.startswith("5 run: fwd conv1:out step 1: cannot write it (error 42); free some space")
    assert not any("index" in line for line in board if line.startswith("FAIL"))  # no line for bytes that are not there


@pytest.mark.parametrize("command", [C99, CPP17], ids=["C99", "C++17"])
@pytest.mark.parametrize("static", [(), ("-DFD_STATIC",)], ids=["", "static"])
def test_disabled_every_call_is_gone_and_no_argument_is_evaluated(compiled, tmp_path, command, static):
    names = symbols(compiled("disabled.c", command, "-c", "-O0", "-DFD_DISABLED", *static))
    assert "main" in names
    assert not [name for name in names if re.match(r"_*fd_", name)]
    for flags in (), ("-DCALL_BACK",):  # by whose address alone it can still be called
        program = compiled("disabled.c", command, "-DFD_DISABLED", *static, *flags)
        assert subprocess.check_output([program], cwd=tmp_path, text=True) == "0 0 0 []\n"
    assert list(tmp_path.iterdir()) == []


def test_enabled_the_same_program_evaluates_its_arguments_and_writes(compiled, tmp_path):
    said = subprocess.check_output([compiled("disabled.c", C99, "-DCALL_BACK")], cwd=tmp_path, text=True)
    assert said.startswith("20 ")
    assert {path.name for path in tmp_path.iterdir()} == {"disabled-run", "disabled-npy"}


def test_a_missing_compiler_fails_loudly(tmp_path):
    with pytest.raises(pytest.fail.Exception, match="no-such-compiler is not installed, so nobody knows whether"):
        Compiler(tmp_path)("driver.c", ["no-such-compiler"])


def test_a_buffer_smaller_than_a_path_does_not_compile(tmp_path):
    done = subprocess.run(
        [*C99, "-DFD_BUFFER_BYTES=100", "-I", HEADER.parent, "-c", HERE / "other_unit.c", "-o", tmp_path / "out"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode != 0
    assert "FD_BUFFER_BYTES must be FD_PATH_BYTES at least" in done.stderr


def test_the_command_prints_the_header_that_is_shipped():
    shipped = files("firstdrift").joinpath("include/firstdrift.h").read_bytes()
    printed = CliRunner().invoke(cli, ["c-header"])
    assert printed.exit_code == 0
    assert printed.stdout_bytes == shipped == HEADER.read_bytes()
    said = json.loads(CliRunner().invoke(cli, ["c-header", "--json"]).stdout)
    assert said == {
        "schema": "firstdrift-c-header-v1", "path": str(HEADER), "version": fd.__version__, "bytes": len(shipped)
    }  # fmt: skip


def test_the_header_bears_the_version_of_the_package():
    assert set(re.findall(r"firstdrift\.h (\d+\.\d+\.\d+)", HEADER.read_text())) == {fd.__version__}


def test_the_package_lists_the_header():
    import tomllib

    listed = tomllib.loads((HERE.parents[1] / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    assert "include/*.h" in listed["firstdrift"]
