"""A map says which candidate tensor stands for which reference site; one that does not fit is refused."""

import re
from pathlib import Path

import pytest
import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from firstdrift.core.records import Record
from firstdrift.core.sites import PHASES, Site
from firstdrift.errors import FirstdriftError, FormatError, StorageError, VersionError
from firstdrift.pair.mapping import Mapping, parse_map, parse_pattern, read_map, write_map
from firstdrift.pair.mapping.parse import OPTIONS, SECTIONS
from firstdrift.pair.mapping.patterns import escape
from firstdrift.pair.mapping.quoting import flow, table_line
from firstdrift.pair.mapping.yaml_tables import MAX_BYTES, MAX_DEPTH
from firstdrift.pair.pairs import Alignment, Pair, Tolerance, Transform, Unmatched

DOCS = Path(__file__).parents[2] / "docs" / "mapping.md"
LOADERS = [pytest.param(False, id="libyaml"), pytest.param(True, id="plain python")]


@pytest.fixture(params=LOADERS)
def loader(request, monkeypatch):
    """Either parser that PyYAML may have been built with."""
    if request.param:
        monkeypatch.delattr(yaml, "CSafeLoader", raising=False)


def site(name, port="out", phase="fwd"):
    return Site(0, phase, name, port)


def sites(*names):
    """Sites written as `name`, `name:port` or `phase name:port`."""
    found = []
    for text in names:
        phase, _, rest = text.rpartition(" ")
        name, _, port = rest.partition(":")
        found.append(site(name, port or "out", phase or "fwd"))
    return found


def targets(mapping, name, port="out", phase="fwd"):
    rule = mapping.find(site(name, port, phase))
    return None if rule is None else [tuple(target) for target in rule.targets]


def names(mapping, name, **where):
    found = targets(mapping, name, **where)
    return found and [target for target, _ in found]


# What a map means


@pytest.mark.parametrize(
    ("pattern", "other", "name", "meant"),
    [
        ("conv1", "Conv_0", "conv1", "Conv_0"),
        ("conv1", "Conv_0", "conv10", None),
        ("layers.{}.attn", "blk.{}.at", "layers.3.attn", "blk.3.at"),
        ("layers.{}.attn", "blk.{}.at", "layers.3.x.attn", None),
        ("layers.{}.attn", "blk.{}.at", "layers..attn", None),
        ("h{}", "g{}", "h12", "g12"),
        ("{}.{}", "{}.x.{}", "a.b", "a.x.b"),
        ("a.{}.b.{}", "c.{}", "a.1.b.2", "c.1"),
        ("*", "model.*", "a.b.c", "model.a.b.c"),
        ("*", "model.*", "", "model."),
        ("enc*", "encoder*", "enc", "encoder"),
        ("*.{}.w", "{}.*", "a.b.3.w", "3.a.b"),
        ("{}.*", "*.{}", "a.b.c", "b.c.a"),
        ("*.attn.*", "* *", "a.attn.b.attn.c", "a b.attn.c"),
        ("a{}", "b", "a3", "b"),
        (r"a\*", r"b\{}\\", "a*", "b{}\\"),
        (r"a\*", "b", "ax", None),
        ("a\\b", "c", "a\\b", "c"),
        ("a{", "}b", "a{", "}b"),
        ("a\n{}", "{}", "a\nb", "b"),
    ],
)
def test_placeholders_carry_what_they_stood_for(pattern, other, name, meant):
    captures = parse_pattern(pattern, "map").match(name)
    assert (None if captures is None else parse_pattern(other, "map").fill(captures)) == meant


signs = st.text("ab.", max_size=3)


@settings(max_examples=500)
@given(st.lists(st.tuples(st.sampled_from(["{}", "*"]), signs), max_size=5), signs, st.text("ab.", max_size=14))
def test_patterns_match_what_a_plain_regular_expression_does(parts, start, name):
    assume(all(literal for _, literal in parts[:-1]))
    pattern = parse_pattern(start + "".join(kind + literal for kind, literal in parts), "map")
    kinds = {"{}": r"([^.]+?)", "*": "(.*?)"}
    plain = re.fullmatch(re.escape(start) + "".join(kinds[kind] + re.escape(rest) for kind, rest in parts), name)
    found = pattern.match(name)
    assert (found is None) == (plain is None)
    if plain and found:
        by_kind = {kind: [] for kind in kinds}
        for (kind, _), text in zip(parts, plain.groups(), strict=True):
            by_kind[kind].append(text)
        assert {kind: list(texts) for kind, texts in found.items()} == by_kind


@pytest.mark.parametrize("pattern", ["*a" * 15 + "*b", "{}a" * 15 + "{}b", "*a{}a" * 7 + "*b", "*.{}a" * 7 + "*b"])
@pytest.mark.timeout(60)  # an expression that goes back and forth would take years
def test_no_pattern_goes_back_and_forth_for_ever(pattern):
    assert parse_pattern(pattern, "map").match("a" * 2000 + ".a" * 1000) is None


@given(st.text())
def test_an_escaped_name_matches_itself_alone(name):
    pattern = parse_pattern(escape(name), "map")
    assert pattern.exact
    assert pattern.match(name) == {}
    assert pattern.literals == (name,)


TABLE = """
"*": every.*
layers.{}.attn: {}
layers.7.attn: seven
layers.{}.*: some.{}.*
layers.{}.mlp: first.{}
"""


