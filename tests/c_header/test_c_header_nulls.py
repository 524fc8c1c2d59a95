"""A null pointer is an error with a sentence, wherever one may be passed, and never a crash."""

import subprocess

import pytest
from tests.c_header.compiling import ARGUMENT, MANIFEST, OK, PATH, SITE

# The bits of a mask that stand for pointers that may be NULL, by function; all others may not.
MAY = {
    "fd_put": 0b0_0011_1000, "fd_npy_put": 0b0_0011_1000, "fd_put_absent": 0b0011_1000, "fd_open": 0b11_1110,
    "fd_npy_open": 0, "fd_sink_put": 0b0_1011, "fd_manifest_parse": 0b100, "fd_manifest_load": 0, "no trace": 0b11,
    "fd_npy_gradient_of": 0,
}  # fmt: skip


@pytest.fixture(scope="module")
def calls(compiled, tmp_path_factory):
    done = subprocess.run([compiled("nulls.c"), tmp_path_factory.mktemp("nulls")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = []
    for line in done.stdout.splitlines():
        name = next(name for name in (*MAY, "fd_open(io)") if line.startswith(f"{name} "))
        mask, code, text = line[len(name) + 1 :].split(" ", 2)
        found.append((name, int(mask), int(code), text))
    return found


def test_every_function_was_called_with_every_pointer_null(calls):
    assert {name for name, *_ in calls} == {*MAY, "fd_open(io)"}
    assert len(calls) == 512 + 512 + 256 + 3 * 64 + 128 + 6 + 3 + 2 + 4


@pytest.mark.parametrize("function", MAY)
def test_a_null_pointer_is_refused_where_none_may_be(calls, function):
    for name, mask, code, text in calls:
        if name != function or name in ("fd_sink_put", "no trace"):
            continue
        if mask & ~MAY[name]:
            assert code in (ARGUMENT, SITE, PATH, MANIFEST), (name, mask, code, text)
        else:
            assert (code, text) == (OK, ""), (name, mask)


def test_the_error_has_a_sentence_where_there_is_room_for_one(calls):
    for name, mask, code, text in calls:
        without_room = name.startswith("fd_manifest") and mask in (2, 3)
        assert bool(text) == (code != OK and not without_room), (name, mask, code, text)


def test_a_sink_of_null_pointers_leaves_its_errors_in_the_trace(calls):
    for name, mask, code, text in calls:
        if name != "fd_sink_put":
            continue
        recorded = not mask & 0b1001  # a trace, and a sink
        bad = mask & 0b111_0100
        assert (code in (ARGUMENT, SITE)) == bool(recorded and bad), (mask, code, text)


def test_no_trace_records_nothing_and_that_is_no_error(calls):
    assert [(code, text) for name, _, code, text in calls if name == "no trace"] == [(OK, "")] * 4
    assert all(code in (ARGUMENT, PATH) for name, _, code, _ in calls if name == "fd_open(io)")
