"""Which cases there are: forms, products, values that go together, and what is refused."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import firstdrift as fd
from firstdrift.sweeping.cases import as_cases, directory_of, key_of, name_of, parse_cases


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["start=0:96:32"], [{"start": 0}, {"start": 32}, {"start": 64}]),
        (["seed=2:0:-1"], [{"seed": 2}, {"seed": 1}]),
        (["seed=0:2,7"], [{"seed": 0}, {"seed": 1}, {"seed": 7}]),
        (["dtype=f32,bf16"], [{"dtype": "f32"}, {"dtype": "bf16"}]),
        (["lr=0.1,1e-3"], [{"lr": 0.1}, {"lr": "1e-3"}]),
        (["path=a=b"], [{"path": "a=b"}]),
        (["0:2"], [{"case": 0}, {"case": 1}]),
        (["a=0:2", "b=x,y"], [{"a": a, "b": b} for a in (0, 1) for b in "xy"]),
        (["a,b=0:2;x,y"], [{"a": 0, "b": "x"}, {"a": 1, "b": "y"}]),
        (["a,b=0:2;x,y", "c=5"], [{"a": 0, "b": "x", "c": 5}, {"a": 1, "b": "y", "c": 5}]),
    ],
)
def test_a_text_says_which_cases_there_are(texts, expected):
    assert parse_cases(texts) == expected


@pytest.mark.parametrize(
    ("texts", "complaint"),
    [
        ([], "there are no cases; give some, for example --cases start=0:320:32"),
        (["start="], "has an empty value"),
        (["start=0:0"], "the range 0:0 is empty"),
        (["start=0:9:0"], "the range 0:9:0 is empty"),
        (["start=0:9:-1"], "the range 0:9:-1 is empty"),
        (["start=0:9999999"], "more than 100,000"),
        (["start=0:100001"], "100,001 numbers, more than 100,000"),
        (["start=0:99999999999999999999"], "has a number of more than 18 digits in a range"),
        ([f"start=0:1:{'9' * 5000}"], "has a number of more than 18 digits in a range"),
        (["a=0:2000", "b=0:2000"], "these are 4,000,000 cases"),
        (["a=1", "a=2"], "the cases name 'a' twice"),
        (["a=1,1"], "the case a=1 is there twice"),
        (["a,b=1,2"], "has 2 names and 1 lists"),
        (["a,b=1,2;3"], "has lists of 2 and 1 values"),
        (["out=1"], "'out' cannot name a variable"),
        (["a-b=1"], "'a-b' cannot name a variable"),
        (["@missing.jsonl"], "cannot read the cases"),
    ],
)
def test_what_cannot_be_meant_is_refused(texts, complaint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(fd.FirstdriftError) as refused:
        parse_cases(texts)
    assert complaint in str(refused.value)


def test_a_file_has_one_case_a_line(tmp_path):
    file = tmp_path / "cases.jsonl"
    file.write_text('{"start": 0, "dtype": "f32"}\n\n{"start": 5, "dtype": "bf16"}\n')
    assert parse_cases([f"@{file}"]) == [{"start": 0, "dtype": "f32"}, {"start": 5, "dtype": "bf16"}]
    file.write_text('{"start": 0}\n[1]\n')
    with pytest.raises(fd.FormatError, match="line 2"):
        parse_cases([f"@{file}"])
    file.write_text('{"start": 0}\n{"stop": 1}\n')
    with pytest.raises(fd.SelectionError, match="a case has stop, the first one start"):
        parse_cases([f"@{file}"])


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (range(2), [{"case": 0}, {"case": 1}]),
        ([{"a": 1}, {"a": 2}], [{"a": 1}, {"a": 2}]),
        ({"a": [1, 2], "b": "x"}, [{"a": 1, "b": "x"}, {"a": 2, "b": "x"}]),
        ("a=1,2", [{"a": 1}, {"a": 2}]),
    ],
)
def test_python_gives_cases_as_it_has_them(given, expected):
    assert as_cases(given) == expected


@pytest.mark.parametrize("nothing", [[], {}, [{}], {"a": []}])
def test_no_cases_are_refused(nothing):
    with pytest.raises(fd.SelectionError, match="there are no cases"):
        as_cases(nothing)


@given(st.text(st.characters(blacklist_characters=",:;="), min_size=1).map(str.strip).filter(bool))
def test_a_command_gets_what_was_typed(text):
    (case,) = parse_cases([f"a={text}"])
    assert str(case["a"]) == text


values = st.one_of(st.integers(), st.text(max_size=200), st.booleans())


@given(st.lists(st.dictionaries(st.sampled_from("abc"), values, min_size=1), min_size=2, max_size=8))
def test_different_cases_have_different_directories_that_any_system_takes(cases):
    by_key = {key_of(case): directory_of(case) for case in cases}
    assert len({name.lower() for name in by_key.values()}) == len(by_key)
    for name in by_key.values():
        assert len(name) < 120
        assert "/" not in name
        assert name not in (".", "..")


def test_a_case_has_a_name_for_people():
    assert name_of({"start": 0, "dtype": "f32"}) == "start=0 dtype=f32"
    assert directory_of({"start": 0, "dtype": "f32"}) == "start=0,dtype=f32"
    assert json.loads(key_of({"b": 1, "a": 2})) == {"a": 2, "b": 1}