@pytest.mark.parametrize(
    ("name", "wins"),
    [
        ("layers.7.attn", "seven"),
        ("layers.8.attn", "eight.8"),
        ("layers.8.mlp", "first.8"),
        ("layers.8.norm", "every.layers.8.norm"),
        ("head", "every.head"),
    ],
)
@pytest.mark.parametrize("reverse", [False, True])
def test_the_most_specific_line_wins_wherever_it_stands(name, wins, reverse):
    lines = [line for line in TABLE.replace("attn: {}", "attn: eight.{}").strip().split("\n") if "some" not in line]
    assert names(parse_map("\n".join(reversed(lines) if reverse else lines)), name) == [wins]


def test_of_two_equally_wide_lines_the_first_wins():
    assert names(parse_map("a.{}: x\n'{}.b': y"), "a.b") == ["x"]
    assert names(parse_map("'{}.b': y\na.{}: x"), "a.b") == ["y"]
    assert names(parse_map("a.*: x\n'*.b': y"), "a.b") == ["x"]


def test_one_name_may_have_several_lines_and_the_one_for_the_port_or_phase_wins():
    mapping = parse_map("""
        fc{}:
          - dense_{}
          - {candidate: "dense_{}", port: weight* -> kernel*, transpose: true}
          - {candidate: "grads_{}", phase: [grad, "lossgr*"]}
    """)
    assert targets(mapping, "fc1") == [("dense_1", "out")]
    assert targets(mapping, "fc1", "weight", "weight") == [("dense_1", "kernel")]
    assert targets(mapping, "fc1", "weight.exp_avg", "optim") == [("dense_1", "kernel.exp_avg")]
    assert targets(mapping, "fc1", "bias", "grad") == [("grads_1", "bias")]
    assert targets(mapping, "fc1", "out", "lossgrad") == [("grads_1", "out")]
    assert mapping.find(site("fc1", "weight", "weight")).line.transforms == (Transform("transpose"),)
    assert mapping.find(site("fc1", "bias", "weight")).line.transforms == ()


@pytest.mark.parametrize(
    ("port", "asked", "given"),
    [
        ("weight", "weight", "weight"),
        ("weight", "bias", None),
        ("weight -> kernel", "weight", "kernel"),
        ('["weight -> kernel", "*"]', "weight", "kernel"),
        ('["*", "weight -> kernel"]', "weight", "kernel"),
        ('["weight -> kernel", "*"]', "bias", "bias"),
        ("{weight: kernel, '*': '*'}", "weight", "kernel"),
        ("{weight: kernel}", "bias", None),
        ("'out.{} -> out{}'", "out.1", "out1"),
        ("{a->b: c}", "a->b", "c"),
    ],
)
def test_ports_are_chosen_and_renamed(port, asked, given):
    found = targets(parse_map(f"a: {{candidate: b, port: {port}}}"), "a", asked)
    assert found == (None if given is None else [("b", given)])


def test_transforms_keep_the_order_in_which_they_are_written():
    rule = parse_map("""
        q:
          candidate: [wq, wk]
          scale: 1/32
          slice: {axis: -1, start: 2, stop: 6}
          reshape: [-1, 4]
          permute: [1, 0]
          transpose: true
          concatenate: 1
          tolerance: 1e-3
    """).find(site("q"))
    assert rule.line.transforms == (
        Transform("scale", factor=1 / 32),
        Transform("slice", axes=(-1,), start=2, stop=6),
        Transform("reshape", shape=(-1, 4)),
        Transform("permute", axes=(1, 0)),
        Transform("transpose"),
    )
    assert [tuple(target) for target in rule.targets] == [("wq", "out"), ("wk", "out")]
    assert rule.line.concatenate == 1
    assert rule.line.tolerance == Tolerance(1e-3, "map, line 2, 'q'")


@pytest.mark.parametrize("number", ["0.03125", "3.125e-2", "'1/32'", "1/32", "1 / 32", "2/64.0"])
def test_a_scale_is_a_number_or_a_fraction(number):
    (transform,) = parse_map(f"a: {{scale: {number}}}").find(site("a")).line.transforms
    assert transform.factor == 1 / 32


def test_a_line_without_a_candidate_keeps_the_name():
    rule = parse_map("'*': {port: weight -> kernel, tolerance: 0}").find(site("a", "weight", "grad"))
    assert ([tuple(target) for target in rule.targets], rule.named) == ([("a", "kernel")], False)
    assert rule.line.tolerance.relative == 0
    assert parse_map("a: b").find(site("a")).named


def test_names_are_left_out_with_a_reason():
    mapping = parse_map("""
        version: 1
        pairs:
          rope.{}: {ignore: a table of constants, phase: weight}
        candidate_ignore:
          cache.*: scratch memory
          out: {ignore: twice, port: extra}
    """)
    rule = mapping.find(site("rope.1", "cos", "weight"))
    assert (rule.line.ignore, rule.targets) == ("a table of constants", ())
    assert mapping.find(site("rope.1")) is None
    assert mapping.ignores_candidate(site("cache.k.1")) == "scratch memory"
    assert mapping.ignores_candidate(site("out", "extra")) == "twice"
    assert mapping.ignores_candidate(site("out")) is None


def test_a_bare_table_is_a_whole_map():
    text = "a: b\nc.{}: d.{}\n"
    below = "version: 1\npairs:\n" + "".join(f"  {line}\n" for line in text.splitlines())
    assert [line.reference for line in parse_map(text).lines] == [line.reference for line in parse_map(below).lines]
    assert parse_map("version: 1\npairs:\n  # nothing yet\n").lines == ()


