"""What firstdrift.h records is what fd.Writer records, byte for byte."""

import json
import subprocess
import tempfile
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from tests.c_header.compiling import (
    ABORT,
    ARGUMENT,
    C99,
    CLOSE,
    CLOSED,
    CODES,
    DTYPES,
    EXISTS,
    OK,
    PATH,
    SANITIZED,
    SITE,
    absent,
    opening,
    put,
    run,
    text,
)

import firstdrift as fd
from firstdrift.core.dtypes import ITEMSIZE, numpy_dtype
from firstdrift.core.sites import MAX_INDEX, MAX_NAME, PHASES
from firstdrift.core.strict_json import encode
from firstdrift.store import files, layout
from firstdrift.testing.strategies import arrays

LIMIT = 300  # bytes of a data file, here

in_c = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
hostile = st.sampled_from(
    [
        "", "..", "a..b", "../a", "a/..", "a/../b", "a\\..\\b", "...", "a/...", "..\n", "a/..\n", "..\n\n",
        "\r\n\t\b\f\x7f\x1f",
        '"\\"', "\\u0041", "/", "\u2028", "\ufeff", "\ufffd", "\uffff", "\U00010000", "\U0010ffff", "😀é漢",
        "x" * MAX_NAME, "x" * (MAX_NAME + 1), "😀" * MAX_NAME, "😀" * (MAX_NAME + 1), "é" * 600, "</script>",
    ]
)  # fmt: skip
names = st.sampled_from(["conv1", "layers.0.attn", "loss"]) | st.text(in_c, max_size=12) | hostile
numbers = st.sampled_from([0, 0, 1, 7, 2**31, 2**53 + 1, MAX_INDEX])
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(in_c, max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(in_c, max_size=5), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


@st.composite
def lines(draw):
    """The arguments of one put or put_absent, in the order in which the header writes optional keys."""
    phase = draw(st.sampled_from(PHASES))
    said = {
        "port": draw(st.none() | st.sampled_from(["out", "bias", "in.0"]) | names),
        "step": draw(numbers),
        "call": draw(numbers),
        "sample": draw(st.none() | numbers),
    }
    details = {
        "op": draw(st.none() | names.filter(lambda name: len(name) <= MAX_NAME)),
        "attrs": draw(st.none() | st.dictionaries(st.text(in_c, max_size=5), values, max_size=3)),
        "layer": draw(st.none() | numbers),
        "order": draw(st.none() | numbers),
        "producers": draw(st.none() | st.lists(names, max_size=3)),
    }
    array = draw(st.none() | arrays(dims=(0, 4)))
    return phase, draw(names), said, details, array


def in_c_terms(line):
    phase, name, said, details, array = line
    attrs = None if details["attrs"] is None else encode(details["attrs"])
    more = said | details | {"attrs": attrs}
    if array is None:
        return absent(phase, name, "no gradient", **more)
    dtype = next(short for short in DTYPES if numpy_dtype(short) == array.dtype)
    return put(phase, name, array.tobytes(), dtype, array.shape, **more)


def in_python(path, script):
    """The same with fd.Writer; whether each was taken."""
    taken = []
    writer = fd.Writer(path, producer="test")
    for phase, name, said, details, array in script:
        try:
            if array is None:
                writer.put_absent(name, phase, "no gradient", **said, **details)
            else:
                writer.put(name, phase, array, **said, **details)
            taken.append(True)
        except fd.SiteError:
            taken.append(False)
    (writer.close if all(taken) else writer.abort)()
    return taken


def contents(path):
    return {file.name: file.read_bytes() for file in path.iterdir() if file.name != "trace.json"}


def once_a_site(line):
    phase, name, said, _, _ = line
    usual = "weight" if phase in ("weight", "grad", "grad_scaled", "weight_after") else "out"
    return phase, name, *{**said, "port": said["port"] or usual}.values()


@pytest.fixture(scope="module")
def small_data_files():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "DATA_FILE_BYTES", LIMIT)
        yield


