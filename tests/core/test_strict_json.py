"""Our JSON: what two readers could understand differently is an error."""

from __future__ import annotations

import numpy as np
import pytest

import firstdrift as fd
from firstdrift.core.strict_json import decode_object, encode
from firstdrift.store.annotate import annotate

SITE = fd.Site(0, "fwd", "x", "out")


@pytest.mark.parametrize(
    "text", ['{"a": 1, "a": 1}', '{"x": {"b": 1, "a": 2, "a": 3}}', '{"x": [{"a": null, "\\u0061": 2}]}']
)
def test_a_key_that_is_there_twice_is_refused(text):
    with pytest.raises(fd.FormatError, match="it is not JSON .the key 'a' is there twice"):
        decode_object(text)


@pytest.mark.parametrize(("number", "word"), [("1e999", "'inf'"), ("-1e999", "'-inf'"), ("1" * 400 + ".0", "'inf'")])
def test_a_number_beyond_float64_is_refused(number, word):
    with pytest.raises(fd.FormatError, match=f"is beyond the largest float64; if it is meant, write the string {word}"):
        decode_object(f'{{"a": [{number}]}}')


def test_numbers_that_float64_has_are_read_as_they_were():
    assert decode_object('{"a": [1.7976931348623157e308, -0.0, 5e-324, 1e-999, 3]}') == {
        "a": [1.7976931348623157e308, -0.0, 5e-324, 0.0, 3]
    }


@pytest.mark.parametrize("line", ['"op": "A", "op": "B"', '"attrs": {"eps": 1e999}', '"name": "y"'])
def test_a_line_of_an_index_is_strict_in_long_traces_too(tmp_path, line):
    with fd.Writer(tmp_path / "t") as writer:
        for call in range(100):
            writer.put("x", "fwd", np.ones(2), call=call)
    index = tmp_path / "t" / "index.jsonl"
    lines = index.read_text().splitlines()
    lines[50] = f"{lines[50][:-1]},{line}}}"
    index.write_text("\n".join(lines) + "\n")
    with pytest.raises(fd.FormatError, match="line 51: it is not JSON"):
        fd.open_trace(tmp_path / "t")


def test_keys_that_become_one_as_text_are_not_written(tmp_path):
    with pytest.raises(fd.FormatError, match="two of its keys 1, '1' are one as text; rename one"):
        encode({"x": [{1: "a", "1": "b"}]})
    with fd.Writer(tmp_path / "t") as writer, pytest.raises(fd.SiteError, match="are one as text"):
        writer.put("x", "fwd", np.ones(2), attrs={1: "a", "1": "b"})
    assert decode_object(encode({1: "a", None: 2, 2.5: 3})) == {"1": "a", "null": 2, "2.5": 3}


def test_a_trace_annotated_twice_has_the_later_words(tmp_path):
    with fd.Writer(tmp_path / "t") as writer:
        writer.put("x", "fwd", np.ones(2))
    for note in ("first", "second"):
        annotate(tmp_path / "t", {SITE: {"note": note}}, {"heard": note})
    trace = fd.open_trace(tmp_path / "t")
    assert trace.complete
    assert (trace[SITE].details["note"], trace.header["heard"]) == ("second", "second")