def test_a_swap_is_not_a_cycle():
    mapping = parse_map("a: b\nb: a")
    mapping.check(sites("a", "b"), sites("a", "b"))
    assert (names(mapping, "a"), names(mapping, "b")) == (["b"], ["a"])
    parse_map("a: b").check(sites("a", "b"), sites("a", "b"))


def test_a_file_is_read_with_its_name_in_errors(tmp_path, loader):
    path = tmp_path / "names.yml"
    path.write_bytes("\ufeff# map\nä: b\n".encode())
    assert names(read_map(path), "ä") == ["b"]
    path.write_bytes(b"a: \xff")
    with pytest.raises(FormatError, match=r"names\.yml: byte 3 is not UTF-8; save the map as UTF-8"):
        read_map(path)
    for text in (" " * (MAX_BYTES + 1), "a: b #" + "é" * (MAX_BYTES // 2)):
        path.write_text(text, "utf-8")
        with pytest.raises(FormatError, match=r"names\.yml: it has more than 8 MiB; write families"):
            read_map(path)
    with pytest.raises(FormatError, match="map: it has more than 8 MiB"):
        parse_map(" " * (MAX_BYTES + 1))
    with pytest.raises(StorageError, match=r"cannot read the map \(.*\); check that it exists"):
        read_map(tmp_path / "none.yml")


# What a map may not say

LAUGHS = "a: &a [x, x]\n" + "".join(f"{new}: &{new} [*{old}, *{old}]\n" for old, new in zip("abcdefgh", "bcdefghi"))  # noqa: B905


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "m: it is empty; write lines of"),
        ("# only this\n", "m: it is empty"),
        ("- a", "m: it is a list, not a table"),
        ("a", "m: it is a str, not a table"),
        ("a: b\n---\nc: d", "m.*: it is not YAML"),
        ("a: [", "m, line [12]: it is not YAML .*put names that begin with"),
        ("*.a: b", "m, line 1: it is not YAML .*put names that begin with \\* or {"),
        ("{}.a: b", "m, line 1: it is not YAML"),
        ("a: \0", "m.*: it is not YAML"),
        ("a: \ud800", "m: it is not Unicode text"),
        (
            "a: b\n*c: d",
            "m, line 2: \\*c without quotes is a YAML alias, which a map may not have; put the name in quotes",
        ),
        ("a: &x\n  candidate: *x", "m, line 2: \\*x without quotes is a YAML alias"),
        (LAUGHS, "m, line 2: \\*a without quotes is a YAML alias"),
        ("a: " + "[" * 5000, f"m, line 1: tables and lists are nested deeper than {MAX_DEPTH}"),
        ("a: b\nc: d\na: e", "m, line 3: 'a' is already on line 1; keep one of the two"),
        ("a: {candidate: b, candidate: c}", "m, line 1: 'candidate' is already on line 1"),
        ("0: b", "m, line 1: YAML reads the name '0' as int, not as text; put it in quotes"),
        ("1.10: b", "the name '1.10' as float"),
        ("yes: b", "the name 'yes' as bool"),
        ("~: b", "the name '~' as null"),
        ("2001-01-01: b", "the name '2001-01-01' as timestamp"),
        ("<<: {a: b}", "the name '<<' as merge"),
        ("=: b", "the name '=' as value"),
        ("{}: b", "the name {} as map"),
        ("? [a]\n: b", "the name \\[...\\] as seq"),
        ("!x a: b", "the name 'a' as !x"),
        ("a: 0", "m, line 1, 'a': candidate 0 is a int, not text; put it in quotes"),
        ("a: no", "candidate False is a bool, not text"),
        ("a: 2001-01-01", "YAML reads '2001-01-01' as timestamp, which a map has no use for"),
        ("a: !!int x", "YAML reads 'x' as int"),
        ("a: !!bool maybe", "YAML reads 'maybe' as bool"),
        ("a: !!python/name:os.system b", "YAML reads 'b' as .*python/name:os.system"),
        ("a: !!set {b}", "YAML reads {...} as set|YAML reads here as set"),
        (f"a: {'9' * 5000}", "YAML reads '9999.*\\.\\.\\.' as int"),
        ("a:", "m, line 1, 'a': no candidate stands behind it; write its name, or {ignore: reason}"),
        ("a: []", "m, line 1, 'a': its list is empty"),
        ("a: [[b, c]]", "a list in a list; for one tensor made of several write {candidate"),
        (f"a: {'b' * 4097}", "has 4097 characters, more than 4096"),
        ("a: b/../c", "has a '..' component"),
        ("a: {}", "it says nothing about the tensor; add 'candidate: NAME'"),
        ("a: {phase: fwd}", "it says nothing about the tensor"),
        ("a: {kandidate: b}", "'kandidate' is not an option; use candidate, phase, port"),
        ("a: {candidate: []}", "candidate is an empty list; name one"),
        ("a: {candidate: [b, 1]}", "candidate 1 is a int"),
        ("a: {candidate: {b: c}}", "candidate {'b': 'c'} is a Table"),
        ("a: {candidate: [b, c]}", "2 candidates and no axis; add 'concatenate: AXIS'"),
        ("a: {candidate: b, concatenate: 0}", "concatenate with 1 candidates; list the names to join"),
        ("a: {candidate: [b, b], concatenate: 0}", "'b' is joined twice"),
        ("a: {candidate: [b, c], concatenate: true}", "concatenate True is not an axis"),
        ("a: {candidate: [b, c], concatenate: 64}", "concatenate 64 is not an axis"),
        ("a: b.{}", "'b.{}' has 1 {} but 'a' has 0; give each on the right one on the left"),
        ("a.*: b.{}", "'b.{}' has 1 {} but 'a.\\*' has 0"),
        ("a.{}: b.*", "'b.\\*' has 1 \\* but 'a.{}' has 0"),
        ("a.{}.{}: b.{}.{}.{}", "'b.{}.{}.{}' has 3 {} but 'a.{}.{}' has 2"),
        ("a{}*: b", "'a{}\\*' has {} and \\* side by side"),
        ("a: b**", "'b\\*\\*' has \\* and \\* side by side"),
        (f"a{'.{}' * 17}: b", "has 17 placeholders, more than 16"),
        ("a: {candidate: b, port: weight -> }", "port 'weight ->' is not 'REFERENCE -> CANDIDATE'"),
        ("a: {candidate: b, port: a -> b -> c}", "port 'a -> b -> c' is not"),
        ("a: {candidate: b, port: [a, 1]}", "port 1 is a int"),
        ("a: {candidate: b, port: []}", "port is an empty list"),
        ("a: {candidate: b, port: 'a -> *'}", "'\\*' has 1 \\* but 'a' has 0"),
        ("a: {candidate: b, phase: forward}", "phase 'forward' fits none of input, weight, fwd"),
        ("a: {candidate: b, phase: [fwd, 3]}", "phase 3 fits none of"),
        ("a: {transpose: false}", "transpose is False; write true, or leave it out"),
        ("a: {transpose: 1}", "transpose is 1; write true"),
        ("a: {permute: [1, 2]}", "permute \\[1, 2\\] does not list every axis from 0 once"),
        ("a: {permute: []}", "permute \\[\\] does not list"),
        ("a: {permute: [0, true]}", "permute \\[0, True\\] does not list"),
        ("a: {reshape: [-1, -1]}", "reshape \\[-1, -1\\] is not a list of dimensions with at most one -1"),
        ("a: {reshape: [2.0]}", "reshape \\[2.0\\] is not"),
        ("a: {reshape: 4}", "reshape 4 is not"),
        ("a: {slice: [0, 1]}", "slice \\[0, 1\\] is not {axis: A, start: I, stop: J}"),
        ("a: {slice: {start: 1}}", "slice {'start': 1} is not"),
        ("a: {slice: {axis: 0, step: 2}}", "slice .*'step': 2.* is not"),
        ("a: {slice: {axis: x}}", "slice axis 'x' is not an axis"),
        ("a: {slice: {axis: 0, start: -1}}", "slice starts at -1; write a whole number from 0"),
        ("a: {slice: {axis: 0, start: 3, stop: 3}}", "slice goes from 3 to 3 and takes nothing"),
        ("a: {scale: 0}", "scale 0 would make every tensor zero"),
        ("a: {scale: .nan}", "scale nan is not a finite number"),
        ("a: {scale: inf}", "scale 'inf' is not a finite number"),
        ("a: {scale: 1/0}", "scale '1/0' is not a finite number"),
        ("a: {scale: 1/2/3}", "scale '1/2/3' is not a finite number"),
        ("a: {scale: true}", "scale True is not a finite number"),
        ("a: {scale: [1]}", "scale \\[1\\] is not a finite number"),
        (f"a: {{scale: {'9' * 400}}}", "is not a finite number"),
        ("a: {tolerance: -1}", "tolerance -1 is below 0, so nothing could pass"),
        ("a: {tolerance: wide}", "tolerance 'wide' is not a finite number"),
        ("a: {candidate: b, shared: no}", "shared is False; write true"),
        ("a: {ignore: }", "ignore is None, which is no reason; say why"),
        ("a: {ignore: ' '}", "ignore is ' ', which is no reason"),
        ("a: {ignore: x, candidate: b}", "it is ignored and has 'candidate' too; keep one of the two"),
        (
            "version: 1\na: b",
            "m, line 2: 'a' is none of version, pairs, candidate_ignore, meant; move it below 'pairs:'",
        ),
        ("version: one", "m, line 1: version is 'one'; write version: 1"),
        ("version: true", "version is True"),
        ("version: 0", "version is 0"),
        ("pairs: b", "m, line 1: pairs is 'b', not a table"),
        ("candidate_ignore: [a]", "candidate_ignore is \\['a'\\], not a table"),
        ("candidate_ignore: {a: }", "m, line 1, 'a': ignore is None, which is no reason"),
        ("candidate_ignore: {a: {port: b}}", "a candidate's name to ignore needs a reason"),
        ("candidate_ignore: {a: {ignore: b, scale: 2}}", "it is ignored and has 'scale' too"),
    ],
)
def test_a_bad_map_is_refused_in_one_sentence(text, message, loader):
    with pytest.raises(FormatError, match=message) as caught:
        parse_map(text, "m")
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("m")