def same_bytes(program, script):
    """Run a script on both sides and compare everything."""
    with tempfile.TemporaryDirectory() as directory:
        ours, theirs = Path(directory, "c"), Path(directory, "python")
        commands = [in_c_terms(line) for line in script]
        opened, *replies, closed = run(program, opening(ours, producer="test"), *commands, CLOSE)
        taken = in_python(theirs, script)
        assert opened == (OK, "")
        assert [code == OK for code, _ in replies] == taken, replies
        assert (closed[0] == OK) == all(taken)
        assert contents(ours) == contents(theirs)
        trace = fd.open_trace(ours)
        assert trace.complete == all(taken), trace.problems
        return contents(ours)


@settings(max_examples=80)
@given(script=st.lists(lines(), max_size=6, unique_by=once_a_site))
def test_a_trace_equals_the_one_of_the_python_writer(compiled, small_data_files, script):
    same_bytes(compiled("driver.c", SANITIZED, f"-DFD_DATA_FILE_BYTES={LIMIT}"), script)


def plain(array, **said):
    said = {"port": None, "step": 0, "call": 0, "sample": None} | said
    return "fwd", "x", said, dict.fromkeys(("op", "attrs", "layer", "order", "producers")), array


@pytest.mark.parametrize("sizes", [(LIMIT - 1, 1, 1), (LIMIT, 1), (LIMIT + 1, 1), (0, LIMIT, 0, 5), (1, 0, 64, 63, 65)])
def test_a_data_file_ends_where_that_of_the_python_writer_ends(compiled, small_data_files, sizes):
    script = [plain(np.full(size, step + 1, np.uint8), step=step) for step, size in enumerate(sizes)]
    same_bytes(compiled("driver.c", SANITIZED, f"-DFD_DATA_FILE_BYTES={LIMIT}"), script)


@pytest.mark.parametrize("dtype", ITEMSIZE)
def test_every_bit_pattern_of_every_dtype_survives(compiled, tmp_path, dtype):
    raw = np.random.default_rng(0).integers(0, 256, 640 * ITEMSIZE[dtype], dtype=np.uint8)
    array = (raw & 1 if dtype == "bool" else raw).view(numpy_dtype(dtype)).reshape(2, 320)
    assert (
        run(
            compiled("driver.c"), opening(tmp_path / "t"), put(data=array.tobytes(), dtype=dtype, shape=(2, 320)), CLOSE
        )
        == [(OK, "")] * 3
    )
    trace = fd.open_trace(tmp_path / "t")
    assert trace.records[0].dtype == dtype
    assert trace.array(trace.records[0]).tobytes() == array.tobytes()