def test_a_newer_version_is_refused():
    with pytest.raises(VersionError, match="m, line 1: the map has version 2, but this firstdrift reads up to 1"):
        parse_map("version: 2\npairs: {}", "m")


@settings(max_examples=300)
@given(st.text() | st.text("ab01.:{}[]*&!\\'\"-?,|># \n", max_size=60))
def test_no_text_raises_anything_but_our_errors(text):
    for parse in (parse_map, lambda text: parse_map(f"a: {text}")):
        try:
            assert isinstance(parse(text), Mapping)
        except FirstdriftError as error:
            assert "\n" not in str(error)


OPTION = st.sampled_from([*OPTIONS, "axis", "start", "stop", "x"])
SCALAR = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5),
    st.sampled_from(["a.{}", "b*", "1/32", "weight -> kernel", "fwd", "grad*", *PHASES]),
)  # fmt: skip
ANY = st.recursive(
    SCALAR, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(OPTION, inner, max_size=4), max_leaves=8
)
NAME = st.sampled_from(["a", "a.{}", "*", "a.{}.*"]) | st.text(max_size=6)


@settings(max_examples=400)
@given(st.dictionaries(NAME, ANY, max_size=3), st.booleans())
def test_no_structure_raises_anything_but_our_errors(table, below):
    text = yaml.safe_dump({"version": 1, "pairs": table, "candidate_ignore": table} if below else table)
    try:
        mapping = parse_map(text)
    except FirstdriftError as error:
        assert "\n" not in str(error)
        return
    for phase in PHASES:
        mapping.find(site("a.1", "weight", phase))
    try:
        mapping.check(sites("a", "a.1", "weight a.1:weight"), sites("a", "b"))
    except FirstdriftError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize("word", [*OPTIONS, *SECTIONS])
def test_every_option_and_section_is_documented(word):
    page = DOCS.read_text("utf-8")
    assert f"| `{word}` |" in page or f"- `{word}`:" in page


def test_the_limit_of_a_file_is_documented():
    assert f"A file has at most {MAX_BYTES >> 20} MiB." in DOCS.read_text("utf-8")


# Whether a map fits two traces

OURS = sites("layers.0.attn", "layers.1.attn", "weight conv:weight", "weight conv:bias", "conv", "head", "tail")
THEIRS = sites("blk.0.a", "blk.1.a", "weight Conv:kernel", "weight Conv:bias", "Conv", "head", "qkv", "extra")


@pytest.mark.parametrize(
    "text",
    [
        "layers.{}.attn: blk.{}.a",
        "layers.*: {candidate: extra, port: o*, shared: true}\n'*': '*'",
        "conv: {candidate: Conv, port: [weight -> kernel, '*']}",
        "conv: [{candidate: Conv, port: weight -> kernel, transpose: true}, Conv]",
        "conv: {candidate: Conv, port: bias}\nhead: {candidate: Conv, phase: fwd}",
        "head: {candidate: qkv, slice: {axis: 0, stop: 4}}\ntail: {candidate: qkv, slice: {axis: 0, start: 4}}",
        "head: {candidate: qkv, shared: true}\ntail: {candidate: qkv, shared: true}",
        "layers.{}.attn: {candidate: qkv, shared: true}",
        "layers.{}.attn: {candidate: ['blk.{}.a', qkv], concatenate: 0, shared: true}",
        "head: {tolerance: 1}\ntail: {ignore: not ported}",
        "layers.{}.attn: {ignore: x}\nlayers.1.attn: blk.0.a",
        "pairs: {head: head}\ncandidate_ignore: {extra: debug, 'blk.*': later}",
        "version: 1",
    ],
)
def test_a_map_that_fits_passes(text):
    parse_map(text).check(OURS, THEIRS)


def test_a_tensor_that_the_candidate_lacks_stands_for_none():
    ours, theirs = sites("a", "b", "weight a:weight", "weight b:weight"), [*sites("c"), Site(0, "fwd", "c", "in.0")]
    parse_map("a: c\nb: {candidate: c, port: {out: in.0, '*': '*'}}").check(ours, theirs)