def test_a_big_endian_host_writes_little_endian_bytes(compiled, tmp_path):
    program = compiled("driver.c", SANITIZED, "-DFD_BIG_ENDIAN=1")
    parts = {"f64": "u8", "f32": "u4", "f16": "u2", "bf16": "u2", "c64": "u4", "c128": "u8", "i64": "u8", "i32": "u4",
             "i16": "u2", "u64": "u8", "u32": "u4", "u16": "u2"}  # fmt: skip
    commands, expected = [], {}
    for dtype in DTYPES:
        raw = bytes(range(1, 33)) * 64  # more than the buffer
        commands.append(put(name=dtype, data=raw, dtype=dtype, shape=(len(raw) // ITEMSIZE[dtype],)))
        expected[dtype] = np.frombuffer(raw, parts.get(dtype, "u1")).byteswap().tobytes()
    run(program, opening(tmp_path / "t"), *commands, CLOSE)
    trace = fd.open_trace(tmp_path / "t")
    assert {record.site.name: trace.array(record).tobytes() for record in trace} == expected


def test_the_header_says_what_that_of_the_python_writer_says(compiled, tmp_path):
    more = {"seed": 3, "optimizer": {"name": "SGD", "lr": 0.1}, "ünicode": [1, None, True]}
    said = {"producer": 'my "engine" é', "model": "kws", "batch": 8}
    options = said | {"reduction": "mean", "header": json.dumps(more)}
    run(compiled("driver.c"), opening(tmp_path / "c", **options), CLOSE)
    fd.Writer(tmp_path / "python", **said, gradient_of={"reduction": "mean", "batch": 8}, **more).close()
    ours, theirs = (json.loads((tmp_path / side / "trace.json").read_bytes()) for side in ("c", "python"))
    assert ours.pop("environment").keys() == {"compiler"}
    theirs.pop("environment")
    assert ours == theirs
    assert fd.open_trace(tmp_path / "c").complete


def test_default_options_say_who_wrote_it_and_nothing_else(compiled, tmp_path):
    run(compiled("driver.c"), opening(tmp_path / "t", header=" { } "[1:-1]), CLOSE)
    said = json.loads((tmp_path / "t" / "trace.json").read_bytes())
    said.pop("environment")
    producer = f"firstdrift.h {fd.__version__}"
    assert said == {"format": "firstdrift-trace", "version": 1, "producer": producer, "rank": 0, "ranks": 1}


@pytest.mark.parametrize("key", ["format", "version", "rank", "ranks", "producer", "model", "batch", "gradient_of"])
def test_a_header_key_that_the_writer_writes_is_refused(compiled, tmp_path, key):
    said = {"producer": "p", "model": "m", "batch": 1, "reduction": "sum"}
    header = f'{{ "seed":{{"{key}":[1,"{key}"]}} , "\\u{ord(key[0]):04x}{key[1:]}":5}}'
    ((code, error),) = run(compiled("driver.c"), opening(tmp_path / "t", header=header, **said))
    assert code == ARGUMENT
    assert f'header has the key "{key}", which fd_open writes itself; leave it out' in error
    assert not (tmp_path / "t").exists()


def test_a_header_may_say_what_the_options_do_not(compiled, tmp_path):
    header = '{"seed":1,"producer":"mine","environment":{"board":7},"model":"m","batch":2}'
    assert run(compiled("driver.c"), opening(tmp_path / "t", header=header), CLOSE) == [(OK, "")] * 2
    assert fd.open_trace(tmp_path / "t").header.items() >= json.loads(header).items()


def test_ranks_write_where_the_python_writer_writes_them(compiled, tmp_path):
    for rank in 0, 1:
        run(compiled("driver.c"), opening(tmp_path / "t", rank=rank, ranks=2), put(), CLOSE)
    trace = fd.open_trace(tmp_path / "t")
    assert trace.complete, trace.problems
    assert fd.open_trace(tmp_path / "t" / "rank-0001").header["rank"] == 1


def test_directories_above_the_trace_are_made(compiled, tmp_path):
    run(compiled("driver.c"), opening("a/b//c/", overwrite=0), put(), CLOSE, cwd=tmp_path)
    assert fd.open_trace(tmp_path / "a" / "b" / "c").complete


def test_the_constants_are_those_of_the_format(compiled, tmp_path):
    source = tmp_path / "constants.c"
    source.write_text('#include <stdio.h>\n#include "firstdrift.h"\nint main(void) '
                      '{ printf("%lld", (long long)FD_DATA_FILE_BYTES); return 0; }')  # fmt: skip
    program = compiled(str(source), C99)
    assert int(subprocess.check_output([program])) == layout.DATA_FILE_BYTES
    assert list(DTYPES) == ["f64", "f32", "f16", "bf16", *list(ITEMSIZE)[-4:], "c64", "c128", "i64", "i32", "i16", "i8",
                            "u64", "u32", "u16", "u8", "bool"]  # fmt: skip
    assert set(DTYPES) == set(ITEMSIZE)
    assert ["OK", *(f"ERROR_{n}" for n in ["ARGUMENT", "SITE", "PATH", "EXISTS", "IO", "CLOSED", "MANIFEST"])] == CODES


# What is refused.

NOT_UTF8 = [
    b"\x80", b"\xc0\xaf", b"\xc1\xbf", b"\xe0\x80\xaf", b"\xe0\x9f\xbf", b"\xed\xa0\x80", b"\xed\xbf\xbf", b"\xff",
    b"\xf0\x80\x80\xaf", b"\xf0\x8f\xbf\xbf", b"\xf4\x90\x80\x80", b"\xf5\x80\x80\x80", b"\xe6\xbc", b"\xf0\x9f\x98",
    b"\xc3", b"\xc3(", b"\xe6\xbcx",
]  # fmt: skip
NOT_OBJECTS = [
    "", "3", "[]", "{", "}", "{}x", "{} ", '{"a"}', '{"a":}', '{"a":1,}', "{1:2}", "{'a':1}", '{"a":01}', '{"a":1.}',
    '{"a":.5}', '{"a":+1}', '{"a":1e}', '{"a":-}', '{"a":NaN}', '{"a":Infinity}', '{"a":tru}', '{"a":nul}', '{"a":"}',
    '{"a":"\\x"}', '{"a":"\\u12g4"}', '{"a":"\\', '{"a":[1,]}', '{"a":[1 2]}', '{"a":[1}', '{"a":{"b":1}', "{,}",
    '{"a":1 "b":2}', '{"a" 1}', '{"a":1,"a":1}', '{"b":[{"x":{},"a":",\\"a\\":" , "\\u0061":2}]}',
    '{"\\/é\\n":1,"c":{},"/\\u00E9\\u000a":1}', '{"😀":1,"\\uD83D\\ude00":2}', '{"a":1e999}', '{"a":-1E309}',
    '{"a":0.1e310}', '{"a":1.7976931348623159e308}', '{"a":100e99999999999999999999}',
]  # fmt: skip
REFUSED = [
    (put(phase="forward"), SITE, "loss, lossgrad, agrad, grad, grad_scaled, optim, weight_after; use one of these"),
    (put(phase="fwd "), SITE, "phase 'fwd ' is not one of"),
    (put(phase=None), SITE, "a site, its phase or its name is NULL"),
    (put(name=None), SITE, "a site, its phase or its name is NULL"),
    (put(phase="optim"), SITE, "optimizer state needs a port"),
    (put(name="../x"), SITE, "name '../x' has a '..' component, which would leave the directory; rename it"),
    (put(port="a/.."), SITE, "port 'a/..' has a '..' component"),
    (put(producers=["ok", "../x"]), SITE, "producer '../x' has a '..' component"),
    (put(name="x" * 4097), SITE, "x...' has more than 4096 characters; shorten it"),
    (put(op="x" * 4097), SITE, "x...' has more than 4096 characters; shorten it"),
    *((put(name=b"a" + bad), SITE, "is not UTF-8; encode it") for bad in NOT_UTF8),
    (put(port=b"\xff"), SITE, "port"),
    (put(op=b"\xff"), SITE, "op"),
    (put(producers=[b"\xff"]), SITE, "producer"),
    (put(producers=[None]), SITE, "producer '' is NULL; give one"),
    (put(producers=["x"] * 257), SITE, "from_count does not count"),
    (absent("grad", "x", b"\xff"), SITE, "reason"),
    (absent("grad", "x", None), SITE, "reason '' is NULL; give one"),
    (put(step=-1), SITE, "its step, call, sample, layer or order is negative"),
    (put(call=-1), SITE, "is negative"),
    (put(sample=-2), SITE, "is negative"),
    (put(layer=-2), SITE, "is negative"),
    (put(order=-2), SITE, "is negative"),
    (put(dtype=0), ARGUMENT, "fwd conv1:out step 0: dtype 0 is none; use FD_F32"),
    (put(dtype=20), ARGUMENT, "dtype 20 is none"),
    (put(data=None, shape=(3,)), ARGUMENT, "its data is NULL"),
    (put(shape=(-3,)), ARGUMENT, "dimension -3 is negative"),
    (put(shape=(2**62, 2)), ARGUMENT, "dimension"),
    (put(data=b"", shape=(0, 2**62, 2)), ARGUMENT, "dimension"),
    (put(data=b"", shape=(2**63 - 1, 0)), ARGUMENT, "dimension 9223372036854775807 is negative, or more than memory"),
    (put(data=b"", shape=(1,) * 64 + (0,)), ARGUMENT, "65 dimensions"),
    *((put(attrs=bad), SITE, f"attrs '{bad}' is not a JSON object on one line of up to 4096") for bad in NOT_OBJECTS),
    (put(attrs='{"a":' + "9" * 309 + "}"), SITE, "numbers that float64 has"),
    (put(attrs='{"a":"\n"}'), SITE, "attrs"),
    (put(attrs='{\n"a":1}'), SITE, "attrs"),
    (put(attrs=b'{"a":"\xff"}'), SITE, "attrs"),
    (put(attrs='{"a":' + "[" * 33 + "]" * 33 + "}"), SITE, "attrs"),
    (put(attrs='{"a":"' + "x" * 4096 + '"}'), SITE, "numbers that float64 has; write one"),
]  # fmt: skip


@pytest.fixture(scope="module")
def refusals(compiled, tmp_path_factory):
    """Each bad put in a trace of its own, between two good ones; all in one process."""
    directory = tmp_path_factory.mktemp("refusals")
    script = [
        command
        for number, (bad, *_) in enumerate(REFUSED)
        for command in (opening(directory / str(number)), put(step=1), bad, put(step=2), CLOSE)
    ]
    replies = run(compiled("driver.c"), *script)
    return directory, [replies[at : at + 5] for at in range(0, len(replies), 5)]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_a_bad_put_is_refused_by_code_and_text_and_the_rest_is_recorded_but_not_called_complete(refusals, number):
    directory, replies = refusals
    _, code, message = REFUSED[number]
    opened, before, refused, after, closed = replies[number]
    assert (opened, before) == ((OK, ""), (OK, ""))
    assert refused[0] == code
    assert message in refused[1]
    assert refused[1].startswith(str(directory / str(number))[:160])
    assert "; " in refused[1]
    assert all(c >= " " for c in refused[1])
    assert after[0] == OK
    assert closed == refused
    trace = fd.open_trace(directory / str(number))
    assert [record.site.step for record in trace] == [1, 2]
    assert not trace.complete


TAKEN = [
    "{}", "{ }", '{"a":[]}', '{"a":{}}', '{"a":-0.5e+10,"b":[1, 2,{"c":null}],\t"d":"\\ud83d\\ude00\\/\\n"}',
    '{"é":true}', '{"a":0,"b":-0,"c":1E5,"d":false}', '{"a":' + "[" * 32 + "]" * 32 + "}",
    '{"a":"' + "x" * 4088 + '"}', '{"a":1,"A":2,"\\u0061b":3,"b":{"a":[1,"a",{"b":1}],"c":"b"},"":4,"c":",\\"a\\":"}',
    '{"a":1.7976931348623157e308,"b":0.00000179e314,"c":0e999,"d":1e-999,"e":-17e307,"f":0.0,"g":10.0e306}',
]  # fmt: skip


@pytest.mark.parametrize("attrs", TAKEN, ids=range(len(TAKEN)))
def test_attrs_that_are_json_are_recorded_as_they_are(compiled, tmp_path, attrs):
    assert run(compiled("driver.c"), opening(tmp_path / "t"), put(attrs=attrs), CLOSE) == [(OK, "")] * 3
    assert fd.open_trace(tmp_path / "t").records[0].attrs == json.loads(attrs)


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        ({"rank": -1}, ARGUMENT, "rank -1 of 1 is impossible"),
        ({"rank": 1}, ARGUMENT, "rank 1 of 1 is impossible"),
        ({"ranks": 10001}, ARGUMENT, "up to 10000 ranks"),
        ({"batch": -1}, ARGUMENT, "batch -1 is negative"),
        ({"reduction": "max"}, ARGUMENT, "reduction 'max' is not mean or sum; use one"),
        ({"header": "3"}, ARGUMENT, "header '3' is not a JSON object"),
        ({"header": '{"a":NaN}'}, ARGUMENT, "is not a JSON object"),
        ({"producer": b"\xff"}, ARGUMENT, "producer"),
        ({"model": b"\xff"}, ARGUMENT, "model"),
    ],
)
def test_bad_options_are_refused_and_leave_nothing_behind(compiled, tmp_path, options, code, message):
    path = tmp_path / "t"
    opened, late, closed = run(compiled("driver.c"), opening(path, **options), put(), CLOSE)
    assert opened[0] == code
    assert message in opened[1]
    assert late == (CLOSED, opened[1])
    assert closed == opened
    assert not path.exists()


def test_an_existing_trace_is_kept_unless_overwriting_is_asked_for(compiled, tmp_path):
    path, program = tmp_path / "t", compiled("driver.c", SANITIZED, f"-DFD_DATA_FILE_BYTES={LIMIT}")
    run(program, opening(path), put(data=b"\1" * 400, dtype="u8", shape=(400,)), put(step=1), CLOSE)
    before = contents(path)
    opened = run(program, opening(path), put(), CLOSE)[0]
    assert opened == (EXISTS, f"{path}: holds a trace already; choose another path, or set overwrite")
    assert contents(path) == before
    run(program, opening(path, overwrite=1), put(name="new"), CLOSE)
    assert contents(path).keys() == {"index.jsonl", "data-00000.bin"}  # the second data file is gone, too
    assert [record.site.name for record in fd.open_trace(path)] == ["new"]


@pytest.mark.parametrize("name", ["trace.json", "index.jsonl"])
def test_half_of_a_trace_is_an_existing_trace(compiled, tmp_path, name):
    (tmp_path / name).write_bytes(b"kept")
    assert run(compiled("driver.c"), opening(tmp_path))[0][0] == EXISTS
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == {name: b"kept"}


def test_a_path_that_does_not_fit_is_an_error_and_never_cut(compiled, tmp_path):
    paths = [f"{tmp_path}/{n}/{'/'.join(['d' * 100] * 20)}"[:n].rstrip("/") for n in range(980, 1035)]
    commands = [command for path in paths for command in (opening(path), put(), CLOSE)]
    replies = run(compiled("driver.c"), *commands)
    for number, path in enumerate(paths):
        opened, late, closed = replies[3 * number : 3 * number + 3]
        if len(path) + len("/data-00000.bin") + len(".partial") < 1024:
            assert (opened, late, closed) == ((OK, ""),) * 3
            assert fd.open_trace(path).complete
        else:
            assert opened[0] == closed[0] == PATH
            assert "bytes, which does not fit; choose a shorter one, or define a larger FD_PATH_BYTES" in opened[1]
            assert late[0] == CLOSED
            assert not (tmp_path / path.removeprefix(f"{tmp_path}/").split("/")[0]).exists()
    assert {code for code, _ in replies} == {OK, PATH, CLOSED}


@pytest.mark.parametrize("path", [None, ""])
def test_a_directory_without_a_name_is_refused(compiled, path):
    reply = run(compiled("driver.c"), b"O" + text(path) + opening("")[1 + 8 :])
    assert reply == [(PATH, "the name of the directory is empty; give one")]


def test_puts_outside_of_open_and_close_are_refused(compiled, tmp_path):
    early, *_, late, absent_late, again = run(
        compiled("driver.c"), put(), opening(tmp_path / "t"), put(), CLOSE, put(), absent("grad", "x", "none"), CLOSE
    )
    assert early == (CLOSED, "a put before opening or after closing; put it between the two")
    assert late[0] == absent_late[0] == CLOSED
    assert again[0] == CLOSED  # somebody who asks late hears of it
    assert fd.open_trace(tmp_path / "t").complete


def test_an_aborted_trace_is_readable_and_known_to_be_unfinished(compiled, tmp_path):
    assert run(compiled("driver.c"), opening(tmp_path / "t"), put(), ABORT, CLOSE) == [(OK, "")] * 4
    trace = fd.open_trace(tmp_path / "t")
    assert (len(trace), trace.complete) == (1, False)


def test_text_for_people_has_no_control_characters_and_ends_with_the_next_step(compiled, tmp_path):
    name = "\x1b[31m" + "n" * 3000 + "/.."
    refused = run(compiled("driver.c"), opening(tmp_path / "t"), put(name=name, port="p" * 3000))[1][1]
    assert refused.endswith("; rename it")
    assert "\x1b" not in refused
    assert len(refused) < 768


def test_an_error_text_fits_into_what_was_made_for_it(compiled, tmp_path):
    program = compiled("driver.c", C99, "-DFD_TEXT_BYTES=100")
    refused = run(program, opening(tmp_path / "t"), put(name="../x" + "x" * 100))[1]
    assert refused[0] == SITE
    assert refused[1] == f"{tmp_path / 't'}: fwd ../x{'x' * 56}:out step 0: name"[:99]