@pytest.mark.parametrize(
    "text", ["layers: blk", "layers.{}: blk.{}", "layers: head", "head: blk", "layers: blk\nlayers.{}.attn: blk.{}.a"]
)
def test_lists_of_modules_which_never_run_may_be_named(text):
    parse_map(text).check(OURS, THEIRS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("layer: blk", "the reference has no such name"),
        ("layers: bkl", "the candidate has nothing named 'bkl'; write 'blk' if you mean that"),
        ("layers.{}: blk.{}.a.b", "the candidate has nothing named 'blk.{}.a.b' \\('blk.0.a.b', say\\)"),
        ("layers: {candidate: blk, transpose: true}", "the reference has no such name"),
    ],
)
def test_lists_that_one_side_lacks_or_that_are_to_be_changed_are_refused(text, message):
    with pytest.raises(FormatError, match=message):
        parse_map(text).check(OURS, THEIRS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: head\nhaed: head", "m, line 1, 'a': the reference has no such name; correct it, `firstdrift show` lists"),
        ("haed: head", "m, line 1, 'haed': the reference has no such name; write 'head' if you mean that"),
        ("layer.{}.attn: blk.{}.a", "'layer.{}.attn': the reference has no such name"),
        ("zzz*: {ignore: x}", "'zzz\\*': the reference has no such name"),
        ("conv.weight: Conv.kernel", "'conv' is a name and 'weight' its port, so write the name and 'port: weight'"),
        ("conv: {candidate: Conv, port: kernel}", "'conv' has none of the ports or phases asked for but weight weight, weight bias, fwd out; correct"),  # noqa: E501
        ("conv: {candidate: Conv, phase: grad}", "'conv' has none of the ports or phases asked for"),
        ("head: haed", "m, line 1, 'head': the candidate has nothing named 'haed'; write 'head' if you mean that"),
        ("layers.{}.attn: blk.{}.attn", "the candidate has nothing named 'blk.{}.attn' \\('blk.0.attn', say\\); write 'blk.0.a'"),  # noqa: E501
        ("head: {candidate: [qkv, zzz], concatenate: 0}", "the candidate has nothing named 'zzz'"),
        ("conv: {candidate: Conv, port: weight -> kernal}", "'Conv' has no port 'kernal' but kernel, bias, out"),
        ("head: qkv\ntail: qkv", "m, line 2, 'tail': the candidate's qkv:out would stand for both tail:out and, by m, line 1, 'head', head:out"),  # noqa: E501
        ("layers.{}.attn: qkv", "the candidate's qkv:out would stand for both layers.1.attn:out and"),
        ("head: {candidate: qkv, slice: {axis: 0, stop: 4}}\ntail: qkv", "give each a 'slice' of it, or write"),
        ("head: qkv\ntail: {candidate: qkv, shared: true}", "'shared: true' in both"),
        ("conv: {candidate: Conv, port: {weight: bias, bias: bias}}", "Conv:bias would stand for both conv:bias and"),
        ("layers.{}.attn: blk.{}.a\n'{}.1.attn': blk.0.a", "line 2, '{}.1.attn': it is never used, m, line 1, 'layers.{}.attn' comes before it"),  # noqa: E501
        ("head: [head, extra]", "'head': it is never used, m, line 1, 'head' comes before it"),
        ("candidate_ignore: {exta: x}", "'exta': the candidate has no such name; write 'extra' if you mean that"),
        ("candidate_ignore: {extra: {ignore: x, port: y}}", "'extra' has none of the ports or phases .* but fwd out"),
    ],
)  # fmt: skip
def test_a_map_that_does_not_fit_is_refused(text, message):
    with pytest.raises(FormatError, match=message) as caught:
        parse_map(text, "m").check(OURS, THEIRS)
    assert "\n" not in str(caught.value)


def test_steps_calls_and_samples_are_not_further_sources():
    many = [Site(step, "fwd", "a", "out", call, sample) for step in (0, 1) for call in (0, 1) for sample in (None, 3)]
    parse_map("a: b").check(many, [each._replace(name="b") for each in many])


# Writing a map


def record(of):
    return Record(of, "f32", (2,), (0, 0, 8))


def pair(ours, theirs, how="name", concatenate=None):
    theirs = theirs if isinstance(theirs, list) else [theirs]
    return Pair(ours, record(ours), tuple(map(record, theirs)), how, concatenate=concatenate)


def lines_of(text):
    return [line.strip() for line in text.split("\n") if line.strip() and not line.strip().startswith("#")]


def reproduces(alignment, mapping=None):
    """The written map, read back, gives every site of a pair its candidate names and port, and nothing else any."""
    text = write_map(alignment, mapping)
    found = parse_map(text)
    for each in alignment.pairs:
        port = each.candidate[0].site.port
        assert targets(found, each.site.name, each.site.port, each.site.phase) == [
            (name, port) for name in dict.fromkeys(other.site.name for other in each.candidate)
        ], text
    there = [other.site for each in alignment.pairs for other in each.candidate]
    there += [item.site for item in alignment.candidate_only]
    for item in alignment.reference_only:
        said = targets(found, item.site.name, item.site.port, item.site.phase) or []
        assert not {item.site._replace(name=name, port=port) for name, port in said} & set(there), text
    ours = [each.site for each in alignment.pairs] + [item.site for item in alignment.reference_only]
    found.check(ours, there)
    return text


def test_layers_are_written_as_families_in_groups_with_what_is_left_over():
    pairs = [pair(site("embed"), site("embed"))]
    for i in range(32):
        pairs.append(pair(site(f"layers.{i}.attn"), site(f"blk.{i}.attn"), "prefix"))
        pairs.append(pair(site(f"layers.{i}.w1"), site(f"blk.{i}.gate"), "prefix"))
        pairs.append(
            pair(site(f"layers.{i}.w1", "weight", "weight"), site(f"blk.{i}.gate", "kernel", "weight"), "port")
        )
        if i != 20:
            both = [site(f"blk.{i}.q"), site(f"blk.{i}.k")]
            pairs.append(pair(site(f"layers.{i}.qk"), both, "map", concatenate=1))
    pairs.append(pair(site("norm"), site("norm")))
    alignment = Alignment(
        tuple(pairs),
        (Unmatched(site("layers.20.qk"), "the candidate\nhas no 20"), Unmatched(site("norm", "in.0"), "not recorded")),
        (Unmatched(site("debug"), "the reference has nothing named 'debug'"),),
        (Unmatched(site("loss"), "--ignore loss"),),
    )
    assert reproduces(alignment).split("\n")[2:] == [
        "version: 1",
        "pairs:",
        "  # the same name on both sides",
        "  embed: embed",
        "  norm: norm",
        "  # the same name under another prefix",
        "  layers.{}.attn: blk.{}.attn",
        "  layers.{}.w1: {candidate: 'blk.{}.gate', port: {weight: kernel, '*': '*'}}",
        "  # by a map",
        "  layers.{}.qk: {candidate: ['blk.{}.q', 'blk.{}.k'], concatenate: 1}",
        "  # the candidate has no counterpart for:",
        "  # layers.20.qk: {ignore: 'the candidate has no 20'}",
        "  #   fwd in.0 of norm: not recorded",
        "  # left out of the comparison:",
        "  # loss: {ignore: '--ignore loss'}",
        "candidate_ignore:",
        "  # only the candidate has:",
        "  # debug: {ignore: 'the reference has nothing named ''debug'''}",
        "",
    ]


def test_the_comments_of_a_written_map_are_lines_once_their_sign_is_gone():
    left = tuple(
        Unmatched(site(name), "why: [not] # {there}\n*x") for name in ("a", "no", "", "{}", "x\ny", "*z", "é" * 1100)
    )
    bare = re.sub(
        r"^  # (?!only|the candidate|left)", "  ", write_map(Alignment((), left, left, ())), flags=re.MULTILINE
    )
    mapping = parse_map(bare)
    for item in left:
        assert mapping.find(item.site).line.ignore == mapping.ignores_candidate(item.site) == "why: [not] # {there} *x"


@pytest.mark.parametrize(
    ("pairs", "left", "extra", "expected"),
    [
        ({"a.0": "b.1", "a.1": "b.0"}, [], [], ["a.0: b.1", "a.1: b.0"]),
        ({"a.0": "b.0"}, [], [], ["a.0: b.0"]),
        ({"a.0": "b.0", "a.1": "b.1", "a.x": "c"}, [], [], ["a.{}: b.{}", "a.x: c"]),
        ({"a.0": "b.0", "a.1": "b.1"}, ["a.2"], ["b.2"], ["a.0: b.0", "a.1: b.1"]),
        ({"a.0": "b.0", "a.1": "b.1"}, ["a.2"], [], ["a.{}: b.{}"]),
        ({"h.1": "m2.1", "h.2": "m2.2", "h.3": "m2.3"}, [], [], ["h.{}: m2.{}"]),
        ({"a.1.2": "b.2", "a.1.3": "b.3"}, [], [], ["a.1.{}: b.{}"]),
        ({"a.0.b.1": "0_1", "a.2.b.3": "2_3"}, [], [], ["a.{}.b.{}: '{}_{}'"]),
        ({"a1": "x1", "a2": "x2", "b1": "x1"}, [], [], ["a1: {candidate: x1, shared: true}", "a2: x2", "b1: {candidate: x1, shared: true}"]),  # noqa: E501
        ({"yes": "0", "null": "~"}, [], [], ["'yes': '0'", "'null': '~'"]),
    ],
)  # fmt: skip
def test_a_family_is_used_only_where_it_changes_nothing(pairs, left, extra, expected):
    alignment = Alignment(
        tuple(pair(site(ours), site(theirs)) for ours, theirs in pairs.items()),
        tuple(Unmatched(site(name), "gone") for name in left),
        tuple(Unmatched(site(name), "new") for name in extra),
    )
    assert lines_of(reproduces(alignment))[2:-1] == expected


def test_a_tensor_without_a_counterpart_is_not_given_one():
    alignment = Alignment(
        (pair(site("a", "weight", "weight"), site("b", "weight", "weight")), pair(site("x"), site("b"))),
        (Unmatched(site("a"), "taken"),),
        (),
    )
    assert "a: {candidate: b, phase: weight, port: {weight: weight}}" in lines_of(reproduces(alignment))


def test_a_family_does_not_pair_the_ports_that_a_line_of_its_own_leaves_out():
    pairs = [pair(site(f"a.{i}"), site(f"b.{i}")) for i in (1, 2)]
    pairs += [pair(site("a.3", port, "weight"), site(port, port, "weight")) for port in ("weight", "bias")]
    lost, new = Unmatched(site("a.3"), "lost"), Unmatched(site("b.3"), "new")
    assert "a.1: b.1" in lines_of(reproduces(Alignment(tuple(pairs), (lost,), (new,))))


def test_every_name_stands_in_the_group_of_how_it_was_found():
    pairs = [pair(site(f"a.{i}"), site(f"b.{i}"), "prefix" if i == 3 else "name") for i in (1, 2, 3)]
    _, text = reproduces(Alignment(tuple(pairs), (), ())).split("# the same name under another prefix")
    assert lines_of(text)[0] == "a.3: b.3"


def test_one_name_that_goes_several_ways_is_written_by_port_and_phase():
    by_port = (
        pair(site("a", "weight", "weight"), site("x", "w", "weight")),
        pair(site("a", "bias", "weight"), site("v", "bias", "weight")),
    )
    (line,) = lines_of(reproduces(Alignment(by_port, (), ())))[2:-1]
    assert line == "a: [{candidate: x, port: {weight: w}}, {candidate: v, port: {bias: bias}}]"
    by_phase = (
        pair(site("a", "weight", "weight"), site("x", "w", "weight")),
        pair(site("a", "weight", "grad"), site("v", "w", "grad")),
    )
    (line,) = lines_of(reproduces(Alignment(by_phase, (), ())))[2:-1]
    assert line == (
        "a: [{candidate: x, phase: weight, port: {weight: w}}, {candidate: v, phase: grad, port: {weight: w}}]"
    )


def test_a_map_that_was_used_is_kept_with_its_transforms():
    given = parse_map("""
        pairs:
          fc{}: {candidate: "d{}", port: weight -> kernel, transpose: true, scale: 1/3, tolerance: 0.00001}
          q*: {tolerance: 1e-3}
          z: {candidate: z, port: weight}
        candidate_ignore:
          tmp.*: scratch
    """)
    pairs = (
        pair(site("fc1", "weight", "weight"), site("d1", "kernel", "weight"), "map"),
        pair(site("fc1"), site("d1"), "prefix"),
        pair(site("q1"), site("q1")),
        pair(site("q2"), site("q2")),
        pair(site("z", "weight", "weight"), site("z", "weight", "weight"), "map"),
        pair(site("z"), site("z")),
    )
    text = reproduces(Alignment(pairs, (), (Unmatched(site("tmp.1"), "scratch"),)), given)
    again = parse_map(text)
    assert again.find(pairs[0].site).line.transforms == given.find(pairs[0].site).line.transforms
    assert again.find(pairs[0].site).line.tolerance.relative == 1e-5
    assert again.find(site("q1")).line.tolerance.relative == 1e-3
    assert again.ignores_candidate(site("tmp.1")) == "scratch"
    assert "z: [{candidate: z, port: weight}, {candidate: z, phase: fwd, port: {out: out}}]" in text


def test_a_family_does_not_take_over_a_wider_line_of_the_map_that_was_used():
    given = parse_map("'*.2': {candidate: b.2, scale: 2}")
    pairs = tuple(pair(site(f"a.{i}"), site(f"b.{i}"), "map" if i == 2 else "name") for i in (1, 2, 3))
    again = parse_map(reproduces(Alignment(pairs, (), ()), given))
    assert again.find(site("a.2")).line.transforms == (Transform("scale", factor=2.0),)


@pytest.mark.parametrize(
    "pairs",
    [
        # Both families fit a.1.1; that of the group which is written first is wrong about it.
        {"z": ("z", "name"), "a.1.5": ("p.5", "prefix"), "a.1.6": ("p.6", "prefix"), "a.7.1": ("q.7", "name"),
         "a.8.1": ("q.8", "name"), "a.1.1": ("p.1", "prefix")},
        # The first family is wrong about the first name of both others, of which the later is needed first.
        {name: (other, "name") for name, other in {
            "a.7.1": "q.7", "a.8.1": "q.8", "a.3.1": "p.1", "a.4.1": "r.1", "a.4.5": "r.5", "a.3.5": "p.5"}.items()},
    ],
)  # fmt: skip
def test_families_that_fit_the_same_name_stand_in_the_right_order(pairs):
    text = reproduces(
        Alignment(tuple(pair(site(name), site(other), how) for name, (other, how) in pairs.items()), (), ())
    )
    assert "a.{}.1: q.{}" in lines_of(text)


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.just("x" * 2000), st.booleans())
def test_every_text_survives_its_quotes(text, plain):
    if plain:
        from yaml import SafeLoader as Loader
    else:
        Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # noqa: N806
    assert yaml.load(flow({text: [text]}), Loader) == {text: [text]}
    assert yaml.load("\n".join(table_line(text, text)), Loader) == {text: text}


PIECE = st.sampled_from(
    ["a", "b", "w1", "layers", "0", "1", "2", "03", "{}", "*", "\\", "x*", "yes", "é", "'", "a b", "\n", "#"]
)
PATH = st.lists(PIECE, max_size=4).map(".".join)
NUMBERED = st.builds(lambda stem, i, tail: f"{stem}.{i}{tail}", st.sampled_from("ab"), st.integers(0, 4), st.sampled_from(["", ".x", ".1"]))  # fmt: skip  # noqa: E501
SITE = st.builds(
    lambda name, port, phase: site(name, port, phase),
    PATH | NUMBERED,
    st.sampled_from(["out", "weight", "a->b", "*", ""]),
    st.sampled_from(["fwd", "weight", "grad"]),
)


@st.composite
def alignments(draw):
    regular = draw(st.booleans())  # numbered layers, most of which a family can cover
    few = NUMBERED.map(site) if regular else SITE
    pairs, left = [], []
    for each in draw(st.lists(few, unique=True, min_size=6 if regular else 0, max_size=14)):
        names = draw(st.lists(PATH | NUMBERED, min_size=1, max_size=2, unique=True))
        if regular and draw(st.integers(0, 5)):
            names = [each.name.replace("a", "m.z")]
        port = each.port if regular else draw(st.sampled_from([each.port, "kernel"]))
        theirs = [each._replace(name=name, port=port) for name in names]
        if draw(st.integers(0, 5)):
            how = "prefix" if regular and draw(st.integers(0, 5)) else draw(st.sampled_from(["name", "port"]))
            pairs.append(pair(each, theirs, how, concatenate=0 if len(theirs) > 1 else None))
        else:
            left.append(Unmatched(each, draw(st.text(max_size=5))))
    used = {other.site for each in pairs for other in each.candidate}
    extra = [each for each in draw(st.lists(few, max_size=3)) if each not in used]
    return Alignment(tuple(pairs), tuple(left), tuple(Unmatched(each, "new") for each in extra))


@settings(max_examples=500, deadline=None)
@given(alignments())
def test_a_written_map_reads_back_as_the_same_pairs(alignment):
    reproduces(alignment)


def test_settings_that_are_meant_are_written_again():
    mapping = parse_map('version: 1\npairs: {}\nmeant: {"norm*.eps": "the checkpoint says so"}')
    assert mapping.meant == {"norm*.eps": "the checkpoint says so"}
    again = parse_map(write_map(Alignment((), (), ()), mapping))
    assert again.meant == mapping.meant
